//! The memory of an operation: ranges of a client's regions, checked as a whole and leased by fragment.

use std::ops::Range;

use sumac_api::{Code, Collective, CollectiveKind, Failure};

use crate::fragment::ElementRanges;
use crate::transfer::Transfer;
use crate::{LeaseRequest, RegionId};

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
pub(crate) struct Tensor {
    size: u64,
    input: TensorRange,
    output: TensorRange,
}

impl Tensor {
    /// Without `out_region` and `out_offset` the whole tensor is at `offset`, and this worker's elements at
    /// their place in it. With one of them, `offset` and `out_offset` are the first of this worker's
    /// elements.
    pub(crate) fn new(kind: CollectiveKind, request: &Collective, mut ranges: ElementRanges) -> Tensor {
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
    pub(crate) fn of_transfer(region: u64, start: u64, transfer: &Transfer) -> Tensor {
        let ElementRanges { input, output } = transfer.ranges();
        let range = |elements| TensorRange { region, start, elements };
        Tensor { size: transfer.dtype.size() as u64, input: range(input), output: range(output) }
    }

    pub(crate) fn ranges(&self) -> ElementRanges {
        ElementRanges { input: self.input.elements.clone(), output: self.output.elements.clone() }
    }

    pub(crate) fn regions(&self) -> [u64; 2] {
        [self.input.region, self.output.region]
    }

    /// Returns the offset of the elements that are written, in bytes, if there are any.
    pub(crate) fn written(&self) -> Option<u64> {
        (!self.output.elements.is_empty()).then_some(self.output.start)
    }

    /// Whether the result replaces the input.
    pub(crate) fn is_in_place(&self) -> bool {
        self.input.region == self.output.region && self.origin(&self.input) == self.origin(&self.output)
    }

    /// Checks that both ranges lie in their regions, of these sizes in bytes, and are equal or disjoint.
    pub(crate) fn check(&self, from: u64, to: u64) -> Result<(), Failure> {
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

    fn bytes(&self, range: &TensorRange, region: u64) -> Result<Range<usize>, Failure> {
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
        let end = end.filter(|end| *end <= region);
        match (usize::try_from(start), end.map(usize::try_from)) {
            (Ok(start), Some(Ok(end))) => Ok(start..end),
            _ => {
                let (len, handle) = (region, range.region);
                let place = format!("the {len} bytes of region {handle}");
                let message = format!("{count} elements from byte {start} on do not lie in {place}");
                Err(Failure::new(Code::OutOfRange, message))
            }
        }
    }

    /// Returns the memory of a fragment: elements `fragment` of the tensor. `ranges` count from the
    /// fragment's start.
    pub(crate) fn lease_request(
        &self,
        regions: [RegionId; 2],
        fragment: &Range<u64>,
        ranges: &ElementRanges,
    ) -> LeaseRequest {
        let input = self.slice(&self.input, fragment, &ranges.input);
        let output = self.slice(&self.output, fragment, &ranges.output);
        let handle = self.output.region;
        LeaseRequest {
            regions,
            handle,
            input: input.bytes,
            output: output.bytes,
            skips: [input.skip, output.skip],
        }
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

#[cfg(test)]
mod tests;
