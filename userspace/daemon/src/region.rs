//! A trainer's memory as the engine sees it.

use std::ops::Range;

use sumac_memory::{Lease, LeaseError, SharedRegion};
use sumac_transport::Buffer;

/// A range of a region, and where in its part of the tensor the range starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Bytes of the region.
    pub(crate) bytes: Range<usize>,
    /// Bytes of the part before it.
    pub(crate) skip: usize,
}

/// The ranges that one part of an operation works on, lent by the regions until it has ended. Nothing is copied.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// Lends the input, and the output too where that lies in the same region; none where the part has no elements.
    main: Option<Lease>,
    /// Lends the output where it lies in another region.
    elsewhere: Option<Lease>,
    /// Bytes of the part before its input, and before its output.
    skips: [usize; 2],
}

impl Ranges {
    /// Of nothing.
    pub(crate) fn none() -> Ranges {
        Ranges { main: None, elsewhere: None, skips: [0; 2] }
    }

    /// Borrows from one region.
    pub(crate) fn within(
        region: &SharedRegion,
        input: Stretch,
        output: Stretch,
    ) -> Result<Ranges, LeaseError> {
        let main = region.lease(input.bytes, output.bytes)?;
        Ok(Ranges { main: Some(main), elsewhere: None, skips: [input.skip, output.skip] })
    }

    /// Borrows the input from one region and the output from another.
    pub(crate) fn across(
        (from, input): (&SharedRegion, Stretch),
        (to, output): (&SharedRegion, Stretch),
    ) -> Result<Ranges, LeaseError> {
        let main = from.lease(input.bytes, 0..0)?;
        let elsewhere = to.lease(0..0, output.bytes)?;
        Ok(Ranges { main: Some(main), elsewhere: Some(elsewhere), skips: [input.skip, output.skip] })
    }
}

impl Buffer for Ranges {
    fn input(&self, byte_offset: usize, len: usize) -> &[u8] {
        let at = byte_offset.checked_sub(self.skips[0]);
        let lease = self.main.as_ref();
        lease.zip(at).and_then(|(lease, at)| lease.input(at, len)).unwrap_or(&[])
    }

    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8] {
        let at = byte_offset.checked_sub(self.skips[1]);
        let lease = self.elsewhere.as_mut().or(self.main.as_mut());
        lease.zip(at).and_then(|(lease, at)| lease.output(at, len)).unwrap_or(&mut [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> SharedRegion {
        SharedRegion::create(4096).unwrap().0
    }

    fn bytes(bytes: Range<usize>) -> Stretch {
        Stretch { bytes, skip: 0 }
    }

    #[test]
    fn in_place_reads_what_was_written() {
        let mut ranges = Ranges::within(&region(), bytes(8..16), bytes(8..16)).unwrap();
        ranges.output(4, 4).copy_from_slice(b"abcd");
        assert_eq!(ranges.input(4, 4), b"abcd");
        assert!(ranges.output(4, 5).is_empty());
    }

    #[test]
    fn a_range_that_starts_later_than_its_part_is_found_there() {
        let output = Stretch { bytes: 12..16, skip: 4 };
        let mut ranges = Ranges::within(&region(), bytes(8..24), output).unwrap();
        ranges.output(4, 4).copy_from_slice(b"abcd");
        assert_eq!(ranges.input(4, 4), b"abcd");
        assert!(ranges.output(0, 4).is_empty(), "before it");
        assert!(ranges.output(8, 4).is_empty(), "behind it");
    }

    #[test]
    fn another_region_takes_the_output() {
        let (a, b) = (region(), region());
        let mut ranges = Ranges::across((&a, bytes(0..8)), (&b, bytes(16..24))).unwrap();
        ranges.output(0, 4).copy_from_slice(b"abcd");
        assert_eq!(ranges.input(0, 4), [0; 4]);
        drop(ranges);
        let reader = b.lease(16..20, 0..0).unwrap();
        assert_eq!(reader.input(0, 4), Some(&b"abcd"[..]));
    }

    #[test]
    fn a_range_that_is_being_written_is_lent_once() {
        let (a, b) = (region(), region());
        let first = Ranges::across((&a, bytes(0..8)), (&b, bytes(16..24))).unwrap();
        assert!(Ranges::within(&b, bytes(20..28), bytes(20..28)).is_err());
        assert!(Ranges::within(&a, bytes(0..8), bytes(32..40)).is_ok());
        drop(first);
        assert!(Ranges::within(&b, bytes(20..28), bytes(20..28)).is_ok());
    }

    #[test]
    fn nothing_has_no_bytes() {
        assert!(Ranges::none().input(0, 1).is_empty() && Ranges::none().output(0, 1).is_empty());
    }
}
