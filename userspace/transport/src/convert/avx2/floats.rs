//! Eight floats of each type as a vector of single precision, and back.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_add_epi32,
    _mm256_and_si256, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cvtepi16_epi32, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps,
    _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_set1_epi32, _mm256_slli_epi32, _mm256_srli_epi32,
    _mm256_storeu_ps,
};

use half::{bf16, f16};

use crate::convert::real::Real;

/// A type of float.
pub(in crate::convert) trait Floats: Real {
    /// The bits of infinity, in the type's own width.
    const INFINITY_BITS: u32;

    /// # Safety
    /// Eight values are readable at `from`; the processor has AVX2 and F16C.
    unsafe fn load(from: *const u8) -> __m256;

    /// Rounds to the nearest, half to even; infinity when it is too large. No value is NaN.
    ///
    /// # Safety
    /// Eight values are writable at `to`; the processor has AVX2 and F16C.
    unsafe fn store(to: *mut u8, values: __m256);
}

impl Floats for f32 {
    const INFINITY_BITS: u32 = 0x7f80_0000;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(from: *const u8) -> __m256 {
        // SAFETY: the caller's.
        unsafe { _mm256_loadu_ps(from.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store(to: *mut u8, values: __m256) {
        // SAFETY: the caller's.
        unsafe { _mm256_storeu_ps(to.cast(), values) }
    }
}

impl Floats for f16 {
    const INFINITY_BITS: u32 = 0x7c00;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(from: *const u8) -> __m256 {
        // SAFETY: the caller's; eight halves are 16 bytes.
        _mm256_cvtph_ps(unsafe { load_16_bytes(from) })
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store(to: *mut u8, values: __m256) {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
        // SAFETY: the caller's; eight halves are 16 bytes.
        unsafe { _mm_storeu_si128(to.cast(), halves) }
    }
}

impl Floats for bf16 {
    const INFINITY_BITS: u32 = 0x7f80;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(from: *const u8) -> __m256 {
        // SAFETY: the caller's; eight halves are 16 bytes.
        let halves = unsafe { load_16_bytes(from) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store(to: *mut u8, values: __m256) {
        let bits = _mm256_castps_si256(values);
        let upper_is_odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        // Carries into the upper half above one half, and at one half if the upper half is odd.
        let almost_half = _mm256_set1_epi32(0x7fff);
        let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, almost_half), upper_is_odd);
        // SAFETY: the caller's.
        unsafe { store_16_bits(to, _mm256_srli_epi32::<16>(rounded)) }
    }
}

/// Eight 16-bit integers, sign-extended.
///
/// # Safety
/// 16 bytes are readable at `from`; the processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn load_16_bits(from: *const u8) -> __m256i {
    // SAFETY: the caller's.
    _mm256_cvtepi16_epi32(unsafe { load_16_bytes(from) })
}

/// Eight integers of 0 to 65,535 in 16 bits each.
///
/// # Safety
/// 16 bytes are writable at `to`; the processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn store_16_bits(to: *mut u8, values: __m256i) {
    let doubled = _mm256_packus_epi32(values, values);
    let in_order = _mm256_permute4x64_epi64::<0b00_00_10_00>(doubled);
    // SAFETY: the caller's.
    unsafe { _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(in_order)) }
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_16_bytes(from: *const u8) -> __m128i {
    // SAFETY: the caller's; the load needs no alignment.
    unsafe { _mm_loadu_si128(from.cast()) }
}
