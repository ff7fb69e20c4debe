//! An operation: the one record of it from its acceptance to its end, and its end as that of its fragments.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use sumac_api::{LeftPackets, Loss, Timing};
use sumac_job::{Importance, OperationDescriptor, OperationId};
use sumac_transport::{LocalFault, OpError};

use crate::finished::Outcome;
use crate::fragment::{ElementRanges, Fragment};
use crate::fragment_end::FragmentEnd;
use crate::ranges::{append_range, joined};
use crate::transfer::Transfer;
use crate::{JobId, LeaseRequest, Nanos, OperationKey, RegionId, WordPlace};

/// The times of a fragment's steps, in nanoseconds of `CLOCK_MONOTONIC`; zeros where it was not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentTimes {
    /// Its data path thread has taken it.
    pub taken: u64,
    /// Its first packets have left.
    pub sent: u64,
    /// Its last result has arrived.
    pub arrived: u64,
}

/// The end of a fragment as the data path reports it.
#[derive(Clone, Debug, PartialEq)]
pub enum FragmentOutcome {
    Complete,
    Failed(OpError),
    /// A sum of this host's ranks has failed.
    LocalFault(LocalFault),
    /// The engine does not take it, for this reason.
    Refused(String),
    /// Submitted while the job was ending.
    JobEnded,
}

impl FragmentOutcome {
    /// The outcome of an engine's operation. `fault`: its buffer's, which says more than the engine's error.
    #[must_use]
    pub fn of(result: Result<(), OpError>, fault: Option<LocalFault>) -> FragmentOutcome {
        match (fault, result) {
            (Some(fault), _) => FragmentOutcome::LocalFault(fault),
            (None, Ok(())) => FragmentOutcome::Complete,
            (None, Err(error)) => FragmentOutcome::Failed(error),
        }
    }
}

/// A fragment that has ended; its lease has, too.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedFragment {
    pub outcome: FragmentOutcome,
    pub times: FragmentTimes,
    pub loss: Option<sumac_transport::Loss>,
    /// As [`sumac_transport::Completion::left`].
    pub left: Vec<u8>,
}

/// An operation of all workers, or of two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Work {
    Collective {
        descriptor: OperationDescriptor,
        priority: u8,
        importance: Importance,
        /// Its number in its job, once it has taken effect.
        id: Option<OperationId>,
    },
    Transfer(Transfer),
}

/// A fragment's part of the tensor, and its memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FragmentRecord {
    pub(crate) fragment: Fragment,
    /// Counted from the fragment's start.
    pub(crate) ranges: ElementRanges,
    pub(crate) memory: LeaseRequest,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum OperationPhase {
    /// It waits until all workers have announced its name, or those of this host have submitted it.
    Named,
    InFlight,
    /// Its values could not be sent by another worker, whose report is awaited until this moment.
    HeldBack {
        outcome: Box<Outcome>,
        until: Nanos,
    },
    /// It has ended with its job, and is reported with the job's end.
    EndedWithJob,
}

/// An operation that has not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) job: JobId,
    /// The job's handle on the operation's connection.
    pub(crate) handle: u64,
    /// The user whose share `held` is a part of.
    pub(crate) uid: u32,
    /// Of the input and of the output.
    pub(crate) regions: [RegionId; 2],
    pub(crate) submitted: Nanos,
    /// Its part of its user's share of the daemon's memory, in bytes.
    pub(crate) held: u64,
    pub(crate) word: Option<WordPlace>,
    /// When the command was read, if the times of the steps are taken.
    pub(crate) received_ns: Option<Nanos>,
    /// Whether the client asked for them.
    pub(crate) is_timed: bool,
    pub(crate) work: Work,
    pub(crate) phase: OperationPhase,
    /// The operations of the host's other ranks that are summed with it, and end with it.
    pub(crate) followers: Vec<OperationKey>,
    pub(crate) fragments: Vec<FragmentRecord>,
    pub(crate) fragments_left: usize,
    /// The first fragment's start, and the last one's of the others.
    times: FragmentTimes,
    end: FragmentEnd,
    /// Ascending ranges of elements that were summed before this worker replaced another one.
    pub(crate) missed: Vec<(u64, u64)>,
    /// Elements of its packets.
    pub(crate) per_chunk: u64,
    /// Its packets that were left to the clients, a bit for each up to the last of them.
    left: Vec<u8>,
    /// Of an operation with a loss bound.
    loss: Option<Loss>,
}

