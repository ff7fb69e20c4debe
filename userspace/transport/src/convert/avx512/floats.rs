//! Sixteen floats of each type as a vector of single precision, and back.

use std::arch::x86_64::{
    __m512, _MM_FROUND_TO_NEAREST_INT, _mm256_loadu_si256, _mm256_storeu_si256, _mm512_add_epi32,
    _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cvtepi32_epi16, _mm512_cvtepu16_epi32,
    _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_loadu_ps, _mm512_set1_epi32, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_storeu_ps,
};

use half::{bf16, f16};

use crate::convert::avx2::floats::Floats;

/// A type of float, sixteen at a time.
pub(super) trait WideFloats: Floats {
    /// # Safety
    /// Sixteen values are readable at `from`; the processor has AVX-512F.
    unsafe fn load_wide(from: *const u8) -> __m512;

    /// Rounds to the nearest, half to even; infinity when it is too large. No value is NaN.
    ///
    /// # Safety
    /// Sixteen values are writable at `to`; the processor has AVX-512F.
    unsafe fn store_wide(to: *mut u8, values: __m512);
}

impl WideFloats for f32 {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_wide(from: *const u8) -> __m512 {
        // SAFETY: the caller's; the load needs no alignment.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store_wide(to: *mut u8, values: __m512) {
        // SAFETY: the caller's; the store needs no alignment.
        unsafe { _mm512_storeu_ps(to.cast(), values) }
    }
}

impl WideFloats for f16 {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_wide(from: *const u8) -> __m512 {
        // SAFETY: the caller's; sixteen halves are 32 bytes.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store_wide(to: *mut u8, values: __m512) {
        let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
        // SAFETY: the caller's; sixteen halves are 32 bytes.
        unsafe { _mm256_storeu_si256(to.cast(), halves) }
    }
}

impl WideFloats for bf16 {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_wide(from: *const u8) -> __m512 {
        // SAFETY: the caller's; sixteen halves are 32 bytes.
        let halves = unsafe { _mm256_loadu_si256(from.cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store_wide(to: *mut u8, values: __m512) {
        let bits = _mm512_castps_si512(values);
        let upper_is_odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        // Carries into the upper half above one half, and at one half if the upper half is odd.
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), upper_is_odd);
        let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded));
        // SAFETY: the caller's; sixteen halves are 32 bytes.
        unsafe { _mm256_storeu_si256(to.cast(), halves) }
    }
}
