//! Scaled integers of 32 bits, or two of 16 bits a word. The steps are those of `avx2::scaled`.

use std::arch::aarch64::{
    float32x4_t, float64x2_t, int32x4_t, uint32x4_t, vaddq_s32, vandq_u32, vcvt_f32_f64, vcvt_f64_f32,
    vcvt_high_f32_f64, vcvt_high_f64_f32, vcvtnq_s64_f64, vcvtq_f64_s64, vdupq_n_f64, vdupq_n_s32,
    vdupq_n_u32, vget_low_f32, vget_low_s32, vld1q_u8, vmaxq_s32, vmaxq_u32, vmaxvq_u32, vminq_s32,
    vmovl_high_s32, vmovl_s32, vmulq_f64, vqmovn_high_s64, vqmovn_s64, vreinterpretq_s32_u8,
    vreinterpretq_u8_s32, vreinterpretq_u32_f32, vrev32q_u8, vshlq_n_s32, vshrq_n_s32, vst1q_u8, vsubq_s32,
    vuzp1q_s32, vuzp2q_s32, vzip1q_s32, vzip2q_s32,
};

use crate::convert::{
    floats::Floats,
    passes::scaled_passes,
    prefetch::{will_read, will_write},
    scale::{Dequantizer, Quantizer},
};

/// Bytes of a vector: four words.
pub(super) const BLOCK: usize = 16;
/// Values in a vector.
const LANES: usize = 4;

scaled_passes!("neon", float32x4_t, vdupq_n_f64);

/// The factor and limits in vectors, and the largest magnitude so far.
struct ToIntegers {
    factor: float64x2_t,
    high: int32x4_t,
    low: int32x4_t,
    largest: uint32x4_t,
}

impl ToIntegers {
    #[inline]
    #[target_feature(enable = "neon")]
    fn new(quantizer: Quantizer) -> ToIntegers {
        ToIntegers {
            factor: vdupq_n_f64(quantizer.factor),
            high: vdupq_n_s32(quantizer.limit),
            low: vdupq_n_s32(-quantizer.limit),
            largest: vdupq_n_u32(0),
        }
    }

    /// Scales and rounds, half to even.
    #[inline]
    #[target_feature(enable = "neon")]
    fn convert(&mut self, values: float32x4_t) -> int32x4_t {
        let magnitudes = vandq_u32(vreinterpretq_u32_f32(values), vdupq_n_u32(u32::MAX >> 1));
        self.largest = vmaxq_u32(self.largest, magnitudes);
        let low = vcvtnq_s64_f64(vmulq_f64(vcvt_f64_f32(vget_low_f32(values)), self.factor));
        let high = vcvtnq_s64_f64(vmulq_f64(vcvt_high_f64_f32(values), self.factor));
        let integers = vqmovn_high_s64(vqmovn_s64(low), high);
        vmaxq_s32(vminq_s32(integers, self.high), self.low)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn largest(&self) -> u32 {
        vmaxvq_u32(self.largest)
    }
}

/// Four sums times the inverse of the factor.
#[inline]
#[target_feature(enable = "neon")]
fn to_values(sums: int32x4_t, inverse: float64x2_t) -> float32x4_t {
    let low = vmulq_f64(vcvtq_f64_s64(vmovl_s32(vget_low_s32(sums))), inverse);
    let high = vmulq_f64(vcvtq_f64_s64(vmovl_high_s32(sums)), inverse);
    vcvt_high_f32_f64(vcvt_f32_f64(low), high)
}

/// Four words of eight integers: those with even numbers are the upper halves.
#[inline]
#[target_feature(enable = "neon")]
fn pack(first: int32x4_t, second: int32x4_t) -> int32x4_t {
    let (even, odd) = (vuzp1q_s32(first, second), vuzp2q_s32(first, second));
    vaddq_s32(vshlq_n_s32::<16>(even), odd)
}

/// The eight integers of four words.
#[inline]
#[target_feature(enable = "neon")]
fn unpack(words: int32x4_t) -> (int32x4_t, int32x4_t) {
    let lower = vshrq_n_s32::<16>(vshlq_n_s32::<16>(words));
    let upper = vshrq_n_s32::<16>(vsubq_s32(words, lower));
    (vzip1q_s32(upper, lower), vzip2q_s32(upper, lower))
}

#[inline]
#[target_feature(enable = "neon")]
fn load(block: &[u8; BLOCK]) -> int32x4_t {
    // SAFETY: the block is 16 readable bytes; the load needs no alignment.
    vreinterpretq_s32_u8(unsafe { vld1q_u8(block.as_ptr()) })
}

#[inline]
#[target_feature(enable = "neon")]
fn store(block: &mut [u8; BLOCK], value: int32x4_t) {
    // SAFETY: the block is 16 writable bytes; the store needs no alignment.
    unsafe { vst1q_u8(block.as_mut_ptr(), vreinterpretq_u8_s32(value)) }
}

/// Four words from network order, or to it.
#[inline]
#[target_feature(enable = "neon")]
fn swap(words: int32x4_t) -> int32x4_t {
    vreinterpretq_s32_u8(vrev32q_u8(vreinterpretq_u8_s32(words)))
}