impl Operation {
    pub(crate) fn new(
        (job, handle, uid): (JobId, u64, u32),
        regions: [RegionId; 2],
        submitted: Nanos,
        held: u64,
        work: Work,
    ) -> Operation {
        Operation {
            job,
            handle,
            uid,
            regions,
            submitted,
            held,
            word: None,
            received_ns: None,
            is_timed: false,
            work,
            phase: OperationPhase::Named,
            followers: Vec::new(),
            fragments: Vec::new(),
            fragments_left: 0,
            times: FragmentTimes { taken: u64::MAX, ..FragmentTimes::default() },
            end: FragmentEnd::Complete,
            missed: Vec::new(),
            per_chunk: 1,
            left: Vec::new(),
            loss: None,
        }
    }

    pub(crate) fn id(&self) -> Option<OperationId> {
        match self.work {
            Work::Collective { id, .. } => id,
            Work::Transfer(_) => None,
        }
    }

    /// Returns the name of its tensor, for messages.
    pub(crate) fn tensor(&self) -> String {
        match (&self.work, self.id()) {
            (Work::Collective { descriptor, .. }, Some(id)) => descriptor.tensor(id),
            _ => String::new(),
        }
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.phase == OperationPhase::InFlight
    }

    /// The transfer that is in flight, or waits for its other end on this host, if it is one.
    pub(crate) fn transfer(&self) -> Option<&Transfer> {
        match &self.work {
            Work::Transfer(transfer) if self.is_in_flight() || self.phase == OperationPhase::Named => {
                Some(transfer)
            }
            _ => None,
        }
    }

    /// Records the end of a fragment. Returns whether it was the last.
    pub(crate) fn fragment_ended(&mut self, times: FragmentTimes, end: FragmentEnd) -> bool {
        self.fragments_left = self.fragments_left.saturating_sub(1);
        self.times = FragmentTimes {
            taken: self.times.taken.min(times.taken),
            sent: self.times.sent.max(times.sent),
            arrived: self.times.arrived.max(times.arrived),
        };
        if end.severity() > self.end.severity() {
            self.end = end;
        }
        self.fragments_left == 0
    }

    /// Adds a fragment's missing contributions. `count`: the elements of the operation's tensor.
    pub(crate) fn add_loss(&mut self, count: u64, fragment: Option<sumac_transport::Loss>) {
        let Some(fragment) = fragment else { return };
        let loss = self.loss.get_or_insert_default();
        loss.elements = count;
        loss.budget += fragment.budget;
        loss.by_worker.resize(fragment.by_worker.len(), 0);
        loss.by_worker.iter_mut().zip(fragment.by_worker).for_each(|(sum, elements)| *sum += elements);
        let range = |range: &Range<usize>| (range.start as u64, range.end as u64);
        loss.own.extend(fragment.own.iter().map(range));
        loss.missing.extend(fragment.missing.iter().map(range));
    }

    /// Returns the missing contributions of all fragments.
    pub(crate) fn loss(&self) -> Option<Loss> {
        let mut loss = self.loss.clone()?;
        loss.own.sort_unstable();
        let mut merged = Vec::new();
        loss.own.iter().for_each(|(start, end)| append_range(&mut merged, *start..*end));
        merged.truncate(Loss::RANGES);
        let missing = joined(std::mem::take(&mut loss.missing));
        Some(Loss { own: merged, missing, ..loss })
    }

    /// Adds the packets of a fragment that were left to the clients.
    pub(crate) fn add_left(&mut self, fragment: u16, bits: &[u8]) {
        let record = self.fragments.get(usize::from(fragment));
        let start =
            record.map_or(0, |record| record.fragment.elements.start / self.per_chunk.max(1)) as usize;
        for at in (0..bits.len() * 8).filter(|at| bits[at / 8] >> (at % 8) & 1 != 0) {
            let packet = start + at;
            if packet / 8 >= self.left.len() {
                self.left.resize(packet / 8 + 1, 0);
            }
            self.left[packet / 8] |= 1 << (packet % 8);
        }
    }

    /// Returns the messages about the packets that were left to the clients.
    pub(crate) fn left(&self) -> Vec<LeftPackets> {
        LeftPackets::all(self.per_chunk, &self.left)
    }

    pub(crate) fn end(&self) -> (FragmentEnd, Nanos) {
        (self.end.clone(), self.times.arrived.saturating_sub(self.times.taken))
    }

    /// Has the times of the operation that it was summed with, and the packets that were left. Returns the
    /// times of its steps, if the client asked for them.
    pub(crate) fn follow(&mut self, leader: &Operation) -> Option<Timing> {
        self.times = leader.times;
        (self.per_chunk, self.left) = (leader.per_chunk, leader.left.clone());
        self.timing(leader.times.arrived).filter(|_| self.is_timed)
    }

