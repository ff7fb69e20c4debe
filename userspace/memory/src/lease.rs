//! Exclusive and shared access of concurrent operations to ranges of one mapping.

use std::{
    io,
    ops::Range,
    slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use memmap2::MmapRaw;

use crate::holder::HeldMapping;

/// The longest output that is collected before it is written through a holder, unless one piece is longer.
const COLLECTED: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    #[error("bytes {start}..{end} do not lie in the region's {len} bytes")]
    Outside { start: usize, end: usize, len: usize },
    #[error("bytes {start}..{end} are in use by an operation that has not completed; wait for it first")]
    Busy { start: usize, end: usize },
    #[error("offset {offset} is not a multiple of {alignment}")]
    Unaligned { offset: usize, alignment: usize },
}

/// The ranges of existing leases.
#[derive(Debug, Default)]
struct Leased {
    next_key: u64,
    /// Key, input range and output range of each lease.
    ranges: Vec<(u64, Range<usize>, Range<usize>)>,
}

/// A mapping and the leases on it.
#[derive(Debug)]
pub(crate) struct Lender {
    /// For reading alone where `held` is the writable one.
    mapping: MmapRaw,
    pub(crate) held: Option<HeldMapping>,
    leased: Mutex<Leased>,
}

impl Lender {
    pub(crate) fn new(mapping: MmapRaw, held: Option<HeldMapping>) -> Lender {
        Lender { mapping, held, leased: Mutex::default() }
    }

    /// Returns the address of the writable mapping.
    pub(crate) fn address(&self) -> u64 {
        self.held.as_ref().map_or(self.mapping.as_ptr().addr() as u64, |held| held.address)
    }

    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    pub(crate) fn lease(
        lender: &Arc<Lender>,
        input: Range<usize>,
        output: Range<usize>,
    ) -> Result<Lease, LeaseError> {
        let len = lender.len();
        for range in [&input, &output] {
            if range.start > range.end || range.end > len {
                return Err(LeaseError::Outside { start: range.start, end: range.end, len });
            }
        }
        let mut leased = lender.leased();
        for (_, read, written) in &leased.ranges {
            for (mine, theirs) in [(&output, read), (&output, written), (&input, written)] {
                if overlap(mine, theirs) {
                    return Err(LeaseError::Busy { start: mine.start, end: mine.end });
                }
            }
        }
        let key = leased.next_key;
        leased.next_key += 1;
        leased.ranges.push((key, input.clone(), output.clone()));
        drop(leased);
        Ok(Lease { lender: lender.clone(), key, input, output, collected: Collected::default() })
    }

    fn leased(&self) -> MutexGuard<'_, Leased> {
        // The list is consistent after every statement that changes it.
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a pointer to `len` bytes at `offset` of `range`, or `None` when they do not lie inside.
    fn pointer(&self, range: &Range<usize>, offset: usize, len: usize) -> Option<*mut u8> {
        let start = range.start.checked_add(offset)?;
        if start.checked_add(len)? > range.end {
            return None;
        }
        // SAFETY: `lease` has checked that the range lies inside the mapping.
        Some(unsafe { self.mapping.as_mut_ptr().add(start) })
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end && !a.is_empty() && !b.is_empty()
}

/// One operation's ranges of a [`SharedRegion`](crate::SharedRegion), released on drop.
#[derive(Debug)]
pub struct Lease {
    lender: Arc<Lender>,
    key: u64,
    input: Range<usize>,
    output: Range<usize>,
    collected: Collected,
}

/// Output of a lease that is on its way to a holder's mapping.
#[derive(Debug, Default)]
struct Collected {
    /// The offset of the bytes in the region.
    start: usize,
    bytes: Vec<u8>,
    error: Option<io::Error>,
}

impl Lease {
    /// Returns `len` bytes at `offset` of the input range, or `None` when they do not lie inside.
    pub fn input(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let start = self.lender.pointer(&self.input, offset, len)?;
        // SAFETY: the bytes lie inside the mapping, which the Arc keeps. No other lease writes to the input
        // range, and this one writes only through `&mut self`.
        Some(unsafe { slice::from_raw_parts(start, len) })
    }

    /// Returns `len` bytes at `offset` of the output range, or `None` when they do not lie inside. They reach
    /// the memory of a region that was taken over by [`Lease::write_back`] at the latest.
    pub fn output(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let start = self.lender.pointer(&self.output, offset, len)?;
        if self.lender.held.is_some() {
            return self.collect(self.output.start + offset, len);
        }
        // SAFETY: the bytes lie inside the mapping. No other lease reads or writes the output range, and
        // `&mut self` excludes this lease's other borrows.
        Some(unsafe { slice::from_raw_parts_mut(start, len) })
    }

