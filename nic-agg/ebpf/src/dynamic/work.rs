//! The state that the stages of a dynamic packet share besides [`crate::work::Work`], which contains it.

use sumac_wire::dynamic::{Contribution, SlotMeta};

/// One packet's chunk.
#[repr(C)]
pub struct Chunk {
    /// The contribution; of a result, owner and chunk only.
    pub contribution: Contribution,
    /// The slot after the decision.
    pub after: SlotMeta,
    /// The slot whose sum goes up.
    pub sum: SlotMeta,
    /// The clock, in its ticks.
    pub now: u32,
    /// Ticks of silence that free a slot.
    pub timeout: u32,
}
