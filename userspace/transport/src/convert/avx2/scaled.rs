//! Sums and means of floats: scaled integers of 32 bits, or two of 16 bits a word.

use std::arch::x86_64::{
    __m128, __m128i, __m256, __m256d, __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_castps_si256,
    _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cvtepi32_pd,
    _mm256_cvtpd_epi32, _mm256_cvtpd_ps, _mm256_cvtps_pd, _mm256_extractf128_ps, _mm256_extracti128_si256,
    _mm256_max_epi32, _mm256_min_epi32, _mm256_mul_pd, _mm256_permute2x128_si256, _mm256_permute4x64_epi64,
    _mm256_set_m128, _mm256_set_m128i, _mm256_set1_epi32, _mm256_set1_pd, _mm256_setzero_si256,
    _mm256_shuffle_ps, _mm256_slli_epi32, _mm256_srai_epi32, _mm256_srli_epi64, _mm256_sub_epi32,
    _mm256_unpackhi_epi32, _mm256_unpacklo_epi32,
};

use super::block::{BLOCK, largest_u32, load, store, swap};
use crate::convert::{
    floats::Floats,
    passes::scaled_passes,
    prefetch::{will_read, will_write},
    scale::{Dequantizer, Quantizer},
};

/// Values in a vector.
const LANES: usize = 8;

scaled_passes!("avx2,f16c", __m256, _mm256_set1_pd);

/// The factor and limits in vectors, and the largest magnitude so far: whether all values were finite and fit
/// is seen from it, so that the loop need not compare.
struct ToIntegers {
    factor: __m256d,
    high: __m256i,
    low: __m256i,
    largest: __m256i,
}

impl ToIntegers {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(quantizer: Quantizer) -> ToIntegers {
        ToIntegers {
            factor: _mm256_set1_pd(quantizer.factor),
            high: _mm256_set1_epi32(quantizer.limit),
            low: _mm256_set1_epi32(-quantizer.limit),
            largest: _mm256_setzero_si256(),
        }
    }

    /// Scales and rounds, half to even: the mode that Rust keeps the processor in.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn convert(&mut self, values: __m256) -> __m256i {
        let magnitudes = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(i32::MAX));
        self.largest = _mm256_max_epi32(self.largest, magnitudes);
        let low = self.convert_half(_mm256_castps256_ps128(values));
        let high = self.convert_half(_mm256_extractf128_ps::<1>(values));
        let integers = _mm256_set_m128i(high, low);
        _mm256_max_epi32(_mm256_min_epi32(integers, self.high), self.low)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn largest(&self) -> u32 {
        largest_u32(self.largest)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn convert_half(&self, values: __m128) -> __m128i {
        _mm256_cvtpd_epi32(_mm256_mul_pd(_mm256_cvtps_pd(values), self.factor))
    }
}

/// Eight sums times the inverse of the factor.
#[inline]
#[target_feature(enable = "avx2")]
fn to_values(sums: __m256i, inverse: __m256d) -> __m256 {
    let low = _mm256_cvtepi32_pd(_mm256_castsi256_si128(sums));
    let high = _mm256_cvtepi32_pd(_mm256_extracti128_si256::<1>(sums));
    let low = _mm256_cvtpd_ps(_mm256_mul_pd(low, inverse));
    let high = _mm256_cvtpd_ps(_mm256_mul_pd(high, inverse));
    _mm256_set_m128(high, low)
}

/// Eight words of sixteen integers: those with even numbers are the upper halves.
#[inline]
#[target_feature(enable = "avx2")]
fn pack(first: __m256i, second: __m256i) -> __m256i {
    // In each pair of lanes: the even integer's low half, shifted up, plus the odd one.
    let words =
        |integers| _mm256_add_epi32(_mm256_slli_epi32::<16>(integers), _mm256_srli_epi64::<32>(integers));
    let (first, second) = (_mm256_castsi256_ps(words(first)), _mm256_castsi256_ps(words(second)));
    let even_lanes = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(first, second));
    _mm256_permute4x64_epi64::<0b11_01_10_00>(even_lanes)
}

/// The sixteen integers of eight words.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack(words: __m256i) -> (__m256i, __m256i) {
    let lower = _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(words));
    let upper = _mm256_srai_epi32::<16>(_mm256_sub_epi32(words, lower));
    let outer = _mm256_unpacklo_epi32(upper, lower);
    let inner = _mm256_unpackhi_epi32(upper, lower);
    (_mm256_permute2x128_si256::<0x20>(outer, inner), _mm256_permute2x128_si256::<0x31>(outer, inner))
}
