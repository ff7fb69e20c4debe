//! Sums of ranks whose tensors are in this host's memory: each value is read once from every rank and
//! written once to every rank, and nothing is sent.
//!
//! Values are added in the order of ranks, so that the result does not depend on which rank came first.
//! Floats are added in double precision and rounded once; those of 16 bits are rounded to single precision
//! before.
//!
//! In a job of several hosts each host is one worker, which contributes the sum of its ranks ([`worker`]).

pub mod worker;

use std::ops::Range;

use half::{bf16, f16, slice::HalfFloatSliceExt as _};
use sumac_job::{DType, NonFinitePolicy};

use crate::{
    chunk,
    convert::{
        Arithmetic,
        prefetch::{LINE, will_read, will_write},
    },
    direct_mode::first_not_finite,
    error::{LocalFault, OpError},
    operation::Buffer,
};

/// The values of a step, whose sums and results stay in the first cache.
const BLOCK: usize = 1024;
/// The most ranks whose values are added in one pass.
const MOST: usize = 16;
/// Floats of a cache line.
const LANES: usize = LINE / 4;

/// One rank's part in an operation of a host's ranks.
#[derive(Debug)]
pub struct LocalPart {
    /// The values that it contributes; the others are zeros. All of them for [`Arithmetic::Max`] and
    /// [`Arithmetic::Min`].
    pub gives: Range<usize>,
    /// The values whose results it takes.
    pub takes: Range<usize>,
    pub buffer: Box<dyn Buffer>,
}

impl LocalPart {
    /// Whether it contributes all values of a block.
    fn contributes_all(&self, block: &Range<usize>) -> bool {
        overlap(&self.gives, block).1 == *block
    }

    /// Writes the results of a block, as far as the rank takes them. `number`, `base`: for a fault.
    fn write(
        &mut self,
        results: &[u8],
        block: &Range<usize>,
        dtype: DType,
        (number, base): (usize, usize),
    ) -> Result<(), LocalFault> {
        let (at, taken) = overlap(&self.takes, block);
        let size = dtype.size();
        if taken.is_empty() {
            return Ok(());
        }
        let output = self.buffer.output(taken.start * size, taken.len() * size);
        if output.len() < taken.len() * size {
            return Err(short(number, base + taken.start + output.len() / size));
        }
        let output = &mut output[..taken.len() * size];
        for (to, from) in output.chunks_mut(LINE).zip(results[at * size..].chunks(LINE)) {
            will_write(to.as_ptr(), LINE);
            to.copy_from_slice(&from[..to.len()]);
        }
        Ok(())
    }
}

/// An operation of ranks that are all on this host, or a part of one.
#[derive(Debug)]
pub struct LocalSum {
    pub dtype: DType,
    pub arithmetic: Arithmetic,
    pub not_finite: NonFinitePolicy,
    pub count: usize,
    /// The index of the first value in the tensor, for messages.
    pub base: usize,
    /// By rank.
    pub parts: Vec<LocalPart>,
}

impl LocalSum {
    /// Reads all values, and writes their results.
    ///
    /// # Errors
    /// A value that the job does not allow, a sum of integers that does not fit, or memory that is too short.
    /// The outputs are then unspecified.
    pub fn run(&mut self) -> Result<(), LocalFault> {
        let mut scratch = Scratch::default();
        blocks(&(0..self.count)).try_for_each(|block| {
            self.reduce(&mut scratch, &block)?;
            self.write(&scratch.bytes[..block.len() * self.dtype.size()], &block)
        })
    }

    /// Reduces a block's values to their results in `scratch.bytes`.
    fn reduce(&self, scratch: &mut Scratch, block: &Range<usize>) -> Result<(), LocalFault> {
        match self.dtype {
            _ if self.arithmetic == Arithmetic::Bits => self.copy(scratch, block),
            DType::Int32 => self.reduce_integers(scratch, block),
            _ if self.add_two(scratch, block)? || self.add_all(scratch, block)? => Ok(()),
            _ => self.reduce_floats(scratch, block),
        }
    }

