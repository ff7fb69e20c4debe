//! The values of a job's tensors, and the expected results: computed chunk by chunk from the scalar codec's
//! words in 64 bits, or from the floats in rank order where those overflow. Levels, slots and packets play no
//! part here.

use std::ops::Range;

use half::{bf16, f16};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::{
    Arithmetic, DType, NonFinitePolicy, Scale, WireFormat,
    convert::{Codec, fill_nan},
};

use crate::scenario::{JobPlan, Sums, Tensor};

/// The values of one worker in each tensor, as bytes in memory. A replacement, of generation 1, has other
/// values.
pub fn inputs(job: &JobPlan, seed: u64, rank: usize, generation: u8) -> Vec<Vec<u8>> {
    let base = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(job.params.job) << 40;
    let mut rng = ChaCha8Rng::seed_from_u64(base ^ rank as u64 ^ u64::from(generation) << 32);
    // All workers must agree on the elements that overflow, and on their signs.
    let mut shared = ChaCha8Rng::seed_from_u64(!base);
    let fill = |tensor: &Tensor| {
        let mut magnitude = 1.0;
        let mut value = |index: usize| {
            if index.is_multiple_of(16) {
                magnitude = self::magnitude(job, tensor, &mut rng);
            }
            let normal = rng.random_range(-magnitude..=magnitude);
            let (part, sign) = (shared.random::<f64>(), if shared.random_bool(0.5) { 1.0 } else { -1.0 });
            let most = f64::from(i32::MAX) / scale(job, tensor.dtype);
            let value = match (tensor.poison, tensor.sums) {
                (Some(poison), _) if poison == (rank, index) => {
                    if tensor.dtype == DType::Int32 {
                        f64::from(i32::MIN)
                    } else {
                        f64::NAN
                    }
                }
                (_, Sums::TooLarge) if part < 0.02 => sign * rng.random_range(1.1..3.0) * most / 2.0,
                // One overflow fails an operation of integers; not all operations should fail.
                (_, Sums::InParts) if part < (if tensor.dtype == DType::Int32 { 0.002 } else { 0.02 }) => {
                    most * rng.random_range(0.3..0.95) * if rng.random_bool(0.5) { 1.0 } else { -1.0 }
                }
                _ => normal,
            };
            bytes(tensor.dtype, value)
        };
        (0..tensor.count).flat_map(&mut value).collect::<Vec<u8>>()
    };
    job.tensors.iter().map(fill).collect()
}

/// The factor of a job's conversion to integers; 1 with block exponents.
fn scale(job: &JobPlan, dtype: DType) -> f64 {
    match job.params.scaling {
        Scale::Fixed(scale) if dtype != DType::Int32 => scale.into(),
        _ => 1.0,
    }
}

/// A magnitude whose sums fit, from huge to subnormal.
fn magnitude(job: &JobPlan, tensor: &Tensor, rng: &mut ChaCha8Rng) -> f64 {
    let is_dynamic = job.is_dynamic();
    let limit = match is_dynamic && !is_packed(job, tensor) {
        true => f64::from(i32::MAX) / f64::from(job.params.world),
        false => f64::from(codec(job, job.params.world).limit(tensor.dtype, tensor.arithmetic())),
    };
    match (tensor.dtype, job.params.scaling) {
        (DType::Int32, _) => limit.floor(),
        (_, Scale::Fixed(scale)) => {
            let most = limit / f64::from(scale) * 0.99;
            // float16 ends at 65,504.
            let largest = if is_dynamic { 60_000.0 / 8.0 } else { 65_000.0 };
            [most.min(largest), 1.5 / f64::from(scale)][rng.random_range(0..2)]
        }
        (DType::Float16, _) => f64::exp2(f64::from(rng.random_range(-26..12))),
        (_, Scale::Block) if is_dynamic => f64::exp2(f64::from(rng.random_range(-140..110))),
        (_, Scale::Block) => f64::exp2(f64::from(rng.random_range(-148..120))),
    }
}

fn bytes(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::Float32 => (value as f32).to_ne_bytes().to_vec(),
        DType::Float16 => f16::from_f64(value).to_ne_bytes().to_vec(),
        DType::Bfloat16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
        DType::Int32 => (value as i32).to_ne_bytes().to_vec(),
    }
}

