//! The engine's time per chunk, without the converting pass: the price of slots, timers, headers and
//! bookkeeping is `engine` minus `conversions alone`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sumac_benches::engine::{Loop, job};
use sumac_transport::{
    DType, Scale, WireFormat,
    convert::{Arithmetic, Codec},
};
use sumac_wire::header::HEADER_LEN;

const ELEMENTS: u16 = 256;
/// Chunks of one operation: 1 MB, so that the tensor stays in the second-level cache.
const CHUNKS: usize = 1024;
const FRAME: usize = HEADER_LEN + ELEMENTS as usize * 4;

fn engine(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(CHUNKS as u64));
    let scalings = [("fixed", Scale::Fixed(65536.0)), ("block", Scale::Block)];
    let cases = [(64u32, false), (512, false), (64, true), (512, true)];
    let cases = cases.into_iter().flat_map(|case| scalings.map(|scaling| (case, scaling)));
    for ((slots, is_dynamic), (name, scaling)) in cases {
        let count = CHUNKS * usize::from(ELEMENTS);
        let mut worker = Loop::new(job(slots, ELEMENTS, scaling, is_dynamic), count * 4);
        let places = if is_dynamic { "places in the window" } else { "slots" };
        group.bench_function(format!("round trips, {slots} {places}, {name} scale"), |b| {
            b.iter(|| worker.allreduce(DType::Float32, count));
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
