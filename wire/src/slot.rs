//! What a contribution does to its slot: SwitchML's Algorithm 3 as one pure function.
//!
//! The XDP aggregator, the host aggregator, the simulator and the model checker call [`decide`];
//! the table of its cases stands in `docs/protocol.md`.
//!
//! Two things differ from the paper's listing. The paper tells a slot's two phases apart by one
//! bit, which is enough when packets are only lost; a *delayed duplicate* of the chunk before last
//! carries the same bit and would be added to the wrong chunk (`tests/algorithm3.rs` finds that run). Here
//! each version keeps its chunk's number, and what is older is stale. And where the paper clears a
//! worker's bit in the other version, here the first contribution for a newer chunk replaces the
//! whole bitmap, which is the same: it proves that every worker has the older result.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Reason, header::flag, stream::is_later};

/// One version of a slot: the chunk that it holds, without the values. Host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Version {
    /// The chunk. Meaningless while `seen` is zero.
    pub seq: u32,
    /// Which workers' contributions the values hold; zero: never used.
    pub seen: u32,
    /// Elements in the chunk.
    pub elements: u16,
    /// [`flag::MERGED`] flags of all contributions.
    pub flags: u16,
}

/// Both versions of a slot, and whose they are. Host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SlotMeta {
    /// [`owner`] of the contributions that it holds. Another owner finds the slot empty, so no
    /// slot has to be cleared when a job ends or starts anew.
    pub owner: u32,
    /// The two versions; a chunk's `pool version` flag says which it uses.
    pub versions: [Version; 2],
}

/// Names one incarnation of a job, as slots remember it. Never zero, since jobs count from 1.
#[inline(always)]
pub const fn owner(job: u16, epoch: u16) -> u32 {
    (job as u32) << 16 | epoch as u32
}

/// What the decision needs of an admitted contribution (see [`crate::admit`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contribution {
    /// [`owner`] of the job.
    pub owner: u32,
    /// The chunk.
    pub seq: u32,
    /// The slot's version that the chunk uses: 0 or 1.
    pub version: u8,
    /// The sender's bit.
    pub worker: u32,
    /// The bits of all workers.
    pub all: u32,
    /// Slots of the job: the distance between two chunks of one slot.
    pub slots: u32,
    /// Elements in the chunk.
    pub elements: u16,
    /// The packet's flags.
    pub flags: u16,
}

/// What is to be done to the values of the contribution's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Replace the values by the packet's. `complete`: that was the last, send the result to all.
    Store {
        /// All workers have contributed.
        complete: bool,
    },
    /// Add the packet's values. `complete`: that was the last, send the result to all.
    Add {
        /// All workers have contributed.
        complete: bool,
    },
    /// Leave the values; send them to this worker again.
    Reply,
    /// Leave everything as it is and count the reason.
    Ignore(Reason),
}

/// Decides what `contribution` does to a slot, and gives the slot's metadata afterwards.
///
/// With [`Action::Reply`] and [`Action::Ignore`] the metadata is what it was.
#[inline(always)]
pub fn decide(before: &SlotMeta, contribution: &Contribution) -> (SlotMeta, Action) {
    let c = contribution;
    let mine = before.owner == c.owner;
    let (first, second) = if mine { (before.versions[0], before.versions[1]) } else { Default::default() };
    let (active, shadow) = if c.version == 0 { (first, second) } else { (second, first) };
    let (active, action) = decide_version(active, shadow, c);
    if matches!(action, Action::Reply | Action::Ignore(_)) {
        return (*before, action);
    }
    let versions = if c.version == 0 { [active, shadow] } else { [shadow, active] };
    (SlotMeta { owner: c.owner, versions }, action)
}

/// The decision proper, on the version that the contribution names and the other one.
#[inline(always)]
fn decide_version(active: Version, shadow: Version, c: &Contribution) -> (Version, Action) {
    let used = active.seen != 0;
    if used && active.seq == c.seq {
        return same_chunk(active, c);
    }
    if used && !is_later(c.seq, active.seq) {
        return (active, Action::Ignore(Reason::Stale));
    }
    // A newer chunk. It may take this version once the chunk in the other one is complete: only
    // a worker that has that result moves on, and only when all of them had this version's.
    let fresh = !used && shadow.seen == 0;
    // The step from chunk to chunk is always the same: a frame from far ahead would hold the slot for good.
    let follows =
        |after: u32, before: Version| before.seen == c.all && after.wrapping_sub(before.seq) == c.slots;
    let in_turn = follows(c.seq, shadow) && (!used || follows(shadow.seq, active));
    if !fresh && !in_turn {
        return (active, Action::Ignore(Reason::OutOfTurn));
    }
    let stored = Version { seq: c.seq, seen: c.worker, elements: c.elements, flags: c.flags & flag::MERGED };
    (stored, Action::Store { complete: stored.seen == c.all })
}

