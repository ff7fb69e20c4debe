//! The effect of a contribution on its slot: SwitchML's Algorithm 3 as one pure function, with the rounds
//! that agree on an exponent (section 4.6), and two levels of aggregators (section 7).
//!
//! The XDP aggregator, the host aggregator, the simulator and the model checker call [`decide`] and
//! [`conclude`]; the table of their cases stands in `docs/protocol.md`.
//!
//! Three things differ from the paper's listing. The paper tells a slot's two phases apart by one bit, which
//! is enough when packets are only lost; a *delayed duplicate* of the chunk before last carries the same bit
//! and would be added to the wrong chunk (`tests/algorithm3.rs` finds that run). Here each version keeps its
//! chunk's number, and what is older is stale. Where the paper clears a worker's bit in the other version,
//! here the first contribution for a newer chunk replaces the whole bitmap. And where the paper's slot takes
//! every s-th chunk, here the result names the one that takes the version next.
//!
//! A version's chunk is given up only when every sender is known to have its result ([`Version::received`]),
//! by the header's `received` field. That a chunk is complete shows it only while every sum holds every
//! worker, as in jobs that are
//! [`job_flag::WHOLE`](crate::tables::job_flag::WHOLE).
//!
//! Added to the paper are the *question* ([`flag::QUERY`]): a contribution without its elements, which asks
//! whether they are missing, and changes nothing; the *flush* ([`flag::PARTIAL`]), after which a slot may
//! complete without some workers ([`crate::budget`], [`crate::lane_budget`]); and the *empty* contribution
//! ([`flag::EMPTY`]) of a worker whose elements are zeros. A result takes the place of the packet that
//! completes its slot, and an empty one has no room for it: the last contribution is asked for with its
//! elements, unless it is made as long ([`Version::lacking`]).

pub mod answer;
mod conclude;
mod flush;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use conclude::{Conclusion, conclude, conclude_version};
pub use flush::decide_by_lane;

use crate::{
    Reason,
    header::{exponent, flag},
    stream::is_later,
};

/// Bits of [`Version::state`].
pub mod state {
    /// The values are the sum of all workers of the job, or of those that a flush found: the result may be
    /// sent again.
    pub const FINAL: u8 = 1 << 0;
    /// The exponent is that of all workers of the job.
    pub const AGREED: u8 = 1 << 1;
    /// The chunk's exponent round: `seen` counts exponents, not values.
    pub const ROUND: u8 = 1 << 2;
    /// The values are complete without some of the job's workers. With [`FINAL`], [`super::Version::seen`] is
    /// the ranks in the result. Without it the version waits for the parent, and [`super::Version::next`] is
    /// the ranks that its part leaves out; nothing is added any more.
    pub const PARTIAL: u8 = 1 << 3;
}

/// One version of a slot: the chunk that it holds, without the values. Host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Version {
    /// The chunk. Meaningless while `seen` and `state` are zero.
    pub seq: u32,
    /// The senders whose values the sum holds; under [`state::ROUND`], whose exponents `exponent` is the
    /// largest of. Under [`state::FINAL`] and [`state::PARTIAL`] the ranks of the workers in the sum.
    pub seen: u32,
    /// The senders that are known to have the chunk's result.
    pub received: u32,
    /// The chunk that takes this version next; known once the version is final. Before that the ranks of the
    /// workers that the values leave out (bounded loss with several levels).
    pub next: u32,
    /// The operation's signature, of the first contribution.
    pub tensor: u32,
    /// Elements in the chunk; zero while only its exponent is asked for, and while all contributions were
    /// without values.
    pub elements: u16,
    /// [`flag::MERGED`] flags of all contributions, and [`flag::MAXIMUM`] of the first one; under
    /// [`state::ROUND`] and after it [`flag::ECN_ECHO`] of the round's packets, until the first contribution.
    pub flags: u16,
    /// The largest exponent of this chunk, from its exponent round.
    pub exponent: i8,
    /// The largest exponent that contributions gave for the slot's next chunk.
    pub next_exponent: i8,
    /// [`state`] bits.
    pub state: u8,
    /// Zero.
    pub reserved: u8,
}

impl Version {
    /// Whether it ever held a chunk of its owner's.
    #[inline(always)]
    const fn is_used(&self) -> bool {
        self.seen != 0 || self.state != 0
    }

    /// Notes the sender if it has the result of this version's chunk. Before there is one nobody has it.
    #[inline(always)]
    pub const fn note(&mut self, c: &Contribution) {
        if self.is(state::FINAL) && is_later(c.received, self.seq) {
            self.received |= c.worker & c.awaited;
        }
    }

    #[inline(always)]
    const fn is(&self, bit: u8) -> bool {
        self.state & bit != 0
    }

