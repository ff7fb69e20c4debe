//! Scaled integers of 32 bits, or two of 16 bits a word. The steps are those of `avx2::scaled`.

use std::arch::x86_64::{
    __m256, __m256i, __m512, __m512d, __m512i, _mm_setr_epi8, _mm512_add_epi32, _mm512_and_si512,
    _mm512_broadcast_i32x4, _mm512_castps_si512, _mm512_castps256_ps512, _mm512_castps512_ps256,
    _mm512_castsi256_si512, _mm512_castsi512_si256, _mm512_cvtepi32_pd, _mm512_cvtepi64_epi32,
    _mm512_cvtpd_epi32, _mm512_cvtpd_ps, _mm512_cvtps_pd, _mm512_extractf32x8_ps, _mm512_extracti32x8_epi32,
    _mm512_insertf32x8, _mm512_inserti32x8, _mm512_loadu_si512, _mm512_max_epi32, _mm512_min_epi32,
    _mm512_mul_pd, _mm512_permutex2var_epi32, _mm512_reduce_max_epi32, _mm512_set1_epi32, _mm512_set1_pd,
    _mm512_setr_epi32, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_slli_epi32, _mm512_srai_epi32,
    _mm512_srli_epi64, _mm512_storeu_si512, _mm512_sub_epi32,
};

use crate::convert::{
    floats::Floats,
    passes::scaled_passes,
    prefetch::{will_read, will_write},
    scale::{Dequantizer, Quantizer},
};

/// Bytes of a vector: sixteen words.
pub(super) const BLOCK: usize = 64;
/// Values in a vector.
const LANES: usize = 16;

scaled_passes!("avx512f,avx512bw,avx512dq", __m512, _mm512_set1_pd);

/// The factor and limits in vectors, and the largest magnitude so far.
struct ToIntegers {
    factor: __m512d,
    high: __m512i,
    low: __m512i,
    largest: __m512i,
}

impl ToIntegers {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn new(quantizer: Quantizer) -> ToIntegers {
        ToIntegers {
            factor: _mm512_set1_pd(quantizer.factor),
            high: _mm512_set1_epi32(quantizer.limit),
            low: _mm512_set1_epi32(-quantizer.limit),
            largest: _mm512_setzero_si512(),
        }
    }

    /// Scales and rounds, half to even: the mode that Rust keeps the processor in.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn convert(&mut self, values: __m512) -> __m512i {
        let magnitudes = _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(i32::MAX));
        self.largest = _mm512_max_epi32(self.largest, magnitudes);
        let low = self.convert_half(_mm512_castps512_ps256(values));
        let high = self.convert_half(_mm512_extractf32x8_ps::<1>(values));
        let integers = _mm512_inserti32x8::<1>(_mm512_castsi256_si512(low), high);
        _mm512_max_epi32(_mm512_min_epi32(integers, self.high), self.low)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn largest(&self) -> u32 {
        _mm512_reduce_max_epi32(self.largest) as u32
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn convert_half(&self, values: __m256) -> __m256i {
        _mm512_cvtpd_epi32(_mm512_mul_pd(_mm512_cvtps_pd(values), self.factor))
    }
}

/// Sixteen sums times the inverse of the factor.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn to_values(sums: __m512i, inverse: __m512d) -> __m512 {
    let low = _mm512_cvtepi32_pd(_mm512_castsi512_si256(sums));
    let high = _mm512_cvtepi32_pd(_mm512_extracti32x8_epi32::<1>(sums));
    let low = _mm512_cvtpd_ps(_mm512_mul_pd(low, inverse));
    let high = _mm512_cvtpd_ps(_mm512_mul_pd(high, inverse));
    _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)
}

/// Sixteen words of 32 integers: those with even numbers are the upper halves.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn pack(first: __m512i, second: __m512i) -> __m512i {
    _mm512_inserti32x8::<1>(_mm512_castsi256_si512(words(first)), words(second))
}

/// In each pair of lanes: the even integer's low half, shifted up, plus the odd one.
#[inline]
#[target_feature(enable = "avx512f")]
fn words(integers: __m512i) -> __m256i {
    let sums = _mm512_add_epi32(_mm512_slli_epi32::<16>(integers), _mm512_srli_epi64::<32>(integers));
    _mm512_cvtepi64_epi32(sums)
}

/// The 32 integers of sixteen words.
#[inline]
#[target_feature(enable = "avx512f")]
fn unpack(words: __m512i) -> (__m512i, __m512i) {
    let lower = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(words));
    let upper = _mm512_srai_epi32::<16>(_mm512_sub_epi32(words, lower));
    // Lanes from 16 on are the second operand's.
    let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    (_mm512_permutex2var_epi32(upper, first, lower), _mm512_permutex2var_epi32(upper, second, lower))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(block: &[u8; BLOCK]) -> __m512i {
    // SAFETY: the block is 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(block: &mut [u8; BLOCK], value: __m512i) {
    // SAFETY: the block is 64 writable bytes; the store needs no alignment.
    unsafe { _mm512_storeu_si512(block.as_mut_ptr().cast(), value) }
}

/// Sixteen words from network order, or to it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn swap(words: __m512i) -> __m512i {
    let reversed = _mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
    _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(reversed))
}
