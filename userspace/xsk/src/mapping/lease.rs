//! One shared memory, many operations at once: each holds ranges that no other writes to.

use std::{
    ops::Range,
    slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::Mapping;

/// Why an operation cannot have its ranges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The range ends behind the memory, or before it starts.
    #[error("bytes {start}..{end} do not lie in the region's {len} bytes")]
    Outside {
        /// First byte.
        start: usize,
        /// Byte after the last.
        end: usize,
        /// The region's size.
        len: usize,
    },
    /// Another operation has not finished with it.
    #[error("bytes {start}..{end} are in use by an operation that has not completed; wait for it first")]
    Busy {
        /// First byte.
        start: usize,
        /// Byte after the last.
        end: usize,
    },
}

/// What is lent out. The key tells leases apart.
#[derive(Debug, Default)]
struct Loans {
    next: u64,
    ranges: Vec<(u64, Range<usize>, Range<usize>)>,
}

#[derive(Debug)]
struct Inner {
    mapping: Mapping,
    loans: Mutex<Loans>,
}

impl Inner {
    fn loans(&self) -> MutexGuard<'_, Loans> {
        // The list is whole after every statement that changes it.
        self.loans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shared memory that lends out ranges. Clones are the same memory; it is unmapped with the last lease.
#[derive(Clone, Debug)]
pub struct Region {
    inner: Arc<Inner>,
}

impl Region {
    pub(super) fn new(mapping: Mapping) -> Region {
        Region { inner: Arc::new(Inner { mapping, loans: Mutex::default() }) }
    }

    /// Bytes in the region; never zero.
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.inner.mapping.len()
    }

    /// Lends `input` for reading and `output` for writing. The two may be one and the same.
    ///
    /// Leases that exist together may read the same bytes, but what one writes no other reads or writes.
    pub fn lease(&self, input: Range<usize>, output: Range<usize>) -> Result<Lease, LeaseError> {
        for range in [&input, &output] {
            if range.start > range.end || range.end > self.len() {
                return Err(LeaseError::Outside { start: range.start, end: range.end, len: self.len() });
            }
        }
        let mut loans = self.inner.loans();
        for (_, read, written) in &loans.ranges {
            for (mine, theirs) in [(&output, read), (&output, written), (&input, written)] {
                if overlap(mine, theirs) {
                    return Err(LeaseError::Busy { start: mine.start, end: mine.end });
                }
            }
        }
        let key = loans.next;
        loans.next += 1;
        loans.ranges.push((key, input.clone(), output.clone()));
        drop(loans);
        Ok(Lease { inner: self.inner.clone(), key, input, output })
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end && !a.is_empty() && !b.is_empty()
}

/// One operation's ranges of a [`Region`], until it is dropped.
#[derive(Debug)]
pub struct Lease {
    inner: Arc<Inner>,
    key: u64,
    input: Range<usize>,
    output: Range<usize>,
}

impl Lease {
    /// `len` bytes at `offset` of the input range, or `None` when they do not lie inside.
    pub fn input(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let start = self.inner.mapping.at(within(&self.input, offset, len)?, len)?;
        // SAFETY: inside the mapping, which the Arc keeps. No other lease writes to the input range, and
        // this one writes only through `&mut self`.
        Some(unsafe { slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// `len` bytes at `offset` of the output range, or `None` when they do not lie inside.
    pub fn output(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let start = self.inner.mapping.at(within(&self.output, offset, len)?, len)?;
        // SAFETY: inside the mapping. No other lease reads or writes the output range, and `&mut self` shuts
        // out this lease's other borrows.
        Some(unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) })
    }
}

fn within(range: &Range<usize>, offset: usize, len: usize) -> Option<usize> {
    let start = range.start.checked_add(offset)?;
    (start.checked_add(len)? <= range.end).then_some(start)
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.inner.loans().ranges.retain(|(key, _, _)| *key != self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Shared;

    fn region(size: usize) -> Region {
        Shared::create(size).unwrap().0.into_region()
    }

    #[test]
    fn a_lease_sees_its_ranges_only() {
        let region = region(100);
        let mut lease = region.lease(10..20, 50..60).unwrap();
        lease.output(9, 1).unwrap()[0] = 7;
        assert!(lease.output(9, 2).is_none());
        assert!(lease.input(0, 10).is_some());
        assert!(lease.input(0, 11).is_none());
        assert!(lease.input(usize::MAX, 1).is_none());
        assert_eq!(region.lease(59..60, 0..0).map(|_| ()), Err(LeaseError::Busy { start: 59, end: 60 }));
        drop(lease);
        assert_eq!(region.lease(59..60, 0..0).unwrap().input(0, 1), Some(&[7][..]));
    }

    #[test]
    fn writers_exclude_and_readers_share() {
        let region = region(100);
        let _one = region.lease(0..10, 20..30).unwrap();
        let cases = [
            ("reads what one reads", 0..10, 30..40, true),
            ("writes what one reads", 40..50, 9..11, false),
            ("writes what one writes", 40..50, 29..31, false),
            ("reads what one writes", 29..31, 40..50, false),
            ("in place beside it", 60..70, 60..70, true),
            ("nothing", 25..25, 25..25, true),
        ];
        for (what, input, output, granted) in cases {
            assert_eq!(region.lease(input, output).is_ok(), granted, "{what}");
        }
    }

    #[test]
    fn ranges_outside_are_refused() {
        let region = region(100);
        #[allow(clippy::reversed_empty_ranges, reason = "that is the case")]
        for (input, output) in [(0..101, 0..1), (0..1, 100..101), (50..40, 0..1)] {
            assert!(matches!(region.lease(input, output), Err(LeaseError::Outside { len: 100, .. })));
        }
    }

    #[test]
    fn the_memory_outlives_the_region() {
        let lease = { region(100).lease(0..100, 0..100).unwrap() };
        assert_eq!(lease.input(0, 100).map(<[u8]>::len), Some(100));
    }
}