fn float(dtype: DType, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (DType::Float32, [a, b, c, d]) => f32::from_ne_bytes([*a, *b, *c, *d]),
        (DType::Float16, [a, b]) => f16::from_ne_bytes([*a, *b]).to_f32(),
        (DType::Bfloat16, [a, b]) => bf16::from_ne_bytes([*a, *b]).to_f32(),
        _ => panic!("no float"),
    }
}

/// The allowed results of a chunk. All workers must have the same one.
#[derive(Debug)]
pub struct Chunk {
    pub span: Range<usize>,
    /// The sum of integers, if it fits; and the sum of floats, if a worker may ask for it.
    pub allowed: Vec<(Form, Vec<u8>)>,
    /// Whether the sums of all subsets of workers fit.
    pub is_safe: bool,
}

impl Chunk {
    /// Allows the results of `other` too.
    pub fn or(&mut self, other: Chunk) {
        self.is_safe &= other.is_safe;
        self.allowed.extend(other.allowed);
    }
}

/// The form in which a chunk was summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub representation: Representation,
    /// 1: with the values of a replacement.
    pub generation: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Representation {
    Integers,
    Floats,
}

/// The allowed results of a tensor's chunks from these inputs.
pub fn outputs(job: &JobPlan, number: usize, inputs: &[Vec<Vec<u8>>], generation: u8) -> Vec<Chunk> {
    let tensor = &job.tensors[number];
    let codec = codec(job, job.params.world);
    let chunk = usize::from(job.params.elements) * codec.values_per_word(tensor.dtype, tensor.arithmetic());
    let spans = (0..tensor.count).step_by(chunk).map(|first| first..(first + chunk).min(tensor.count));
    spans.map(|span| expected(job, number, inputs, span, generation)).collect()
}

/// Whether an operation fails for its poison.
pub fn must_fail(job: &JobPlan, tensor: &Tensor) -> bool {
    let is_carried = job.params.not_finite == NonFinitePolicy::Carry && tensor.dtype != DType::Int32;
    tensor.poison.is_some() && !is_carried
}

fn codec(job: &JobPlan, world: u16) -> Codec {
    Codec::new(world, job.params.wire, job.params.scaling).scalar()
}

fn expected(
    job: &JobPlan,
    number: usize,
    inputs: &[Vec<Vec<u8>>],
    span: Range<usize>,
    generation: u8,
) -> Chunk {
    let tensor = &job.tensors[number];
    let form = |representation| Form { representation, generation };
    if tensor.poison.is_some_and(|(_, at)| span.contains(&at)) {
        let mut bytes = vec![0; span.len() * tensor.dtype.size()];
        if tensor.dtype != DType::Int32 {
            fill_nan(tensor.dtype, &mut bytes);
        }
        return Chunk { span, allowed: vec![(form(Representation::Integers), bytes)], is_safe: true };
    }
    let is_float_sum = tensor.is_sum() && tensor.dtype != DType::Int32;
    let given: Vec<Vec<u8>> = (0..inputs.len()).map(|rank| given(job, number, inputs, rank, &span)).collect();
    let Integers { sum, is_safe } = integers(job, tensor, &given, &span);
    let is_block = job.params.scaling == Scale::Block;
    // A chunk that was summed as floats once stays one, also for a replacement's values that would fit.
    let was_asked = job.replaced.is_some() && tensor.sums != Sums::Fit;
    let floats = (job.is_dynamic() && is_float_sum && (!is_safe || is_block || was_asked))
        .then(|| (form(Representation::Floats), floats(job, tensor, &given)));
    let integers = sum.map(|bytes| (form(Representation::Integers), bytes));
    let allowed: Vec<_> = integers.into_iter().chain(floats).collect();
    if tensor.dtype == DType::Float32 && tensor.sums != Sums::Fit {
        allowed.iter().for_each(|(form, bytes)| check_bound(job, tensor, &given, form.representation, bytes));
    }
    if is_block && is_float_sum && job.exact(tensor).is_none() {
        allowed.iter().for_each(|(_, bytes)| check_block_bound(job, tensor, &given, bytes));
    }
    Chunk { span, allowed, is_safe }
}

