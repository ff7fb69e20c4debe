//! Bits: a copy with prefetching. Chunks are too short for the hardware prefetcher.

use super::block::{BLOCK, load, store};
use crate::convert::prefetch::{will_read, will_write};

/// Returns true: all bits can be sent.
#[target_feature(enable = "avx2")]
pub(super) fn encode(tensor: &[u8], wire: &mut [u8]) -> bool {
    for (from, to) in tensor.as_chunks().0.iter().zip(wire.as_chunks_mut().0) {
        will_read(from.as_ptr(), BLOCK);
        store(to, load(from));
    }
    true
}

#[target_feature(enable = "avx2")]
pub(super) fn decode(wire: &[u8], tensor: &mut [u8]) {
    for (from, to) in wire.as_chunks().0.iter().zip(tensor.as_chunks_mut().0) {
        will_write(to.as_ptr(), BLOCK);
        store(to, load(from));
    }
}
