//! The converting pass against a plain copy of the same bytes.
//!
//! `cargo bench -p sumac-benches --bench convert [-- hot|memory]`. *hot*: one chunk that stays in the
//! first-level cache. *memory*: a tensor several times larger than the caches, chunk by chunk into frames and
//! back, as the engine does it; `copy` of the same pieces is what memory allows. The rates count the tensor's
//! bytes.

use std::{hint::black_box, time::Duration};

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use sumac_transport::{
    DType, Scale, WireFormat,
    convert::{Arithmetic, Codec, Instructions},
};
use sumac_wire::header::HEADER_LEN;

/// Words of a chunk: what fits a frame of 3.4 KB.
const WORDS: usize = 832;
/// Bytes of the tensor in memory.
const TENSOR: usize = 256 << 20;
/// Frames in flight, all in the second-level cache: on pages of their own, as an AF_XDP socket has them, with
/// room for a copy of the longest chunk.
const FRAMES: usize = 64;
const FRAME: usize = 8192;
/// The offset of elements in a frame: after the headers of Ethernet, IPv4, UDP and Sumac.
const PAYLOAD: usize = 14 + 20 + 8 + HEADER_LEN;
const WORKERS: u16 = 8;

/// A row of the comparison.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    dtype: DType,
    arithmetic: Arithmetic,
    wire: WireFormat,
    scaling: Scale,
}

impl Kind {
    const fn new(name: &'static str, dtype: DType, arithmetic: Arithmetic, wire: WireFormat) -> Kind {
        Kind { name, dtype, arithmetic, wire, scaling: Scale::Block }
    }

    fn codec(&self) -> Codec {
        Codec::new(WORKERS, self.wire, self.scaling)
    }

    /// Tensor bytes of a chunk.
    fn chunk(&self) -> usize {
        WORDS * self.codec().values_per_word(self.dtype, self.arithmetic) * self.dtype.size()
    }

    /// Values from -1 to 1 or small integers, repeated.
    fn tensor(&self, bytes: usize) -> Vec<u8> {
        let value = |i: usize| (i % 2003) as f32 / 1001.5 - 1.0;
        let bytes_of = |i: usize| match self.dtype {
            DType::Float16 => half::f16::from_f32(value(i)).to_ne_bytes().to_vec(),
            DType::Bfloat16 => half::bf16::from_f32(value(i)).to_ne_bytes().to_vec(),
            DType::Int32 => (i as i32 % 2003).to_ne_bytes().to_vec(),
            DType::Float32 => value(i).to_ne_bytes().to_vec(),
        };
        let period: Vec<u8> = (0..2003).flat_map(bytes_of).collect();
        period.iter().copied().cycle().take(bytes).collect()
    }
}

const KINDS: [Kind; 11] = [
    Kind::new("f32", DType::Float32, Arithmetic::Sum, WireFormat::Int32),
    Kind {
        scaling: Scale::Fixed(65536.0),
        ..Kind::new("f32 fixed", DType::Float32, Arithmetic::Sum, WireFormat::Int32)
    },
    Kind::new("f16", DType::Float16, Arithmetic::Sum, WireFormat::Int32),
    Kind::new("bf16", DType::Bfloat16, Arithmetic::Sum, WireFormat::Int32),
    Kind::new("i32", DType::Int32, Arithmetic::Sum, WireFormat::Int32),
    Kind::new("i32 mean", DType::Int32, Arithmetic::Mean, WireFormat::Int32),
    Kind::new("f32 int16", DType::Float32, Arithmetic::Sum, WireFormat::Int16),
    Kind::new("f16 int16", DType::Float16, Arithmetic::Sum, WireFormat::Int16),
    Kind::new("f32 max", DType::Float32, Arithmetic::Max, WireFormat::Int32),
    Kind::new("bf16 min", DType::Bfloat16, Arithmetic::Min, WireFormat::Int32),
    Kind::new("bits", DType::Float32, Arithmetic::Bits, WireFormat::Int32),
];

