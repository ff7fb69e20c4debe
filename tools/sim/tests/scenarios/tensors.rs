//! The values of a job's tensors, and what every worker must have in the end: computed chunk by chunk from the scalar codec's
//! words in 64 bits, or from the floats in rank order where those do not fit. Nothing here knows of levels, slots and packets.

use std::ops::Range;

use half::{bf16, f16};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::{Arithmetic, DType, Scaling, WireFormat, convert::Codec};

use crate::scenario::{JobPlan, Tensor};

/// What one worker has in each tensor before, as bytes in memory.
pub fn inputs(job: &JobPlan, seed: u64, rank: usize) -> Vec<Vec<u8>> {
    let base = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(job.params.job) << 40;
    let mut rng = ChaCha8Rng::seed_from_u64(base ^ rank as u64);
    // Where sums are too large, and which way, all workers must agree.
    let mut shared = ChaCha8Rng::seed_from_u64(!base);
    let fill = |tensor: &Tensor| {
        let limit = f64::from(i32::MAX) / f64::from(job.params.world);
        let mut magnitude = 1.0;
        let mut value = |index: usize| {
            if index.is_multiple_of(16) {
                magnitude = self::magnitude(job.params.scaling, tensor.dtype, limit, &mut rng);
            }
            let normal = rng.random_range(-magnitude..=magnitude);
            let (part, sign) = (shared.random::<f64>(), if shared.random_bool(0.5) { 1.0 } else { -1.0 });
            let is_hot = tensor.overflows && part < 0.02;
            let value = match job.params.scaling {
                // Two of these are too many.
                Scaling::Fixed(scale) if is_hot => {
                    sign * rng.random_range(1.1..3.0) * f64::from(i32::MAX) / 2.0 / f64::from(scale)
                }
                _ => normal,
            };
            bytes(tensor.dtype, value)
        };
        (0..tensor.count).flat_map(&mut value).collect::<Vec<u8>>()
    };
    job.tensors.iter().map(fill).collect()
}

/// A magnitude whose sums fit.
fn magnitude(scaling: Scaling, dtype: DType, limit: f64, rng: &mut ChaCha8Rng) -> f64 {
    match (dtype, scaling) {
        (DType::I32, _) => limit.floor(),
        // float16 ends at 65,504.
        (_, Scaling::Fixed(scale)) => {
            let most = limit / f64::from(scale) * 0.99;
            [most.min(60_000.0 / 8.0), 1.5 / f64::from(scale)][rng.random_range(0..2)]
        }
        (DType::F16, _) => f64::exp2(f64::from(rng.random_range(-26..12))),
        (_, Scaling::Block) => f64::exp2(f64::from(rng.random_range(-140..110))),
    }
}

fn bytes(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DType::F16 => f16::from_f64(value).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
        _ => (value as i32).to_ne_bytes().to_vec(),
    }
}

fn float(dtype: DType, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (DType::F32, [a, b, c, d]) => f32::from_ne_bytes([*a, *b, *c, *d]),
        (DType::F16, [a, b]) => f16::from_ne_bytes([*a, *b]).to_f32(),
        (DType::BF16, [a, b]) => bf16::from_ne_bytes([*a, *b]).to_f32(),
        _ => panic!("no float"),
    }
}

