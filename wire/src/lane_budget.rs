//! The budget of a lane on a switch, which has few registers: one count of flushed chunks for all workers,
//! and terms of one operation, the latest. A worker is left out of no more chunks than are flushed, so the
//! count keeps every worker's limit as [`crate::budget`] does. It grants less: no flush in an operation that
//! is not the latest, and as many in all as one worker may be left out of.

use crate::{
    budget::{Agreement, Chunks, Flush, Terms},
    stream::is_later,
};

/// The terms of a lane's latest operation, and the chunks of it that were flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LaneBudget {
    /// [`Terms::owner`]. Zero: no terms were stated yet.
    pub owner: u32,
    /// Of the latest operation that any worker has stated terms of.
    pub latest: Agreement,
    /// The operation that `spent` counts chunks of.
    pub spent_of: u32,
    /// Chunks that were completed without some workers.
    pub spent: u32,
}

impl LaneBudget {
    /// Takes in the terms that the worker with the bit `worker` states. Those of an earlier operation change
    /// nothing.
    pub fn agree(&mut self, terms: Terms, worker: u32) {
        if self.owner != terms.owner {
            let latest = Agreement::of(terms, worker);
            *self = LaneBudget { owner: terms.owner, latest, spent_of: u32::MAX, spent: 0 };
        } else if self.latest.operation == terms.operation {
            self.latest = self.latest.with(terms, worker);
        } else if is_later(terms.operation, self.latest.operation) {
            self.latest = Agreement::of(terms, worker);
        }
    }
}