    /// Whether nothing is added any more to the values: all senders are in them, or as many as there will be.
    #[inline(always)]
    const fn is_complete(&self, all: u32) -> bool {
        self.seen == all || self.is(state::PARTIAL)
    }

    /// Returns the elements with which an empty contribution would complete this version: of a chunk that
    /// waits for its sender alone, and that others have values of. Zero: it would not.
    ///
    /// Where the packet can be made so long, zeros in place of the elements save the question for them.
    #[inline(always)]
    #[must_use]
    pub const fn lacking(&self, c: &Contribution) -> u16 {
        let is_empty = c.flags & flag::EMPTY != 0;
        let is_its_chunk =
            self.seq == c.seq && self.tensor == c.tensor && (self.flags ^ c.flags) & flag::MAXIMUM == 0;
        let is_open = !self.is(state::FINAL) && !self.is(state::ROUND) && !self.is_complete(c.all);
        let is_last = self.seen != 0 && self.seen & c.worker == 0 && self.seen | c.worker == c.all;
        if is_empty && is_its_chunk && is_open && is_last { self.elements } else { 0 }
    }
}

/// Both versions of a slot, and whose they are. Host order. With a lock in front it fills one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SlotMeta {
    /// [`owner`] of the contributions that it holds. Another owner finds the slot empty, so no
    /// slot has to be cleared when a job ends or starts anew.
    pub owner: u32,
    /// The two versions; a chunk's `pool version` flag says which it uses.
    pub versions: [Version; 2],
}

const _: () = assert!(size_of::<SlotMeta>() == 60);

/// Names one incarnation of a job, as slots remember it. Never zero, since jobs count from 1.
#[inline(always)]
pub const fn owner(job: u16, epoch: u16) -> u32 {
    (job as u32) << 16 | epoch as u32
}

/// The decision's input from an admitted contribution (see [`crate::admit`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contribution {
    /// [`owner`] of the job.
    pub owner: u32,
    /// The chunk.
    pub seq: u32,
    /// The slot, counted from its lane's first.
    pub slot: u32,
    /// The lane, counted from the job's first.
    pub lane: u16,
    /// The slot's version that the chunk uses: 0 or 1.
    pub version: u8,
    /// The sender's bit: a worker's, or a rack's at the root.
    pub worker: u32,
    /// The bits of all senders.
    pub all: u32,
    /// The bits of the senders that must be known to have a version's result before another chunk takes the
    /// version: all of them, or none, where every sum holds every worker.
    pub awaited: u32,
    /// Slots of the lane: a power of two.
    pub slots: u32,
    /// The operation's signature.
    pub tensor: u32,
    /// Elements in the chunk.
    pub elements: u16,
    /// The packet's flags.
    pub flags: u16,
    /// The sender has the results of all chunks of this slot before this one.
    pub received: u32,
    /// The sender's exponent: of this chunk in an exponent round, else of the slot's next chunk.
    pub next_exponent: i8,
    /// Whether a complete version is only a part, to be sent up to a parent.
    pub child: bool,
    /// The ranks of all workers of the job, where it has no more than a bitmap has bits.
    pub ranks: u32,
    /// Of a rack's part, the ranks below the rack that are not in it ([`crate::admit::left_out`]).
    pub left_out: u32,
    /// Of a flush, and of a contribution that states the terms of an operation with a loss bound: the chunks
    /// of the operation, on this lane, that each worker may be left out of. Zero: it is neither.
    pub limit: u32,
    /// Of a flush, the operation's first chunk; of terms, the first chunk behind the operation.
    pub bound: u32,
}

impl Contribution {
    /// Whether the packet would complete a version that has `seen` these senders, and has no room for the
    /// result.
    #[inline(always)]
    const fn lacks_values(&self, seen: u32) -> bool {
        self.flags & flag::EMPTY != 0 && seen | self.worker == self.all
    }
}

/// The next step after a change of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Then {
    /// The version waits for more.
    Wait,
    /// It was the last contribution: send the result to all.
    Complete,
    /// It was the last contribution of this aggregator: send the partial sum up.
    Up,
}

/// The operation on the version's values.
///
/// Whoever is told to `Store`, `Add` or `Held` and then `Complete` draws the version's next chunk, and notes
/// it by
/// [`SlotMeta::set_next`] before it sends the result. [`conclude`] has done that already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Replace the values by the packet's.
    Store(Then),
    /// Add the packet's values, or take the larger ones under [`flag::MAXIMUM`].
    Add(Then),
    /// Leave the values: the exponent was taken in.
    Ask(Then),
    /// Leave the values: a flush, whose contribution is in them. Count [`Reason::Duplicate`] if it does not
    /// complete the slot.
    Held(Then),
    /// Leave the values; send them to this sender again.
    Reply,
    /// Send the agreed exponent to this sender again.
    ReplyExponent,
    /// Leave the values; send them up again.
    Forward,
    /// Send the exponent up again.
    ForwardExponent,
    /// Answer a question: mark the packet as [`flag::QUERY`] and send it back. The contribution that it asks
    /// about would change something, or be answered with the kept result. Also the answer to an empty
    /// contribution that has no room for the result.
    Want,
    /// Send the question up: whether the part that is complete here is there.
    Pass,
    /// Another operation's chunk: mark the packet as [`flag::MISMATCH`] and send it back.
    Refuse,
    /// Leave the values, whose result some sender may still lack, and count [`Reason::OutOfTurn`]. The packet
    /// comes again.
    Postpone,
    /// Leave everything as it is and count the reason.
    Ignore(Reason),
}

