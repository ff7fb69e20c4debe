//! The budget of an operation with a loss bound: the chunks that each worker may be left out of. One rule for
//! slots and for parameter hosts.
//!
//! A *flush* is a contribution that asks to complete its chunk with those that are there. It is granted if at
//! least half of the workers are in ([`is_quorum`]) and every worker that is left out still has budget. The
//! budget is a number of chunks of the operation, on the lane, for each worker.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{MAX_WORKERS, stream::is_later};

/// The operation of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flush {
    /// The job and incarnation that the operation belongs to; not zero. Several jobs use a slot one after
    /// another.
    pub owner: u32,
    /// The operation's first chunk.
    pub operation: u32,
    /// Chunks of it, on this lane, that each worker may be left out of.
    pub limit: u32,
}

/// Whether a chunk may be completed with so many of its workers.
#[inline(always)]
pub const fn is_quorum(contributors: u32, workers: u32) -> bool {
    2 * contributors >= workers
}

/// The chunks that each worker of a job was left out of, of one operation on one lane. Host order.
///
/// It only ever moves on to a later operation: flushes of an earlier one find no budget, so that no order of
/// packets gives an operation more than its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Budget {
    /// [`Flush::owner`]. Zero: nothing was spent yet.
    pub owner: u32,
    /// The operation's first chunk.
    pub operation: u32,
    /// By worker.
    pub spent: [u32; MAX_WORKERS],
}

impl Budget {
    /// Spends a chunk of each worker in `left_out`, of the operation that `flush` belongs to. Returns
    /// `false`, with nothing changed, if one of them has spent the limit.
    #[inline(always)]
    pub fn spend(&mut self, flush: Flush, left_out: u32) -> bool {
        let is_new = self.owner != flush.owner || is_later(flush.operation, self.operation);
        if !is_new && self.operation != flush.operation {
            return false;
        }
        let keep = if is_new { 0 } else { u32::MAX };
        // Without branches: eBPF's verifier follows every combination of them.
        let mut exhausted = 0;
        for (worker, spent) in self.spent.iter().enumerate() {
            exhausted |= u32::from(*spent & keep >= flush.limit) & left_out >> worker;
        }
        if exhausted & 1 != 0 {
            return false;
        }
        for (worker, spent) in self.spent.iter_mut().enumerate() {
            *spent = (*spent & keep) + (left_out >> worker & 1);
        }
        (self.owner, self.operation) = (flush.owner, flush.operation);
        true
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    fn flush(operation: u32, limit: u32) -> Flush {
        Flush { owner: 1 << 16, operation, limit }
    }

    #[test]
    fn a_budget_is_one_operations() {
        let mut budget = Budget::default();
        let table = [
            ("the first", 10, 2, 0b0010, true),
            ("the second, with another worker's first", 10, 2, 0b0110, true),
            ("the third", 10, 2, 0b0010, false),
            ("one of two has none left", 10, 2, 0b1010, false),
            ("the other's second", 10, 2, 0b0100, true),
            ("one that lost nothing", 10, 2, 0b1000, true),
            ("no limit", 20, 0, 0b1000, false),
            ("a later operation", 20, 1, 0b0010, true),
            ("an earlier one", 10, 2, 0b1000, false),
            ("the later one again", 20, 1, 0b0010, false),
            ("far on", 1 << 31, 1, 0b0010, true),
            ("the last chunk", u32::MAX, 1, 0b0010, true),
            ("over the wrap", 3, 1, 0b0010, true),
        ];
        for (what, operation, limit, left_out, expected) in table {
            let before = budget;
            assert_eq!(budget.spend(flush(operation, limit), left_out), expected, "{what}");
            assert!(expected || budget == before, "{what}: nothing is spent");
        }
        let other = Flush { owner: 2 << 16, ..flush(3, 1) };
        assert!(budget.spend(other, 0b0010), "another job's, or the job's next incarnation");
    }

    proptest! {
        /// Flushes of several operations in any order: no worker is left out of more chunks of one than the
        /// limit.
        #[test]
        fn no_order_overdraws(flushes in proptest::collection::vec((0..4u32, 1..16u32), 0..200), limit in 0..5u32) {
            let mut budget = Budget::default();
            let mut spent: Vec<[u32; 4]> = vec![[0; 4]; 4];
            for (operation, left_out) in flushes {
                if budget.spend(flush(10 * operation, limit), left_out) {
                    for (worker, spent) in spent[operation as usize].iter_mut().enumerate() {
                        *spent += left_out >> worker & 1;
                    }
                }
            }
            prop_assert!(spent.iter().flatten().all(|spent| *spent <= limit), "{spent:?}");
        }
    }
}
