//! An operation in the lanes: the ends of its fragments, and the outcome of the whole.

use sumac_api::Failure;
use sumac_job::{OperationDescriptor, OperationId};

use super::ClientId;
use crate::session::Outcome;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FragmentEnd {
    /// Its output is written.
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

/// An operation whose fragments have not all ended.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) descriptor: OperationDescriptor,
    pub(super) client: ClientId,
    pub(super) op: u64,
    /// Ascending ranges of elements that were summed before this worker replaced another one.
    pub(super) missed: Vec<(u64, u64)>,
    fragments_left: usize,
    started: u64,
    finished: u64,
    end: FragmentEnd,
}

impl InFlight {
    pub(super) fn new(
        descriptor: OperationDescriptor,
        client: ClientId,
        op: u64,
        fragments: usize,
        missed: Vec<(u64, u64)>,
    ) -> InFlight {
        let (started, finished, end) = (u64::MAX, 0, FragmentEnd::Complete);
        InFlight { descriptor, client, op, missed, fragments_left: fragments, started, finished, end }
    }

    /// Records the end of a fragment, with its times on the data path's clock. Returns whether it was the last.
    pub(super) fn fragment_ended(&mut self, started: u64, finished: u64, end: FragmentEnd) -> bool {
        self.fragments_left = self.fragments_left.saturating_sub(1);
        self.started = self.started.min(started);
        self.finished = self.finished.max(finished);
        if end.severity() > self.end.severity() {
            self.end = end;
        }
        self.fragments_left == 0
    }

    pub(super) fn end(&self) -> (FragmentEnd, u64) {
        (self.end.clone(), self.finished.saturating_sub(self.started))
    }
}

/// An operation that failed by another worker's value, held back until that worker has named the value.
#[derive(Debug)]
pub(crate) struct UnattributedFault {
    pub(crate) id: OperationId,
    pub(crate) client: ClientId,
    pub(crate) op: u64,
    pub(crate) outcome: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumac_api::Code;
    use sumac_job::{CollectiveKind, DType, Reduction};

    fn in_flight(fragments: usize) -> InFlight {
        let descriptor = OperationDescriptor {
            kind: CollectiveKind::Allreduce,
            reduction: Reduction::Sum,
            dtype: DType::Float32,
            count: 1,
            root: None,
            name: None,
            is_urgent: false,
        };
        InFlight::new(descriptor, ClientId::OPENER, 1, fragments, Vec::new())
    }

    #[test]
    fn an_operation_lasts_from_the_first_start_to_the_last_end_of_a_fragment() {
        let mut operation = in_flight(3);
        assert!(!operation.fragment_ended(20, 50, FragmentEnd::Complete));
        assert!(!operation.fragment_ended(10, 30, FragmentEnd::Complete));
        assert!(operation.fragment_ended(15, 40, FragmentEnd::Complete));
        assert_eq!(operation.end(), (FragmentEnd::Complete, 40));
    }

    #[test]
    fn an_operation_ends_like_its_most_severe_fragment() {
        let failure = |text: &str| Failure::new(Code::Saturated, text);
        let mut operation = in_flight(4);
        operation.fragment_ended(0, 1, FragmentEnd::PeerFault(failure("theirs")));
        operation.fragment_ended(0, 1, FragmentEnd::OwnFault(failure("ours")));
        operation.fragment_ended(0, 1, FragmentEnd::PeerFault(failure("theirs again")));
        operation.fragment_ended(0, 1, FragmentEnd::Complete);
        assert_eq!(operation.end().0, FragmentEnd::OwnFault(failure("ours")));
    }
}
