//! The memory of an operation: ranges of a client's regions, checked as a whole and leased by fragment.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sumac_api::{Code, Collective, CollectiveKind, Failure};
use sumac_memory::{Lease, LeaseError};
use sumac_transport::Buffer;

use super::memory::Region;
use crate::operations::{ElementRanges, Transfer};

/// The input or the output of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TensorRange {
    region: u64,
    /// The offset of the first element in the region, in bytes.
    start: u64,
    /// The elements of the tensor that it holds.
    elements: Range<u64>,
}

#[derive(Debug)]
pub(super) struct Tensor {
    size: u64,
    input: TensorRange,
    output: TensorRange,
}

impl Tensor {
    /// Without `out_region` and `out_offset` the whole tensor is at `offset`, and this worker's elements at their place
    /// in it. With one of them, `offset` and `out_offset` are the first of this worker's elements.
    pub(super) fn new(kind: CollectiveKind, request: &Collective, mut ranges: ElementRanges) -> Tensor {
        let size = request.dtype.size() as u64;
        let is_in_place = request.out_region.is_none() && request.out_offset.is_none();
        if kind == CollectiveKind::Broadcast && is_in_place && !ranges.input.is_empty() {
            // The root has its output already.
            ranges.output = 0..0;
        }
        let start = |offset: u64, elements: &Range<u64>| {
            // A saturated start is beyond all regions.
            if is_in_place { offset.saturating_add(elements.start.saturating_mul(size)) } else { offset }
        };
        let out_offset = match (request.out_offset, request.out_region) {
            (Some(offset), _) => offset,
            (None, None) => request.offset,
            (None, Some(_)) => 0,
        };
        let (region, out_region) = (request.region, request.out_region.unwrap_or(request.region));
        let input =
            TensorRange { region, start: start(request.offset, &ranges.input), elements: ranges.input };
        let start = start(out_offset, &ranges.output);
        let output = TensorRange { region: out_region, start, elements: ranges.output };
        Tensor { size, input, output }
    }

    /// The tensor that is sent or received.
    pub(super) fn of_transfer(region: u64, start: u64, transfer: &Transfer) -> Tensor {
        let ElementRanges { input, output } = transfer.ranges();
        let range = |elements| TensorRange { region, start, elements };
        Tensor { size: transfer.dtype.size() as u64, input: range(input), output: range(output) }
    }

    pub(super) fn ranges(&self) -> ElementRanges {
        ElementRanges { input: self.input.elements.clone(), output: self.output.elements.clone() }
    }

    pub(super) fn regions(&self) -> [u64; 2] {
        [self.input.region, self.output.region]
    }

    /// Checks that both ranges lie in their regions, and are equal or disjoint.
    pub(super) fn check(&self, from: &Region, to: &Region) -> Result<(), Failure> {
        let input = self.bytes(&self.input, from)?;
        let output = self.bytes(&self.output, to)?;
        let is_shared = self.input.region == self.output.region;
        let overlap = input.start < output.end && output.start < input.end;
        if is_shared && overlap && self.origin(&self.input) != self.origin(&self.output) {
            let message = format!("input {input:?} and output {output:?} overlap without being the same");
            return Err(
                Failure::new(Code::OutOfRange, message).hint("work in place, or into a range of its own")
            );
        }
        Ok(())
    }

    /// Returns the offset at which the tensor's element 0 would lie.
    fn origin(&self, range: &TensorRange) -> i128 {
        i128::from(range.start) - i128::from(range.elements.start) * i128::from(self.size)
    }

    fn bytes(&self, range: &TensorRange, region: &Region) -> Result<Range<usize>, Failure> {
        let (start, size) = (range.start, self.size);
        if !start.is_multiple_of(size) {
            let message = format!("offset {start} is not a multiple of the element's {size} bytes");
            return Err(Failure::new(Code::Misaligned, message));
        }
        let count = range.elements.end - range.elements.start;
        if count == 0 {
            return Ok(0..0);
        }
        let end = count.checked_mul(size).and_then(|bytes| bytes.checked_add(start));
        let end = end.filter(|end| *end <= region.shared.len() as u64);
        match (usize::try_from(start), end.map(usize::try_from)) {
            (Ok(start), Some(Ok(end))) => Ok(start..end),
            _ => {
                let (len, handle) = (region.shared.len(), range.region);
                let place = format!("the {len} bytes of region {handle}");
                let message = format!("{count} elements from byte {start} on do not lie in {place}");
                Err(Failure::new(Code::OutOfRange, message))
            }
        }
    }

