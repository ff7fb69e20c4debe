//! The chunks of the stream that have their result: a bit each, as long as their operation is in progress.
//!
//! Aggregators assign every chunk once. With one that does not, an operation would end with a chunk missing
//! and another counted twice; a failed job is better than a wrong sum.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

const BITS: u64 = u64::BITS as u64;
/// The table shrinks when it uses less than one word in this many.
const SHRINK: usize = 8;

/// A bit for each chunk from the first operation in progress to the last chunk with a result.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReceivedChunks {
    words: VecDeque<u64>,
    first: u64,
}

impl ReceivedChunks {
    pub fn new(first: u64) -> ReceivedChunks {
        ReceivedChunks { words: VecDeque::new(), first: first / BITS }
    }

    pub fn forget(&mut self, before: u64) {
        while self.first < before / BITS && self.words.pop_front().is_some() {
            self.first += 1;
        }
        // Queued operations take no memory, nor do those that have ended.
        if self.words.len() < self.words.capacity() / SHRINK {
            self.words.shrink_to(self.words.len() * 2);
        }
    }

    /// Whether a chunk has its result. Forgotten chunks have it.
    pub fn contains(&self, seq: u64) -> bool {
        let word = (seq / BITS).checked_sub(self.first).map(|at| self.words.get(at as usize));
        match word {
            Some(Some(word)) => word & 1 << (seq % BITS) != 0,
            Some(None) => false,
            None => true,
        }
    }

    pub fn insert(&mut self, seq: u64) {
        let Some(at) = (seq / BITS).checked_sub(self.first) else { return };
        let at = at as usize;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= 1 << (seq % BITS);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn chunks_without_a_result_take_no_memory() {
        let mut received = ReceivedChunks::new(0);
        assert!(!received.contains(1 << 40));
        (0..1 << 20).for_each(|seq| received.insert(seq));
        assert!(received.words.capacity() as u64 <= (1 << 20) / BITS * 2);
        received.forget(1 << 20);
        assert!(received.words.capacity() < 64, "{}", received.words.capacity());
    }

    proptest! {
        #[test]
        fn behaves_like_a_set(first in 0..1000u64, steps in proptest::collection::vec(1..200u64, 1..40)) {
            let mut received = ReceivedChunks::new(first);
            let (mut set, mut end) = (BTreeSet::new(), first);
            for (step, grow) in steps.into_iter().enumerate() {
                let begin = end;
                end += grow;
                for seq in (begin..end).step_by(3) {
                    received.insert(seq);
                    set.insert(seq);
                }
                // All chunks of an operation have their result when it is forgotten.
                if step % 5 == 4 {
                    received.forget(begin);
                    (first..begin).for_each(|seq| { set.insert(seq); });
                    (begin / BITS * BITS..begin).for_each(|seq| received.insert(seq));
                }
                for seq in begin.saturating_sub(300).max(first)..end + 100 {
                    if seq >= begin || step % 5 == 4 {
                        prop_assert_eq!(received.contains(seq), set.contains(&seq), "{}", seq);
                    }
                }
                prop_assert!(received.words.len() as u64 <= (end - begin) / BITS + 17);
            }
        }
    }
}