impl Chunks for LaneBudget {
    fn spend(&mut self, flush: Flush, all: u32, _left_out: u32) -> bool {
        let spent = if self.spent_of == flush.operation { self.spent } else { 0 };
        if self.owner != flush.owner || !self.latest.holds(&flush, all) || spent >= self.latest.limit {
            return false;
        }
        (self.spent_of, self.spent) = (flush.operation, spent + 1);
        true
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{collections::BTreeSet, vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;
    use crate::budget::tests::{ALL, OWNER, flush, terms};

    /// A budget whose four workers have stated these terms.
    fn agreed(terms: Terms) -> LaneBudget {
        let mut budget = LaneBudget::default();
        (0..4).for_each(|worker| budget.agree(terms, 1 << worker));
        budget
    }

    #[test]
    fn a_lane_has_one_count() {
        let mut budget = agreed(terms(10, 2));
        let table = [
            ("behind the operation", flush(10, 20), 0b0010, false),
            ("the first", flush(10, 13), 0b0010, true),
            ("another operation's", flush(20, 21), 0b0010, false),
            (
                "another job's, or the job's next incarnation",
                Flush { owner: 2 << 16, ..flush(10, 14) },
                2,
                false,
            ),
            ("the second, without another worker", flush(10, 19), 0b1000, true),
            ("the third, without one that was in both", flush(10, 14), 0b0100, false),
        ];
        for (what, flush, left_out, expected) in table {
            let before = budget;
            assert_eq!(budget.spend(flush, ALL, left_out), expected, "{what}");
            assert!(expected || budget == before, "{what}: nothing is spent");
        }
    }

    #[test]
    fn the_latest_operation_has_the_bound() {
        let mut budget = agreed(terms(10, 2));
        assert!(budget.spend(flush(10, 11), ALL, 1));
        budget.agree(terms(20, 1), 0b0111);
        assert!(!budget.spend(flush(10, 12), ALL, 1), "a later operation has begun");
        assert!(!budget.spend(flush(20, 21), ALL, 1), "one worker has stated no terms");
        let before = budget;
        budget.agree(terms(10, 9), ALL);
        assert_eq!(budget, before, "an earlier operation's terms");
        budget.agree(terms(20, 1), 0b1000);
        assert!(budget.spend(flush(20, 21), ALL, 1), "the count is a new one");
        assert!(!budget.spend(flush(20, 22), ALL, 1));
        budget.agree(Terms { owner: 2 << 16, ..terms(3, 1) }, ALL);
        assert_eq!((budget.spent_of, budget.spent, budget.latest.operation), (u32::MAX, 0, 3));
        assert!(budget.spend(Flush { owner: 2 << 16, ..flush(3, 4) }, ALL, 1), "the job's next incarnation");
    }

    #[test]
    fn bounds_go_on_where_numbers_wrap() {
        let mut budget = agreed(terms(u32::MAX - 20, 1));
        assert!(budget.spend(flush(u32::MAX - 20, u32::MAX - 19), ALL, 1));
        (0..4).for_each(|worker| budget.agree(terms(u32::MAX - 3, 2), 1 << worker));
        assert_eq!(budget.latest.end, 6);
        assert!(!budget.spend(flush(u32::MAX - 3, 6), ALL, 1), "behind the operation");
        assert!(budget.spend(flush(u32::MAX - 3, u32::MAX), ALL, 1));
        assert!(budget.spend(flush(u32::MAX - 3, 5), ALL, 1));
        assert!(!budget.spend(flush(u32::MAX - 3, 1), ALL, 1));
        (0..4).for_each(|worker| budget.agree(terms(6, 1), 1 << worker));
        budget.agree(terms(u32::MAX - 3, 9), ALL);
        assert!(!budget.spend(flush(u32::MAX - 3, 2), ALL, 1), "an operation from before the wrap");
        assert!(budget.spend(flush(6, 7), ALL, 1));
    }

    #[test]
    fn the_strictest_terms_hold() {
        let generous = Terms { end: 1000, ..terms(10, 65_535) };
        for order in [[generous, terms(10, 1)], [terms(10, 1), generous]] {
            let mut budget = LaneBudget::default();
            budget.agree(order[0], 0b0011);
            assert!(!budget.spend(flush(10, 11), ALL, 1), "half of the workers have stated terms");
            budget.agree(order[1], 0b1100);
            assert_eq!((budget.latest.end, budget.latest.limit), (20, 1));
            assert!(budget.spend(flush(10, 19), ALL, 1));
            budget.agree(generous, 0b0001);
            assert!(!budget.spend(flush(10, 12), ALL, 1), "the limit is that of the others");
        }
    }

    proptest! {
        /// Terms and flushes of several operations in any order, of which worker 0 states and sends any: no
        /// more chunks of one are flushed than its limit, and none of another.
        #[test]
        fn no_order_overdraws(
            packets in proptest::collection::vec(
                (any::<bool>(), 0..40u32, 0..4u32, 0..70_000u32),
                0..300,
            ),
            limit in 1..5u32,
        ) {
            let mut budget = LaneBudget::default();
            let mut flushed: Vec<u32> = vec![0; 4];
            for (states, seq, worker, any) in packets {
                let operation = seq / 10 * 10;
                // Operation 20 has no bound.
                if !states {
                    let operation = if any % 3 == 0 { any % 40 } else { operation };
                    // By admission.
                    if seq >= operation && budget.spend(flush(operation, seq), ALL, 1) {
                        flushed[seq as usize / 10] += 1;
                    }
                } else if worker == 0 && any % 2 == 0 {
                    let (end, limit) = (seq + any, any.max(1));
                    budget.agree(Terms { owner: OWNER, operation: seq, end, limit }, 1);
                } else if operation != 20 {
                    budget.agree(terms(operation, limit), 1 << worker);
                }
            }
            prop_assert!(flushed.iter().all(|chunks| *chunks <= limit), "{flushed:?}");
            prop_assert_eq!(flushed[2], 0);
        }

        /// Every flush that it grants, [`crate::budget::Budget`] grants too.
        #[test]
        fn it_grants_no_more_than_a_count_for_each_worker(
            packets in proptest::collection::vec((any::<bool>(), 0..40u32, 0..4u32, 1..4u32), 0..300),
        ) {
            let (mut lane, mut each) = (LaneBudget::default(), crate::budget::Budget::default());
            let mut granted = BTreeSet::new();
            for (states, seq, worker, limit) in packets {
                let operation = seq / 10 * 10;
                if states {
                    lane.agree(terms(operation, limit), 1 << worker);
                    each.agree(terms(operation, limit), 1 << worker);
                } else if granted.insert(seq) && lane.spend(flush(operation, seq), ALL, 1 << worker) {
                    prop_assert!(each.spend(flush(operation, seq), ALL, 1 << worker));
                }
            }
        }
    }
}
