//! Fetching a tensor's memory ahead of its conversion.
//!
//! Chunks follow one another in memory, but their slices are too short for the processor to notice: it
//! would wait at the head of each.
#![allow(unsafe_code, reason = "the prefetch instruction")]

use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};

/// Bytes. Measured on Zen 5 from 1 to 12 KB: it pays up to here. Without, chunks from memory take half as long again.
const AHEAD: usize = 8 << 10;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Fetches what will be read when the next chunks are encoded. `step`: bytes from call to call, a
/// constant; each line is fetched once.
#[inline(always)]
pub(super) fn will_read(at: *const u8, step: usize) {
    if step >= LINE || at.addr() % LINE < step {
        // SAFETY: a prefetch is a hint; it accesses nothing, at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast()) }
    }
}

/// Fetches what will be written when the next chunks are decoded.
#[inline(always)]
pub(super) fn will_write(at: *const u8, step: usize) {
    if step >= LINE || at.addr() % LINE < step {
        // SAFETY: a prefetch is a hint; it accesses nothing, at any address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.wrapping_add(AHEAD).cast()) }
    }
}
