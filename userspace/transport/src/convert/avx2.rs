//! The conversion eight elements at a time, with AVX2. The tail is the scalar twin's.
#![allow(unsafe_code, reason = "vector loads and stores, and calls into code for AVX2")]

use std::arch::x86_64::{
    __m256i, _CMP_LE_OQ, _CMP_LT_OQ, _mm256_and_ps, _mm256_and_si256, _mm256_castps_si256,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cmpeq_epi32, _mm256_cvtepi32_ps, _mm256_cvtps_epi32,
    _mm256_loadu_si256, _mm256_max_epi32, _mm256_max_ps, _mm256_min_epi32, _mm256_min_ps,
    _mm256_movemask_epi8, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi8,
    _mm256_shuffle_epi8, _mm256_storeu_si256,
};

use super::{Limits, scalar};
use crate::operation::DType;

/// Bytes of eight elements.
const BLOCK: usize = 32;

/// Tensor to wire; gives the index of the first value that did not fit.
///
/// Only called where AVX2 was detected.
pub(super) fn encode(dtype: DType, limits: &Limits, tensor: &[u8], wire: &mut [u8]) -> Option<usize> {
    debug_assert!(super::has_avx2());
    let whole = tensor.len() - tensor.len() % BLOCK;
    // SAFETY: `Codec` sends callers here only after it found AVX2.
    let all_fit = unsafe {
        match dtype {
            DType::F32 => encode_f32(limits, &tensor[..whole], &mut wire[..whole]),
            DType::I32 => encode_i32(limits, &tensor[..whole], &mut wire[..whole]),
        }
    };
    if !all_fit {
        // Rare, and the end of the operation: let the definition find the element.
        return scalar::encode(dtype, limits, tensor, wire);
    }
    let tail = scalar::encode(dtype, limits, &tensor[whole..], &mut wire[whole..]);
    tail.map(|index| whole / 4 + index)
}

/// Wire to tensor.
///
/// Only called where AVX2 was detected.
pub(super) fn decode(dtype: DType, limits: &Limits, wire: &[u8], tensor: &mut [u8]) {
    debug_assert!(super::has_avx2());
    let whole = wire.len() - wire.len() % BLOCK;
    // SAFETY: `Codec` sends callers here only after it found AVX2.
    unsafe {
        match dtype {
            DType::F32 => decode_f32(limits, &wire[..whole], &mut tensor[..whole]),
            DType::I32 => decode_i32(&wire[..whole], &mut tensor[..whole]),
        }
    }
    scalar::decode(dtype, limits, &wire[whole..], &mut tensor[whole..]);
}

#[target_feature(enable = "avx2")]
fn encode_f32(limits: &Limits, tensor: &[u8], wire: &mut [u8]) -> bool {
    let scale = _mm256_set1_ps(limits.scale);
    let (high, low) = (_mm256_set1_ps(limits.float), _mm256_set1_ps(-limits.float));
    let infinity = _mm256_set1_ps(f32::INFINITY);
    let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX));
    let swap = byte_swap();
    let mut all_fit = _mm256_set1_epi32(-1);
    for (from, to) in tensor.as_chunks().0.iter().zip(wire.as_chunks_mut().0) {
        let scaled = _mm256_mul_ps(_mm256_castsi256_ps(load(from)), scale);
        let absolute = _mm256_and_ps(scaled, magnitude);
        // Both comparisons are false for NaN.
        let fits = _mm256_cmp_ps::<_CMP_LE_OQ>(absolute, high);
        let finite = _mm256_cmp_ps::<_CMP_LT_OQ>(absolute, infinity);
        let clamped = _mm256_min_ps(_mm256_max_ps(scaled, low), high);
        // Rounds half to even: the mode that Rust keeps the processor in.
        let integers = _mm256_cvtps_epi32(_mm256_and_ps(clamped, finite));
        store(to, _mm256_shuffle_epi8(integers, swap));
        all_fit = _mm256_and_si256(all_fit, _mm256_castps_si256(fits));
    }
    _mm256_movemask_epi8(all_fit) == -1
}

#[target_feature(enable = "avx2")]
fn encode_i32(limits: &Limits, tensor: &[u8], wire: &mut [u8]) -> bool {
    let (high, low) = (_mm256_set1_epi32(limits.integer), _mm256_set1_epi32(-limits.integer));
    let swap = byte_swap();
    let mut all_fit = _mm256_set1_epi32(-1);
    for (from, to) in tensor.as_chunks().0.iter().zip(wire.as_chunks_mut().0) {
        let integers = load(from);
        let clamped = _mm256_min_epi32(_mm256_max_epi32(integers, low), high);
        store(to, _mm256_shuffle_epi8(clamped, swap));
        all_fit = _mm256_and_si256(all_fit, _mm256_cmpeq_epi32(integers, clamped));
    }
    _mm256_movemask_epi8(all_fit) == -1
}

#[target_feature(enable = "avx2")]
fn decode_f32(limits: &Limits, wire: &[u8], tensor: &mut [u8]) {
    let inverse = _mm256_set1_ps(limits.inverse);
    let swap = byte_swap();
    for (from, to) in wire.as_chunks().0.iter().zip(tensor.as_chunks_mut().0) {
        let sums = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(load(from), swap));
        store(to, _mm256_castps_si256(_mm256_mul_ps(sums, inverse)));
    }
}

#[target_feature(enable = "avx2")]
fn decode_i32(wire: &[u8], tensor: &mut [u8]) {
    let swap = byte_swap();
    for (from, to) in wire.as_chunks().0.iter().zip(tensor.as_chunks_mut().0) {
        store(to, _mm256_shuffle_epi8(load(from), swap));
    }
}

/// The shuffle that reverses the bytes of every element.
#[target_feature(enable = "avx2")]
fn byte_swap() -> __m256i {
    _mm256_setr_epi8(
        3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12, //
        3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12,
    )
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(block: &[u8; BLOCK]) -> __m256i {
    // SAFETY: the block is 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(block: &mut [u8; BLOCK], value: __m256i) {
    // SAFETY: the block is 32 writable bytes; the store needs no alignment.
    unsafe { _mm256_storeu_si256(block.as_mut_ptr().cast(), value) }
}
