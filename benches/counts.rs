//! Workloads for `tools/bench/counts.py`, which counts their instructions under callgrind.
//!
//! Callgrind writes what it counted when `dump` is called. A line of the output describes each dump, in their
//! order; the line before them has the instructions of the converting passes.

use sumac_benches::{
    aggregator::{Sums, WORKERS},
    dump,
    engine::{Loop, job},
    udp::Sockets,
};
use sumac_transport::{
    DType, Scale, WireFormat,
    convert::{Arithmetic, Codec},
};
use sumac_wire::admit::payload_len;

/// Words of a packet: the smallest chunk, and the largest at MTU 1500 and 3506.
const SIZES: [u16; 3] = [64, 352, 832];
const SLOTS: u32 = 64;
/// Chunks of an operation.
const CHUNKS: usize = 512;
/// Datagrams in one go: a batch of the daemon.
const WINDOW: usize = 64;

fn engine(elements: u16) {
    let codec = Codec::new(1, WireFormat::Int32, Scale::Block);
    for (name, dtype, is_dynamic) in [
        ("float32", DType::Float32, false),
        ("int32", DType::Int32, false),
        ("bfloat16", DType::Bfloat16, false),
        ("float32, dynamic", DType::Float32, true),
    ] {
        let of_packet = usize::from(elements) * codec.values_per_word(dtype, Arithmetic::Sum);
        let count = CHUNKS * of_packet;
        let mut worker = Loop::new(job(SLOTS, elements, Scale::Block, is_dynamic), count * dtype.size());
        worker.allreduce(dtype, count);
        dump("-");
        let packets = worker.allreduce(dtype, count);
        dump(&format!("engine|{name}|{of_packet}|{packets}"));
    }
}

fn aggregator(elements: u16) {
    for (name, is_dynamic) in [("static", false), ("dynamic", true)] {
        let mut sums = Sums::new(elements, is_dynamic);
        (0..CHUNKS).for_each(|_| sums.chunk());
        dump("-");
        (0..CHUNKS).for_each(|_| sums.chunk());
        // A dynamic job's result is a packet too.
        let packets = CHUNKS * (usize::from(WORKERS) + usize::from(is_dynamic));
        dump(&format!("aggregator|{name}|{elements}|{packets}"));
    }
}

fn udp(elements: u16) {
    let mut sockets = Sockets::new(payload_len(elements));
    sockets.window(WINDOW);
    dump("-");
    (0..8).for_each(|_| sockets.window(WINDOW));
    dump(&format!("UDP sockets|both ways|{elements}|{}", 8 * WINDOW));
}

fn main() {
    let instructions = Codec::new(1, WireFormat::Int32, Scale::Block).instructions();
    println!("{instructions:?}");
    for elements in SIZES {
        engine(elements);
        aggregator(elements);
        udp(elements);
    }
}
