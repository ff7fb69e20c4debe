//! The operations for a packet of a dynamic job, as the bits of one number: see [`crate::plan`] for the reason.

use sumac_wire::{
    dynamic::{Action, SlotMeta},
    header::flag,
};

/// Replace the values by the elements.
pub const STORE: u32 = 1 << 0;
/// Add the elements to the values.
pub const ADD: u32 = 1 << 1;
/// Replace values by larger elements.
pub const MAXIMUM: u32 = 1 << 2;
/// Write the values into the frame.
pub const WRITE: u32 = 1 << 3;
/// The frame goes up as the level's sum.
pub const SUM: u32 = 1 << 4;
/// It goes up as what the slot held, with the packet's values in it.
pub const FLUSHED: u32 = 1 << 5;
/// It goes up as it came.
pub const PASSED: u32 = 1 << 6;
/// It goes up marked: its slot was busy.
pub const COLLIDED: u32 = 1 << 7;
/// The slot was a silent job's.
pub const RECLAIMED: u32 = 1 << 8;
/// It came from above and goes to all below.
pub const RESULT: u32 = 1 << 9;
/// It came from above and goes to one worker.
pub const REPORT: u32 = 1 << 10;
/// It wants nothing of a slot.
pub const NO_SLOT: u32 = 1 << 11;

/// Bits of frames that go up.
pub const UP: u32 = SUM | FLUSHED | PASSED | COLLIDED;
/// Bits of contributions that are taken into their slot.
pub const TAKEN: u32 = STORE | ADD | MAXIMUM;

/// The plan for an action on a slot that was `before`; `flags` are the packet's.
#[inline(always)]
pub fn of(action: Action, flags: u16, before: &SlotMeta) -> u32 {
    let added = if flags & flag::MAXIMUM != 0 { MAXIMUM } else { ADD };
    match action {
        Action::Store if before.owner != 0 => STORE | RECLAIMED,
        Action::Store => STORE,
        Action::Add => added,
        Action::Complete => added | WRITE | SUM,
        Action::Flush { adds: true } => added | WRITE | FLUSHED,
        Action::Flush { adds: false } => WRITE | FLUSHED,
        Action::Pass => PASSED,
        Action::Collide => COLLIDED,
        Action::Drop => 0,
    }
}
