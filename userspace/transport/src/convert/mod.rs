//! Conversion of tensor bytes to wire words and back, in one pass each: read, scale, round, convert, swap,
//! write.
//!
//! A worker's contribution is a run of 32-bit words in network order. Aggregators add words, or take their
//! signed maximum, whatever their meaning:
//!
//! | arithmetic | dtype | a word is |
//! | --- | --- | --- |
//! | sum, mean | floats | `round(value * f)`, half to even; or two of 16 bits |
//! | sum, mean | int32 | the value |
//! | max, min | all | an integer in the values' order (`Real::key`), complemented for min |
//! | bits | all | the tensor's own bytes; two values a word where they have 16 bits |
//!
//! `f` is the job's fixed scale or, by block floating point, `(2^31 - 1) / (n 2^m)` for `n` workers whose
//! largest magnitude in the chunk is at most `2^m` (SwitchML section 4.6; `scale`). Every value of a sum is
//! kept within `floor((2^31 - 1) / n)`, so that no sum can overflow (Theorem 2 of its appendix E), and the
//! sum is off by at most `n / f` (Theorem 1). All arithmetic is in double precision; a mean is divided
//! when its sum comes back. NaN and infinity count as zero and are reported, unless a codec for maxima and
//! minima keeps them.
//!
//! All implementations produce the same bits: AVX-512 and AVX2 with F16C, chosen at run time, NEON, and the
//! scalar reference. `cargo bench -p sumac-benches --bench convert` compares them with copying the same
//! bytes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod conversion;
mod exact;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod floats;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod passes;
pub(crate) mod prefetch;
pub(crate) mod raw;
mod real;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod run;
mod scalar;
mod scale;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use sumac_job::{DType, Scale, WireFormat};
use sumac_wire::header::exponent::NONE;

pub use self::{conversion::Encoded, exact::ExactSum};
use self::{
    conversion::{Conversion, WORD},
    real::Float,
    scale::{Factor, exponent_of},
};

/// The integers on the wire, from zero to a value, with which the value keeps an error of at most a 32nd of
/// itself.
pub const LEAST_STEPS: i32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arithmetic {
    Sum,
    /// Their sum divided by the number of workers; integers are rounded half to even.
    Mean,
    /// Their maximum, exact. Of the two zeros, 0.0 is the larger.
    Max,
    /// Their minimum, exact. Of the two zeros, -0.0 is the smaller.
    Min,
    /// One worker's value, bit for bit: all others send zeros (broadcast, allgather).
    Bits,
}

/// Converts between tensor bytes (the machine's byte order) and wire words (network order).
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    world: u16,
    /// Workers whose values share an integer's range: all, or one where additions are clamped.
    sharing: u16,
    /// Workers whose values a result holds.
    contributors: u16,
    /// Ranks of each worker.
    ranks: u16,
    wire: WireFormat,
    scaling: Scale,
    /// Whether NaN and infinity are values of maxima and minima.
    keeps_infinity: bool,
    instructions: Instructions,
}

/// The instruction set of the conversion. All produce the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instructions {
    /// One value at a time, on any machine.
    Scalar,
    /// Four words at a time for sums and means of floats.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Eight words at a time.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Sixteen words at a time for sums and means of floats, eight for the rest.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// The vector instructions of this processor's architecture; a processor may lack some.
    pub const VECTORS: &[Instructions] = &[
        #[cfg(target_arch = "aarch64")]
        Instructions::Neon,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512,
    ];

    /// The best instruction set of this machine. AVX-512 counts only on processors with its byte permutations
    /// (Ice Lake, Zen 4, and later): older ones lower their clock for it.
    pub fn best() -> Instructions {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("f16c") {
                let wide = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vbmi");
                return if wide { Instructions::Avx512 } else { Instructions::Avx2 };
            }
        }
        #[cfg(target_arch = "aarch64")]
        return Instructions::Neon;
        #[cfg(not(target_arch = "aarch64"))]
        Instructions::Scalar
    }
}

impl Codec {
    /// A codec for a job of `world` workers (1 to 1,024; other numbers count as the nearest), on the
    /// machine's best instruction set.
    pub fn new(world: u16, wire: WireFormat, scaling: Scale) -> Codec {
        let world = world.clamp(1, 1024);
        Codec {
            world,
            sharing: world,
            contributors: world,
            ranks: 1,
            wire,
            scaling,
            keeps_infinity: false,
            instructions: Instructions::best(),
        }
    }

    /// The same codec for workers of so many ranks each, with whose number means of integers are divided: a
    /// worker contributes their sum. Of floats it contributes their mean.
    #[must_use]
    pub fn of_ranks(self, ranks: u16) -> Codec {
        Codec { ranks: ranks.max(1), ..self }
    }

    /// The same codec on these instructions, or the best below them that the machine has.
    #[must_use]
    pub fn on(self, instructions: Instructions) -> Codec {
        Codec { instructions: instructions.min(Instructions::best()), ..self }
    }

