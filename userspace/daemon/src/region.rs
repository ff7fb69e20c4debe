//! A trainer's memory as the engine sees it.

use std::ops::Range;

use sumac_transport::Buffer;
use sumac_xsk::mapping::{Lease, LeaseError, Region};

/// The ranges of one operation, lent by the regions until it has ended. Nothing is copied.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// Lends the input, and the output too where that lies in the same region.
    main: Lease,
    /// Lends the output where it lies in another region.
    elsewhere: Option<Lease>,
}

impl Ranges {
    /// Borrows from one region.
    pub(crate) fn within(
        region: &Region,
        input: Range<usize>,
        output: Range<usize>,
    ) -> Result<Ranges, LeaseError> {
        Ok(Ranges { main: region.lease(input, output)?, elsewhere: None })
    }

    /// Borrows the input from one region and the output from another.
    pub(crate) fn across(
        (from, input): (&Region, Range<usize>),
        (to, output): (&Region, Range<usize>),
    ) -> Result<Ranges, LeaseError> {
        Ok(Ranges { main: from.lease(input, 0..0)?, elsewhere: Some(to.lease(0..0, output)?) })
    }
}

impl Buffer for Ranges {
    fn input(&self, byte_offset: usize, len: usize) -> &[u8] {
        self.main.input(byte_offset, len).unwrap_or(&[])
    }

    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8] {
        let lease = self.elsewhere.as_mut().unwrap_or(&mut self.main);
        lease.output(byte_offset, len).unwrap_or(&mut [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumac_xsk::mapping::Shared;

    fn region() -> Region {
        Shared::create(4096).unwrap().0.into_region()
    }

    #[test]
    fn in_place_reads_what_was_written() {
        let mut ranges = Ranges::within(&region(), 8..16, 8..16).unwrap();
        ranges.output(4, 4).copy_from_slice(b"abcd");
        assert_eq!(ranges.input(4, 4), b"abcd");
        assert!(ranges.output(4, 5).is_empty());
    }

    #[test]
    fn another_region_takes_the_output() {
        let (a, b) = (region(), region());
        let mut ranges = Ranges::across((&a, 0..8), (&b, 16..24)).unwrap();
        ranges.output(0, 4).copy_from_slice(b"abcd");
        assert_eq!(ranges.input(0, 4), [0; 4]);
        drop(ranges);
        let reader = b.lease(16..20, 0..0).unwrap();
        assert_eq!(reader.input(0, 4), Some(&b"abcd"[..]));
    }

    #[test]
    fn a_range_that_is_being_written_is_lent_once() {
        let (a, b) = (region(), region());
        let first = Ranges::across((&a, 0..8), (&b, 16..24)).unwrap();
        assert!(Ranges::within(&b, 20..28, 20..28).is_err());
        assert!(Ranges::within(&a, 0..8, 32..40).is_ok());
        drop(first);
        assert!(Ranges::within(&b, 20..28, 20..28).is_ok());
    }
}
