//! The boundary between vector code and the scalar remainder of a slice.

use super::conversion::{Encoded, Shape, WORD};

/// The part at the front of a slice that is whole blocks of words, each with all its values.
pub(super) struct Run {
    values: usize,
    pub(super) tensor: usize,
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

    /// Faults after this run, counted from its beginning.
    pub(super) fn then(&self, rest: Encoded) -> Encoded {
        let index = |at: Option<usize>| at.map(|at| self.values + at);
        Encoded { saturated: index(rest.saturated), not_finite: index(rest.not_finite) }
    }
}