/// Checks the promised error bound: with integers, half a step for each worker; with floats, one rounding.
/// Both are rounded to 32 bits at the end, and means once more.
fn check_bound(job: &JobPlan, tensor: &Tensor, given: &[Vec<u8>], form: Representation, bytes: &[u8]) {
    let workers = given.len() as f64;
    let divisor = if tensor.arithmetic() == Arithmetic::Mean { workers } else { 1.0 };
    let is_packed = is_packed(job, tensor);
    let step = match form {
        Representation::Integers => workers / 2.0 / scale(job, tensor.dtype),
        Representation::Floats if is_packed => block_bound(job, tensor, given),
        Representation::Floats => 0.0,
    };
    for (at, got) in bytes.as_chunks::<4>().0.iter().enumerate() {
        let values = given.iter().map(|bytes| f64::from(float(DType::Float32, &bytes[at * 4..][..4])));
        let (exact, got) = (values.sum::<f64>() / divisor, f64::from(f32::from_ne_bytes(*got)));
        let bound = step / divisor + exact.abs().max(got.abs()) * f64::from(f32::EPSILON);
        assert!((got - exact).abs() <= bound, "{form:?}: {got} for {exact}, {bound} allowed: {tensor:?}");
    }
}

fn is_packed(job: &JobPlan, tensor: &Tensor) -> bool {
    codec(job, job.params.world).values_per_word(tensor.dtype, tensor.arithmetic()) > 1
}

/// The bound of the error of a sum by block floating point (Theorem 1): `n^2 2^m / (2^31 - 1)`, or over
/// 2^15 - 1.
fn block_bound(job: &JobPlan, tensor: &Tensor, given: &[Vec<u8>]) -> f64 {
    let full = if is_packed(job, tensor) { f64::from(i16::MAX) } else { f64::from(i32::MAX) };
    let values = given.iter().flat_map(|bytes| values(tensor.dtype, bytes));
    (given.len() as f64).powi(2) * power_above(values) / full
}

/// Checks the bound of a sum by block floating point, in whatever form it travelled, and what its type rounds
/// off.
fn check_block_bound(job: &JobPlan, tensor: &Tensor, given: &[Vec<u8>], bytes: &[u8]) {
    let divisor = if tensor.arithmetic() == Arithmetic::Mean { given.len() as f64 } else { 1.0 };
    let (bits, least) = match tensor.dtype {
        DType::Float16 => (11, -25),
        DType::Bfloat16 => (8, -134),
        DType::Float32 | DType::Int32 => (24, -150),
    };
    let bound = block_bound(job, tensor, given) / divisor;
    for (at, got) in values(tensor.dtype, bytes).into_iter().enumerate().filter(|(_, got)| got.is_finite()) {
        let exact =
            given.iter().map(|bytes| f64::from(values(tensor.dtype, bytes)[at])).sum::<f64>() / divisor;
        let got = f64::from(got);
        let rounded = got.abs().max(exact.abs()) * (f64::exp2(-f64::from(bits)) + f64::exp2(-23.0));
        let allowed = bound + rounded + f64::exp2(f64::from(least));
        assert!((got - exact).abs() <= allowed, "{got} for {exact}, {allowed} allowed: {tensor:?}");
    }
}

fn values(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(dtype.size()).map(|bytes| float(dtype, bytes)).collect()
}

/// The least power of two from 2^-125 on that no magnitude exceeds.
fn power_above(values: impl IntoIterator<Item = f32>) -> f64 {
    let largest = values.into_iter().fold(0f64, |largest, value| largest.max(f64::from(value.abs())));
    (-125..=128).map(|m| f64::exp2(f64::from(m))).find(|power| *power >= largest).unwrap()
}

/// Values as a packet has them whose words have two: multiples of a 32,766th of the power of two above them.
/// None is a negative zero.
pub fn as_halves(values: &[f32]) -> Vec<f64> {
    let power = power_above(values.iter().copied());
    let kept =
        |value: &f32| (f64::from(*value) / power * 32_766.0).round_ties_even() / 32_766.0 * power + 0.0;
    values.iter().map(kept).collect()
}

/// The values of one worker in a span; zeros where it contributes none.
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

/// The sum of a chunk's integers.
struct Integers {
    /// As bytes in memory; `None`: it overflows.
    sum: Option<Vec<u8>>,
    /// Whether the sums of all subsets of workers fit.
    is_safe: bool,
}

const OVERFLOW: Integers = Integers { sum: None, is_safe: false };

