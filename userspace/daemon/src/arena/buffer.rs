//! The leased memory of a fragment, as the engine reads and writes it.

use std::sync::Arc;

use sumac_api::{Code, Failure};
use sumac_host::LeaseRequest;
use sumac_memory::{Lease, LeaseError};
use sumac_transport::Buffer;

use super::region::MappedRegion;

/// The memory of a fragment, leased until the fragment has completed. Nothing is copied, unless the region
/// was taken over from another daemon.
#[derive(Debug)]
pub(crate) struct LeasedBuffer {
    /// The input, and the output where it lies in the same region; `None` for a fragment without elements.
    lease: Option<Lease>,
    /// The output where it lies in another region.
    output: Option<Lease>,
    /// Bytes of the fragment before its input and before its output.
    skips: [usize; 2],
    /// The leases' regions, which stay mapped while they are leased. They are dropped last.
    regions: [Arc<MappedRegion>; 2],
}

impl LeasedBuffer {
    pub(super) fn new(
        from: &Arc<MappedRegion>,
        to: &Arc<MappedRegion>,
        request: &LeaseRequest,
    ) -> Result<LeasedBuffer, Failure> {
        let failed = |error: LeaseError| {
            let code = match error {
                LeaseError::Outside { .. } => Code::OutOfRange,
                LeaseError::Unaligned { .. } => Code::Misaligned,
                LeaseError::Busy { .. } => Code::RangeBusy,
            };
            Failure::new(code, format!("region {}: {error}", request.handle))
        };
        let (input, output) = (request.input.clone(), request.output.clone());
        let (lease, output) = if input.is_empty() && output.is_empty() {
            (None, None)
        } else if request.regions[0] == request.regions[1] {
            (Some(from.shared.lease(input, output).map_err(failed)?), None)
        } else {
            let input = from.shared.lease(input, 0..0).map_err(failed)?;
            (Some(input), Some(to.shared.lease(0..0, output).map_err(failed)?))
        };
        let regions = [from.clone(), to.clone()];
        Ok(LeasedBuffer { lease, output, skips: request.skips, regions })
    }
}

impl Buffer for LeasedBuffer {
    fn input(&self, byte_offset: usize, len: usize) -> &[u8] {
        let at = byte_offset.checked_sub(self.skips[0]);
        self.lease.as_ref().zip(at).and_then(|(lease, at)| lease.input(at, len)).unwrap_or(&[])
    }

    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8] {
        let at = byte_offset.checked_sub(self.skips[1]);
        let lease = self.output.as_mut().or(self.lease.as_mut());
        lease.zip(at).and_then(|(lease, at)| lease.output(at, len)).unwrap_or(&mut [])
    }

    fn write_back(&mut self) {
        let written = self.output.as_mut().or(self.lease.as_mut()).map(Lease::write_back);
        if let Some(Err(error)) = written {
            self.regions[1].lose(&error);
        }
    }
}

impl Drop for LeasedBuffer {
    /// The trainer learns of the end afterwards.
    fn drop(&mut self) {
        self.write_back();
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use sumac_memory::SharedRegion;

    use super::*;

    fn region() -> Arc<MappedRegion> {
        let (_trainers, fd) = SharedRegion::create(4096).unwrap();
        MappedRegion::map(fd, 4096).unwrap()
    }

    fn request(input: Range<usize>, output: Range<usize>) -> LeaseRequest {
        LeaseRequest { regions: [1, 1], handle: 1, input, output, skips: [0, 0] }
    }

    #[test]
    fn an_output_in_place_overwrites_the_input() {
        let region = region();
        let mut buffer = LeasedBuffer::new(&region, &region, &request(8..16, 8..16)).unwrap();
        buffer.output(4, 4).copy_from_slice(b"abcd");
        assert_eq!(buffer.input(4, 4), b"abcd");
        assert!(buffer.output(4, 5).is_empty());
    }

    #[test]
    fn an_output_that_starts_later_than_its_fragment_keeps_its_offset() {
        let region = region();
        let request = LeaseRequest { skips: [0, 4], ..request(8..24, 12..16) };
        let mut buffer = LeasedBuffer::new(&region, &region, &request).unwrap();
        buffer.output(4, 4).copy_from_slice(b"abcd");
        assert_eq!(buffer.input(4, 4), b"abcd");
        assert!(buffer.output(0, 4).is_empty(), "before it");
        assert!(buffer.output(8, 4).is_empty(), "behind it");
    }

    #[test]
    fn an_output_in_another_region_leaves_the_input() {
        let (a, b) = (region(), region());
        let request = LeaseRequest { regions: [1, 2], ..request(0..8, 16..24) };
        let mut buffer = LeasedBuffer::new(&a, &b, &request).unwrap();
        buffer.output(0, 4).copy_from_slice(b"abcd");
        assert_eq!(buffer.input(0, 4), [0; 4]);
        drop(buffer);
        let reader = b.shared.lease(16..20, 0..0).unwrap();
        assert_eq!(reader.input(0, 4), Some(&b"abcd"[..]));
    }

    #[test]
    fn an_output_range_is_leased_once() {
        let (a, b) = (region(), region());
        let both = LeaseRequest { regions: [1, 2], ..request(0..8, 16..24) };
        let first = LeasedBuffer::new(&a, &b, &both).unwrap();
        let busy = LeasedBuffer::new(&b, &b, &request(20..28, 20..28)).unwrap_err();
        assert_eq!(busy.code, Code::RangeBusy);
        assert!(LeasedBuffer::new(&a, &a, &request(0..8, 32..40)).is_ok());
        drop(first);
        assert!(LeasedBuffer::new(&b, &b, &request(20..28, 20..28)).is_ok());
    }

    #[test]
    fn a_fragment_without_elements_has_no_bytes() {
        let region = region();
        let mut none = LeasedBuffer::new(&region, &region, &request(0..0, 0..0)).unwrap();
        assert!(none.input(0, 1).is_empty() && none.output(0, 1).is_empty());
    }
}