    /// Adds the values of two ranks in single precision: a sum of two rounded to double precision and then to
    /// single has the same bits. Returns whether that is the result.
    fn add_two(&self, scratch: &mut Scratch, block: &Range<usize>) -> Result<bool, LocalFault> {
        let [first, second] = &self.parts[..] else { return Ok(false) };
        let is_sum = self.dtype == DType::Float32 && self.arithmetic == Arithmetic::Sum;
        if !is_sum || !first.contributes_all(block) || !second.contributes_all(block) {
            return Ok(false);
        }
        let (a, b) = (self.input(0, block)?.as_chunks::<4>().0, self.input(1, block)?.as_chunks::<4>().0);
        let results = &mut scratch.bytes.as_chunks_mut::<4>().0[..block.len()];
        let are_finite = widest(|| add(a, b, results));
        // The slower way finds the rank whose value is not finite.
        Ok(are_finite || self.not_finite != NonFinitePolicy::Error)
    }

    /// Adds the values of up to [`MOST`] ranks, whose sums stay in registers. Returns whether that is the
    /// result.
    fn add_all(&self, scratch: &mut Scratch, block: &Range<usize>) -> Result<bool, LocalFault> {
        let is_sum = matches!(self.arithmetic, Arithmetic::Sum | Arithmetic::Mean);
        let are_whole = self.parts.iter().all(|part| part.contributes_all(block));
        let mut inputs = [&[] as &[[u8; 4]]; MOST];
        let Some(inputs) = inputs.get_mut(..self.parts.len()) else { return Ok(false) };
        if self.dtype != DType::Float32 || !is_sum || !are_whole {
            return Ok(false);
        }
        for (number, input) in inputs.iter_mut().enumerate() {
            *input = &self.input(number, block)?.as_chunks::<4>().0[..block.len()];
        }
        let divisor = (self.arithmetic == Arithmetic::Mean).then_some(inputs.len() as f64);
        let results = &mut scratch.bytes.as_chunks_mut::<4>().0[..block.len()];
        let are_finite = widest(|| add_each(inputs, divisor, results));
        Ok(are_finite || self.not_finite != NonFinitePolicy::Error)
    }

    /// Collects the bytes of the ranks that contribute; where several do, the last one's.
    fn copy(&self, scratch: &mut Scratch, block: &Range<usize>) -> Result<(), LocalFault> {
        let size = self.dtype.size();
        scratch.bytes[..block.len() * size].fill(0);
        for (number, part) in self.parts.iter().enumerate() {
            let (at, given) = overlap(&part.gives, block);
            if !given.is_empty() {
                let input = self.input(number, &given)?;
                scratch.bytes[at * size..][..input.len()].copy_from_slice(input);
            }
        }
        Ok(())
    }

    fn reduce_integers(&self, scratch: &mut Scratch, block: &Range<usize>) -> Result<(), LocalFault> {
        let sums = &mut scratch.integers[..block.len()];
        sums.fill(match self.arithmetic {
            Arithmetic::Max => i64::from(i32::MIN),
            Arithmetic::Min => i64::from(i32::MAX),
            _ => 0,
        });
        for (number, part) in self.parts.iter().enumerate() {
            let (at, given) = overlap(&part.gives, block);
            if given.is_empty() {
                continue;
            }
            let values = self.input(number, &given)?.as_chunks::<4>().0.iter();
            let pairs = sums[at..].iter_mut().zip(values.map(|value| i64::from(i32::from_ne_bytes(*value))));
            match self.arithmetic {
                Arithmetic::Max => pairs.for_each(|(sum, value)| *sum = (*sum).max(value)),
                Arithmetic::Min => pairs.for_each(|(sum, value)| *sum = (*sum).min(value)),
                _ => pairs.for_each(|(sum, value)| *sum += value),
            }
        }
        if self.arithmetic == Arithmetic::Mean {
            let divisor = self.parts.len() as f64;
            sums.iter_mut().for_each(|sum| *sum = (*sum as f64 / divisor).round_ties_even() as i64);
        }
        if let Some(at) = sums.iter().position(|sum| i32::try_from(*sum).is_err()) {
            let index = self.base + block.start + at;
            return Err(LocalFault { part: None, error: OpError::SumTooLarge { first: index, last: index } });
        }
        let results = scratch.bytes.as_chunks_mut::<4>().0.iter_mut();
        results.zip(&*sums).for_each(|(result, sum)| *result = (*sum as i32).to_ne_bytes());
        Ok(())
    }

