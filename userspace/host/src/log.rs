//! The last operations that this worker submitted, for the comparison with other workers' and for
//! replacements.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use sumac_control::events::{ReportedOperation, TEXT_LEN};
use sumac_job::{OperationDescriptor, OperationId, ResumePoint};

use crate::explain::shortened;
use crate::lanes::{ChunkRange, relative, summed, take_back};

/// The number of operations that are kept: more than may be outstanding on all connections that usually share
/// a job.
const KEPT: usize = 4096;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    id: OperationId,
    descriptor: OperationDescriptor,
    fragments: Vec<ChunkRange>,
    /// It ended, and not with its job: all workers had the same.
    ended: bool,
}

impl Entry {
    fn report(&self) -> ReportedOperation {
        let text = shortened(format!("{} {}", self.id, self.descriptor), TEXT_LEN);
        ReportedOperation { operation: self.id, signature: self.descriptor.signature(self.id), text }
    }
}

/// The operations in ascending order of their ids, without gaps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    /// The first entries that are known to have ended.
    #[serde(skip)]
    ended: usize,
    /// Operations that have not ended and are no longer kept.
    #[serde(skip)]
    lost: usize,
}

impl Log {
    pub(crate) fn add(
        &mut self,
        id: OperationId,
        descriptor: OperationDescriptor,
        fragments: Vec<ChunkRange>,
    ) {
        if self.entries.len() == KEPT {
            let first = self.entries.pop_front();
            self.lost += usize::from(first.is_some_and(|first| !first.ended));
            self.ended = self.ended.saturating_sub(1);
        }
        self.entries.push_back(Entry { id, descriptor, fragments, ended: false });
    }

    /// Returns the operation that contains a chunk; `None` when it was not submitted yet, or is no longer
    /// kept.
    pub(crate) fn at(&self, lane: u16, seq: u32) -> Option<ReportedOperation> {
        let has_chunk = |entry: &&Entry| entry.fragments.iter().any(|chunks| chunks.contains(lane, seq));
        self.entries.iter().rev().find(has_chunk).map(Entry::report)
    }

    fn position(&self, id: OperationId) -> Option<usize> {
        usize::try_from(id.since(self.entries.front()?.id)).ok()
    }

    /// Returns the first operation that has not ended; `None` if it is no longer kept.
    pub(crate) fn first_unended(&self) -> Option<ReportedOperation> {
        self.unended().next().filter(|_| self.lost == 0).map(Entry::report)
    }

    /// Returns the entries from the first one that has not ended.
    fn unended(&self) -> impl Iterator<Item = &Entry> {
        self.entries.range(self.ended..).skip_while(|entry| entry.ended)
    }

    //= atp#A.3 replacement of a worker
    /// Returns the position of the first operation that is not summed by lane up to `resume`, computed back
    /// from `end`. `None`: that operation is no longer kept.
    pub(crate) fn resume_point(&self, end: ResumePoint, resume: &[u32]) -> Option<ResumePoint> {
        let is_summed = |range: &ChunkRange| {
            let unsummed = resume.get(usize::from(range.lane));
            unsummed.is_some_and(|chunk| summed(range.first, range.chunks, *chunk) == range.chunks)
        };
        let Some(first) = self.entries.iter().position(|entry| !entry.fragments.iter().all(is_summed)) else {
            return Some(relative(end));
        };
        let mut point = end;
        for entry in self.entries.range(first..).rev() {
            point.operation = entry.id;
            entry.fragments.iter().for_each(|fragment| take_back(&mut point, *fragment));
        }
        (first > 0 || self.entries.len() < KEPT).then(|| relative(point))
    }

    /// Marks the operation as ended by itself, and not with its job.
    pub(crate) fn ended(&mut self, id: OperationId) {
        match self.position(id).and_then(|at| self.entries.get_mut(at)) {
            Some(entry) => entry.ended = true,
            None => self.lost = self.lost.saturating_sub(1),
        }
        while self.entries.get(self.ended).is_some_and(|entry| entry.ended) {
            self.ended += 1;
        }
    }

