//! The time of a packet's headers, and of its checksum.
//!
//! `cargo bench -p sumac-benches --bench wire`

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sumac_wire::{
    Header, Kind, admit, checksum,
    frame::{Endpoints, OVERHEAD, Parsed, Ports, emit, parse},
    header::HEADER_LEN,
    slot::{Contribution, SlotMeta, decide},
    tables::{JobEntry, job_flag},
};

const PORTS: Ports = Ports { base: 48700, shards: 1 };
const ADDRESSES: Endpoints = Endpoints {
    src_mac: [2, 0, 0, 0, 0, 1],
    dst_mac: [2, 0, 0, 0, 0, 2],
    src_ip: 0x0a4d_0102,
    dst_ip: 0x0a4d_0101,
    src_port: 50000,
    dst_port: 48700,
    dscp_ecn: 0,
};

fn header(elements: u16) -> Header {
    Header {
        kind: Kind::Contribution as u8,
        job: 1,
        epoch: 1,
        fan_in_0: 4,
        elements,
        bitmap_0: 1,
        token: 7,
        ..Header::default()
    }
}

fn frame(elements: u16) -> Vec<u8> {
    let mut frame = vec![0x5a; OVERHEAD + admit::payload_len(elements)];
    frame[OVERHEAD..OVERHEAD + HEADER_LEN].copy_from_slice(&header(elements).to_bytes());
    emit(&mut frame, &ADDRESSES, admit::payload_len(elements), true);
    frame
}

fn admission(c: &mut Criterion) {
    let mut group = c.benchmark_group("packet");
    let job = JobEntry {
        token: 7,
        slots: 64,
        lane_slots_log2: 6,
        shards: 1,
        epoch: 1,
        world: 4,
        contributors: 4,
        elements: 832,
        flags: job_flag::ACTIVE,
        ..JobEntry::default()
    };
    let bytes = frame(256);
    group.bench_function("parse and admit", |b| {
        b.iter(|| {
            let Parsed::Ours(frame) = parse(black_box(&bytes[..]), PORTS) else { return None };
            let header = Header::read(&bytes[..], frame.payload(), frame.payload_len()).ok()?;
            admit::sender(&header, black_box(&job)).ok()?;
            admit::request(&header, &job, 0).ok()?
        });
    });
    let contribution = Contribution {
        owner: 1 << 16 | 1,
        seq: 0,
        slot: 0,
        lane: 0,
        version: 0,
        worker: 2,
        all: 15,
        awaited: 15,
        slots: 64,
        tensor: 9,
        elements: 256,
        flags: 0,
        next_exponent: -3,
        limit: 0,
        bound: 0,
        received: 0,
        child: false,
        ranks: u32::MAX,
        left_out: 0,
    };
    let (meta, _) = decide(&SlotMeta::default(), &Contribution { worker: 1, ..contribution });
    group.bench_function("decide", |b| b.iter(|| decide(black_box(&meta), black_box(&contribution))));
    group.finish();
}

fn checksums(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum");
    for elements in [64, 256, 832] {
        let mut bytes = frame(elements);
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(format!("sum/{elements}"), |b| {
            b.iter(|| checksum::add(0, black_box(&bytes[OVERHEAD..])));
        });
        let payload_len = bytes.len() - OVERHEAD;
        group.bench_function(format!("emit headers and checksum/{elements}"), |b| {
            b.iter(|| emit(black_box(&mut bytes), &ADDRESSES, payload_len, true));
        });
    }
    group.finish();
}

criterion_group!(benches, admission, checksums);
criterion_main!(benches);