    fn reduce_floats(&self, scratch: &mut Scratch, block: &Range<usize>) -> Result<(), LocalFault> {
        let Scratch { sums, floats, halves, bytes, .. } = scratch;
        let sums = &mut sums[..block.len()];
        let pass = Pass::of(self.arithmetic);
        sums.fill(pass.neutral());
        for (number, part) in self.parts.iter().enumerate() {
            let (at, given) = overlap(&part.gives, block);
            if given.is_empty() {
                continue;
            }
            let input = self.input(number, &given)?;
            let sums = &mut sums[at..at + given.len()];
            match self.dtype {
                DType::Float16 => {
                    let halves = &mut halves[..given.len()];
                    let values = input.as_chunks::<2>().0;
                    halves
                        .iter_mut()
                        .zip(values)
                        .for_each(|(half, value)| *half = f16::from_ne_bytes(*value));
                    halves.convert_to_f32_slice(&mut floats[..given.len()]);
                    widest(|| reduce(pass, sums, Values::Floats(&floats[..given.len()])));
                }
                DType::Bfloat16 => {
                    widest(|| reduce(pass, sums, Values::Bfloats(input.as_chunks::<2>().0)));
                }
                DType::Float32 | DType::Int32 => {
                    widest(|| reduce(pass, sums, Values::Bytes(input.as_chunks::<4>().0)));
                }
            }
        }
        if self.not_finite == NonFinitePolicy::Error && !widest(|| are_finite(sums)) {
            self.find_not_finite(block)?;
        }
        let divisor = (self.arithmetic == Arithmetic::Mean).then_some(self.parts.len() as f64);
        match self.dtype {
            DType::Float16 => {
                let floats = &mut floats[..block.len()];
                floats.iter_mut().zip(&*sums).for_each(|(float, sum)| *float = quotient(*sum, divisor));
                let halves = &mut halves[..block.len()];
                halves.convert_from_f32_slice(floats);
                let results = bytes.as_chunks_mut::<2>().0.iter_mut();
                results.zip(&*halves).for_each(|(result, half)| *result = half.to_ne_bytes());
            }
            DType::Bfloat16 => {
                let results = bytes.as_chunks_mut::<2>().0.iter_mut();
                results.zip(&*sums).for_each(|(result, sum)| {
                    *result = bf16::from_f32(quotient(*sum, divisor)).to_ne_bytes();
                });
            }
            DType::Float32 | DType::Int32 => {
                let results = &mut bytes.as_chunks_mut::<4>().0[..block.len()];
                widest(|| round(sums, divisor, results));
            }
        }
        Ok(())
    }

    /// Names the first value of a block that is NaN or infinite. Without one a sum has become too large.
    fn find_not_finite(&self, block: &Range<usize>) -> Result<(), LocalFault> {
        let size = self.dtype.size();
        for (number, part) in self.parts.iter().enumerate() {
            let (_, given) = overlap(&part.gives, block);
            let values = self.input(number, &given)?;
            if let Some(at) = first_not_finite(self.dtype, values) {
                let index = self.base + given.start + at;
                let value = chunk::number(self.dtype, &values[at * size..]) as f32;
                let error = OpError::NotFinite { index, value };
                return Err(LocalFault { part: Some(number), error });
            }
        }
        Ok(())
    }

