//! Where an operation's tensor lies in a client's regions: checked as a whole, lent part by part.

use std::ops::Range;

use sumac_api::{Code, Collective, CollectiveKind, Failure};
use sumac_memory::{LeaseError, SharedRegion};

use crate::region::{Ranges, Stretch};
use crate::stream::Share;

/// One of the two ranges of an operation: its input or its output.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Side {
    /// The region's handle.
    region: u64,
    /// Where the first of its elements lies, in bytes.
    start: u64,
    /// Which elements of the tensor it has.
    elements: Range<u64>,
}

/// An operation's memory.
#[derive(Debug)]
pub(super) struct Tensors {
    /// Bytes of an element.
    size: u64,
    input: Side,
    output: Side,
}

impl Tensors {
    /// Where the tensor of an operation lies. Without an output of its own the whole tensor is at `offset`, and this
    /// worker's share of it in its place there; with one, `offset` and `out_offset` are where the shares start.
    pub(super) fn of(kind: CollectiveKind, ask: &Collective, mut share: Share) -> Tensors {
        let size = ask.dtype.size() as u64;
        let is_in_place = ask.out_region.is_none() && ask.out_offset.is_none();
        if kind == CollectiveKind::Broadcast && is_in_place && !share.gives.is_empty() {
            // The root has it already.
            share.takes = 0..0;
        }
        let place = |offset: u64, elements: &Range<u64>| {
            // A start beyond all numbers is beyond all regions too.
            if is_in_place { offset.saturating_add(elements.start.saturating_mul(size)) } else { offset }
        };
        let out_offset = match (ask.out_offset, ask.out_region) {
            (Some(offset), _) => offset,
            (None, None) => ask.offset,
            (None, Some(_)) => 0,
        };
        let out_region = ask.out_region.unwrap_or(ask.region);
        Tensors {
            size,
            input: Side { region: ask.region, start: place(ask.offset, &share.gives), elements: share.gives },
            output: Side {
                region: out_region,
                start: place(out_offset, &share.takes),
                elements: share.takes,
            },
        }
    }

    /// What this worker gives and takes.
    pub(super) fn share(&self) -> Share {
        Share { gives: self.input.elements.clone(), takes: self.output.elements.clone() }
    }

    /// The handles of the regions, of the input's and of the output's.
    pub(super) fn regions(&self) -> [u64; 2] {
        [self.input.region, self.output.region]
    }

    /// Refuses what does not lie in its region, or overlaps in part.
    pub(super) fn check(&self, from: &SharedRegion, to: &SharedRegion) -> Result<(), Failure> {
        let input = self.whole(&self.input, from)?;
        let output = self.whole(&self.output, to)?;
        let is_shared = self.input.region == self.output.region;
        let overlap = input.start < output.end && output.start < input.end;
        if is_shared && overlap && self.origin(&self.input) != self.origin(&self.output) {
            return Err(Failure::new(
                Code::OutOfRange,
                format!("input {input:?} and output {output:?} overlap without being the same"),
            )
            .hint("work in place, or into a range of its own"));
        }
        Ok(())
    }

    /// Where the tensor's first element would lie.
    fn origin(&self, side: &Side) -> i128 {
        i128::from(side.start) - i128::from(side.elements.start) * i128::from(self.size)
    }

    /// The bytes of a side, if its region has them.
    fn whole(&self, side: &Side, region: &SharedRegion) -> Result<Range<usize>, Failure> {
        let (start, size) = (side.start, self.size);
        if !start.is_multiple_of(size) {
            return Err(Failure::new(
                Code::Misaligned,
                format!("offset {start} is not a multiple of the element's {size} bytes"),
            ));
        }
        let count = side.elements.end - side.elements.start;
        if count == 0 {
            return Ok(0..0);
        }
        let end = count.checked_mul(size).and_then(|bytes| bytes.checked_add(start));
        let within = end.filter(|end| *end <= region.len() as u64);
        match (usize::try_from(start), within.map(usize::try_from)) {
            (Ok(start), Some(Ok(end))) => Ok(start..end),
            _ => Err(Failure::new(
                Code::OutOfRange,
                format!(
                    "{count} elements from byte {start} on do not lie in the {} bytes of region {}",
                    region.len(),
                    side.region
                ),
            )),
        }
    }

    /// Lends the memory of a part of the tensor.
    pub(super) fn lend(
        &self,
        from: &SharedRegion,
        to: &SharedRegion,
        part: &Range<u64>,
        share: &Share,
    ) -> Result<Ranges, Failure> {
        let input = self.stretch(&self.input, part, &share.gives);
        let output = self.stretch(&self.output, part, &share.takes);
        let lent = if input.bytes.is_empty() && output.bytes.is_empty() {
            return Ok(Ranges::none());
        } else if self.input.region == self.output.region {
            Ranges::within(from, input, output)
        } else {
            Ranges::across((from, input), (to, output))
        };
        lent.map_err(|error| {
            let code = match error {
                LeaseError::Outside { .. } => Code::OutOfRange,
                LeaseError::Busy { .. } => Code::RangeBusy,
            };
            Failure::new(code, format!("region {}: {error}", self.output.region))
        })
    }

