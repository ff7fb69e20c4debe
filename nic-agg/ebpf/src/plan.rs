//! The operations on values and frame, as the bits of one number.
//!
//! The verifier follows every path through the program that it cannot rule out, and each set of known values
//! is a path of its own for the loops over a payload, beyond all limits. Of a plan, which lies in memory
//! ([`crate::work`]), it knows no bit: every test of it has two outcomes, after which the paths are one
//! again.

use sumac_wire::{
    dynamic,
    header::flag,
    slot::{Action, Then},
};

/// Replace the values by the elements.
pub const STORE: u32 = 1 << 0;
/// Add the elements to the values.
pub const ADD: u32 = 1 << 1;
/// Replace values by larger elements.
pub const MAXIMUM: u32 = 1 << 2;
/// Write the values into the frame.
pub const WRITE: u32 = 1 << 3;
/// The frame is the sum, for the workers; of a dynamic job the parameter host's, for all.
pub const RESULT: u32 = 1 << 4;

// Static jobs.
/// Keep the new metadata.
pub const KEEP: u32 = 1 << 5;
/// Draw the chunk that takes the version next.
pub const DRAW: u32 = 1 << 6;
/// The frame becomes the exponent.
pub const AGREED: u32 = 1 << 7;
/// It stays as it was, marked.
pub const REFUSAL: u32 = 1 << 8;
/// It becomes this aggregator's part of the sum.
pub const PART: u32 = 1 << 9;
/// It becomes this aggregator's part of an exponent round.
pub const PART_OF_ROUND: u32 = 1 << 10;
/// It goes to all workers: else, if it is no partial sum, back to its sender.
pub const TO_ALL: u32 = 1 << 11;
/// It came from the parent.
pub const PARENTS: u32 = 1 << 12;
/// It is a question, and becomes its answer.
pub const WANTED: u32 = 1 << 13;
/// It is a question, and becomes this aggregator's to its parent.
pub const QUESTION: u32 = 1 << 14;
/// The slot keeps its values, whose result some sender may lack.
pub const POSTPONED: u32 = 1 << 15;
/// The slot has the values of the packet, which is a flush.
pub const HELD: u32 = 1 << 23;

// Dynamic jobs.
/// The frame goes up as the level's sum.
pub const SUM: u32 = 1 << 16;
/// It goes up as the slot's content, with the packet's values in it.
pub const FLUSHED: u32 = 1 << 17;
/// It goes up as it came.
pub const PASSED: u32 = 1 << 18;
/// It goes up marked: its slot was busy.
pub const COLLIDED: u32 = 1 << 19;
/// The slot was a silent job's.
pub const RECLAIMED: u32 = 1 << 20;
/// It came from above and goes to one worker.
pub const REPORT: u32 = 1 << 21;
/// It needs no slot.
pub const NO_SLOT: u32 = 1 << 22;

/// Bits of contributions that are taken into their slot.
pub const TAKEN: u32 = STORE | ADD | MAXIMUM;
/// Bits of frames that go to the parent.
pub const UP: u32 = PART | PART_OF_ROUND | QUESTION;
/// Bits of a dynamic job's frames that go up.
pub const DYNAMIC_UP: u32 = SUM | FLUSHED | PASSED | COLLIDED;
/// Bits of frames that leave again.
pub const ANSWER: u32 = RESULT | AGREED | REFUSAL | WANTED | UP;
/// Bits that a flush adds when it completes a slot.
pub const COMPLETED: u32 = KEEP | DRAW | WRITE | RESULT | TO_ALL;
/// The same below a parent.
pub const COMPLETED_PART: u32 = KEEP | WRITE | PART;

/// The plan for an action; `flags` are the packet's.
#[inline(always)]
pub fn of(action: Action, flags: u16, is_parents: bool) -> u32 {
    let contributed = if is_parents { KEEP | PARENTS } else { KEEP };
    // Parents have drawn already.
    let drawn = if is_parents { 0 } else { DRAW };
    let added = if flags & flag::MAXIMUM != 0 { MAXIMUM } else { ADD };
    match action {
        Action::Store(Then::Wait) => contributed | STORE,
        // What one packet stores alone stands in it already.
        Action::Store(Then::Complete) => contributed | STORE | drawn | RESULT | TO_ALL,
        Action::Store(Then::Up) => contributed | STORE | PART,
        Action::Add(Then::Wait) => contributed | added,
        Action::Add(Then::Complete) => contributed | added | drawn | WRITE | RESULT | TO_ALL,
        Action::Add(Then::Up) => contributed | added | WRITE | PART,
        Action::Ask(Then::Wait) => contributed,
        Action::Ask(Then::Complete) => contributed | AGREED | TO_ALL,
        Action::Ask(Then::Up) => contributed | PART_OF_ROUND,
        Action::Held(_) => HELD,
        Action::Reply => WRITE | RESULT,
        Action::ReplyExponent => AGREED,
        Action::Forward => WRITE | PART,
        Action::ForwardExponent => PART_OF_ROUND,
        // A parent's refusal is for all workers.
        Action::Refuse if is_parents => PARENTS | REFUSAL | TO_ALL,
        Action::Refuse => REFUSAL,
        Action::Want if is_parents => PARENTS | WANTED,
        Action::Want => WANTED,
        Action::Pass => QUESTION,
        Action::Postpone => POSTPONED,
        Action::Ignore(_) => 0,
    }
}

/// The plan for an action on a dynamic job's slot that was `before`; `flags` are the packet's.
#[inline(always)]
pub fn of_dynamic(action: dynamic::Action, flags: u16, before: &dynamic::SlotMeta) -> u32 {
    use dynamic::Action;
    let added = if flags & flag::MAXIMUM != 0 { MAXIMUM } else { ADD };
    match action {
        Action::Store if before.is_held() => STORE | RECLAIMED,
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