/// What a chunk may come out as, the same on all workers.
#[derive(Debug)]
pub struct Chunk {
    pub span: Range<usize>,
    /// The sum of integers, where it fits; and the sum of floats, where it may be asked for.
    pub allowed: Vec<(Form, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    Integers,
    Floats,
}

/// What the chunks of one tensor may come out as.
pub fn outputs(job: &JobPlan, number: usize, inputs: &[Vec<Vec<u8>>]) -> Vec<Chunk> {
    let tensor = &job.tensors[number];
    let codec = codec(job, job.params.world);
    let chunk = usize::from(job.params.elements) * codec.values_per_word(tensor.dtype, tensor.arithmetic());
    let spans = (0..tensor.count).step_by(chunk).map(|first| first..(first + chunk).min(tensor.count));
    spans.map(|span| Chunk { allowed: allowed(job, number, inputs, span.clone()), span }).collect()
}

fn codec(job: &JobPlan, world: u16) -> Codec {
    Codec::new(world, WireFormat::Int32, job.params.scaling).scalar()
}

fn allowed(
    job: &JobPlan,
    number: usize,
    inputs: &[Vec<Vec<u8>>],
    span: Range<usize>,
) -> Vec<(Form, Vec<u8>)> {
    let tensor = &job.tensors[number];
    let arithmetic = tensor.arithmetic();
    let is_sum = matches!(arithmetic, Arithmetic::Sum | Arithmetic::Mean);
    let is_float_sum = is_sum && tensor.dtype != DType::I32;
    let given: Vec<Vec<u8>> = (0..inputs.len()).map(|rank| given(job, number, inputs, rank, &span)).collect();
    let integers = integers(job, tensor, &given, &span).map(|bytes| (Form::Integers, bytes));
    let is_block = job.params.scaling == Scaling::Block && job.params.dynamic.is_some();
    let wants_floats = is_float_sum && (integers.is_none() || is_block);
    let floats = wants_floats.then(|| (Form::Floats, floats(tensor, &given)));
    integers.into_iter().chain(floats).collect()
}

/// The values of one worker: zeros where it gives none.
fn given(job: &JobPlan, number: usize, inputs: &[Vec<Vec<u8>>], rank: usize, span: &Range<usize>) -> Vec<u8> {
    let tensor = &job.tensors[number];
    let size = tensor.dtype.size();
    let range = overlap(&tensor.parts(rank, inputs.len()).0, span);
    let mut bytes = vec![0; span.len() * size];
    let own = &inputs[rank][number][range.start * size..range.end * size];
    bytes[(range.start - span.start) * size..][..own.len()].copy_from_slice(own);
    bytes
}

pub fn overlap(range: &Range<usize>, span: &Range<usize>) -> Range<usize> {
    let start = range.start.clamp(span.start, span.end);
    start..range.end.clamp(start, span.end)
}

/// The sum of integers; `None`: it does not fit.
fn integers(job: &JobPlan, tensor: &Tensor, given: &[Vec<u8>], span: &Range<usize>) -> Option<Vec<u8>> {
    let (dtype, arithmetic) = (tensor.dtype, tensor.arithmetic());
    let whole = codec(job, job.params.world);
    // A dynamic job's values may be as large as sums; there is no such limit by block.
    let is_fixed = matches!(job.params.scaling, Scaling::Fixed(_));
    let writer = if is_fixed { codec(job, 1) } else { whole };
    let exponent = given.iter().map(|bytes| whole.exponent(dtype, arithmetic, bytes)).max()?;
    let words = span.len().div_ceil(whole.values_per_word(dtype, arithmetic));
    let mut sums: Vec<i64> = Vec::new();
    let is_order = matches!(arithmetic, Arithmetic::Max | Arithmetic::Min);
    let is_sum = matches!(arithmetic, Arithmetic::Sum | Arithmetic::Mean);
    for bytes in given {
        let mut wire = vec![0; words * 4];
        let met = writer.encode(dtype, arithmetic, exponent, bytes, &mut wire);
        if met.saturated.is_some() {
            return None;
        }
        let own = wire.as_chunks().0.iter().map(|word| i64::from(i32::from_be_bytes(*word)));
        if sums.is_empty() {
            sums = own.collect();
        } else {
            let merge =
                |(sum, new): (&mut i64, i64)| *sum = if is_order { new.max(*sum) } else { *sum + new };
            sums.iter_mut().zip(own).for_each(merge);
        }
    }
    if is_sum && sums.iter().any(|sum| i32::try_from(*sum).is_err()) {
        return None;
    }
    let wire: Vec<u8> = sums.iter().flat_map(|sum| (*sum as i32).to_be_bytes()).collect();
    let mut bytes = vec![0; span.len() * dtype.size()];
    whole.decode(dtype, arithmetic, exponent, &wire, &mut bytes);
    Some(bytes)
}

/// The sum of floats: in rank order, in 64 bits, rounded once to 32 on the way back.
fn floats(tensor: &Tensor, given: &[Vec<u8>]) -> Vec<u8> {
    let (dtype, size) = (tensor.dtype, tensor.dtype.size());
    let divisor = if tensor.arithmetic() == Arithmetic::Mean { given.len() as f64 } else { 1.0 };
    let value = |at: usize| {
        let own = given.iter().map(|bytes| f64::from(float(dtype, &bytes[at * size..][..size])));
        let sum = own.fold(None, |sum: Option<f64>, value| Some(sum.map_or(value, |sum| sum + value)));
        let sum = f64::from(sum.unwrap_or_default() as f32);
        let mean = (sum / divisor) as f32;
        match dtype {
            DType::F32 => mean.to_ne_bytes().to_vec(),
            DType::F16 => f16::from_f32(mean).to_ne_bytes().to_vec(),
            _ => bf16::from_f32(mean).to_ne_bytes().to_vec(),
        }
    };
    (0..given[0].len() / size).flat_map(value).collect()
}
