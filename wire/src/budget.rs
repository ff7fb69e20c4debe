//! The budget of an operation with a loss bound: the chunks that each worker may be left out of. One rule for
//! slots and for parameter hosts.
//!
//! With its contribution to the operation's first chunk each worker states the operation's [`Terms`]: where
//! it ends, and the limit. A *flush* is a contribution that asks to complete its chunk with those that are
//! there. It is granted if at least half of the workers are in ([`is_quorum`]), all workers have stated
//! terms, and every worker that is left out still has budget. Where terms differ, the strictest hold: so no
//! worker is left out of more than it has agreed to, whatever the others send.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{MAX_WORKERS, stream::is_later};

/// The terms of an operation with a loss bound, as one of its workers states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The job and incarnation that the operation belongs to; not zero. Several jobs use a slot one after
    /// another.
    pub owner: u32,
    /// The operation's first chunk.
    pub operation: u32,
    /// The first chunk behind it.
    pub end: u32,
    /// Chunks of it, on this lane, that each worker may be left out of; not zero.
    pub limit: u32,
}

/// The chunk of a flush, and the operation that its sender counts it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flush {
    /// [`Terms::owner`].
    pub owner: u32,
    /// The operation's first chunk.
    pub operation: u32,
    /// The chunk.
    pub seq: u32,
}

/// Whether a chunk may be completed with so many of its workers.
#[inline(always)]
pub const fn is_quorum(contributors: u32, workers: u32) -> bool {
    2 * contributors >= workers
}

/// The operations of a lane whose terms are kept. Workers begin an operation before the last chunks of those
/// before it have their results.
pub const KEPT_OPERATIONS: usize = 4;

/// The terms of one operation that its workers have stated so far. Host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Agreement {
    /// [`Terms::operation`].
    pub operation: u32,
    /// The earliest [`Terms::end`].
    pub end: u32,
    /// The smallest [`Terms::limit`].
    pub limit: u32,
    /// The bits of the workers that have stated terms; zero: of none.
    pub workers: u32,
}

impl Agreement {
    /// The terms as the first worker states them.
    #[inline(always)]
    pub(crate) const fn of(terms: Terms, worker: u32) -> Agreement {
        Agreement { operation: terms.operation, end: terms.end, limit: terms.limit, workers: worker }
    }

    /// With the terms that one more worker states.
    #[inline(always)]
    pub(crate) fn with(self, terms: Terms, worker: u32) -> Agreement {
        let Agreement { operation, end, limit, workers } = self;
        Agreement {
            operation,
            end: if is_later(end, terms.end) { terms.end } else { end },
            limit: if terms.limit < limit { terms.limit } else { limit },
            workers: workers | worker,
        }
    }

    /// Whether all workers (`all`) have agreed that the chunk is one of the operation.
    #[inline(always)]
    pub(crate) const fn holds(&self, flush: &Flush, all: u32) -> bool {
        self.operation == flush.operation
            && self.workers & all == all
            && !is_later(self.operation, flush.seq)
            && is_later(self.end, flush.seq)
    }
}

/// The operations of a lane whose terms are known, and the chunks of one of them that each worker was left
/// out of. Host order.
///
/// It only ever moves on to a later operation: flushes of an earlier one find no budget, so that no order of
/// packets gives an operation more than its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Budget {
    /// [`Terms::owner`]. Zero: no terms were stated yet.
    pub owner: u32,
    /// The operation that `spent` counts chunks of, by its first.
    pub operation: u32,
    /// The latest operations.
    pub agreements: [Agreement; KEPT_OPERATIONS],
    /// By worker.
    pub spent: [u32; MAX_WORKERS],
}

/// A count of the chunks that flushes may complete.
pub trait Chunks {
    /// Spends the chunk of a flush, which leaves out the workers `left_out` of `all`; or returns `false`
    /// with nothing changed.
    fn spend(&mut self, flush: Flush, all: u32, left_out: u32) -> bool;
}

impl Chunks for Budget {
    #[inline(always)]
    fn spend(&mut self, flush: Flush, all: u32, left_out: u32) -> bool {
        Budget::spend(self, flush, all, left_out)
    }
}

