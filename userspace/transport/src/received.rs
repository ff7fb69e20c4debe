//! The chunks of the stream that have their result: a bit each, as long as their operation is in progress.
//!
//! Aggregators assign every chunk once. With one that does not, an operation would end with a chunk missing and another
//! counted twice; a failed job is better than a wrong sum.

use std::collections::VecDeque;

const BITS: u64 = u64::BITS as u64;

/// A bit for each chunk from the first operation in progress to the end of the stream.
#[derive(Debug)]
pub(crate) struct ReceivedChunks {
    words: VecDeque<u64>,
    first: u64,
}

impl ReceivedChunks {
    pub fn new(first: u64) -> ReceivedChunks {
        ReceivedChunks { words: VecDeque::new(), first: first / BITS }
    }

    pub fn extend(&mut self, end: u64) {
        let words = end.div_ceil(BITS).saturating_sub(self.first);
        self.words.resize((words as usize).max(self.words.len()), 0);
    }

    pub fn forget(&mut self, before: u64) {
        while self.first < before / BITS && self.words.pop_front().is_some() {
            self.first += 1;
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
        let at = (seq / BITS).checked_sub(self.first);
        if let Some(word) = at.and_then(|at| self.words.get_mut(at as usize)) {
            *word |= 1 << (seq % BITS);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set(first in 0..1000u64, steps in proptest::collection::vec(1..200u64, 1..40)) {
            let mut received = ReceivedChunks::new(first);
            let (mut set, mut end) = (BTreeSet::new(), first);
            for (step, grow) in steps.into_iter().enumerate() {
                let begin = end;
                end += grow;
                received.extend(end);
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
