//! The last operations that this host submitted: what it had at a place of a lane's stream when others had something else.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use sumac_control::events::ReportedOperation;
use sumac_job::OperationId;

use super::past::summed;
use super::stand::Stand;
use super::what::{numbered, signature};
use crate::explain::shortened;

/// How many operations are remembered: more than may be outstanding on all connections that usually share a job.
const KEPT: usize = 4096;
/// The longest words of a claim, in bytes. A notice of JSON holds twice as much, which is what quotes in a name can cost.
const WORDS_LEN: usize = 450;

/// What a worker has under a number; also what it tells the others of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// The operation's number in its job.
    pub(crate) number: u32,
    /// The operation in words, with its number; what is too long for a notice is cut off.
    pub(crate) words: String,
    /// Of the whole words: workers do the same if theirs are the same.
    pub(crate) signature: u32,
}

impl Claim {
    /// The operation with this number, and these words.
    pub(crate) fn new(number: u32, words: &str) -> Claim {
        let words = numbered(number, words);
        Claim { number, signature: signature(&words), words: shortened(words, WORDS_LEN) }
    }
}

impl From<Claim> for ReportedOperation {
    fn from(claim: Claim) -> ReportedOperation {
        let Claim { number, words, signature } = claim;
        ReportedOperation { operation: OperationId(number), signature, text: words }
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

/// An operation that this host submitted.
#[derive(Debug)]
struct Entry {
    claim: Claim,
    stretches: Vec<Stretch>,
    /// It came to an end of its own: all workers had the same.
    ended: bool,
}

/// Operations in the order of their numbers, without gaps.
#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
}

impl Log {
    pub(crate) fn add(&mut self, claim: Claim, stretches: Vec<Stretch>) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { claim, stretches, ended: false });
    }

    /// What this host had there; `None` when it has not come so far, or it is long ago.
    pub(crate) fn at(&self, lane: u16, seq: u32) -> Option<&Claim> {
        let of_place = |entry: &&Entry| entry.stretches.iter().any(|stretch| stretch.holds(lane, seq));
        self.entries.iter().rev().find(of_place).map(|entry| &entry.claim)
    }

    fn position(&self, number: u32) -> Option<usize> {
        usize::try_from(number.wrapping_sub(self.entries.front()?.claim.number)).ok()
    }

    /// The operation with this number.
    pub(crate) fn numbered(&self, number: u32) -> Option<&Claim> {
        self.entries.get(self.position(number)?).map(|entry| &entry.claim)
    }

    /// Takes all operations from the first on of which not all is summed, by lane up to `resume`, back from `end`, where all
    /// are placed. `None`: that one is too long ago.
    pub(crate) fn stand(&self, end: Stand, resume: &[u32]) -> Option<Stand> {
        let is_summed = |stretch: &Stretch| {
            let unsummed = resume.get(usize::from(stretch.lane));
            unsummed.is_some_and(|chunk| summed(stretch.first, stretch.chunks, *chunk) == stretch.chunks)
        };
        let Some(first) = self.entries.iter().position(|entry| !entry.stretches.iter().all(is_summed)) else {
            return Some(end.relative());
        };
        let mut stand = end;
        for entry in self.entries.range(first..).rev() {
            stand.number = entry.claim.number;
            for Stretch { lane, first, chunks } in &entry.stretches {
                stand.take_back(*lane, *first, *chunks);
            }
        }
        (first > 0 || self.entries.len() < KEPT).then(|| stand.relative())
    }

    /// Notes that the operation with this number has come to an end of its own, and not with its job.
    pub(crate) fn ended(&mut self, number: u32) {
        if let Some(entry) = self.position(number).and_then(|at| self.entries.get_mut(at)) {
            entry.ended = true;
        }
    }

    /// The first operation that has not ended and those after it, at most so many.
    pub(crate) fn since_unended(&self, most: usize) -> impl Iterator<Item = &Claim> {
        self.entries.iter().skip_while(|entry| entry.ended).take(most).map(|entry| &entry.claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(number: u32) -> Claim {
        Claim::new(number, "allreduce sum float32[10]")
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
    fn the_stream_goes_on_at_the_first_operation_that_is_not_summed() {
        let mut log = Log::default();
        let stretch = |lane, first, chunks| Stretch { lane, first, chunks };
        log.add(claim(8), vec![stretch(0, 2, 3), stretch(1, 0, 2)]);
        log.add(claim(9), vec![stretch(1, 2, 4)]);
        log.add(claim(10), vec![stretch(0, 5, 2)]);
        let end = Stand { number: 11, next: vec![7, 6], loads: vec![7, 6] };
        let stand = |resume: [u32; 2]| log.stand(end.clone(), &resume).unwrap();
        let table = [
            ([7, 6], (11, [7, 6], [1, 0])),
            ([6, 6], (10, [5, 6], [0, 1])),
            // A later one may be complete in its lane.
            ([7, 5], (9, [5, 2], [3, 0])),
            ([4, 6], (8, [2, 0], [2, 0])),
            ([2, 0], (8, [2, 0], [2, 0])),
        ];
        for (resume, (number, next, loads)) in table {
            let stood = Stand { number, next: next.to_vec(), loads: loads.to_vec() };
            assert_eq!(stand(resume), stood, "{resume:?}");
        }
        let mut long = Log::default();
        for number in 0..KEPT as u32 {
            long.add(claim(number), vec![stretch(0, number, 1)]);
        }
        assert_eq!(long.stand(end.clone(), &[0, 0]), None, "there may be an earlier one");
        assert_eq!(long.stand(end, &[1, 0]).unwrap().number, 1);
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

    #[test]
    fn what_has_not_ended_is_where_workers_can_differ() {
        let mut log = Log::default();
        for number in 7..12 {
            log.add(claim(number), Vec::new());
        }
        for number in [6, 7, 9, 99] {
            log.ended(number);
        }
        let since = |most| log.since_unended(most).map(|claim| claim.number).collect::<Vec<_>>();
        assert_eq!((since(3), since(9)), (vec![8, 9, 10], vec![8, 9, 10, 11]));
    }

    #[test]
    fn every_claim_fits_a_notice() {
        let [quoted, marked] =
            [r#"""#, "\u{301}"].map(|letter| format!("{:?}", letter.repeat(256 / letter.len())));
        for words in [quoted, marked] {
            let claim = Claim::new(u32::MAX, &words);
            assert!(serde_json::to_string(&claim).unwrap().len() <= sumac_control::events::TEXT_LEN);
            assert_ne!(claim.signature, Claim::new(u32::MAX, &format!("{words}.")).signature);
        }
    }
}