impl Action {
    /// Whether the packet's values or exponent are taken in.
    #[inline(always)]
    pub const fn takes(&self) -> bool {
        matches!(self, Action::Store(_) | Action::Add(_) | Action::Ask(_))
    }
}

impl SlotMeta {
    /// The version with this number, and the other one.
    #[inline(always)]
    fn pair(&self, owner: u32, version: u8) -> (Version, Version) {
        if self.owner != owner {
            return Default::default();
        }
        let [first, second] = self.versions;
        if version == 0 { (first, second) } else { (second, first) }
    }

    #[inline(always)]
    fn of(owner: u32, version: u8, active: Version, other: Version) -> SlotMeta {
        SlotMeta { owner, versions: if version == 0 { [active, other] } else { [other, active] } }
    }

    /// Notes the chunk that takes `version` next.
    #[inline(always)]
    pub fn set_next(&mut self, version: u8, seq: u32) {
        // Two constant indices: eBPF's verifier follows no other.
        if version == 0 {
            self.versions[0].next = seq;
        } else {
            self.versions[1].next = seq;
        }
    }
}

//= switchml#4.5 shadow copies of slots
/// Decides what `contribution` does to a slot, and returns the slot's metadata afterwards. Whatever is not
/// ignored notes how far its sender has received; all else changes only by what is taken in.
#[inline(always)]
pub fn decide(before: &SlotMeta, contribution: &Contribution) -> (SlotMeta, Action) {
    decide_and_note(before, contribution, false)
}

/// [`decide`]. With `notes_all` what is ignored notes its sender as well.
#[inline(always)]
fn decide_and_note(before: &SlotMeta, c: &Contribution, notes_all: bool) -> (SlotMeta, Action) {
    let (mut active, mut shadow) = before.pair(c.owner, c.version);
    active.note(c);
    shadow.note(c);
    let (active, action) = decide_version(active, &shadow, c);
    let is_left = match action {
        Action::Ignore(_) if !notes_all => true,
        _ => before.owner != c.owner && !action.takes(),
    };
    if is_left { (*before, action) } else { (SlotMeta::of(c.owner, c.version, active, shadow), action) }
}

//= switchml#4.3 aggregation in a pool of slots
/// The decision proper, on the version that the contribution names and the other one, which have noted its
/// sender: for the eBPF program, which has no room for copies of both. Neither is used when the slot has
/// another owner. Returns the version that the contribution names as it is afterwards.
#[inline(always)]
pub fn decide_version(active: Version, shadow: &Version, c: &Contribution) -> (Version, Action) {
    if active.is_used() {
        if active.seq == c.seq {
            return same_chunk(active, c);
        }
        if !is_later(c.seq, active.seq) {
            return (active, Action::Ignore(Reason::Stale));
        }
    }
    // A newer chunk: the one that this version's result named, by a sender that has the other's. A frame from
    // far ahead would hold the slot for good.
    let in_turn = if active.is_used() {
        shadow.is(state::FINAL) && is_later(shadow.seq, active.seq) && c.seq == active.next
    } else if shadow.is_used() {
        shadow.is(state::FINAL) && c.seq.wrapping_sub(shadow.seq) == c.slots
    } else {
        // Streams begin with chunk 0; any other would hold the slot until the stream gets there.
        c.seq == c.slot && c.version == 0
    };
    if !in_turn {
        return (active, Action::Ignore(Reason::OutOfTurn));
    }
    if active.is_used() && active.received != c.awaited {
        return (active, Action::Postpone);
    }
    if c.flags & flag::QUERY != 0 || c.lacks_values(0) {
        return (active, Action::Want);
    }
    let empty = Version { seq: c.seq, tensor: c.tensor, exponent: exponent::NONE, ..Version::default() };
    if c.flags & flag::EXPONENT != 0 { ask(empty, c) } else { store(empty, c) }
}

