//! Eight at a time with AVX2 and F16C, sixteen with AVX-512F.

use std::arch::x86_64::{
    __m256, __m256i, __m512, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_add_epi32,
    _mm256_and_si256, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cvtepi16_epi32, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_set1_epi32, _mm256_slli_epi32,
    _mm256_srli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm512_add_epi32, _mm512_and_si512,
    _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cvtepi32_epi16, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_cvtps_ph, _mm512_loadu_ps, _mm512_set1_epi32, _mm512_slli_epi32, _mm512_srli_epi32,
    _mm512_storeu_ps,
};

use half::{bf16, f16};

use super::{Floats, floats};

floats!("avx2,f16c", __m256, f32, |from| _mm256_loadu_ps(from.cast()), |to, values| _mm256_storeu_ps(
    to.cast(),
    values
));
floats!("avx2,f16c", __m256, f16, |from| _mm256_cvtph_ps(_mm_loadu_si128(from.cast())), |to, values| {
    _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values));
});
floats!(
    "avx2,f16c",
    __m256,
    bf16,
    |from| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())))),
    |to, values| {
        let bits = _mm256_castps_si256(values);
        let upper_is_odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        // Carries into the upper half above one half, and at one half if the upper half is odd.
        let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), upper_is_odd);
        store_16_bits(to, _mm256_srli_epi32::<16>(rounded));
    }
);
floats!("avx512f", __m512, f32, |from| _mm512_loadu_ps(from.cast()), |to, values| _mm512_storeu_ps(
    to.cast(),
    values
));
floats!("avx512f", __m512, f16, |from| _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())), |to, values| {
    _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values));
});
floats!(
    "avx512f",
    __m512,
    bf16,
    |from| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
        from.cast()
    )))),
    |to, values| {
        let bits = _mm512_castps_si512(values);
        let upper_is_odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        // As above.
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), upper_is_odd);
        _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded)));
    }
);

/// Eight 16-bit integers, sign-extended.
///
/// # Safety
/// 16 bytes are readable at `from`; the processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::convert) unsafe fn load_16_bits(from: *const u8) -> __m256i {
    // SAFETY: the caller's; the load needs no alignment.
    _mm256_cvtepi16_epi32(unsafe { _mm_loadu_si128(from.cast()) })
}

/// Eight integers of 0 to 65,535 in 16 bits each.
///
/// # Safety
/// 16 bytes are writable at `to`; the processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::convert) unsafe fn store_16_bits(to: *mut u8, values: __m256i) {
    let doubled = _mm256_packus_epi32(values, values);
    let in_order = _mm256_permute4x64_epi64::<0b00_00_10_00>(doubled);
    // SAFETY: the caller's.
    unsafe { _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(in_order)) }
}
