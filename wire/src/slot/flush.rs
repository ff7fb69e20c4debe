//! Completion of a chunk with the contributions that its slot has (bounded loss).
//!
//! A *flush* is a contribution marked [`flag::PARTIAL`](crate::header::flag::PARTIAL). It is taken in like any other, and then
//! completes its slot if at least half of the workers are in it and every worker that is left out still has budget. The
//! budget is a number of chunks of the operation, on the lane, for each worker.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Action, Contribution, SlotMeta, Then, Version, state};
use crate::{MAX_WORKERS, header::exponent, stream::is_later};

/// The chunks that each worker of a job was left out of, of one operation on one lane. Host order.
///
/// It only ever moves on to a later operation: flushes of an earlier one find no budget, so that no order of packets gives
/// an operation more than its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Budget {
    /// [`super::owner`] of the job. Zero: nothing was spent yet.
    pub owner: u32,
    /// The operation's first chunk.
    pub operation: u32,
    /// By worker.
    pub spent: [u32; MAX_WORKERS],
}

impl Budget {
    /// Spends a chunk of each worker in `left_out`, of the operation that `flush` belongs to. Returns `false`, with nothing
    /// changed, if one of them has spent the limit.
    #[inline(always)]
    pub fn spend(&mut self, flush: &Contribution, left_out: u32) -> bool {
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

impl Version {
    /// Completes the version with the contributions that it has, which `flush` is one of, or returns `false`.
    #[inline(always)]
    pub fn flush(&mut self, flush: &Contribution, budget: &mut Budget) -> bool {
        let is_quorum = 2 * self.seen.count_ones() >= flush.all.count_ones();
        let is_waiting = !self.is(state::FINAL | state::ROUND) && self.seen != flush.all;
        if !is_waiting || !is_quorum || !budget.spend(flush, flush.all & !self.seen) {
            return false;
        }
        self.state |= state::FINAL;
        // A worker that is left out may have a larger one: the slot's next chunk needs an exponent round.
        self.next_exponent = exponent::UNKNOWN;
        true
    }
}

impl SlotMeta {
    /// Applies a flush to the slot as [`super::decide`] left it with this action. Returns the action that counts: with
    /// [`Then::Complete`] if the slot is completed.
    pub fn flush(&mut self, action: Action, flush: &Contribution, budget: &mut Budget) -> Action {
        let completed = match action {
            Action::Store(Then::Wait) => Action::Store(Then::Complete),
            Action::Add(Then::Wait) => Action::Add(Then::Complete),
            Action::Held(Then::Wait) => Action::Held(Then::Complete),
            _ => return action,
        };
        let version = &mut self.versions[usize::from(flush.version & 1)];
        if flush.limit != 0 && version.flush(flush, budget) { completed } else { action }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    fn flush(operation: u32, limit: u32) -> Contribution {
        Contribution {
            owner: 1 << 16,
            seq: operation,
            slot: 0,
            lane: 0,
            version: 0,
            worker: 1,
            all: 0xf,
            slots: 8,
            tensor: 0,
            elements: 1,
            flags: 0,
            received: 0,
            next_exponent: 0,
            child: false,
            limit,
            operation,
        }
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
            assert_eq!(budget.spend(&flush(operation, limit), left_out), expected, "{what}");
            assert!(expected || budget == before, "{what}: nothing is spent");
        }
        let other = Contribution { owner: 2 << 16, ..flush(3, 1) };
        assert!(budget.spend(&other, 0b0010), "another job's, or the job's next incarnation");
    }

    proptest! {
        /// Flushes of several operations in any order: no worker is left out of more chunks of one than the limit.
        #[test]
        fn no_order_overdraws(flushes in proptest::collection::vec((0..4u32, 1..16u32), 0..200), limit in 0..5u32) {
            let mut budget = Budget::default();
            let mut spent: Vec<[u32; 4]> = vec![[0; 4]; 4];
            for (operation, left_out) in flushes {
                if budget.spend(&flush(10 * operation, limit), left_out) {
                    for (worker, spent) in spent[operation as usize].iter_mut().enumerate() {
                        *spent += left_out >> worker & 1;
                    }
                }
            }
            prop_assert!(spent.iter().flatten().all(|spent| *spent <= limit), "{spent:?}");
        }
    }
}
