//! An operation on its way through the lanes: its parts, what became of them, and the outcome of the whole.

use sumac_api::Failure;

use super::clients::ClientId;
use super::what::What;
use crate::operations::Outcome;

/// How a part ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PartEnd {
    /// Its range of the output is written.
    Done,
    /// A value of another worker; that worker knows which.
    Theirs(Failure),
    /// The values of all workers together, which all of them find alike.
    Everybodys(Failure),
    /// A value of this worker's, or another reason that concerns this operation alone.
    Ours(Failure),
    /// The job has ended, which all its operations are told together.
    Job,
}

impl PartEnd {
    /// What outweighs what, when the parts of an operation do not end alike.
    fn weight(&self) -> u8 {
        match self {
            PartEnd::Done => 0,
            PartEnd::Theirs(_) => 1,
            PartEnd::Everybodys(_) => 2,
            PartEnd::Ours(_) => 3,
            PartEnd::Job => 4,
        }
    }
}

/// An operation whose parts have not all ended.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) what: What,
    pub(crate) client: ClientId,
    /// The operation's handle at its client.
    pub(crate) op: u64,
    /// Elements that were summed before this worker took another one's place: ranges, in ascending order.
    pub(crate) missed: Vec<(u64, u64)>,
    left: usize,
    started: u64,
    finished: u64,
    end: PartEnd,
}

impl Work {
    pub(crate) fn new(what: What, client: ClientId, op: u64, parts: usize, missed: Vec<(u64, u64)>) -> Work {
        Work { what, client, op, missed, left: parts, started: u64::MAX, finished: 0, end: PartEnd::Done }
    }

    /// Takes in the end of a part, with its times on the data path's clock; says whether it was the last.
    pub(crate) fn part_ended(&mut self, started: u64, finished: u64, end: PartEnd) -> bool {
        self.left = self.left.saturating_sub(1);
        self.started = self.started.min(started);
        self.finished = self.finished.max(finished);
        if end.weight() > self.end.weight() {
            self.end = end;
        }
        self.left == 0
    }

    /// How the whole ended, and how long it took.
    pub(crate) fn end(self) -> (PartEnd, u64) {
        (self.end, self.finished.saturating_sub(self.started))
    }
}

/// An operation that failed by another worker's value, held back until that worker has named it.
#[derive(Debug)]
pub(crate) struct Doubt {
    /// The operation's number in its job.
    pub(crate) number: u32,
    pub(crate) client: ClientId,
    pub(crate) op: u64,
    /// What is known here.
    pub(crate) outcome: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumac_api::{Code, Collective, CollectiveKind, DType};

    fn work(parts: usize) -> Work {
        let ask = Collective {
            job: 1,
            region: 1,
            dtype: DType::Float32,
            offset: 0,
            count: 1,
            out_region: None,
            out_offset: None,
            reduction: None,
            root: None,
            name: None,
            priority: 0,
            loss_bound: 0.0,
        };
        Work::new(What::new(CollectiveKind::Allreduce, &ask), ClientId::OPENER, 1, parts, Vec::new())
    }

    #[test]
    fn an_operation_ends_with_its_last_part_and_lasts_from_the_first_start_to_the_last_end() {
        let mut work = work(3);
        assert!(!work.part_ended(20, 50, PartEnd::Done));
        assert!(!work.part_ended(10, 30, PartEnd::Done));
        assert!(work.part_ended(15, 40, PartEnd::Done));
        assert_eq!(work.end(), (PartEnd::Done, 40));
    }

    #[test]
    fn the_worst_of_its_parts_decides() {
        let failure = |text: &str| Failure::new(Code::Saturated, text);
        let mut work = work(4);
        work.part_ended(0, 1, PartEnd::Theirs(failure("theirs")));
        work.part_ended(0, 1, PartEnd::Ours(failure("ours")));
        work.part_ended(0, 1, PartEnd::Theirs(failure("theirs again")));
        work.part_ended(0, 1, PartEnd::Done);
        assert_eq!(work.end().0, PartEnd::Ours(failure("ours")));
    }
}
