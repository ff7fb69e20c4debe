//! The limits of a job's parameters.

use sumac_wire::{CLASSES, MAX_LANES, MAX_WORKERS, PAGE_ELEMENTS};

/// Most slots of a lane.
pub const MAX_SLOTS: u32 = 1 << 16;
/// Most shards of a job: each has a lane in every class.
pub const MAX_SHARDS: u16 = MAX_LANES as u16 / CLASSES;
/// Most ranks of a job: messages list them.
pub const MAX_RANKS: u16 = 8192;
/// Most workers of a job, below two levels of aggregators.
pub const MAX_WORLD: u16 = (MAX_WORKERS * MAX_WORKERS) as u16;
/// Fewest chunks of a dynamic job's window.
pub const MIN_WINDOW: u32 = 8;
/// Most chunks of a dynamic job's window: the parameter host keeps two windows.
pub const MAX_WINDOW: u32 = 4096;
/// Most elements of a dynamic job's chunk: a slot of the shared pool is one page.
pub const DYNAMIC_ELEMENTS: u16 = PAGE_ELEMENTS as u16;
/// A receiver of a direct job echoes the timestamp of every tenth packet (MLT section 4.2.3): fewest packets
/// of its window.
pub const ACKNOWLEDGED_EVERY: u32 = 10;