#[inline(always)]
fn same_chunk(active: Version, c: &Contribution) -> (Version, Action) {
    // Before anything else: a kept result of another length would not fit the packet that asks for it.
    if active.elements != c.elements {
        return (active, Action::Ignore(Reason::WrongElements));
    }
    if active.seen & c.worker != 0 {
        let action = if active.seen == c.all { Action::Reply } else { Action::Ignore(Reason::Duplicate) };
        return (active, action);
    }
    let added =
        Version { seen: active.seen | c.worker, flags: active.flags | c.flags & flag::MERGED, ..active };
    (added, Action::Add { complete: added.seen == c.all })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u32 = 0b111;
    const OWNER: u32 = owner(1, 1);

    fn version(seq: u32, seen: u32) -> Version {
        Version { seq, seen, elements: 4, flags: 0 }
    }

    fn contribution(seq: u32, v: u8, worker: u32) -> Contribution {
        Contribution { owner: OWNER, seq, version: v, worker, all: ALL, slots: 8, elements: 4, flags: 0 }
    }

    /// The table of `docs/protocol.md`, row by row: slots of 8, slot 3.
    #[test]
    fn table_of_cases() {
        let empty = Version::default();
        let store = Action::Store { complete: false };
        type Case = (&'static str, [Version; 2], Contribution, Action, [Version; 2]);
        let table: [Case; 16] = [
            ("first ever", [empty, empty], contribution(3, 0, 1), store, [version(3, 1), empty]),
            (
                "first ever, on version 1",
                [empty, empty],
                contribution(11, 1, 2),
                store,
                [empty, version(11, 2)],
            ),
            (
                "second worker",
                [version(3, 1), empty],
                contribution(3, 0, 2),
                Action::Add { complete: false },
                [version(3, 3), empty],
            ),
            (
                "last worker",
                [version(3, 3), empty],
                contribution(3, 0, 4),
                Action::Add { complete: true },
                [version(3, 7), empty],
            ),
            (
                "sent again, slot waits",
                [version(3, 3), empty],
                contribution(3, 0, 2),
                Action::Ignore(Reason::Duplicate),
                [version(3, 3), empty],
            ),
            (
                "sent again, slot complete",
                [version(3, 7), empty],
                contribution(3, 0, 2),
                Action::Reply,
                [version(3, 7), empty],
            ),
            (
                "next chunk",
                [version(3, 7), empty],
                contribution(11, 1, 2),
                store,
                [version(3, 7), version(11, 2)],
            ),
            (
                "result lost, others moved on",
                [version(3, 7), version(11, 3)],
                contribution(3, 0, 4),
                Action::Reply,
                [version(3, 7), version(11, 3)],
            ),
            (
                "chunk after next",
                [version(3, 7), version(11, 7)],
                contribution(19, 0, 1),
                store,
                [version(19, 1), version(11, 7)],
            ),
            (
                "delayed duplicate of the chunk before last",
                [version(19, 1), version(11, 7)],
                contribution(3, 0, 2),
                Action::Ignore(Reason::Stale),
                [version(19, 1), version(11, 7)],
            ),
            (
                "next chunk before this one is complete",
                [version(3, 3), empty],
                contribution(11, 1, 1),
                Action::Ignore(Reason::OutOfTurn),
                [version(3, 3), empty],
            ),
            (
                "this version again before the other was used",
                [version(3, 7), empty],
                contribution(19, 0, 1),
                Action::Ignore(Reason::OutOfTurn),
                [version(3, 7), empty],
            ),
            (
                "two rounds ahead: the newest result is not known to have arrived",
                [version(19, 7), version(11, 7)],
                contribution(35, 0, 1),
                Action::Ignore(Reason::OutOfTurn),
                [version(19, 7), version(11, 7)],
            ),
            (
                "from far ahead",
                [version(19, 7), version(11, 7)],
                contribution(1 << 20 | 3, 1, 1),
                Action::Ignore(Reason::OutOfTurn),
                [version(19, 7), version(11, 7)],
            ),
            (
                "older than the other version, this one unused",
                [empty, version(11, 7)],
                contribution(3, 0, 1),
                Action::Ignore(Reason::OutOfTurn),
                [empty, version(11, 7)],
            ),
            (
                "over the wrap of seq",
                [version(u32::MAX - 12, 7), version(u32::MAX - 4, 7)],
                contribution(3, 0, 1),
                store,
                [version(3, 1), version(u32::MAX - 4, 7)],
            ),
        ];
        for (what, versions, c, action, after) in table {
            let before = SlotMeta { owner: OWNER, versions };
            let after = SlotMeta { owner: OWNER, versions: after };
            assert_eq!(decide(&before, &c), (after, action), "{what}");
        }
    }

    #[test]
    fn another_owner_finds_the_slot_empty() {
        let before = SlotMeta { owner: owner(1, 1), versions: [version(3, 3), version(11, 7)] };
        let c = Contribution { owner: owner(1, 2), ..contribution(3, 0, 1) };
        let after = SlotMeta { owner: c.owner, versions: [version(3, 1), Version::default()] };
        assert_eq!(decide(&before, &c), (after, Action::Store { complete: false }));
    }

    #[test]
    fn one_worker_completes_alone() {
        let c = Contribution { all: 1, ..contribution(3, 0, 1) };
        let (after, action) = decide(&SlotMeta::default(), &c);
        assert_eq!(action, Action::Store { complete: true });
        assert_eq!(decide(&after, &c).1, Action::Reply);
    }

    #[test]
    fn flags_are_merged_and_only_those() {
        let first = Contribution { flags: flag::RESEND | flag::ECN_ECHO, ..contribution(3, 0, 1) };
        let (after, _) = decide(&SlotMeta::default(), &first);
        assert_eq!(after.versions[0].flags, flag::ECN_ECHO);
        let second = Contribution { flags: flag::OVERFLOW, ..contribution(3, 0, 2) };
        assert_eq!(decide(&after, &second).0.versions[0].flags, flag::ECN_ECHO | flag::OVERFLOW);
    }

    #[test]
    fn a_different_length_is_refused() {
        let (after, _) = decide(&SlotMeta::default(), &contribution(3, 0, 1));
        for worker in [1, 2] {
            let c = Contribution { elements: 5, ..contribution(3, 0, worker) };
            assert_eq!(decide(&after, &c), (after, Action::Ignore(Reason::WrongElements)), "worker {worker}");
        }
    }
}