    /// The same codec for a network that clamps its sums and flags them. Each worker's value may use the
    /// whole range of an integer, except by block floating point, where no sum is clamped, and in 16 bits,
    /// whose sums the network does not see in their words.
    #[must_use]
    pub fn clamped_sums(self) -> Codec {
        Codec { sharing: 1, ..self }
    }

    /// The same codec for maxima and minima of which infinity is a value like others, and NaN the result
    /// wherever a worker has it.
    #[must_use]
    pub fn keeping_infinity(self) -> Codec {
        Codec { keeps_infinity: true, ..self }
    }

    /// The same codec for results that hold the values of so many workers only: sums and means of floats are
    /// scaled by workers / contributors.
    #[must_use]
    pub fn of_contributors(self, contributors: u16) -> Codec {
        Codec { contributors: contributors.clamp(1, self.world), ..self }
    }

    /// All workers, and those that results hold the values of.
    pub(crate) fn part(&self) -> (u16, u16) {
        (self.world, self.contributors)
    }

    #[must_use]
    pub fn scalar(self) -> Codec {
        self.on(Instructions::Scalar)
    }

    pub fn instructions(&self) -> Instructions {
        self.instructions
    }

    /// Values in a word: 2 for sums of floats in 16 bits ([`WireFormat::is_16_bits`]) and for the bits of
    /// 16-bit types, otherwise 1. Of two, the first is the word's upper half. The last word of an odd number
    /// of values ends with a zero.
    pub fn values_per_word(&self, dtype: DType, arithmetic: Arithmetic) -> usize {
        let halves = match arithmetic {
            Arithmetic::Sum | Arithmetic::Mean => self.wire.is_16_bits(dtype, self.scaling, self.world),
            Arithmetic::Max | Arithmetic::Min => false,
            Arithmetic::Bits => dtype.size() == 2,
        };
        if halves { 2 } else { 1 }
    }

    /// Whether workers have to agree on an exponent before they can encode.
    pub fn needs_exponent(&self, dtype: DType, arithmetic: Arithmetic) -> bool {
        let is_sum = matches!(arithmetic, Arithmetic::Sum | Arithmetic::Mean);
        self.scaling == Scale::Block && Float::of(dtype).is_some() && is_sum
    }

    /// The form of a block-scaled sum of `count` values that is exact and needs no exponent, where that takes
    /// at most `most` words.
    pub fn exact(&self, dtype: DType, arithmetic: Arithmetic, count: usize, most: usize) -> Option<ExactSum> {
        let float = Float::of(dtype).filter(|_| self.needs_exponent(dtype, arithmetic) && count <= most)?;
        Some(ExactSum::new(float, self.world)).filter(|form| count * form.words_per_value() <= most)
    }

    /// The exponent of these values as a packet carries it ([`sumac_wire::header::exponent`]), without NaN
    /// and infinity; `NONE` where the operation has no exponent.
    pub fn exponent(&self, dtype: DType, arithmetic: Arithmetic, tensor: &[u8]) -> i8 {
        let Some(float) = Float::of(dtype) else { return NONE };
        if !self.needs_exponent(dtype, arithmetic) || tensor.is_empty() {
            return NONE;
        }
        exponent_of(match self.instructions {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 | Instructions::Avx512 => avx2::magnitude(float, tensor),
            _ => scalar::magnitude(float, tensor),
        })
    }

    /// Whether a value of a block-scaled sum, other than zero, has fewer than [`LEAST_STEPS`] on the wire.
    pub fn loses(&self, dtype: DType, arithmetic: Arithmetic, exponent: i8, tensor: &[u8]) -> bool {
        let Some(float) = Float::of(dtype).filter(|_| self.needs_exponent(dtype, arithmetic)) else {
            return false;
        };
        let least = self.scale(dtype, arithmetic, exponent).magnitude_of(LEAST_STEPS);
        match self.instructions {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 | Instructions::Avx512 => avx2::any_below(float, least, tensor),
            _ => scalar::any_below(float, least, tensor),
        }
    }

    /// The largest magnitude that one worker's value may have on the wire: `floor((2^31 - 1) / n)`, or of
    /// 2^15 - 1 in 16 bits; not divided with [`Codec::clamped_sums`]. For sums and means only.
    pub fn limit(&self, dtype: DType, arithmetic: Arithmetic) -> i32 {
        self.full_range(dtype, arithmetic) / i32::from(self.sharing(dtype, arithmetic))
    }

    fn sharing(&self, dtype: DType, arithmetic: Arithmetic) -> u16 {
        if self.values_per_word(dtype, arithmetic) > 1 { self.world } else { self.sharing }
    }