    /// Writes the results of a range to the ranks that take them.
    fn write(&mut self, results: &[u8], block: &Range<usize>) -> Result<(), LocalFault> {
        let LocalSum { dtype, base, ref mut parts, .. } = *self;
        let mut parts = (0..).zip(parts);
        parts.try_for_each(|(number, part)| part.write(results, block, dtype, (number, base)))
    }

    fn input(&self, number: usize, given: &Range<usize>) -> Result<&[u8], LocalFault> {
        let size = self.dtype.size();
        let input = self.parts[number].buffer.input(given.start * size, given.len() * size);
        if input.len() < given.len() * size {
            return Err(short(number, self.base + given.start + input.len() / size));
        }
        Ok(input)
    }
}

fn short(part: usize, index: usize) -> LocalFault {
    LocalFault { part: Some(part), error: OpError::ShortBuffer { index } }
}

/// Divides a range into blocks.
fn blocks(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(BLOCK).map(move |first| first..(first + BLOCK).min(end))
}

/// The values of a block.
#[derive(Debug)]
struct Scratch {
    sums: Box<[f64; BLOCK]>,
    integers: Box<[i64; BLOCK]>,
    floats: Box<[f32; BLOCK]>,
    halves: Box<[f16; BLOCK]>,
    /// The results, in the tensor's type.
    bytes: Box<[u8; 4 * BLOCK]>,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch {
            sums: Box::new([0.0; BLOCK]),
            integers: Box::new([0; BLOCK]),
            floats: Box::new([0.0; BLOCK]),
            halves: Box::new([f16::ZERO; BLOCK]),
            bytes: Box::new([0; 4 * BLOCK]),
        }
    }
}

/// Returns the part of a range within a block, and where it begins there.
fn overlap(range: &Range<usize>, block: &Range<usize>) -> (usize, Range<usize>) {
    let start = range.start.clamp(block.start, block.end);
    let end = range.end.clamp(start, block.end);
    (start - block.start, start..end)
}

#[derive(Clone, Copy)]
enum Pass {
    Add,
    Maximum,
    Minimum,
}

impl Pass {
    fn of(arithmetic: Arithmetic) -> Pass {
        match arithmetic {
            Arithmetic::Max => Pass::Maximum,
            Arithmetic::Min => Pass::Minimum,
            Arithmetic::Sum | Arithmetic::Mean | Arithmetic::Bits => Pass::Add,
        }
    }

    /// The value that changes no other. The sum of -0.0 alone is -0.0.
    fn neutral(self) -> f64 {
        match self {
            Pass::Add => -0.0,
            Pass::Maximum => f64::NEG_INFINITY,
            Pass::Minimum => f64::INFINITY,
        }
    }
}