impl Budget {
    /// Takes in the terms that the worker with the bit `worker` states. Those of an operation before all that
    /// are kept change nothing.
    #[inline(always)]
    pub fn agree(&mut self, terms: Terms, worker: u32) {
        let keep = if self.owner == terms.owner { u32::MAX } else { 0 };
        for agreement in &mut self.agreements {
            agreement.workers &= keep;
        }
        for spent in &mut self.spent {
            *spent &= keep;
        }
        if keep == 0 {
            (self.owner, self.operation) = (terms.owner, terms.operation);
        }
        let mut place = 0;
        let mut earliest = self.agreements[0];
        for (index, kept) in self.agreements.iter_mut().enumerate() {
            if kept.workers != 0 && kept.operation == terms.operation {
                *kept = kept.with(terms, worker);
                return;
            }
            let is_earlier = kept.workers == 0 || is_later(earliest.operation, kept.operation);
            if earliest.workers != 0 && is_earlier {
                (place, earliest) = (index, *kept);
            }
        }
        let is_later = earliest.workers == 0 || is_later(terms.operation, earliest.operation);
        if is_later && let Some(kept) = self.agreements.get_mut(place) {
            *kept = Agreement::of(terms, worker);
        }
    }

    /// Spends a chunk of each worker in `left_out`. Returns `false`, with nothing changed, if one of them has
    /// spent the limit, or if not all workers (`all`) have agreed that the chunk is one of the operation.
    #[inline(always)]
    pub fn spend(&mut self, flush: Flush, all: u32, left_out: u32) -> bool {
        let mut limit = 0;
        for agreement in &self.agreements {
            if agreement.holds(&flush, all) {
                limit = agreement.limit;
            }
        }
        let is_new = is_later(flush.operation, self.operation);
        if self.owner != flush.owner || !is_new && self.operation != flush.operation {
            return false;
        }
        let keep = if is_new { 0 } else { u32::MAX };
        // Without branches: eBPF's verifier follows every combination of them.
        let mut exhausted = 0;
        for (worker, spent) in self.spent.iter().enumerate() {
            exhausted |= u32::from(*spent & keep >= limit) & left_out >> worker;
        }
        if limit == 0 || exhausted & 1 != 0 {
            return false;
        }
        for (worker, spent) in self.spent.iter_mut().enumerate() {
            *spent = (*spent & keep) + (left_out >> worker & 1);
        }
        self.operation = flush.operation;
        true
    }
}

#[cfg(test)]
pub(crate) mod tests {
    extern crate std;

