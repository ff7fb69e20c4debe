//! The pools of slots: their sizes, and the memory that they take.

use std::time::Duration;

use sumac_agg_layout::{DynamicSlot, Slot, State, Tail, state_flag};
use sumac_loader::Variant;

/// 26 MiB, or 70 MiB for jumbo frames.
pub const DEFAULT_SLOTS: u32 = 4096;
/// Slots of each shard that dynamic jobs share: 3.3 MiB.
pub const DEFAULT_DYNAMIC_SLOTS: u32 = 1024;
/// The time without packets after which a dynamic job loses its slots to others.
pub const DEFAULT_SLOT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    pub slots: u32,
    /// Slots of each shard for dynamic jobs; zero: none are served.
    pub dynamic_slots: u32,
    pub shards: u16,
}

impl Pools {
    pub fn of(state: &State) -> Pools {
        Pools { slots: state.slots, dynamic_slots: state.dynamic_slots, shards: state.shards }
    }

    pub fn all_dynamic_slots(&self) -> u32 {
        self.dynamic_slots.saturating_mul(u32::from(self.shards))
    }

    pub fn memory(&self, variant: Variant) -> u64 {
        let tail = if variant == Variant::Jumbo { size_of::<Tail>() } else { 0 };
        let dynamic = u64::from(self.all_dynamic_slots()) * size_of::<DynamicSlot>() as u64;
        u64::from(self.slots) * (size_of::<Slot>() + tail) as u64 + dynamic
    }
}

pub fn variant_of(state: &State) -> Variant {
    if state.flags & state_flag::JUMBO != 0 { Variant::Jumbo } else { Variant::Plain }
}