#[inline(always)]
fn same_chunk(active: Version, c: &Contribution) -> (Version, Action) {
    if active.tensor != c.tensor {
        return (active, Action::Refuse);
    }
    if c.flags & flag::EXPONENT != 0 {
        return same_round(active, c);
    }
    if active.is(state::ROUND) {
        return (active, Action::Ignore(Reason::OutOfTurn));
    }
    if active.seen == 0 {
        let is_wanted = c.flags & flag::QUERY != 0 || c.lacks_values(0);
        return if is_wanted { (active, Action::Want) } else { store(active, c) };
    }
    // Sum and maximum of one chunk would be neither.
    if (active.flags ^ c.flags) & flag::MAXIMUM != 0 {
        return (active, Action::Refuse);
    }
    if c.flags & flag::QUERY != 0 {
        return (active, question(&active, c));
    }
    let is_empty = c.flags & flag::EMPTY != 0;
    let has_values = active.elements != 0;
    // Before anything else: a kept result of another length would not fit the packet that asks for it.
    if has_values && !is_empty && active.elements != c.elements {
        return (active, Action::Ignore(Reason::WrongElements));
    }
    if active.is(state::FINAL) {
        return (active, if is_empty { Action::Want } else { Action::Reply });
    }
    // Also of a worker that the part leaves out: what went up once may be in the sum above.
    if active.is_complete(c.all) {
        return (active, if is_empty { Action::Ignore(Reason::Duplicate) } else { Action::Forward });
    }
    if active.seen & c.worker != 0 {
        let action = match () {
            () if c.is_flush() && has_values => Action::Held(Then::Wait),
            () => Action::Ignore(Reason::Duplicate),
        };
        return (active, action);
    }
    if c.lacks_values(active.seen) {
        return (active, Action::Want);
    }
    let added = Version {
        seen: active.seen | c.worker,
        elements: if has_values { active.elements } else { c.elements },
        flags: active.flags | c.flags & flag::MERGED,
        next_exponent: larger(active.next_exponent, c.next_exponent),
        next: active.next | c.left_out,
        ..active
    };
    let (added, then) = values_in(added, c);
    (added, if has_values { Action::Add(then) } else { Action::Store(then) })
}

/// A question about the chunk that the version holds: a kept result does not fit it, so whoever is to have
/// that sends its contribution too.
#[inline(always)]
fn question(active: &Version, c: &Contribution) -> Action {
    match () {
        () if active.is(state::FINAL) => Action::Want,
        () if active.is_complete(c.all) => Action::Pass,
        () if active.seen & c.worker == 0 => Action::Want,
        () => Action::Ignore(Reason::Duplicate),
    }
}

/// A contribution to the exponent round of the chunk that the version holds.
#[inline(always)]
fn same_round(active: Version, c: &Contribution) -> (Version, Action) {
    let action = match () {
        () if active.is(state::AGREED) => Action::ReplyExponent,
        // The slot's last result carried the exponent, so that this chunk has no round.
        () if !active.is(state::ROUND) => Action::Ignore(Reason::OutOfTurn),
        () if active.seen & c.worker == 0 => return ask(active, c),
        () if active.seen == c.all => Action::ForwardExponent,
        () => Action::Ignore(Reason::Duplicate),
    };
    (active, action)
}

#[inline(always)]
fn ask(active: Version, c: &Contribution) -> (Version, Action) {
    let seen = active.seen | c.worker;
    let exponent = larger(active.exponent, c.next_exponent);
    let flags = active.flags | c.flags & flag::ECN_ECHO;
    let then = then(seen, c);
    let (seen, state) = if then == Then::Complete { (0, state::AGREED) } else { (seen, state::ROUND) };
    (Version { seen, exponent, flags, state, ..active }, Action::Ask(then))
}

/// The first elements of a chunk.
#[inline(always)]
fn store(active: Version, c: &Contribution) -> (Version, Action) {
    let stored = Version {
        seen: c.worker,
        elements: c.elements,
        flags: c.flags & (flag::MERGED | flag::MAXIMUM),
        next_exponent: c.next_exponent,
        next: c.left_out,
        ..active
    };
    let (stored, then) = values_in(stored, c);
    (stored, Action::Store(then))
}

#[inline(always)]
fn values_in(mut version: Version, c: &Contribution) -> (Version, Then) {
    let then = then(version.seen, c);
    // Without branches: eBPF's verifier follows every combination of them.
    let is_final = u8::from(then == Then::Complete);
    let is_partial = u8::from(then != Then::Wait && version.next != 0);
    version.state |= (state::FINAL * is_final) | (state::PARTIAL * is_partial);
    if is_final & is_partial != 0 {
        version.seen = c.ranks & !version.next;
    }
    (version, then)
}

#[inline(always)]
fn then(seen: u32, c: &Contribution) -> Then {
    match () {
        () if seen != c.all => Then::Wait,
        () if c.child => Then::Up,
        () => Then::Complete,
    }
}

#[inline(always)]
fn larger(a: i8, b: i8) -> i8 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests;
