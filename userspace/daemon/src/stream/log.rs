//! The last operations that this host submitted: what it had at a place of a lane's stream when others had something else.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::what::signature;

/// How many operations are remembered: more than may be outstanding on all connections that usually share a job.
const KEPT: usize = 4096;

/// What a worker had at a place; also what it tells the others of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// The operation's number in its job.
    pub(crate) number: u32,
    /// The operation in words, with its number.
    pub(crate) words: String,
}

impl Claim {
    pub(crate) fn signature(&self) -> u32 {
        signature(&self.words)
    }
}

/// A part's place in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) lane: u16,
    pub(crate) first: u32,
    pub(crate) chunks: u32,
}

impl Stretch {
    fn holds(&self, lane: u16, seq: u32) -> bool {
        self.lane == lane && seq.wrapping_sub(self.first) < self.chunks
    }
}

/// Operations in the order of their numbers, without gaps.
#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: VecDeque<(Claim, Vec<Stretch>)>,
}

impl Log {
    pub(crate) fn add(&mut self, claim: Claim, stretches: Vec<Stretch>) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back((claim, stretches));
    }

    /// What this host had there; `None` when it has not come so far, or it is long ago.
    pub(crate) fn at(&self, lane: u16, seq: u32) -> Option<&Claim> {
        let of_place = |(_, stretches): &&(Claim, Vec<Stretch>)| {
            stretches.iter().any(|stretch| stretch.holds(lane, seq))
        };
        self.entries.iter().rev().find(of_place).map(|(claim, _)| claim)
    }

    /// The operation with this number.
    pub(crate) fn numbered(&self, number: u32) -> Option<&Claim> {
        let first = self.entries.front()?.0.number;
        let at = usize::try_from(number.wrapping_sub(first)).ok()?;
        self.entries.get(at).map(|(claim, _)| claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(number: u32) -> Claim {
        Claim { number, words: format!("#{number} allreduce sum float32[10]") }
    }

    #[test]
    fn a_place_leads_to_its_operation() {
        let mut log = Log::default();
        log.add(claim(0), vec![Stretch { lane: 0, first: u32::MAX, chunks: 3 }]);
        log.add(
            claim(1),
            vec![Stretch { lane: 0, first: 2, chunks: 1 }, Stretch { lane: 1, first: 0, chunks: 2 }],
        );
        let number = |lane, seq| log.at(lane, seq).map(|claim| claim.number);
        assert_eq!([number(0, u32::MAX), number(0, 1), number(0, 2)], [Some(0), Some(0), Some(1)]);
        assert_eq!([number(0, 3), number(1, 1), number(1, 2), number(2, 0)], [None, Some(1), None, None]);
        assert_eq!(log.numbered(1), Some(&claim(1)));
        assert_eq!(log.numbered(2), None);
    }

    #[test]
    fn only_the_last_are_kept() {
        let mut log = Log::default();
        for number in 0..KEPT as u32 + 2 {
            log.add(claim(number), vec![Stretch { lane: 0, first: number, chunks: 1 }]);
        }
        assert_eq!((log.numbered(1), log.at(0, 1)), (None, None));
        assert_eq!(log.numbered(2), Some(&claim(2)));
        assert_eq!(log.at(0, KEPT as u32 + 1), Some(&claim(KEPT as u32 + 1)));
    }
}