fn integers(job: &JobPlan, tensor: &Tensor, given: &[Vec<u8>], span: &Range<usize>) -> Integers {
    let (dtype, arithmetic) = (tensor.dtype, tensor.arithmetic());
    let whole = codec(job, job.params.world);
    // With a fixed scale, values of dynamic jobs may be as large as sums.
    let is_fixed = matches!(job.params.scaling, Scale::Fixed(_));
    let per_word = whole.values_per_word(dtype, arithmetic);
    let writer = match is_fixed && job.is_dynamic() && per_word == 1 {
        true => Codec::new(1, WireFormat::Int32, job.params.scaling).scalar(),
        false => whole,
    };
    let exact = job.exact(tensor);
    let words = exact.map_or(span.len().div_ceil(per_word), |exact| span.len() * exact.words_per_value());
    // A range without values has the lowest exponent.
    let exponents = given.iter().map(|bytes| whole.exponent(dtype, arithmetic, bytes));
    let exponent = exponents.max().unwrap();
    let mut sums: Vec<i64> = Vec::new();
    // The largest and the smallest sums of any subset.
    let mut extremes = vec![(0, 0); words];
    let is_order = matches!(arithmetic, Arithmetic::Max | Arithmetic::Min);
    for bytes in given {
        let mut wire = vec![0; words * 4];
        let met = match exact {
            Some(exact) => exact.encode(bytes, &mut wire),
            None => writer.encode(dtype, arithmetic, exponent, bytes, &mut wire),
        };
        if met.saturated.is_some() {
            return OVERFLOW;
        }
        let own = wire.as_chunks().0.iter().map(|word| i64::from(i32::from_be_bytes(*word)));
        for ((least, most), new) in extremes.iter_mut().zip(own.clone()) {
            (*least, *most) = (*least + new.min(0), *most + new.max(0));
        }
        if sums.is_empty() {
            sums = own.collect();
        } else {
            let merge =
                |(sum, new): (&mut i64, i64)| *sum = if is_order { new.max(*sum) } else { *sum + new };
            sums.iter_mut().zip(own).for_each(merge);
        }
    }
    // Words of two values may wrap.
    let can_overflow = tensor.is_sum() && (per_word == 1 || exact.is_some());
    let fits = |sum: &i64| i32::try_from(*sum).is_ok();
    if can_overflow && !sums.iter().all(fits) {
        return OVERFLOW;
    }
    let wire: Vec<u8> = sums.iter().flat_map(|sum| (*sum as i32).to_be_bytes()).collect();
    let mut bytes = vec![0; span.len() * dtype.size()];
    match exact {
        Some(exact) if arithmetic == Arithmetic::Mean => exact.decode(job.params.world, &wire, &mut bytes),
        Some(exact) => exact.decode(1, &wire, &mut bytes),
        None => whole.decode(dtype, arithmetic, exponent, &wire, &mut bytes),
    }
    let is_safe = !can_overflow || extremes.iter().all(|(least, most)| fits(least) && fits(most));
    Integers { sum: Some(bytes), is_safe }
}

/// The sum of floats: in rank order, in 64 bits, rounded once to 32; and where two share a word, to 16 as the
/// workers' own are.
fn floats(job: &JobPlan, tensor: &Tensor, given: &[Vec<u8>]) -> Vec<u8> {
    let dtype = tensor.dtype;
    let divisor = if tensor.arithmetic() == Arithmetic::Mean { given.len() as f64 } else { 1.0 };
    let is_packed = is_packed(job, tensor);
    let own = |bytes: &Vec<u8>| match is_packed {
        true => as_halves(&values(dtype, bytes)),
        false => values(dtype, bytes).into_iter().map(f64::from).collect(),
    };
    let own: Vec<Vec<f64>> = given.iter().map(own).collect();
    let sum =
        |at: usize| own.iter().map(|values| values[at]).reduce(|sum, value| sum + value).unwrap() as f32;
    let sums: Vec<f32> = (0..own[0].len()).map(sum).collect();
    let sums = if is_packed { as_halves(&sums) } else { sums.into_iter().map(f64::from).collect() };
    let bytes = |sum: &f64| match ((sum / divisor) as f32, dtype) {
        (mean, DType::Float32) => mean.to_ne_bytes().to_vec(),
        (mean, DType::Float16) => f16::from_f32(mean).to_ne_bytes().to_vec(),
        (mean, _) => bf16::from_f32(mean).to_ne_bytes().to_vec(),
    };
    sums.iter().flat_map(bytes).collect()
}
