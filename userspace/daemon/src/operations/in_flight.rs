//! An operation in the lanes: the ends of its fragments, and the outcome of the whole. Operations that wait for their
//! name: in a job in order of names each waits until all workers have announced it.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use sumac_api::{Failure, Loss, Timing};
use sumac_job::{OperationDescriptor, OperationId};

use super::lanes::append_range;
use super::{ClientId, Ending};
use crate::quotas::Reservation;
use crate::session::{CompletionWord, Outcome};
use crate::sync::monotonic_ns;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum FragmentEnd {
    Complete,
    /// Another worker's value could not be sent; that worker can name it.
    PeerFault(Failure),
    /// A sum does not fit; all workers receive the same error.
    SumFault(Failure),
    /// A value of this worker could not be sent, or the failure concerns this worker's operation alone.
    OwnFault(Failure),
    /// The job has ended, and with it all its operations.
    JobEnded,
}

impl FragmentEnd {
    /// Returns the reason of a failure.
    pub(super) fn problem(&self) -> Option<String> {
        match self {
            FragmentEnd::Complete => None,
            FragmentEnd::PeerFault(failure)
            | FragmentEnd::SumFault(failure)
            | FragmentEnd::OwnFault(failure) => Some(failure.message.to_string()),
            FragmentEnd::JobEnded => Some("the job has ended".to_owned()),
        }
    }

    /// Orders the ends: an operation ends like its most severe fragment.
    fn severity(&self) -> u8 {
        match self {
            FragmentEnd::Complete => 0,
            FragmentEnd::PeerFault(_) => 1,
            FragmentEnd::SumFault(_) => 2,
            FragmentEnd::OwnFault(_) => 3,
            FragmentEnd::JobEnded => 4,
        }
    }
}

/// The times of a fragment's steps, in nanoseconds of `CLOCK_MONOTONIC`; zeros where it was not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FragmentTimes {
    /// Its data path thread has taken it.
    pub(crate) taken: u64,
    /// Its first packets have left.
    pub(crate) sent: u64,
    /// Its last result has arrived.
    pub(crate) arrived: u64,
}

/// An operation whose fragments have not all ended.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) descriptor: OperationDescriptor,
    pub(super) client: ClientId,
    pub(super) op: u64,
    /// Ascending ranges of elements that were summed before this worker replaced another one.
    pub(super) missed: Vec<(u64, u64)>,
    /// Of an operation with a loss bound.
    pub(super) loss: Option<Loss>,
    pub(super) fragments_left: usize,
    /// The first one's start, and the last one's of the others.
    pub(super) times: FragmentTimes,
    pub(super) end: FragmentEnd,
    pub(super) ending: Ending,
    /// Dropped with the operation.
    pub(super) held: Option<Reservation>,
}

impl InFlight {
    pub(super) fn new(
        descriptor: OperationDescriptor,
        client: ClientId,
        op: u64,
        fragments: usize,
        missed: Vec<(u64, u64)>,
        held: impl Into<Option<Reservation>>,
    ) -> InFlight {
        InFlight {
            descriptor,
            client,
            op,
            missed,
            loss: None,
            fragments_left: fragments,
            times: FragmentTimes { taken: u64::MAX, ..FragmentTimes::default() },
            end: FragmentEnd::Complete,
            ending: Ending::default(),
            held: held.into(),
        }
    }

    /// Records the end of a fragment. Returns whether it was the last.
    pub(super) fn fragment_ended(&mut self, times: FragmentTimes, end: FragmentEnd) -> bool {
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

    /// Adds a fragment's missing contributions.
    pub(super) fn add_loss(&mut self, fragment: Option<sumac_transport::Loss>) {
        let Some(fragment) = fragment else { return };
        let loss = self.loss.get_or_insert_default();
        loss.elements = self.descriptor.count;
        loss.budget += fragment.budget;
        loss.by_worker.resize(fragment.by_worker.len(), 0);
        loss.by_worker.iter_mut().zip(fragment.by_worker).for_each(|(sum, elements)| *sum += elements);
        let range = |range: &Range<usize>| (range.start as u64, range.end as u64);
        loss.own.extend(fragment.own.iter().map(range));
        loss.missing.extend(fragment.missing.iter().map(range));
    }

    /// Returns the missing contributions of all fragments.
    pub(super) fn loss(&self) -> Option<Loss> {
        let mut loss = self.loss.clone()?;
        loss.own.sort_unstable();
        let mut merged = Vec::new();
        loss.own.iter().for_each(|(start, end)| append_range(&mut merged, *start..*end));
        merged.truncate(Loss::RANGES);
        let missing = joined(std::mem::take(&mut loss.missing));
        Some(Loss { own: merged, missing, ..loss })
    }

    pub(super) fn end(&self) -> (FragmentEnd, u64) {
        (self.end.clone(), self.times.arrived.saturating_sub(self.times.taken))
    }

    /// Returns the times of the steps, if they are taken. The operation has ended now.
    pub(super) fn timing(&self) -> Option<Timing> {
        let FragmentTimes { taken, sent, arrived } = self.times;
        self.ending.received_ns.map(|received_ns| Timing {
            received_ns,
            taken_ns: taken,
            sent_ns: sent,
            arrived_ns: arrived,
            ended_ns: monotonic_ns(),
        })
    }
}

/// Sorts ranges. Where they are more than a message may have, neighbours become one, with what arrived between them.
pub(super) fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut gap = 0;
    loop {
        ranges.dedup_by(|next, last| {
            let is_near = next.0 <= last.1.saturating_add(gap);
            if is_near {
                last.1 = last.1.max(next.1);
            }
            is_near
        });
        if ranges.len() <= Loss::RANGES {
            return ranges;
        }
        gap = gap.max(1) * 2;
    }
}

