//! Exponent chunks: one frame with the exponents of many chunks, which the workers agree on before they send
//! those.
//!
//! A look-ahead tells a chunk's exponent one window of chunks before it (SwitchML section 4.6), so the first
//! window of an operation that is submitted to an idle stream has none. An operation of several block-scaled
//! chunks therefore begins with an exponent chunk. It is a maximum of integers, one word for each chunk after
//! it, also for those of later operations that have been submitted; [`UNKNOWN`] is the largest of all, and
//! stands for chunks that a worker does not have yet.
//!
//! All workers have the same result, and wait for it with the same chunks: those that no look-ahead knows.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use sumac_wire::header::exponent::UNKNOWN;

/// Exponent chunks are at most one in so many. A shorter operation is over sooner without one: it costs a
/// round trip.
const SPACING: u32 = 8;

/// Whether an operation of so many block-scaled chunks begins with an exponent chunk where the stream
/// continues with chunk number `next`: if its chunks reach a multiple of [`SPACING`]. All workers of a job
/// find the same.
pub fn has_exponent_chunk(next: u32, chunks: u64) -> bool {
    chunks >= u64::from(SPACING - next % SPACING)
}

#[derive(Debug, Serialize, Deserialize)]
struct ExponentChunk {
    seq: u64,
    /// The exponents of the chunks after it; empty while it has no result.
    agreed: Vec<i8>,
}

/// The exponent chunks of a stream whose results may still be needed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct AgreedExponents {
    /// Ascending.
    chunks: VecDeque<ExponentChunk>,
    /// Earlier ones count for nothing.
    from: u64,
    /// Memory for the next results.
    spare: Vec<Vec<i8>>,
}

impl AgreedExponents {
    /// Notes an exponent chunk that was appended to the stream. `first`: the stream's first chunk in
    /// progress.
    pub fn push(&mut self, seq: u64, first: u64) {
        // Chunks from the next one on have that one's exponents, or their own.
        while !self.chunks.is_empty() && self.chunks.get(1).map_or(seq, |next| next.seq) <= first {
            self.pop();
        }
        if seq >= self.from {
            let agreed = self.spare.pop().unwrap_or_default();
            self.chunks.push_back(ExponentChunk { seq, agreed });
        }
    }

    fn pop(&mut self) {
        if let Some(ExponentChunk { mut agreed, .. }) = self.chunks.pop_front() {
            agreed.clear();
            self.spare.push(agreed);
        }
    }

    /// Ignores the exponent chunks before this one, from now on.
    pub fn begin_at(&mut self, from: u64) {
        self.from = from;
        while self.chunks.front().is_some_and(|chunk| chunk.seq < from) {
            self.pop();
        }
    }

    /// Takes the result of exponent chunk `seq`.
    pub fn agree(&mut self, seq: u64, exponents: impl Iterator<Item = i8>) {
        let at = self.chunks.partition_point(|chunk| chunk.seq < seq);
        if let Some(chunk) = self.chunks.get_mut(at).filter(|chunk| chunk.seq == seq) {
            chunk.agreed.clear();
            chunk.agreed.extend(exponents);
        }
    }

    /// The exponent of chunk `seq` by the last exponent chunk before it, of `words` each; [`UNKNOWN`] where
    /// there is none. `None`: its result has not come.
    pub fn of(&self, seq: u64, words: usize) -> Option<i8> {
        let before = self.chunks.partition_point(|chunk| chunk.seq < seq).checked_sub(1);
        let Some(chunk) = before.and_then(|at| self.chunks.get(at)) else { return Some(UNKNOWN) };
        let at = usize::try_from(seq - chunk.seq - 1).unwrap_or(usize::MAX);
        match () {
            () if at >= words => Some(UNKNOWN),
            () if chunk.agreed.is_empty() => None,
            () => Some(chunk.agreed.get(at).copied().unwrap_or(UNKNOWN)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chunks of a stream of operations of so many chunks each, `true` for exponent chunks.
    fn stream(mut next: u32, operations: &[u64]) -> Vec<bool> {
        let mut stream = Vec::new();
        for chunks in operations {
            let has_exponents = has_exponent_chunk(next, *chunks);
            stream.extend(has_exponents.then_some(true));
            stream.extend((0..*chunks).map(|_| false));
            next = next.wrapping_add(u32::from(has_exponents) + *chunks as u32);
        }
        stream
    }

    #[test]
    fn long_operations_begin_with_an_exponent_chunk_and_short_ones_share_one() {
        for first in [0, 3, 7, u32::MAX - 2, u32::MAX] {
            for chunks in [8, 9, 187, 1 << 33] {
                assert!(has_exponent_chunk(first, chunks), "{chunks} from {first}");
            }
            assert!(!has_exponent_chunk(first, 0));
            for chunks in 1..8 {
                let stream = stream(first, &[chunks; 100]);
                let exponents = stream.iter().filter(|is_exponents| **is_exponents).count();
                assert!(exponents >= 100 * chunks as usize / 16, "{exponents} of {chunks} from {first}");
                assert!(exponents <= stream.len().div_ceil(8), "{exponents} of {chunks} from {first}");
            }
        }
        assert!(!has_exponent_chunk(0, 7) && has_exponent_chunk(7, 1));
    }

    #[test]
    fn the_last_exponent_chunk_before_a_chunk_has_its_exponent() {
        let mut exponents = AgreedExponents::default();
        assert_eq!(exponents.of(3, 4), Some(UNKNOWN), "there is none");
        [10, 20].into_iter().for_each(|seq| exponents.push(seq, 0));
        assert_eq!(
            (exponents.of(10, 4), exponents.of(11, 4), exponents.of(15, 4)),
            (Some(UNKNOWN), None, Some(UNKNOWN))
        );
        exponents.agree(10, [1, 2, 3, UNKNOWN].into_iter());
        exponents.agree(15, [7; 4].into_iter());
        assert_eq!([11, 13, 14, 15].map(|seq| exponents.of(seq, 4)), [1, 3, UNKNOWN, UNKNOWN].map(Some));
        assert_eq!(exponents.of(21, 4), None);
        // One before the first chunk in progress is kept while its chunks may be.
        exponents.push(30, 12);
        assert_eq!(exponents.of(13, 4), Some(3));
        exponents.push(40, 21);
        assert_eq!((exponents.chunks.len(), exponents.of(13, 4)), (3, Some(UNKNOWN)));
        exponents.begin_at(31);
        exponents.push(25, 21);
        assert_eq!(
            (exponents.of(26, 4), exponents.of(31, 4), exponents.of(41, 4)),
            (Some(UNKNOWN), Some(UNKNOWN), None)
        );
    }
}
