//! Vectors from and to bytes, and the order of bytes on the wire.

use std::arch::x86_64::{
    __m256i, _mm256_loadu_si256, _mm256_setr_epi8, _mm256_shuffle_epi8, _mm256_storeu_si256,
};

/// Bytes of a vector: eight words.
pub(super) const BLOCK: usize = 32;

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(block: &[u8; BLOCK]) -> __m256i {
    // SAFETY: the block is 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store(block: &mut [u8; BLOCK], value: __m256i) {
    // SAFETY: the block is 32 writable bytes; the store needs no alignment.
    unsafe { _mm256_storeu_si256(block.as_mut_ptr().cast(), value) }
}

/// Eight words from network order, or to it.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn swap(words: __m256i) -> __m256i {
    let reversed = _mm256_setr_epi8(
        3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12, //
        3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12,
    );
    _mm256_shuffle_epi8(words, reversed)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn largest_u32(values: __m256i) -> u32 {
    let mut bytes = [0; BLOCK];
    store(&mut bytes, values);
    bytes.as_chunks().0.iter().map(|value| u32::from_ne_bytes(*value)).max().unwrap_or(0)
}
