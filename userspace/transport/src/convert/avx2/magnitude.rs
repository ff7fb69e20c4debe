//! The largest magnitude of a run of floats, and whether one is too small.

use std::arch::x86_64::{
    _mm256_and_si256, _mm256_max_epi32, _mm256_max_epu16, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_setzero_si256,
};

use super::block::{BLOCK, largest_u32, load, store};
use crate::convert::{
    prefetch::will_read,
    real::{Float, Real},
    scalar,
};

/// In bits of a single-precision float; `None`: a value is not finite.
#[target_feature(enable = "avx2")]
pub(super) fn of_f32(blocks: &[[u8; BLOCK]]) -> Option<u32> {
    let magnitude = _mm256_set1_epi32(i32::MAX);
    let mut largest = _mm256_setzero_si256();
    let (pairs, last) = blocks.as_chunks::<2>();
    for [one, other] in pairs {
        will_read(one.as_ptr(), 2 * BLOCK);
        largest = _mm256_max_epi32(largest, _mm256_and_si256(load(one), magnitude));
        largest = _mm256_max_epi32(largest, _mm256_and_si256(load(other), magnitude));
    }
    for block in last {
        largest = _mm256_max_epi32(largest, _mm256_and_si256(load(block), magnitude));
    }
    Some(largest_u32(largest)).filter(|bits| *bits < f32::INFINITY_BITS)
}

/// In bits of the type itself; `None`: a value is not finite.
#[target_feature(enable = "avx2")]
pub(super) fn of_16_bits<T: Real>(blocks: &[[u8; BLOCK]]) -> Option<u16> {
    let magnitude = _mm256_set1_epi16(i16::MAX);
    let mut largest = _mm256_setzero_si256();
    let (pairs, last) = blocks.as_chunks::<2>();
    for [one, other] in pairs {
        will_read(one.as_ptr(), 2 * BLOCK);
        largest = _mm256_max_epu16(largest, _mm256_and_si256(load(one), magnitude));
        largest = _mm256_max_epu16(largest, _mm256_and_si256(load(other), magnitude));
    }
    for block in last {
        largest = _mm256_max_epu16(largest, _mm256_and_si256(load(block), magnitude));
    }
    let mut lanes = [0; BLOCK];
    store(&mut lanes, largest);
    let largest = lanes.as_chunks().0.iter().map(|bits| u16::from_ne_bytes(*bits)).max();
    largest.filter(|bits| u32::from(*bits) < T::INFINITY_BITS)
}

/// The scalar loop, which becomes vector code here.
#[target_feature(enable = "avx2")]
pub(super) fn any_below(float: Float, least: f32, tensor: &[u8]) -> bool {
    scalar::any_below(float, least, tensor)
}