    /// Leases the memory of a fragment: elements `fragment` of the tensor. `ranges` count from the fragment's start.
    pub(super) fn lease(
        &self,
        from: &Arc<Region>,
        to: &Arc<Region>,
        fragment: &Range<u64>,
        ranges: &ElementRanges,
    ) -> Result<LeasedBuffer, Failure> {
        let input = self.slice(&self.input, fragment, &ranges.input);
        let output = self.slice(&self.output, fragment, &ranges.output);
        let is_shared = self.input.region == self.output.region;
        LeasedBuffer::new(from, input, (!is_shared).then_some(to), output).map_err(|error| {
            let code = match error {
                LeaseError::Outside { .. } => Code::OutOfRange,
                LeaseError::Unaligned { .. } => Code::Misaligned,
                LeaseError::Busy { .. } => Code::RangeBusy,
            };
            Failure::new(code, format!("region {}: {error}", self.output.region))
        })
    }

    /// Returns the part of a range that holds these elements of a fragment.
    fn slice(&self, range: &TensorRange, fragment: &Range<u64>, elements: &Range<u64>) -> Slice {
        let start = (fragment.start + elements.start).max(range.elements.start);
        let end = (fragment.start + elements.end).min(range.elements.end);
        if start >= end {
            return Slice::default();
        }
        // The range lies in its region, so its offsets fit.
        let fits = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let byte = |element: u64| fits(range.start + (element - range.elements.start) * self.size);
        Slice { bytes: byte(start)..byte(end), skip: fits((start - fragment.start) * self.size) }
    }
}

/// A byte range of a region, and its offset in the fragment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Slice {
    bytes: Range<usize>,
    skip: usize,
}

/// A leased part of a region: the region's number, and the bytes that are read and written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeasePlace {
    pub(crate) region: u64,
    input: Range<usize>,
    output: Range<usize>,
}

impl LeasePlace {
    fn of((lease, region): (&Lease, &Option<Arc<Region>>)) -> Option<LeasePlace> {
        let [input, output] = lease.ranges();
        Some(LeasePlace { region: region.as_ref()?.number, input, output })
    }
}

/// The place of a fragment's memory, from which another daemon leases it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BufferPlace {
    /// As the leases of a [`LeasedBuffer`].
    leases: [Option<LeasePlace>; 2],
    skips: [usize; 2],
}

/// The memory of a fragment, leased until the fragment has completed. Nothing is copied.
#[derive(Debug)]
pub(crate) struct LeasedBuffer {
    /// The input, and the output where it lies in the same region; `None` for a fragment without elements.
    lease: Option<Lease>,
    /// The output where it lies in another region.
    output: Option<Lease>,
    /// Bytes of the fragment before its input and before its output.
    skips: [usize; 2],
    /// The leases' regions, which count while they are leased. They are dropped last.
    regions: [Option<Arc<Region>>; 2],
}

impl LeasedBuffer {
    /// `to`: the output's region where it is not the input's.
    fn new(
        from: &Arc<Region>,
        input: Slice,
        to: Option<&Arc<Region>>,
        output: Slice,
    ) -> Result<LeasedBuffer, LeaseError> {
        let skips = [input.skip, output.skip];
        let (lease, output) = match to {
            _ if input.bytes.is_empty() && output.bytes.is_empty() => (None, None),
            None => (Some(from.shared.lease(input.bytes, output.bytes)?), None),
            Some(to) => {
                (Some(from.shared.lease(input.bytes, 0..0)?), Some(to.shared.lease(0..0, output.bytes)?))
            }
        };
        Ok(LeasedBuffer { lease, output, skips, regions: [Some(from.clone()), to.cloned()] })
    }

    pub(crate) fn place(&self) -> BufferPlace {
        let [from, to] = &self.regions;
        let output = self.output.as_ref().zip(Some(to));
        let lease = self.lease.as_ref().zip(Some(from));
        BufferPlace {
            leases: [lease.and_then(LeasePlace::of), output.and_then(LeasePlace::of)],
            skips: self.skips,
        }
    }

    /// Leases the memory that another daemon had leased. `region` returns the region of a number.
    pub(crate) fn again(
        BufferPlace { leases, skips }: &BufferPlace,
        region: impl Fn(u64) -> Option<Arc<Region>>,
    ) -> Result<LeasedBuffer, String> {
        let mut again = LeasedBuffer { lease: None, output: None, skips: *skips, regions: [None, None] };
        for (at, place) in leases.iter().enumerate() {
            let Some(LeasePlace { region: number, input, output }) = place else { continue };
            let found = region(*number).ok_or_else(|| format!("no region {number}"))?;
            let lease = found.shared.lease(input.clone(), output.clone());
            let lease = lease.map_err(|error| format!("region {number}: {error}"))?;
            *(if at == 0 { &mut again.lease } else { &mut again.output }) = Some(lease);
            again.regions[at] = Some(found);
        }
        Ok(again)
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
}

#[cfg(test)]
mod tests;
