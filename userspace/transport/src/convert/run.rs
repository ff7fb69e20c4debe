//! Where vector code ends and what is left begins.

use super::{Decoding, Encoded, Encoding, WORD};

/// The part at the front of a slice that is whole blocks of words, each with all its values.
pub(super) struct Run {
    values: usize,
    /// Bytes of the tensor.
    pub(super) tensor: usize,
    /// Bytes on the wire.
    pub(super) wire: usize,
}

impl Run {
    /// Blocks of `BLOCK` bytes on the wire. `None` when there are none.
    pub(super) fn of<const BLOCK: usize>((size, per_word): Shape, tensor: usize, wire: usize) -> Option<Run> {
        let words_per_block = BLOCK / WORD;
        let blocks = (wire / BLOCK).min(tensor / size / per_word / words_per_block);
        let words = blocks * words_per_block;
        let values = words * per_word;
        (blocks > 0).then_some(Run { values, tensor: values * size, wire: words * WORD })
    }

    /// What was met after this run, counted from its beginning.
    pub(super) fn then(&self, rest: Encoded) -> Encoded {
        let index = |at: Option<usize>| at.map(|at| self.values + at);
        Encoded { saturated: index(rest.saturated), not_finite: index(rest.not_finite) }
    }
}

/// Bytes of one value and values of one word. What is copied counts as whole words.
type Shape = (usize, usize);

impl Encoding {
    pub(super) fn shape(&self) -> Shape {
        match *self {
            Encoding::Scaled { float, packed, .. } => (float.size(), if packed { 2 } else { 1 }),
            Encoding::FloatKeys { float, .. } => (float.size(), 1),
            Encoding::Integers { .. } | Encoding::IntegerKeys { .. } | Encoding::Bits => (WORD, 1),
        }
    }
}

impl Decoding {
    pub(super) fn shape(&self) -> Shape {
        match *self {
            Decoding::Scaled { float, packed, .. } => (float.size(), if packed { 2 } else { 1 }),
            Decoding::FloatKeys { float, .. } => (float.size(), 1),
            Decoding::Integers { .. } | Decoding::IntegerKeys { .. } | Decoding::Bits => (WORD, 1),
        }
    }
}
