//! What the stages of a dynamic packet's way hand to each other besides [`crate::work::Work`], which holds it.

use sumac_wire::dynamic::{Contribution, SlotMeta};

/// One packet's chunk.
#[repr(C)]
pub struct Chunk {
    /// What a contribution wants; of a result, owner and chunk only.
    pub contribution: Contribution,
    /// What the slot holds afterwards.
    pub after: SlotMeta,
    /// What the header of a sum that goes up tells of.
    pub sum: SlotMeta,
    /// The clock, in its ticks.
    pub now: u32,
    /// Ticks of silence that free a slot.
    pub patience: u32,
}
