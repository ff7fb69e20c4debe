//! Sums and means of int32.

use std::arch::x86_64::{
    __m128i, __m256d, _mm256_and_si256, _mm256_castsi256_si128, _mm256_cmpeq_epi32, _mm256_cvtepi32_pd,
    _mm256_cvtpd_epi32, _mm256_div_pd, _mm256_extracti128_si256, _mm256_max_epi32, _mm256_min_epi32,
    _mm256_movemask_epi8, _mm256_set_m128i, _mm256_set1_epi32, _mm256_set1_pd,
};

use super::block::{BLOCK, load, store, swap};
use crate::convert::prefetch::{will_read, will_write};

/// Returns whether all values fit; otherwise the output is of no use.
#[target_feature(enable = "avx2")]
pub(super) fn encode(limit: i32, tensor: &[u8], wire: &mut [u8]) -> bool {
    let (high, low) = (_mm256_set1_epi32(limit), _mm256_set1_epi32(-limit));
    let mut all_fit = _mm256_set1_epi32(-1);
    for (from, to) in tensor.as_chunks().0.iter().zip(wire.as_chunks_mut().0) {
        will_read(from.as_ptr(), BLOCK);
        let integers = load(from);
        let clamped = _mm256_min_epi32(_mm256_max_epi32(integers, low), high);
        store(to, swap(clamped));
        all_fit = _mm256_and_si256(all_fit, _mm256_cmpeq_epi32(integers, clamped));
    }
    _mm256_movemask_epi8(all_fit) == -1
}

/// Sums divided by `divisor`, half to even.
#[target_feature(enable = "avx2")]
pub(super) fn decode(divisor: u16, wire: &[u8], tensor: &mut [u8]) {
    let divide = _mm256_set1_pd(f64::from(divisor));
    for (from, to) in wire.as_chunks().0.iter().zip(tensor.as_chunks_mut().0) {
        will_write(to.as_ptr(), BLOCK);
        let sums = swap(load(from));
        if divisor == 1 {
            store(to, sums);
            continue;
        }
        let low = quotients(_mm256_castsi256_si128(sums), divide);
        let high = quotients(_mm256_extracti128_si256::<1>(sums), divide);
        store(to, _mm256_set_m128i(high, low));
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn quotients(sums: __m128i, divisor: __m256d) -> __m128i {
    _mm256_cvtpd_epi32(_mm256_div_pd(_mm256_cvtepi32_pd(sums), divisor))
}