    /// Returns the times of the steps, if they are taken. The operation has ended at `now`.
    pub(crate) fn timing(&self, now: Nanos) -> Option<Timing> {
        let FragmentTimes { taken, sent, arrived } = self.times;
        self.received_ns.map(|received_ns| Timing {
            received_ns,
            taken_ns: taken,
            sent_ns: sent,
            arrived_ns: arrived,
            ended_ns: now,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sumac_api::{Code, Failure};
    use sumac_job::{CollectiveKind, DType, LossBound, Reduction};

    pub(crate) fn operation(fragments: usize) -> Operation {
        let descriptor = OperationDescriptor {
            kind: CollectiveKind::Allreduce,
            reduction: Reduction::Sum,
            dtype: DType::Float32,
            count: 1,
            root: None,
            name: None,
            is_urgent: false,
            loss_bound: LossBound::default(),
        };
        let work = Work::Collective { descriptor, priority: 0, importance: Importance::None, id: None };
        Operation { fragments_left: fragments, ..Operation::new((1, 1, 1), [1, 1], 0, 0, work) }
    }

    #[test]
    fn an_operation_lasts_from_the_first_start_to_the_last_end_of_a_fragment() {
        let mut operation = operation(3);
        let times = |taken, sent, arrived| FragmentTimes { taken, sent, arrived };
        assert!(!operation.fragment_ended(times(20, 22, 50), FragmentEnd::Complete));
        assert!(!operation.fragment_ended(times(10, 24, 30), FragmentEnd::Complete));
        assert!(operation.fragment_ended(times(15, 16, 40), FragmentEnd::Complete));
        assert_eq!(operation.end(), (FragmentEnd::Complete, 40));
        assert_eq!(operation.timing(60), None, "times are off");
        operation.received_ns = Some(5);
        let expected = Timing { received_ns: 5, taken_ns: 10, sent_ns: 24, arrived_ns: 50, ended_ns: 60 };
        assert_eq!(operation.timing(60), Some(expected));
    }

    #[test]
    fn packets_left_of_all_fragments_are_those_of_the_tensor() {
        let mut operation = operation(2);
        operation.per_chunk = 10;
        operation.fragments = [0..20, 20..75]
            .map(|elements| FragmentRecord {
                fragment: Fragment { elements, chunks: 0 },
                ranges: ElementRanges { input: 0..0, output: 0..0 },
                memory: LeaseRequest::default(),
            })
            .into();
        operation.add_left(0, &[]);
        assert_eq!(operation.left(), []);
        operation.add_left(1, &[0b10_0011]);
        operation.add_left(0, &[0b10]);
        let mut ranges = Vec::new();
        operation.left()[0].append_ranges(75, &mut ranges);
        assert_eq!(ranges, [(10, 40), (70, 75)]);
    }

    #[test]
    fn an_operation_ends_like_its_most_severe_fragment() {
        let failure = |text: &str| Failure::new(Code::Saturated, text);
        let mut operation = operation(4);
        let times = FragmentTimes::default();
        operation.fragment_ended(times, FragmentEnd::PeerFault(failure("theirs")));
        operation.fragment_ended(times, FragmentEnd::OwnFault(failure("ours")));
        operation.fragment_ended(times, FragmentEnd::PeerFault(failure("theirs again")));
        operation.fragment_ended(times, FragmentEnd::Complete);
        assert_eq!(operation.end().0, FragmentEnd::OwnFault(failure("ours")));
    }

    #[test]
    fn the_loss_is_that_of_all_fragments() {
        let mut operation = operation(2);
        assert_eq!(operation.loss(), None);
        let fragment = |budget, by_worker: [u64; 2], own| sumac_transport::Loss {
            budget,
            by_worker: by_worker.to_vec(),
            own: vec![own],
            missing: vec![],
        };
        operation.add_loss(1, Some(fragment(10, [0, 8], 40..48)));
        operation.add_loss(1, None);
        operation.add_loss(1, Some(fragment(12, [4, 4], 36..40)));
        let expected =
            Loss { elements: 1, budget: 22, by_worker: vec![4, 12], own: vec![(36, 48)], missing: vec![] };
        assert_eq!(operation.loss(), Some(expected));
        for first in 0..5000 {
            operation.add_loss(1, Some(fragment(0, [0, 0], 2 * first..2 * first + 1)));
        }
        let loss = operation.loss().unwrap();
        assert_eq!((loss.own.len(), loss.own[0]), (Loss::RANGES, (0, 1)), "a message holds no more");
    }
}