/// A rank's values of a block.
#[derive(Clone, Copy)]
enum Values<'a> {
    Floats(&'a [f32]),
    /// Single precision, in the machine's byte order.
    Bytes(&'a [[u8; 4]]),
    Bfloats(&'a [[u8; 2]]),
}

/// Runs a loop with the widest vectors of the machine. Both variants have the same source and the same
/// results.
fn widest<R>(run: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the machine has AVX2, the function's only requirement.
        #[expect(unsafe_code, reason = "calls a function for AVX2 machines on one")]
        return unsafe { with_avx2(run) };
    }
    run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<R>(run: impl FnOnce() -> R) -> R {
    run()
}

#[inline(always)]
fn reduce(pass: Pass, sums: &mut [f64], values: Values<'_>) {
    match values {
        Values::Floats(values) => each(pass, sums, values.iter().map(|value| f64::from(*value))),
        Values::Bytes(values) => {
            each(pass, sums, values.iter().map(|value| f64::from(f32::from_ne_bytes(*value))));
        }
        Values::Bfloats(values) => {
            let wide = |value: &[u8; 2]| f32::from_bits(u32::from(u16::from_ne_bytes(*value)) << 16);
            each(pass, sums, values.iter().map(|value| f64::from(wide(value))));
        }
    }
}

#[inline(always)]
fn each(pass: Pass, sums: &mut [f64], values: impl Iterator<Item = f64>) {
    let pairs = sums.iter_mut().zip(values);
    match pass {
        Pass::Add => pairs.for_each(|(sum, value)| *sum += value),
        Pass::Maximum => pairs.for_each(|(sum, value)| *sum = larger(*sum, value)),
        Pass::Minimum => pairs.for_each(|(sum, value)| *sum = -larger(-*sum, -value)),
    }
}

/// Returns the larger number, NaN if one is; of the two zeros 0.0.
#[inline(always)]
fn larger(a: f64, b: f64) -> f64 {
    let is_b = b > a || b.is_nan() || (a == b && a.is_sign_negative());
    if is_b && !a.is_nan() { b } else { a }
}

/// Adds two ranks' values. Returns whether all sums are finite.
#[inline(always)]
fn add(a: &[[u8; 4]], b: &[[u8; 4]], results: &mut [[u8; 4]]) -> bool {
    let mut are_finite = true;
    for ((results, a), b) in results.chunks_mut(LANES).zip(a.chunks(LANES)).zip(b.chunks(LANES)) {
        will_read(a.as_ptr().cast(), LINE);
        will_read(b.as_ptr().cast(), LINE);
        for ((result, a), b) in results.iter_mut().zip(a).zip(b) {
            let sum = f32::from_ne_bytes(*a) + f32::from_ne_bytes(*b);
            are_finite &= sum.is_finite();
            *result = sum.to_ne_bytes();
        }
    }
    are_finite
}

/// Adds all ranks' values in double precision, divides them, and rounds them. Returns whether all sums are
/// finite.
#[inline(always)]
fn add_each(inputs: &[&[[u8; 4]]], divisor: Option<f64>, results: &mut [[u8; 4]]) -> bool {
    let mut are_finite = true;
    let add = |sum: &mut f64, value: &[u8; 4]| *sum += f64::from(f32::from_ne_bytes(*value));
    let (whole, rest) = results.as_chunks_mut::<LANES>();
    let done = whole.len() * LANES;
    for (number, results) in whole.iter_mut().enumerate() {
        let mut sums = [Pass::Add.neutral(); LANES];
        for input in inputs {
            let values = &input[number * LANES..][..LANES];
            will_read(values.as_ptr().cast(), LINE);
            sums.iter_mut().zip(values).for_each(|(sum, value)| add(sum, value));
        }
        are_finite &= self::are_finite(&sums);
        round(&sums, divisor, results);
    }
    for (number, result) in (done..).zip(rest) {
        let mut sum = Pass::Add.neutral();
        inputs.iter().for_each(|input| add(&mut sum, &input[number]));
        are_finite &= sum.is_finite();
        round(&[sum], divisor, std::slice::from_mut(result));
    }
    are_finite
}

/// Returns whether all sums are finite. It looks at all, which is faster than to leave early.
#[inline(always)]
fn are_finite(sums: &[f64]) -> bool {
    sums.iter().fold(true, |all, sum| all & sum.is_finite())
}

/// Divides sums, and rounds them to single precision, in the machine's byte order.
#[inline(always)]
fn round(sums: &[f64], divisor: Option<f64>, results: &mut [[u8; 4]]) {
    let pairs = results.iter_mut().zip(sums);
    match divisor {
        Some(divisor) => pairs.for_each(|(result, sum)| *result = ((sum / divisor) as f32).to_ne_bytes()),
        None => pairs.for_each(|(result, sum)| *result = (*sum as f32).to_ne_bytes()),
    }
}

fn quotient(sum: f64, divisor: Option<f64>) -> f32 {
    divisor.map_or(sum, |divisor| sum / divisor) as f32
}

#[cfg(test)]
mod tests;
