//! The pool of slots: ranges of a power of two, each aligned to its size (first fit).

use crate::refusal::Refusal;

/// A range of slots that belongs to one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first slot.
    pub first: u32,
    /// How many, a power of two.
    pub slots: u32,
}

impl Range {
    fn end(self) -> u64 {
        u64::from(self.first) + u64::from(self.slots)
    }
}

/// Which slots are taken.
#[derive(Debug)]
pub struct Pool {
    total: u32,
    /// Sorted by their first slot; they never overlap.
    taken: Vec<Range>,
}

impl Pool {
    /// An empty pool.
    pub fn new(total: u32) -> Pool {
        Pool { total, taken: Vec::new() }
    }

    /// All slots.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Slots that no job has.
    pub fn free(&self) -> u32 {
        self.total - self.taken.iter().map(|range| range.slots).sum::<u32>()
    }

    /// The largest range that can be taken; 0 when there is none.
    pub fn largest(&self) -> u32 {
        (0..u32::BITS).rev().map(|log2| 1 << log2).find(|slots| self.find(*slots).is_some()).unwrap_or(0)
    }

    /// Takes `slots`, a power of two.
    pub fn take(&mut self, slots: u32) -> Result<Range, Refusal> {
        let range = self.find(slots).ok_or_else(|| self.full(slots))?;
        let at = self.taken.partition_point(|taken| taken.first < range.first);
        self.taken.insert(at, range);
        Ok(range)
    }

    /// Gives a range back.
    pub fn give_back(&mut self, range: Range) {
        self.taken.retain(|taken| *taken != range);
    }

    /// Says what is free.
    pub fn full(&self, wanted: u32) -> Refusal {
        Refusal::PoolFull { wanted, free: self.free(), largest: self.largest(), total: self.total }
    }

    fn find(&self, slots: u32) -> Option<Range> {
        let mut first = 0u64;
        let ends = self.taken.iter().map(|taken| (u64::from(taken.first), taken.end()));
        for (gap_end, next) in ends.chain([(u64::from(self.total), u64::from(self.total))]) {
            first = first.next_multiple_of(u64::from(slots));
            if first + u64::from(slots) <= gap_end {
                return Some(Range { first: u32::try_from(first).ok()?, slots });
            }
            first = first.max(next);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_pool_says_what_is_free() {
        let mut pool = Pool::new(96);
        let first = pool.take(32).unwrap();
        let second = pool.take(16).unwrap();
        assert_eq!((first.first, second.first), (0, 32));
        assert_eq!(pool.take(64), Err(Refusal::PoolFull { wanted: 64, free: 48, largest: 32, total: 96 }));
        assert_eq!(pool.take(32).unwrap().first, 64);
        pool.give_back(first);
        assert_eq!((pool.free(), pool.largest()), (48, 32));
        assert_eq!(Pool::new(0).largest(), 0);
    }

    proptest! {
        #[test]
        fn ranges_never_overlap(
            total in 0u32..5000,
            steps in proptest::collection::vec((any::<bool>(), 0u32..12, any::<proptest::sample::Index>()), 0..80),
        ) {
            let mut pool = Pool::new(total);
            let mut held: Vec<Range> = Vec::new();
            for (take, log2, which) in steps {
                if take {
                    match pool.take(1 << log2) {
                        Ok(range) => {
                            prop_assert_eq!(range.first % range.slots, 0);
                            prop_assert!(range.end() <= u64::from(total));
                            for other in &held {
                                let apart = range.end() <= u64::from(other.first) || other.end() <= u64::from(range.first);
                                prop_assert!(apart, "{:?} and {:?}", range, other);
                            }
                            held.push(range);
                        }
                        Err(_) => prop_assert!(pool.largest() < 1 << log2),
                    }
                } else if !held.is_empty() {
                    pool.give_back(held.swap_remove(which.index(held.len())));
                }
                prop_assert_eq!(pool.free(), total - held.iter().map(|range| range.slots).sum::<u32>());
            }
        }
    }
}