    /// Writes the values of `tensor` to `wire`, both of whole elements; the shorter counts. `exponent` is the
    /// one that the workers agreed on, where it is needed.
    pub fn encode(
        &self,
        dtype: DType,
        arithmetic: Arithmetic,
        exponent: i8,
        tensor: &[u8],
        wire: &mut [u8],
    ) -> Encoded {
        let (tensor_len, wire_len) = self.common(dtype, arithmetic, tensor.len(), wire.len());
        let (tensor, wire) = (&tensor[..tensor_len], &mut wire[..wire_len]);
        let limit = || self.limit(dtype, arithmetic);
        let encoding = self.conversion(dtype, arithmetic, exponent, Factor::quantizer, limit);
        match self.instructions {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => avx512::encode(encoding, tensor, wire),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => avx2::encode(encoding, tensor, wire),
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => neon::encode(encoding, tensor, wire),
            Instructions::Scalar => scalar::encode(encoding, tensor, wire),
        }
    }

    /// Writes the results in `wire` to `tensor`, both of whole elements; the shorter counts. `exponent` is
    /// the one that these values were encoded with.
    ///
    /// A sum that the dtype cannot hold becomes infinity, as in any float addition.
    pub fn decode(&self, dtype: DType, arithmetic: Arithmetic, exponent: i8, wire: &[u8], tensor: &mut [u8]) {
        let (tensor_len, wire_len) = self.common(dtype, arithmetic, tensor.len(), wire.len());
        let (wire, tensor) = (&wire[..wire_len], &mut tensor[..tensor_len]);
        let divisor = self.divisor(arithmetic);
        let dequantizer = |factor: Factor| factor.dequantizer(divisor, self.part());
        let ranks = if arithmetic == Arithmetic::Mean { self.ranks } else { 1 };
        let integers = || divisor.saturating_mul(ranks);
        let decoding = self.conversion(dtype, arithmetic, exponent, dequantizer, integers);
        match self.instructions {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => avx512::decode(decoding, wire, tensor),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => avx2::decode(decoding, wire, tensor),
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => neon::decode(decoding, wire, tensor),
            Instructions::Scalar => scalar::decode(decoding, wire, tensor),
        }
    }

    /// The number by which a sum of all workers is divided.
    pub(crate) fn divisor(&self, arithmetic: Arithmetic) -> u16 {
        if arithmetic == Arithmetic::Mean { self.world } else { 1 }
    }

    /// The bytes of tensor and wire that hold the same values.
    fn common(&self, dtype: DType, arithmetic: Arithmetic, tensor: usize, wire: usize) -> (usize, usize) {
        let per_word = self.values_per_word(dtype, arithmetic);
        let values = (tensor / dtype.size()).min(wire / WORD * per_word);
        (values * dtype.size(), values.div_ceil(per_word) * WORD)
    }

    fn full_range(&self, dtype: DType, arithmetic: Arithmetic) -> i32 {
        match self.values_per_word(dtype, arithmetic) {
            1 => i32::MAX,
            _ => i32::from(i16::MAX),
        }
    }

    fn scale(&self, dtype: DType, arithmetic: Arithmetic, exponent: i8) -> Factor {
        let full_range = self.full_range(dtype, arithmetic);
        match self.scaling {
            Scale::Fixed(scale) => Factor::fixed(scale, self.sharing(dtype, arithmetic), full_range),
            Scale::Block => Factor::block(exponent, self.world, full_range),
        }
    }

    /// `exponent`, `scale`: for sums and means of floats; `integers`: for those of integers.
    fn conversion<S, I>(
        &self,
        dtype: DType,
        arithmetic: Arithmetic,
        exponent: i8,
        scale: impl FnOnce(Factor) -> S,
        integers: impl FnOnce() -> I,
    ) -> Conversion<S, I> {
        // Keys are combined with it by exclusive or: the complement reverses the order, which makes a minimum
        // a maximum.
        let flip = if arithmetic == Arithmetic::Min { -1 } else { 0 };
        match (arithmetic, Float::of(dtype)) {
            (Arithmetic::Sum | Arithmetic::Mean, Some(float)) => Conversion::Scaled {
                float,
                scale: scale(self.scale(dtype, arithmetic, exponent)),
                packed: self.wire.is_16_bits(dtype, self.scaling, self.world),
            },
            (Arithmetic::Sum | Arithmetic::Mean, None) => Conversion::Integers(integers()),
            (Arithmetic::Max | Arithmetic::Min, Some(float)) => {
                Conversion::FloatKeys { float, flip, keeps_infinity: self.keeps_infinity }
            }
            (Arithmetic::Max | Arithmetic::Min, None) => Conversion::IntegerKeys { flip },
            (Arithmetic::Bits, _) => Conversion::Bits,
        }
    }
}

/// Makes every value of `tensor` NaN, the result of values that were not finite in jobs that carry them.
/// Integers have no NaN and stay as they are.
pub fn fill_nan(dtype: DType, tensor: &mut [u8]) {
    fn fill<const N: usize>(tensor: &mut [u8], nan: [u8; N]) {
        tensor.as_chunks_mut().0.fill(nan);
    }
    match dtype {
        DType::Float32 => fill(tensor, f32::NAN.to_ne_bytes()),
        DType::Float16 => fill(tensor, f16::NAN.to_ne_bytes()),
        DType::Bfloat16 => fill(tensor, bf16::NAN.to_ne_bytes()),
        DType::Int32 => {}
    }
}

#[cfg(test)]
mod tests;
