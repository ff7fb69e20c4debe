//! The engine's time per chunk, without the converting pass.
//!
//! One worker, whose own contributions come straight back as results: header changed, elements as
//! they are. `engine` minus `convert` is the price of slots, timers, headers and bookkeeping.
#![allow(clippy::expect_used, reason = "a benchmark that cannot go on")]

use std::{
    hint::black_box,
    net::{Ipv4Addr, SocketAddrV4},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sumac_job::result_token;
use sumac_transport::{
    DType, DynamicParams, Engine, JobParams, Operation, PeerId, PeerTable, Scale, Time, WireFormat,
    convert::{Arithmetic, Codec},
};
use sumac_wire::{
    Kind,
    header::{HEADER_LEN, VERSION, flag, offset},
};

const ELEMENTS: u16 = 256;
/// Chunks of one operation: 1 MB, so that the tensor stays in the second-level cache.
const CHUNKS: usize = 1024;
const FRAME: usize = HEADER_LEN + ELEMENTS as usize * 4;

fn address(last: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 48_700)
}

/// A job with so many slots of its own, or with a window as large in a pool that it shares.
fn job(slots: u32, scaling: Scale, is_dynamic: bool) -> JobParams {
    JobParams {
        scaling,
        dynamic: is_dynamic.then(|| DynamicParams {
            initial_window: Some(slots),
            ..DynamicParams::new(4 * slots).with_window(slots)
        }),
        ..JobParams::new(1, 1, slots, ELEMENTS)
    }
}

/// Makes the answer of a contribution, an exponent round or a probe.
fn turn_round(frame: &mut [u8], params: &JobParams) {
    let kind = if frame[0] & 0x0f == Kind::Probe as u8 { Kind::Report } else { Kind::Result };
    frame[0] = VERSION << 4 | kind as u8;
    frame[offset::TOKEN..][..8].copy_from_slice(&result_token(params.token).to_be_bytes());
    frame[offset::CONTRIBUTORS + 1] = 1;
    if u16::from_be_bytes([frame[offset::FLAGS], frame[offset::FLAGS + 1]]) & flag::EXPONENT != 0 {
        frame[offset::EXPONENT] = frame[offset::NEXT_EXPONENT];
    }
    if params.dynamic.is_some() {
        frame[offset::FLAGS + 1] &= !(flag::RESEND as u8);
        return;
    }
    let seq = frame[offset::SEQ..].first_chunk().copied().map_or(0, u32::from_be_bytes);
    frame[offset::NEXT_SEQ..][..4].copy_from_slice(&seq.wrapping_add(2 * params.slots).to_be_bytes());
}

/// A window of frames that fly: what was sent in one turn is answered in the next.
struct Wire {
    frames: Vec<[u8; FRAME]>,
    lengths: Vec<usize>,
    now: Time,
}

impl Wire {
    fn turn(&mut self, engine: &mut Engine) -> bool {
        self.lengths.clear();
        for frame in &mut self.frames {
            self.now = self.now.plus(100);
            let Some(sent) = engine.poll_transmit(self.now, frame) else { break };
            turn_round(frame, engine.params());
            self.lengths.push(sent.len);
        }
        for (frame, len) in self.frames.iter().zip(&self.lengths) {
            self.now = self.now.plus(100);
            engine.on_payload(self.now, PeerId(0), &frame[..*len]);
        }
        !self.lengths.is_empty()
    }
}

fn engine(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(CHUNKS as u64));
    let scalings = [("fixed", Scale::Fixed(65536.0)), ("block", Scale::Block)];
    let cases = [(64u32, false), (512, false), (64, true), (512, true)];
    let cases = cases.into_iter().flat_map(|case| scalings.map(|scaling| (case, scaling)));
    let peers = PeerTable::of(Some(address(1)), [address(2)]);
    for ((slots, is_dynamic), (name, scaling)) in cases {
        let mut engine = Engine::new(job(slots, scaling, is_dynamic), &peers).expect("good parameters");
        let frames = vec![[0; FRAME]; slots as usize];
        let mut wire = Wire { frames, lengths: Vec::with_capacity(slots as usize), now: Time(0) };
        let count = CHUNKS * usize::from(ELEMENTS);
        let mut buffer: Option<Box<dyn sumac_transport::Buffer>> = Some(Box::new(vec![0u8; count * 4]));
        let places = if is_dynamic { "places in the window" } else { "slots" };
        group.bench_function(format!("round trips, {slots} {places}, {name} scale"), |b| {
            b.iter(|| {
                let buffer_back = buffer.take().expect("handed back");
                let operation = Operation::allreduce(0, DType::Float32, Arithmetic::Sum, count, buffer_back);
                engine.submit(wire.now, operation).expect("a good operation");
                while wire.turn(&mut engine) {}
                buffer = engine.poll_completion().map(|completion| completion.buffer);
            });
        });
    }
    conversions(&mut group);
    group.finish();
}

/// The same bytes through the codec alone.
fn conversions(group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>) {
    let codec = Codec::new(1, WireFormat::Int32, Scale::Fixed(65536.0));
    let mut tensor = vec![0u8; CHUNKS * usize::from(ELEMENTS) * 4];
    let mut frames = vec![[0u8; FRAME]; 64];
    group.bench_function("conversions alone", |b| {
        b.iter(|| {
            for (chunk, at) in tensor.chunks_mut(usize::from(ELEMENTS) * 4).zip((0..64).cycle()) {
                black_box(codec.encode(
                    DType::Float32,
                    Arithmetic::Sum,
                    0,
                    chunk,
                    &mut frames[at][HEADER_LEN..],
                ));
                codec.decode(DType::Float32, Arithmetic::Sum, 0, black_box(&frames[at][HEADER_LEN..]), chunk);
            }
        });
    });
}

criterion_group!(benches, engine);
criterion_main!(benches);