    /// What a side has of these elements of a part, which count from the part's start.
    fn stretch(&self, side: &Side, part: &Range<u64>, elements: &Range<u64>) -> Stretch {
        let whole = part.start + elements.start..part.start + elements.end;
        let start = whole.start.max(side.elements.start);
        let end = whole.end.min(side.elements.end);
        if start >= end {
            return Stretch::default();
        }
        let byte = |element: u64| side.start + (element - side.elements.start) * self.size;
        // It lies in a region, so it fits.
        let fits = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Stretch { bytes: fits(byte(start))..fits(byte(end)), skip: fits((start - part.start) * self.size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumac_api::DType;

    fn ask(offset: u64, out: Option<u64>) -> Collective {
        Collective {
            job: 1,
            region: 7,
            dtype: DType::Float16,
            offset,
            count: 12,
            out_region: None,
            out_offset: out,
            reduction: None,
            root: Some(1),
            name: None,
            priority: 0,
            loss_bound: 0.0,
        }
    }

    fn tensors(kind: CollectiveKind, ask: &Collective) -> Tensors {
        Tensors::of(kind, ask, Share::of(kind, 12, 1, 3, ask.root))
    }

    fn starts(kind: CollectiveKind, out: Option<u64>) -> (u64, u64) {
        let tensors = tensors(kind, &ask(100, out));
        (tensors.input.start, tensors.output.start)
    }

    #[test]
    fn in_place_blocks_lie_where_they_belong_and_elsewhere_where_it_is_said() {
        assert_eq!(starts(CollectiveKind::Allreduce, None), (100, 100));
        assert_eq!(starts(CollectiveKind::ReduceScatter, None), (100, 108));
        assert_eq!(starts(CollectiveKind::Allgather, None), (108, 100));
        assert_eq!(starts(CollectiveKind::ReduceScatter, Some(10)), (100, 10));
        assert_eq!(starts(CollectiveKind::Allgather, Some(10)), (100, 10));
        assert!(
            tensors(CollectiveKind::Broadcast, &ask(100, None)).output.elements.is_empty(),
            "the root has it"
        );
        assert_eq!(tensors(CollectiveKind::Broadcast, &ask(100, Some(0))).output.elements, 0..12);
    }

    #[test]
    fn ranges_are_the_same_or_apart() {
        let region = SharedRegion::create(4096).unwrap().0;
        let check = |kind, offset, out| {
            tensors(kind, &ask(offset, out)).check(&region, &region).map_err(|failure| failure.code)
        };
        assert_eq!(check(CollectiveKind::Allreduce, 100, None), Ok(()));
        assert_eq!(check(CollectiveKind::Allreduce, 100, Some(100)), Ok(()));
        assert_eq!(check(CollectiveKind::Allreduce, 100, Some(124)), Ok(()));
        assert_eq!(check(CollectiveKind::Allreduce, 100, Some(102)), Err(Code::OutOfRange));
        assert_eq!(check(CollectiveKind::ReduceScatter, 100, Some(108)), Ok(()), "its own block");
        assert_eq!(check(CollectiveKind::ReduceScatter, 100, Some(100)), Err(Code::OutOfRange), "another's");
        assert_eq!(check(CollectiveKind::Allreduce, 4096 - 24, None), Ok(()));
        assert_eq!(check(CollectiveKind::Allreduce, 4096 - 22, None), Err(Code::OutOfRange));
        assert_eq!(check(CollectiveKind::Allreduce, u64::MAX - 1, None), Err(Code::OutOfRange));
        assert_eq!(check(CollectiveKind::Allreduce, 101, None), Err(Code::Misaligned));
    }

    #[test]
    fn parts_are_lent_what_they_have_of_the_share() {
        let tensors = tensors(CollectiveKind::ReduceScatter, &ask(100, None));
        let share = Share::of(CollectiveKind::ReduceScatter, 12, 1, 3, None);
        let stretches = |part: Range<u64>| {
            let share = share.within(&part);
            (
                tensors.stretch(&tensors.input, &part, &share.gives),
                tensors.stretch(&tensors.output, &part, &share.takes),
            )
        };
        let stretch = |bytes, skip| Stretch { bytes, skip };
        assert_eq!(stretches(0..6), (stretch(100..112, 0), stretch(108..112, 8)));
        assert_eq!(stretches(6..12), (stretch(112..124, 0), stretch(112..116, 0)));
        assert_eq!(stretches(9..12), (stretch(118..124, 0), Stretch::default()));
    }
}