    use std::{vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    pub(crate) const OWNER: u32 = 1 << 16;
    pub(crate) const ALL: u32 = 0b1111;

    pub(crate) fn terms(operation: u32, limit: u32) -> Terms {
        Terms { owner: OWNER, operation, end: operation.wrapping_add(10), limit }
    }

    pub(crate) fn flush(operation: u32, seq: u32) -> Flush {
        Flush { owner: OWNER, operation, seq }
    }

    /// A budget whose four workers have stated these terms.
    fn agreed(terms: Terms) -> Budget {
        let mut budget = Budget::default();
        (0..4).for_each(|worker| budget.agree(terms, 1 << worker));
        budget
    }

    #[test]
    fn a_budget_is_one_operations() {
        let mut budget = agreed(terms(10, 2));
        let table = [
            ("the first", 10, 0b0010, true),
            ("the second, with another worker's first", 10, 0b0110, true),
            ("the third", 10, 0b0010, false),
            ("one of two has none left", 10, 0b1010, false),
            ("the other's second", 10, 0b0100, true),
            ("one that lost nothing", 10, 0b1000, true),
            ("a later operation, of which nothing was stated", 20, 0b0010, false),
        ];
        for (what, operation, left_out, expected) in table {
            let before = budget;
            assert_eq!(budget.spend(flush(operation, operation + 3), ALL, left_out), expected, "{what}");
            assert!(expected || budget == before, "{what}: nothing is spent");
        }
        let mut before = 10;
        for operation in [20, 1 << 31, u32::MAX - 3, 6] {
            for worker in 0..4 {
                let first = flush(operation, operation);
                assert!(!budget.spend(first, ALL, 0b0010), "before all have stated terms");
                budget.agree(terms(operation, 1), 1 << worker);
            }
            assert!(budget.spend(flush(operation, operation.wrapping_add(9)), ALL, 0b0010), "{operation}");
            assert!(!budget.spend(flush(operation, operation), ALL, 0b0010), "the limit is spent");
            assert!(!budget.spend(flush(before, before), ALL, 0b1000), "an earlier operation");
            before = operation;
        }
        let other = Flush { owner: 2 << 16, ..flush(6, 6) };
        assert!(!budget.spend(other, ALL, 0b1000), "another job's, or the job's next incarnation");
        budget.agree(Terms { owner: 2 << 16, ..terms(2, 1) }, ALL);
        assert!(!budget.spend(flush(6, 6), ALL, 0b1000), "the job's incarnation before");
        assert!(budget.spend(Flush { owner: 2 << 16, ..flush(2, 2) }, ALL, 0b0010));
    }

    #[test]
    fn an_operation_has_its_budget_after_later_ones_have_begun() {
        let mut budget = agreed(terms(10, 2));
        assert!(budget.spend(flush(10, 11), ALL, 0b1000));
        for operation in [20, 30, 40] {
            budget.agree(terms(operation, 1), 0b0111);
            assert!(budget.spend(flush(10, 19), ALL, 0b0100) || operation == 40, "{operation}");
        }
        budget.agree(terms(20, 1), 0b1000);
        assert!(budget.spend(flush(10, 12), ALL, 0b1000) && budget.spend(flush(20, 20), ALL, 0b1000));
        budget.agree(terms(50, 1), ALL);
        budget.agree(terms(10, 2), ALL);
        assert!(!budget.spend(flush(10, 13), ALL, 0b0001), "it is not kept any more");
        assert!(budget.spend(flush(50, 50), ALL, 0b0001), "a new one takes the earliest one's place");
    }

    #[test]
    fn the_strictest_terms_hold() {
        let generous = Terms { end: 1000, ..terms(10, 65_535) };
        for order in [[generous, terms(10, 1)], [terms(10, 1), generous]] {
            let mut budget = Budget::default();
            budget.agree(order[0], 0b0011);
            assert!(!budget.spend(flush(10, 11), ALL, 0b1000), "half of the workers have stated terms");
            budget.agree(order[1], 0b1100);
            assert!(!budget.spend(flush(10, 20), ALL, 0b1000), "behind the operation");
            assert!(!budget.spend(flush(10, 9), ALL, 0b1000), "before it");
            assert!(budget.spend(flush(10, 19), ALL, 0b1000));
            budget.agree(generous, 0b0001);
            assert!(!budget.spend(flush(10, 12), ALL, 0b1000), "the limit is that of the others");
        }
    }

    proptest! {
        /// Terms and flushes of several operations in any order, of which worker 0 states and sends any: no
        /// other worker is left out of more chunks of one than the limit, or of a chunk of another.
        #[test]
        fn no_order_overdraws(
            packets in proptest::collection::vec(
                (any::<bool>(), 0..40u32, 0..4u32, 1..16u32, 0..70_000u32),
                0..300,
            ),
            limit in 1..5u32,
        ) {
            let mut budget = Budget::default();
            let mut spent: Vec<[u32; 4]> = vec![[0; 4]; 4];
            for (states, seq, worker, left_out, any) in packets {
                let operation = seq / 10 * 10;
                // Operation 20 has no bound.
                if !states {
                    let operation = if any % 3 == 0 { any % 40 } else { operation };
                    if budget.spend(flush(operation, seq), ALL, left_out) {
                        for (worker, spent) in spent[seq as usize / 10].iter_mut().enumerate() {
                            *spent += left_out >> worker & 1;
                        }
                    }
                } else if worker == 0 && any % 2 == 0 {
                    let (end, limit) = (seq + any, any.max(1));
                    budget.agree(Terms { owner: OWNER, operation: seq, end, limit }, 1);
                } else if operation != 20 {
                    budget.agree(terms(operation, limit), 1 << worker);
                }
            }
            prop_assert!(spent.iter().flatten().all(|spent| *spent <= limit), "{spent:?}");
            prop_assert_eq!(spent[2], [0; 4]);
        }
    }
}
