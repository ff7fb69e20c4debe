//! Maxima and minima: integers in the values' order.

use std::arch::x86_64::{
    __m256i, _mm256_and_si256, _mm256_max_epi32, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_slli_epi32,
    _mm256_srai_epi32, _mm256_srli_epi32, _mm256_xor_si256,
};

use super::block::{BLOCK, largest_u32, load, store, swap};
use crate::convert::{
    floats::x86::{load_16_bits, store_16_bits},
    prefetch::{will_read, will_write},
    real::Real,
};

/// Bytes of eight values of 16 bits.
const HALF_BLOCK: usize = BLOCK / 2;

/// Returns whether all values are finite; otherwise the output is of no use.
#[target_feature(enable = "avx2")]
pub(super) fn encode_f32(flip: i32, tensor: &[u8], wire: &mut [u8]) -> bool {
    let (magnitude, flip) = (_mm256_set1_epi32(i32::MAX), _mm256_set1_epi32(flip));
    let mut largest = _mm256_setzero_si256();
    for (from, to) in tensor.as_chunks().0.iter().zip(wire.as_chunks_mut().0) {
        will_read(from.as_ptr(), BLOCK);
        let bits = load(from);
        largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, magnitude));
        store(to, swap(_mm256_xor_si256(reorder(bits, magnitude), flip)));
    }
    largest_u32(largest) < f32::INFINITY_BITS
}

/// Returns whether all values are finite; otherwise the output is of no use.
#[target_feature(enable = "avx2")]
pub(super) fn encode_16_bits<T: Real>(flip: i32, tensor: &[u8], wire: &mut [u8]) -> bool {
    let (magnitude, flip) = (_mm256_set1_epi32(i32::from(i16::MAX)), _mm256_set1_epi32(flip));
    let mut largest = _mm256_setzero_si256();
    for (from, to) in tensor.as_chunks::<HALF_BLOCK>().0.iter().zip(wire.as_chunks_mut().0) {
        will_read(from.as_ptr(), HALF_BLOCK);
        // SAFETY: the chunk has 16 bytes.
        let bits = unsafe { load_16_bits(from.as_ptr()) };
        largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, magnitude));
        store(to, swap(_mm256_xor_si256(reorder(bits, magnitude), flip)));
    }
    largest_u32(largest) < T::INFINITY_BITS
}

/// Returns true: every integer has a key.
#[target_feature(enable = "avx2")]
pub(super) fn encode_i32(flip: i32, tensor: &[u8], wire: &mut [u8]) -> bool {
    let flip = _mm256_set1_epi32(flip);
    for (from, to) in tensor.as_chunks().0.iter().zip(wire.as_chunks_mut().0) {
        will_read(from.as_ptr(), BLOCK);
        store(to, swap(_mm256_xor_si256(load(from), flip)));
    }
    true
}

#[target_feature(enable = "avx2")]
pub(super) fn decode_f32(flip: i32, wire: &[u8], tensor: &mut [u8]) {
    let (magnitude, flip) = (_mm256_set1_epi32(i32::MAX), _mm256_set1_epi32(flip));
    for (from, to) in wire.as_chunks().0.iter().zip(tensor.as_chunks_mut().0) {
        will_write(to.as_ptr(), BLOCK);
        let keys = _mm256_xor_si256(swap(load(from)), flip);
        store(to, reorder(keys, magnitude));
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn decode_16_bits(flip: i32, wire: &[u8], tensor: &mut [u8]) {
    // In the upper half of each lane, where the sign is the lane's.
    let magnitude = _mm256_set1_epi32(i32::from(i16::MAX) << 16);
    let flip = _mm256_set1_epi32(flip);
    for (from, to) in wire.as_chunks().0.iter().zip(tensor.as_chunks_mut::<HALF_BLOCK>().0) {
        will_write(to.as_ptr(), HALF_BLOCK);
        let keys = _mm256_slli_epi32::<16>(_mm256_xor_si256(swap(load(from)), flip));
        let bits = _mm256_srli_epi32::<16>(reorder(keys, magnitude));
        // SAFETY: the chunk has 16 bytes.
        unsafe { store_16_bits(to.as_mut_ptr(), bits) };
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn decode_i32(flip: i32, wire: &[u8], tensor: &mut [u8]) {
    let flip = _mm256_set1_epi32(flip);
    for (from, to) in wire.as_chunks().0.iter().zip(tensor.as_chunks_mut().0) {
        will_write(to.as_ptr(), BLOCK);
        store(to, swap(_mm256_xor_si256(load(from), flip)));
    }
}

/// Complements the bits of negative values below the sign.
#[inline]
#[target_feature(enable = "avx2")]
fn reorder(bits: __m256i, magnitude: __m256i) -> __m256i {
    _mm256_xor_si256(bits, _mm256_and_si256(_mm256_srai_epi32::<31>(bits), magnitude))
}
