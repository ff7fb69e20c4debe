//! The effect of a parent's result on the slot of its child (SwitchML section 7).

use super::{Action, SlotMeta, Then, Version, state};
use crate::{Reason, header::flag};

/// The decision's input from an admitted result of the parent (see [`crate::admit::conclusion`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conclusion {
    /// [`super::owner`] of the job.
    pub owner: u32,
    /// The chunk.
    pub seq: u32,
    /// The slot's version that the chunk uses: 0 or 1.
    pub version: u8,
    /// The bits of all workers below this aggregator.
    pub all: u32,
    /// The operation's signature.
    pub tensor: u32,
    /// Elements in the chunk.
    pub elements: u16,
    /// The packet's flags.
    pub flags: u16,
    /// The chunk's exponent, of an exponent round.
    pub exponent: i8,
    /// The exponent of the slot's next chunk.
    pub next_exponent: i8,
    /// The chunk that takes the version next.
    pub next_seq: u32,
    /// Of a result without some workers, the ranks in it; else zero.
    pub contributors: u32,
}

//= switchml#7 racks below a root
/// Decides what the parent's result does to a slot, and returns the slot's metadata afterwards.
///
/// [`Action::Store`] and [`Action::Ask`], both with [`Then::Complete`], or [`Action::Ignore`]; and
/// [`Action::Refuse`] when the parent refused this aggregator's part as another operation's: all workers
/// shall hear it; and [`Action::Want`] when the parent wants the part: the worker whose question went up
/// shall send its contribution, which takes the part with it.
#[inline(always)]
pub fn conclude(before: &SlotMeta, conclusion: &Conclusion) -> (SlotMeta, Action) {
    let c = conclusion;
    let (active, shadow) = before.pair(c.owner, c.version);
    let (active, action) = conclude_version(active, c);
    if !action.takes() {
        return (*before, action);
    }
    (SlotMeta::of(c.owner, c.version, active, shadow), action)
}

/// The decision proper, on the version that the result names: as [`super::decide_version`].
#[inline(always)]
pub fn conclude_version(active: Version, c: &Conclusion) -> (Version, Action) {
    if !active.is_used() || active.seq != c.seq {
        // The workers have moved on: they had this result.
        return (active, Action::Ignore(Reason::Stale));
    }
    let is_round = c.flags & flag::EXPONENT != 0;
    let done = if is_round { state::AGREED } else { state::FINAL };
    if active.is(done) {
        return (active, Action::Ignore(Reason::Duplicate));
    }
    if is_round != active.is(state::ROUND) || !active.is_complete(c.all) {
        return (active, Action::Ignore(Reason::OutOfTurn));
    }
    if c.flags & flag::MISMATCH != 0 {
        return (active, Action::Refuse);
    }
    if c.flags & flag::QUERY != 0 {
        return (active, Action::Want);
    }
    if active.tensor != c.tensor {
        return (active, Action::Ignore(Reason::WrongPlace));
    }
    if is_round {
        let flags = c.flags & flag::ECN_ECHO;
        let agreed = Version { exponent: c.exponent, seen: 0, flags, state: done, ..active };
        return (agreed, Action::Ask(Then::Complete));
    }
    if active.elements != c.elements {
        return (active, Action::Ignore(Reason::WrongElements));
    }
    let is_partial = c.contributors != 0;
    // The parent's sum lacks the workers that this part leaves out: a result with one of them is of another.
    if active.is(state::PARTIAL) && (!is_partial || c.contributors & active.next != 0) {
        return (active, Action::Ignore(Reason::WrongWorker));
    }
    let flags = c.flags & flag::MERGED | active.flags & flag::MAXIMUM;
    let (seen, partial) = if is_partial { (c.contributors, state::PARTIAL) } else { (c.all, 0) };
    let (state, next) = (active.state | done | partial, c.next_seq);
    let version = Version { seen, flags, next_exponent: c.next_exponent, next, state, ..active };
    (version, Action::Store(Then::Complete))
}