    /// Returns the first operation that has not ended and those after it, at most `most`.
    pub(crate) fn since_unended(&self, most: usize) -> Vec<ReportedOperation> {
        self.unended().take(most).map(Entry::report).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sumac_job::{CollectiveKind, DType, LossBound, Reduction};

    /// Bytes of an operation of one fragment, without its name.
    pub(crate) const ENTRY_BYTES: usize = size_of::<Entry>() + size_of::<ChunkRange>();

    fn named(name: Option<String>) -> OperationDescriptor {
        OperationDescriptor {
            kind: CollectiveKind::Allreduce,
            reduction: Reduction::Sum,
            dtype: DType::Float32,
            count: 10,
            root: None,
            name,
            is_urgent: false,
            loss_bound: LossBound::default(),
        }
    }

    impl Log {
        fn get(&self, id: OperationId) -> Option<ReportedOperation> {
            self.entries.get(self.position(id)?).map(Entry::report)
        }
    }

    /// Returns a log of these operations.
    fn log(operations: impl IntoIterator<Item = (u32, Vec<ChunkRange>)>) -> Log {
        let mut log = Log::default();
        for (id, fragments) in operations {
            log.add(OperationId(id), named(None), fragments);
        }
        log
    }

    fn range(lane: u16, first: u32, chunks: u32) -> ChunkRange {
        ChunkRange { lane, first, chunks }
    }

    fn id(operation: Option<ReportedOperation>) -> Option<u32> {
        operation.map(|operation| operation.operation.0)
    }

    #[test]
    fn a_chunk_is_found_in_its_operation() {
        let log = log([(0, vec![range(0, u32::MAX, 3)]), (1, vec![range(0, 2, 1), range(1, 0, 2)])]);
        let at = |lane, seq| id(log.at(lane, seq));
        assert_eq!([at(0, u32::MAX), at(0, 1), at(0, 2)], [Some(0), Some(0), Some(1)]);
        assert_eq!([at(0, 3), at(1, 1), at(1, 2), at(2, 0)], [None, Some(1), None, None]);
        assert_eq!((id(log.get(OperationId(1))), id(log.get(OperationId(2)))), (Some(1), None));
        assert_eq!(log.at(0, 2).unwrap().text, "#1 allreduce sum float32[10]");
    }

    #[test]
    fn a_replacement_starts_at_the_first_operation_that_is_not_summed() {
        let log = log([
            (8, vec![range(0, 2, 3), range(1, 0, 2)]),
            (9, vec![range(1, 2, 4)]),
            (10, vec![range(0, 5, 2)]),
        ]);
        let point = |operation, next: [u32; 2], loads: [u64; 2]| ResumePoint {
            operation: OperationId(operation),
            next: next.to_vec(),
            loads: loads.to_vec(),
        };
        let end = point(11, [7, 6], [7, 6]);
        let table = [
            ([7, 6], point(11, [7, 6], [1, 0])),
            ([6, 6], point(10, [5, 6], [0, 1])),
            // A later operation may be complete in its lane.
            ([7, 5], point(9, [5, 2], [3, 0])),
            ([4, 6], point(8, [2, 0], [2, 0])),
            ([2, 0], point(8, [2, 0], [2, 0])),
        ];
        for (resume, expected) in table {
            assert_eq!(log.resume_point(end.clone(), &resume), Some(expected), "{resume:?}");
        }
    }

    #[test]
    fn a_log_that_is_full_may_lack_the_first_operation() {
        let log = log((0..KEPT as u32).map(|number| (number, vec![range(0, number, 1)])));
        let end = ResumePoint { operation: OperationId(11), next: vec![7, 6], loads: vec![7, 6] };
        assert_eq!(log.resume_point(end.clone(), &[0, 0]), None, "there may be an earlier one");
        assert_eq!(log.resume_point(end, &[1, 0]).unwrap().operation, OperationId(1));
    }

    #[test]
    fn only_the_last_operations_are_kept() {
        let log = log((0..KEPT as u32 + 2).map(|number| (number, vec![range(0, number, 1)])));
        assert_eq!((log.get(OperationId(1)), log.at(0, 1)), (None, None));
        let last = KEPT as u32 + 1;
        assert_eq!((id(log.get(OperationId(2))), id(log.at(0, last))), (Some(2), Some(last)));
    }

    #[test]
    fn operations_from_the_first_unended_one_are_compared() {
        let mut log = log((7..12).map(|number| (number, Vec::new())));
        for number in [6, 7, 9, 99] {
            log.ended(OperationId(number));
        }
        let since = |most| -> Vec<u32> {
            log.since_unended(most).iter().map(|operation| operation.operation.0).collect()
        };
        assert_eq!((since(3), since(9)), (vec![8, 9, 10], vec![8, 9, 10, 11]));
        assert_eq!((id(log.first_unended()), log.ended), (Some(8), 1));
        [8, 10, 11].iter().for_each(|number| log.ended(OperationId(*number)));
        assert_eq!((id(log.first_unended()), log.ended), (None, 5));
        (12..12 + KEPT as u32).for_each(|number| log.add(OperationId(number), named(None), Vec::new()));
        assert_eq!((id(log.first_unended()), log.ended), (Some(12), 0));
        log.add(OperationId(12 + KEPT as u32), named(None), Vec::new());
        assert_eq!(log.first_unended(), None, "number 12, which is no longer kept");
        log.ended(OperationId(12));
        assert_eq!(id(log.first_unended()), Some(13));
    }

    #[test]
    fn long_names_are_shortened_but_not_in_the_signature() {
        let report = |name: String| {
            let mut log = Log::default();
            log.add(OperationId(u32::MAX), named(Some(name)), Vec::new());
            log.get(OperationId(u32::MAX)).unwrap()
        };
        let name = "\u{301}".repeat(128);
        let (one, other) = (report(name.clone()), report(format!("{name}.")));
        assert!(one.text.len() <= TEXT_LEN);
        assert_ne!(one.signature, other.signature);
    }
}
