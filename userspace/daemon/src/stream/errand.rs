//! A part of an operation as the data path is handed it.

use std::ops::Range;

use sumac_api::Reduction;
use sumac_transport::{Arithmetic, Operation};

use super::{Share, What};
use crate::region::Ranges;

/// A part of an operation with the memory it works on.
#[derive(Debug)]
pub(crate) struct LentPart {
    /// The index in its tensor of the part's first element.
    pub(crate) base: u64,
    pub(crate) count: u64,
    /// From the part's start.
    pub(crate) share: Share,
    pub(crate) memory: Ranges,
}

/// What the data path is handed.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) wire_job: u16,
    pub(crate) lane: u16,
    /// Comes back with the part's end.
    pub(crate) number: u32,
    pub(crate) operation: Operation,
}

/// A part of an operation in the engine's terms. `past`: chunks at its front that were summed before.
pub(super) fn operation(what: &What, signature: u32, priority: u8, part: LentPart, past: u32) -> Operation {
    let LentPart { base, count, share, memory } = part;
    // One that has no elements is a barrier: a chunk to which nobody gives anything.
    let count = if what.count == 0 { 1 } else { count };
    Operation {
        signature,
        dtype: what.dtype,
        arithmetic: arithmetic(what),
        count: number(count),
        // A tensor has no more elements than fit.
        base: u32::try_from(base).unwrap_or(u32::MAX),
        gives: numbers(&share.gives),
        takes: numbers(&share.takes),
        skip: u64::from(past),
        priority,
        loss_bound: 0.0,
        buffer: Box::new(memory),
    }
}

fn numbers(range: &Range<u64>) -> Range<usize> {
    number(range.start)..number(range.end)
}

fn number(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// What is done with the workers' values. What is only moved goes as its bits, to which all others add zeros.
pub(super) fn arithmetic(what: &What) -> Arithmetic {
    match what.reduction {
        _ if !what.kind.reduces() || what.count == 0 => Arithmetic::Bits,
        Reduction::Sum => Arithmetic::Sum,
        Reduction::Mean => Arithmetic::Mean,
        Reduction::Min => Arithmetic::Min,
        Reduction::Max => Arithmetic::Max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumac_api::{CollectiveKind, DType};
    use sumac_transport::convert::Codec;
    use sumac_transport::{Scale, WireFormat};

    /// The stream counts chunks before the engine does, and must come to the same number.
    #[test]
    fn as_many_values_fit_a_word_as_the_engine_puts_there() {
        let dtypes = [DType::Float32, DType::Float16, DType::Bfloat16, DType::Int32];
        let reductions = [Reduction::Sum, Reduction::Mean, Reduction::Min, Reduction::Max];
        for (wire, is_short) in [(WireFormat::Int32, false), (WireFormat::Int16, true)] {
            let codec = Codec::new(4, wire, Scale::Block);
            for kind in CollectiveKind::ALL {
                for element in dtypes {
                    for reduction in reductions {
                        let what = What {
                            kind,
                            reduction,
                            dtype: element,
                            count: 9,
                            root: None,
                            name: None,
                            is_urgent: false,
                        };
                        let expected = codec.values_per_word(element, arithmetic(&what)) as u64;
                        assert_eq!(what.values_per_word(is_short), expected, "{what:?}, {wire:?}");
                    }
                }
            }
        }
    }
}