    /// Returns a copy of the bytes at an offset of the region, which is written through the holder later,
    /// together with its neighbours.
    fn collect(&mut self, start: usize, len: usize) -> Option<&mut [u8]> {
        let Collected { start: first, bytes, .. } = &self.collected;
        if start != first + bytes.len() || bytes.len() + len > COLLECTED {
            self.flush();
            self.collected.start = start;
        }
        let current = self.lender.pointer(&self.output, start - self.output.start, len)?;
        // SAFETY: as in `input`; the slice ends before anything is written through the holder.
        let current = unsafe { slice::from_raw_parts(current, len) };
        let before = self.collected.bytes.len();
        self.collected.bytes.extend_from_slice(current);
        self.collected.bytes.get_mut(before..)
    }

    fn flush(&mut self) {
        let Collected { start, bytes, error } = &mut self.collected;
        if let Some(held) = &self.lender.held
            && let Err(failed) = held.write(*start, bytes)
        {
            error.get_or_insert(failed);
        }
        bytes.clear();
    }

    /// Writes all output to the region's memory. Where the region is mapped for writing it is there.
    ///
    /// # Errors
    /// The holder of the writable mapping has ended; some output since the last call is lost.
    pub fn write_back(&mut self) -> io::Result<()> {
        self.flush();
        self.collected.error.take().map_or(Ok(()), Err)
    }

    /// Returns the input and the output range.
    pub fn ranges(&self) -> [Range<usize>; 2] {
        [self.input.clone(), self.output.clone()]
    }

    /// Returns a pointer to the first bytes of the output range, for a [`Word`](crate::Word), whose range is
    /// one.
    pub(crate) fn word(&self) -> *mut u64 {
        // SAFETY: `Lender::lease` has checked that the range lies inside the mapping.
        unsafe { self.lender.mapping.as_mut_ptr().add(self.output.start).cast() }
    }

    /// Returns the writable mapping where a holder has it, and the output range's offset in it.
    pub(crate) fn held(&self) -> Option<(&HeldMapping, usize)> {
        Some((self.lender.held.as_ref()?, self.output.start))
    }

    /// Ends the lease and runs `signal`, before anyone else can lease the bytes.
    pub(crate) fn release_with(&self, signal: impl FnOnce()) {
        let mut leased = self.lender.leased();
        leased.ranges.retain(|(key, _, _)| *key != self.key);
        signal();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.lender.leased().ranges.retain(|(key, _, _)| *key != self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedRegion;

    fn region(size: usize) -> SharedRegion {
        SharedRegion::anonymous(size)
    }

    #[test]
    fn a_lease_grants_its_ranges_only() {
        let region = region(100);
        let mut lease = region.lease(10..20, 50..60).unwrap();
        lease.output(9, 1).unwrap()[0] = 7;
        for (offset, len) in [(9, 2), (10, 1), (usize::MAX, 2), (2, usize::MAX)] {
            assert!(lease.output(offset, len).is_none(), "{offset} {len}");
            assert!(lease.input(offset, len).is_none(), "{offset} {len}");
        }
        assert!(lease.input(0, 10).is_some());
        assert!(lease.input(0, 11).is_none());
        assert_eq!(region.lease(59..60, 0..0).map(|_| ()), Err(LeaseError::Busy { start: 59, end: 60 }));
        drop(lease);
        assert_eq!(region.lease(59..60, 0..0).unwrap().input(0, 1), Some(&[7][..]));
    }

    #[test]
    fn writers_are_exclusive_and_readers_share() {
        let region = region(100);
        let _one = region.lease(0..10, 20..30).unwrap();
        let cases = [
            ("reads what the first lease reads", 0..10, 30..40, true),
            ("writes what the first lease reads", 40..50, 9..11, false),
            ("writes what the first lease writes", 40..50, 29..31, false),
            ("reads what the first lease writes", 29..31, 40..50, false),
            ("in place beside it", 60..70, 60..70, true),
            ("empty", 25..25, 25..25, true),
        ];
        for (case, input, output, granted) in cases {
            assert_eq!(region.lease(input, output).is_ok(), granted, "{case}");
        }
    }

    #[test]
    fn ranges_outside_are_refused() {
        let region = region(100);
        #[expect(clippy::reversed_empty_ranges, reason = "the case under test")]
        for (input, output) in [(0..101, 0..1), (0..1, 100..101), (50..40, 0..1)] {
            assert!(matches!(region.lease(input, output), Err(LeaseError::Outside { len: 100, .. })));
        }
    }

    #[test]
    fn the_mapping_outlives_the_region() {
        let lease = { region(100).lease(0..100, 0..100).unwrap() };
        assert_eq!(lease.input(0, 100).map(<[u8]>::len), Some(100));
    }
}