/// One chunk in the first-level cache, by every implementation.
fn hot(c: &mut Criterion) {
    let mut group = c.benchmark_group("hot");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for kind in KINDS {
        let Kind { name, dtype, arithmetic, .. } = kind;
        let mut tensor = kind.tensor(kind.chunk());
        let mut wire = vec![0; WORDS * 4];
        group.throughput(Throughput::Bytes(tensor.len() as u64));
        let mut copy = tensor.clone();
        group.bench_function(format!("{name}/copy"), |b| {
            b.iter(|| black_box(&mut copy).copy_from_slice(black_box(&tensor)));
        });
        for &instructions in Instructions::VECTORS.iter().rev().chain([&Instructions::Scalar]) {
            let codec = kind.codec().on(instructions);
            if codec.instructions() != instructions {
                println!("SKIP {name} on {instructions:?}: this machine does not have it");
                continue;
            }
            let how = format!("{instructions:?}").to_lowercase();
            let exponent = codec.exponent(dtype, arithmetic, &tensor);
            group.bench_function(format!("{name}/encode {how}"), |b| {
                b.iter(|| {
                    codec.encode(dtype, arithmetic, exponent, black_box(&tensor), black_box(&mut wire))
                });
            });
            group.bench_function(format!("{name}/decode {how}"), |b| {
                b.iter(|| {
                    codec.decode(dtype, arithmetic, exponent, black_box(&wire), black_box(&mut tensor));
                });
            });
            if codec.needs_exponent(dtype, arithmetic) {
                group.bench_function(format!("{name}/exponent {how}"), |b| {
                    b.iter(|| codec.exponent(dtype, arithmetic, black_box(&tensor)));
                });
            }
        }
    }
    group.finish();
}

/// A tensor from memory into one frame after the other, and back.
fn memory(c: &mut Criterion) {
    let mut group = c.benchmark_group("memory");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Bytes(TENSOR as u64));
    for kind in KINDS {
        let mut tensor = kind.tensor(TENSOR);
        let mut frames = vec![0; FRAMES * FRAME];
        out(&mut group, kind, &tensor, &mut frames);
        back(&mut group, kind, &mut tensor, &frames);
    }
    group.finish();
}

/// Returns the `len` bytes of elements in the frame of the chunk with this number.
fn payload(number: usize, len: usize) -> std::ops::Range<usize> {
    let start = number % FRAMES * FRAME + PAYLOAD;
    start..start + len
}

fn out(group: &mut BenchmarkGroup<'_, WallTime>, kind: Kind, tensor: &[u8], frames: &mut [u8]) {
    let Kind { name, dtype, arithmetic, .. } = kind;
    let codec = kind.codec();
    let exponent = codec.exponent(dtype, arithmetic, &tensor[..kind.chunk()]);
    let chunks = || tensor.chunks(kind.chunk()).enumerate();
    group.bench_function(format!("{name}/copy out"), |b| {
        b.iter(|| {
            for (number, chunk) in chunks() {
                black_box(&mut frames[payload(number, chunk.len())]).copy_from_slice(chunk);
            }
        });
    });
    group.bench_function(format!("{name}/encode"), |b| {
        b.iter(|| {
            for (number, chunk) in chunks() {
                let payload = black_box(&mut frames[payload(number, WORDS * 4)]);
                black_box(codec.encode(dtype, arithmetic, exponent, chunk, payload));
            }
        });
    });
    if !codec.needs_exponent(dtype, arithmetic) {
        return;
    }
    // The engine's way where small values go as floats.
    group.bench_function(format!("{name}/encode and look for small values"), |b| {
        b.iter(|| {
            for (number, chunk) in chunks() {
                let payload = black_box(&mut frames[payload(number, WORDS * 4)]);
                black_box(codec.encode(dtype, arithmetic, exponent, chunk, payload));
                black_box(codec.loses(dtype, arithmetic, exponent, chunk));
            }
        });
    });
    group.bench_function(format!("{name}/exponent"), |b| {
        b.iter(|| {
            for (_, chunk) in chunks() {
                black_box(codec.exponent(dtype, arithmetic, chunk));
            }
        });
    });
    // The engine's way: a chunk goes out with the exponent of the one that takes its slot next, a window
    // later.
    group.bench_function(format!("{name}/encode and look ahead"), |b| {
        b.iter(|| {
            for ((number, chunk), (_, later)) in chunks().zip(chunks().skip(FRAMES)) {
                black_box(codec.exponent(dtype, arithmetic, later));
                let payload = black_box(&mut frames[payload(number, WORDS * 4)]);
                black_box(codec.encode(dtype, arithmetic, exponent, chunk, payload));
            }
        });
    });
}

fn back(group: &mut BenchmarkGroup<'_, WallTime>, kind: Kind, tensor: &mut [u8], frames: &[u8]) {
    let Kind { name, dtype, arithmetic, .. } = kind;
    let codec = kind.codec();
    group.bench_function(format!("{name}/copy back"), |b| {
        b.iter(|| {
            for (number, chunk) in tensor.chunks_mut(kind.chunk()).enumerate() {
                chunk.copy_from_slice(black_box(&frames[payload(number, chunk.len())]));
            }
        });
    });
    group.bench_function(format!("{name}/decode"), |b| {
        b.iter(|| {
            for (number, chunk) in tensor.chunks_mut(kind.chunk()).enumerate() {
                codec.decode(dtype, arithmetic, 0, black_box(&frames[payload(number, WORDS * 4)]), chunk);
            }
        });
    });
}

criterion_group!(benches, hot, memory);
criterion_main!(benches);