/// An operation that failed by another worker's value, held back until that worker has named the value.
#[derive(Debug)]
pub(crate) struct UnattributedFault {
    pub(crate) id: OperationId,
    pub(crate) client: ClientId,
    pub(crate) op: u64,
    pub(crate) outcome: Outcome,
    pub(crate) word: Option<CompletionWord>,
}

/// The waiting operations by name. Operations of one name keep their order; only the first is announced.
#[derive(Debug)]
pub(super) struct Named<T> {
    waiting: HashMap<String, VecDeque<T>>,
}

impl<T> Default for Named<T> {
    fn default() -> Named<T> {
        Named { waiting: HashMap::new() }
    }
}

impl<T> Named<T> {
    /// Appends an operation. Returns whether it is to be announced now.
    pub(super) fn add(&mut self, name: &str, operation: T) -> bool {
        let queue = self.waiting.entry(name.to_owned()).or_default();
        queue.push_back(operation);
        queue.len() == 1
    }

    /// Removes an operation whose name all have announced. Returns it, and the next of that name, to be announced now.
    pub(super) fn release(&mut self, name: &str) -> Option<(T, Option<&T>)> {
        let queue = self.waiting.get_mut(name)?;
        let released = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting.remove(name);
        }
        Some((released, self.waiting.get(name).and_then(VecDeque::front)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.values().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.values_mut().flatten()
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumac_api::Code;
    use sumac_job::{CollectiveKind, DType, LossBound, Reduction};

    fn in_flight(fragments: usize) -> InFlight {
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
        InFlight::new(descriptor, ClientId::OPENER, 1, fragments, Vec::new(), None)
    }

    #[test]
    fn an_operation_lasts_from_the_first_start_to_the_last_end_of_a_fragment() {
        let mut operation = in_flight(3);
        let times = |taken, sent, arrived| FragmentTimes { taken, sent, arrived };
        assert!(!operation.fragment_ended(times(20, 22, 50), FragmentEnd::Complete));
        assert!(!operation.fragment_ended(times(10, 24, 30), FragmentEnd::Complete));
        assert!(operation.fragment_ended(times(15, 16, 40), FragmentEnd::Complete));
        assert_eq!(operation.end(), (FragmentEnd::Complete, 40));
        assert_eq!(operation.timing(), None, "nobody asked");
        operation.ending.received_ns = Some(5);
        let Timing { received_ns, taken_ns, sent_ns, arrived_ns, .. } = operation.timing().unwrap();
        assert_eq!((received_ns, taken_ns, sent_ns, arrived_ns), (5, 10, 24, 50));
    }

    #[test]
    fn an_operation_ends_like_its_most_severe_fragment() {
        let failure = |text: &str| Failure::new(Code::Saturated, text);
        let mut operation = in_flight(4);
        let times = FragmentTimes::default();
        operation.fragment_ended(times, FragmentEnd::PeerFault(failure("theirs")));
        operation.fragment_ended(times, FragmentEnd::OwnFault(failure("ours")));
        operation.fragment_ended(times, FragmentEnd::PeerFault(failure("theirs again")));
        operation.fragment_ended(times, FragmentEnd::Complete);
        assert_eq!(operation.end().0, FragmentEnd::OwnFault(failure("ours")));
    }

    #[test]
    fn the_loss_is_that_of_all_fragments() {
        let mut operation = in_flight(2);
        assert_eq!(operation.loss(), None);
        let fragment = |budget, by_worker: [u64; 2], own| sumac_transport::Loss {
            budget,
            by_worker: by_worker.to_vec(),
            own: vec![own],
            missing: vec![],
        };
        operation.add_loss(Some(fragment(10, [0, 8], 40..48)));
        operation.add_loss(None);
        operation.add_loss(Some(fragment(12, [4, 4], 36..40)));
        let expected =
            Loss { elements: 1, budget: 22, by_worker: vec![4, 12], own: vec![(36, 48)], missing: vec![] };
        assert_eq!(operation.loss(), Some(expected));
        for first in 0..5000 {
            operation.add_loss(Some(fragment(0, [0, 0], 2 * first..2 * first + 1)));
        }
        let loss = operation.loss().unwrap();
        assert_eq!((loss.own.len(), loss.own[0]), (Loss::RANGES, (0, 1)), "a message holds no more");
    }

    #[test]
    fn ranges_are_joined_where_they_touch_or_are_too_many() {
        assert_eq!(joined(vec![(10, 20), (0, 5), (5, 7)]), [(0, 7), (10, 20)]);
        let many = joined((0..10_000).map(|at| (at * 10, at * 10 + 5)).collect());
        let last = many.last().copied().unwrap_or_default();
        assert!(many.len() <= Loss::RANGES && many[0].0 == 0 && last.1 == 99_995);
    }

    #[test]
    fn the_first_of_a_name_is_announced_and_the_next_once_it_is_released() {
        let mut named = Named::default();
        assert!(named.add("a", 1));
        assert!(!named.add("a", 2));
        assert!(named.add("b", 3));
        assert_eq!(named.release("a"), Some((1, Some(&2))));
        assert_eq!(named.release("b"), Some((3, None)));
        assert_eq!(named.release("b"), None);
        assert_eq!(named.release("a"), Some((2, None)));
        assert!(named.add("a", 4), "a name can be used again");
        assert_eq!(named.iter().count(), 1);
    }
}
