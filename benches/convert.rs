//! The converting pass against a plain copy of the same bytes.
//!
//! `cargo bench -p sumac-benches --bench convert`. A chunk stays in the first-level cache; a tensor
//! of 100 MB shows what memory allows.
#![allow(missing_docs, reason = "criterion's macros")]

use std::hint::black_box;

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use sumac_transport::{
    DType,
    convert::{Arithmetic, Codec, Scaling, WireFormat},
};

/// Elements of each run: three chunk sizes, and 100 MB in chunks of 256.
const CHUNKS: [usize; 3] = [64, 256, 832];
const TENSOR: usize = 25_000_000;

fn floats(count: usize) -> Vec<u8> {
    (0..count).flat_map(|i| ((i % 2003) as f32 / 1000.0 - 1.0).to_ne_bytes()).collect()
}

fn one_chunk(group: &mut BenchmarkGroup<'_, WallTime>, count: usize) {
    let codec = Codec::new(4, WireFormat::Int32, Scaling::Fixed(65536.0));
    let tensor = floats(count);
    let mut out = vec![0; tensor.len()];
    group.throughput(Throughput::Bytes(tensor.len() as u64));
    group.bench_function(format!("copy/{count}"), |b| {
        b.iter(|| black_box(&mut out).copy_from_slice(black_box(&tensor)));
    });
    let integers: Vec<u8> = (0..count as i32).flat_map(i32::to_ne_bytes).collect();
    for (dtype, tensor) in [(DType::F32, &tensor), (DType::I32, &integers)] {
        for codec in [codec, codec.scalar()] {
            let how = if codec.is_vector() { "vector" } else { "scalar" };
            group.bench_function(format!("encode {dtype:?} {how}/{count}"), |b| {
                b.iter(|| codec.encode(dtype, Arithmetic::Sum, 0, black_box(tensor), black_box(&mut out)));
            });
            group.bench_function(format!("decode {dtype:?} {how}/{count}"), |b| {
                b.iter(|| codec.decode(dtype, Arithmetic::Sum, 0, black_box(tensor), black_box(&mut out)));
            });
        }
    }
}

/// A tensor from memory into one frame after the other, and back.
fn whole_tensor(group: &mut BenchmarkGroup<'_, WallTime>) {
    let codec = Codec::new(4, WireFormat::Int32, Scaling::Fixed(65536.0));
    let mut tensor = floats(TENSOR);
    let mut frame = vec![0; 1024];
    group.throughput(Throughput::Bytes(tensor.len() as u64)).sample_size(10);
    group.bench_function("copy to frames/100 MB", |b| {
        b.iter(|| tensor.chunks(1024).for_each(|c| black_box(&mut frame)[..c.len()].copy_from_slice(c)));
    });
    group.bench_function("encode to frames/100 MB", |b| {
        b.iter(|| {
            for chunk in tensor.chunks(1024) {
                black_box(codec.encode(DType::F32, Arithmetic::Sum, 0, chunk, black_box(&mut frame)));
            }
        });
    });
    group.bench_function("copy from frames/100 MB", |b| {
        b.iter(|| tensor.chunks_mut(1024).for_each(|c| c.copy_from_slice(&black_box(&frame)[..c.len()])));
    });
    group.bench_function("decode from frames/100 MB", |b| {
        b.iter(|| {
            tensor
                .chunks_mut(1024)
                .for_each(|chunk| codec.decode(DType::F32, Arithmetic::Sum, 0, black_box(&frame), chunk));
        });
    });
}

fn convert(c: &mut Criterion) {
    let mut group = c.benchmark_group("convert");
    CHUNKS.iter().for_each(|count| one_chunk(&mut group, *count));
    whole_tensor(&mut group);
    group.finish();
}

criterion_group!(benches, convert);
criterion_main!(benches);
