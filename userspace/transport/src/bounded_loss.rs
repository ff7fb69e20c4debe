//! Bounded loss: the chunks of an operation that workers may be left out of, and those that they were left
//! out of.
//!
//! The aggregator decides, within the budget that all workers state with the operation's first chunk. Each
//! worker counts the same from the results' bitmaps.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use sumac_wire::{Header, Reason, header::flag, workers::all_workers};

use crate::{
    chunk::Span,
    operation::{Loss, Operation},
};

/// The request to complete a chunk with the contributions that are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flush {
    /// Chunks of the operation that each worker may be left out of.
    pub limit: u16,
    /// The operation's first chunk.
    pub first_seq: u64,
}

impl Flush {
    /// Marks a contribution.
    pub fn mark(self, header: &mut Header) {
        header.flags |= flag::PARTIAL;
        (header.contributors, header.next_seq) = (self.limit, self.first_seq as u32);
    }
}

/// The terms of an operation with a loss bound, as the contribution to its first chunk states them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Chunks of the operation that each worker may be left out of.
    pub limit: u16,
    /// The first chunk behind the operation.
    pub end: u64,
}

impl Terms {
    /// Adds them to a contribution.
    pub fn state(self, header: &mut Header) {
        (header.contributors, header.next_seq) = (self.limit, self.end as u32);
    }
}

/// The loss of an operation in progress.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ledger {
    rank: u16,
    base: usize,
    /// Chunks that each worker may be left out of.
    limit: u16,
    /// By rank, the chunks that the worker was left out of.
    chunks: Vec<u16>,
    loss: Loss,
}

impl Ledger {
    /// The ledger of a reduction in chunks of `chunk` values; `None` if it is reliable.
    pub fn of(operation: &Operation, chunk: usize, rank: u16, world: u16) -> Option<Ledger> {
        if operation.loss_bound == 0.0 || operation.exchange.is_some() {
            return None;
        }
        // Whole chunks: the last one may be shorter, and the bound is one of values.
        let chunks = f64::from(operation.loss_bound) * operation.count as f64 / chunk as f64;
        let limit = chunks.floor().clamp(0.0, f64::from(u16::MAX)) as u16;
        let (world, budget) = (usize::from(world), u64::from(limit) * chunk as u64);
        let loss = Loss { budget, by_worker: vec![0; world], own: Vec::new(), missing: Vec::new() };
        Some(Ledger { rank, base: operation.base as usize, limit, chunks: vec![0; world], loss })
    }

    /// The limit that this worker states; `None` where whole chunks leave nobody out.
    pub fn stated_limit(&self) -> Option<u16> {
        Some(self.limit).filter(|limit| *limit > 0)
    }

    /// The limit that a flush carries; `None` when no other worker can be left out any more.
    pub fn limit(&self) -> Option<u16> {
        let others = (0..).zip(&self.chunks).filter(|(rank, _)| *rank != self.rank);
        others.into_iter().any(|(_, spent)| *spent < self.limit).then_some(self.limit)
    }

    /// Whether this worker is not among the contributors of a result.
    pub fn is_left_out(&self, contributors: u32) -> bool {
        contributors >> self.rank & 1 == 0
    }

    /// Checks that a result marked as partial names some of the workers.
    pub fn check(&self, header: &Header) -> Result<(), Reason> {
        if header.has(flag::EXPONENT | flag::QUERY | flag::MISMATCH) {
            return Err(Reason::BadType);
        }
        let all = all_workers(self.chunks.len() as u16);
        let (some, contributors) = (header.bitmap_0, u32::from(header.contributors));
        let are_named = some & !all == 0 && some != all && some.count_ones() == contributors;
        if are_named && contributors > 0 { Ok(()) } else { Err(Reason::WrongWorker) }
    }

    /// Records a chunk whose result holds the values of these workers.
    pub fn record(&mut self, contributors: u32, span: Span) {
        let workers = self.chunks.iter_mut().zip(&mut self.loss.by_worker);
        for (rank, (chunks, values)) in workers.enumerate() {
            if contributors >> rank & 1 == 0 {
                *chunks = chunks.saturating_add(1);
                *values += span.values as u64;
            }
        }
        if self.is_left_out(contributors) {
            let first = self.base + span.first;
            self.loss.own.push(first..first + span.values);
        }
    }

    /// Ends the operation: brings the ranges into order.
    pub fn close(mut self) -> Loss {
        self.loss.own = joined(self.loss.own);
        self.loss
    }
}

/// Sorts ranges, and joins those that touch.
pub(crate) fn joined(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut whole: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match whole.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => whole.push(range),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use sumac_job::DType;

    use super::*;
    use crate::convert::Arithmetic;

    fn ledger(bound: f32, count: usize) -> Option<Ledger> {
        let operation = Operation::allreduce(1, DType::Float32, Arithmetic::Sum, count, Box::new(vec![]));
        Ledger::of(&Operation { loss_bound: bound, base: 1000, ..operation }, 10, 1, 3)
    }

    #[test]
    fn the_bound_is_kept_in_values() {
        assert!(ledger(0.0, 1000).is_none());
        for (bound, count, limit) in [
            (0.1, 1000, 10),
            (0.1, 999, 9),
            (0.1, 91, 0),
            (0.5, 20, 1),
            (1.0, 15, 1),
            (1.0, 2_000_000, 65_535),
        ] {
            let ledger = ledger(bound, count).expect("a bound");
            assert_eq!(
                (ledger.limit, ledger.loss.budget),
                (limit, u64::from(limit) * 10),
                "{bound} of {count}"
            );
            assert_eq!(ledger.limit().is_some(), limit > 0);
        }
    }

    #[test]
    fn a_result_is_counted_for_each_worker_that_is_left_out() {
        let mut ledger = ledger(0.2, 100).expect("a bound");
        let span = |first, values| Span { first, values, words: values };
        ledger.record(0b100, span(20, 10));
        ledger.record(0b101, span(90, 5));
        assert_eq!(ledger.limit(), Some(2), "worker 0 may be left out of one more");
        ledger.record(0b101, span(10, 10));
        ledger.record(0b110, span(50, 10));
        assert_eq!(ledger.limit(), Some(2), "worker 2 is not exhausted");
        ledger.record(0b011, span(60, 10));
        ledger.record(0b011, span(70, 10));
        assert_eq!(ledger.limit(), None);
        let loss = ledger.close();
        assert_eq!((loss.budget, loss.by_worker), (20, vec![20, 25, 20]));
        assert_eq!(loss.own, [1010..1030, 1090..1095], "in the whole tensor");
    }

    #[test]
    fn ranges_are_joined() {
        assert_eq!(joined(vec![7..9, 0..3, 3..5, 1..2, 8..10]), [0..5, 7..10]);
    }
}
