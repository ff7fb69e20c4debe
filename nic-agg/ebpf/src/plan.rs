//! The operations on values and frame, as the bits of one number.
//!
//! The verifier goes every way through the program that it cannot rule out, and each set of known values
//! is a way of its own for the loops over a payload, beyond all limits. Of a plan, which lies in memory
//! ([`crate::work`]), it knows no bit: every question to it has two answers, after which the ways are one again.

use sumac_wire::{
    header::flag,
    slot::{Action, Then},
};

/// Replace the values by the elements.
pub const STORE: u32 = 1 << 0;
/// Add the elements to the values.
pub const ADD: u32 = 1 << 1;
/// Replace values by larger elements.
pub const MAXIMUM: u32 = 1 << 2;
/// Keep the new metadata.
pub const KEEP: u32 = 1 << 3;
/// Draw the chunk that takes the version next.
pub const DRAW: u32 = 1 << 4;
/// Write the values into the frame.
pub const WRITE: u32 = 1 << 5;
/// The frame becomes the sum.
pub const RESULT: u32 = 1 << 6;
/// It becomes the exponent.
pub const AGREED: u32 = 1 << 7;
/// It stays what it was, marked.
pub const REFUSAL: u32 = 1 << 8;
/// It becomes this aggregator's part of the sum.
pub const PART: u32 = 1 << 9;
/// It becomes this aggregator's part of an exponent round.
pub const PART_OF_ROUND: u32 = 1 << 10;
/// The outcome goes to all workers: else, if it is no partial sum, back to its sender.
pub const TO_ALL: u32 = 1 << 11;
/// It came from the parent.
pub const PARENTS: u32 = 1 << 12;

/// It is a question, and becomes its answer.
pub const WANTED: u32 = 1 << 13;
/// It is a question, and becomes this aggregator's to its parent.
pub const QUESTION: u32 = 1 << 14;
/// The slot keeps its values, whose result some sender may lack.
pub const POSTPONED: u32 = 1 << 15;

/// Bits of frames that go to the parent.
pub const UP: u32 = PART | PART_OF_ROUND | QUESTION;
/// Bits of frames that leave again.
pub const ANSWER: u32 = RESULT | AGREED | REFUSAL | WANTED | UP;

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
