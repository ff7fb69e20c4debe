//! The pool of slots: a range for each job (first fit).

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub first: u32,
    /// The number of slots, at least 1.
    pub slots: u32,
}

impl Range {
    const fn end(self) -> u32 {
        self.first.saturating_add(self.slots)
    }
}

#[derive(Debug)]
pub struct Pool {
    total: u32,
    /// Sorted by their first slot; they never overlap.
    taken: Vec<Range>,
}

impl Pool {
    pub fn new(total: u32) -> Pool {
        Pool { total, taken: Vec::new() }
    }

    pub fn total(&self, limit: u32) -> u32 {
        self.total.min(limit)
    }

    pub fn free(&self, limit: u32) -> u32 {
        self.gaps(limit).map(|gap| gap.slots).sum()
    }

    /// The largest range below `limit` that can be taken; 0 when there is none.
    pub fn largest(&self, limit: u32) -> u32 {
        self.gaps(limit).map(|gap| gap.slots).max().unwrap_or(0)
    }

    /// Takes the first range of `slots` that ends at `limit` or before.
    pub fn take(&mut self, slots: u32, limit: u32) -> Option<Range> {
        let gap = self.gaps(limit).find(|gap| gap.slots >= slots && slots > 0)?;
        let range = Range { first: gap.first, slots };
        self.take_at(range).then_some(range)
    }

    /// Takes this very range. `false`: a part of it is taken, or beyond the pool.
    pub fn take_at(&mut self, range: Range) -> bool {
        let fits = |gap: Range| gap.first <= range.first && range.end() <= gap.end();
        if range.slots == 0 || !self.gaps(u32::MAX).any(fits) {
            return false;
        }
        let at = self.taken.partition_point(|taken| taken.first < range.first);
        self.taken.insert(at, range);
        true
    }

    pub fn give_back(&mut self, range: Range) {
        self.taken.retain(|taken| *taken != range);
    }

    /// Returns all but the first `slots` of a range to the pool.
    pub fn shrink(&mut self, range: Range, slots: u32) -> Range {
        let kept = Range { slots: slots.clamp(1, range.slots), ..range };
        for taken in self.taken.iter_mut().filter(|taken| **taken == range) {
            *taken = kept;
        }
        kept
    }

    /// The ranges between the taken ones, up to `limit`.
    fn gaps(&self, limit: u32) -> impl Iterator<Item = Range> {
        let limit = self.total(limit);
        let ends = std::iter::once(0).chain(self.taken.iter().map(|taken| taken.end()));
        let starts = self.taken.iter().map(|taken| taken.first).chain([limit]);
        let between = ends.zip(starts).map(move |(from, to)| (from, to.min(limit)));
        between.filter(|(from, to)| from < to).map(|(first, to)| Range { first, slots: to - first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pool_knows_what_is_free() {
        let mut pool = Pool::new(96);
        let first = pool.take(32, 96).unwrap();
        let second = pool.take(16, 96).unwrap();
        assert_eq!((first.first, second.first), (0, 32));
        assert_eq!(pool.take(64, 96), None);
        assert_eq!((pool.free(96), pool.largest(96)), (48, 48));
        assert_eq!((pool.free(64), pool.largest(64)), (16, 16), "below a limit");
        assert_eq!(pool.take(17, 64), None, "above the limit");
        assert_eq!(pool.take(32, 96).unwrap().first, 48);
        pool.give_back(first);
        assert_eq!((pool.free(96), pool.largest(96)), (48, 32));
        let shrunk = pool.shrink(second, 4);
        assert_eq!((shrunk.slots, pool.largest(96)), (4, 32));
        assert_eq!(Pool::new(0).largest(9), 0);
        assert_eq!(Pool::new(4).take(0, 4), None);
    }

    proptest! {
        #[test]
        fn ranges_never_overlap(
            total in 0u32..5000,
            steps in proptest::collection::vec((0u8..3, 1u32..900, any::<proptest::sample::Index>()), 0..80),
        ) {
            let mut pool = Pool::new(total);
            let mut held: Vec<Range> = Vec::new();
            for (what, slots, which) in steps {
                if what == 0 {
                    let largest = pool.largest(u32::MAX);
                    match pool.take(slots, u32::MAX) {
                        Some(range) => held.push(range),
                        None => prop_assert!(largest < slots, "{largest} are free, {slots} were refused"),
                    }
                } else if !held.is_empty() {
                    let range = held.swap_remove(which.index(held.len()));
                    if what == 1 {
                        pool.give_back(range);
                    } else {
                        held.push(pool.shrink(range, slots));
                    }
                }
                held.sort_by_key(|range| range.first);
                for pair in held.windows(2) {
                    prop_assert!(pair[0].end() <= pair[1].first);
                }
                prop_assert!(held.iter().all(|range| range.end() <= total && range.slots > 0));
                prop_assert_eq!(pool.free(u32::MAX), total - held.iter().map(|range| range.slots).sum::<u32>());
            }
        }
    }
}
