//! The dynamic mode: what packets do to a slot of the pool that jobs share by hashing (ATP sections 3.5 and
//! 3.7, figures 7 and 17), and to a chunk at the parameter host behind it ([`host`]).
//!
//! A slot is soft state: it may be lost or taken at any time, and the sum is then completed by the parameter
//! host, which knows from bitmaps whose values it has. So whatever an aggregator does here, it either keeps a
//! packet's values in a slot or sends them on, never both, and each sum that it sends on says whose values it
//! holds.
//!
//! Four things differ from the paper. A slot that nobody frees is taken back by age also when a
//! *contribution* finds it, not only when a result passes. A contribution that is alone at its level is
//! passed on without a slot. A slot whose sum has left to the parameter host keeps it, but another chunk may
//! take the slot: if the sum is lost, all workers send again, and what they send passes. That is so with one
//! level of aggregators only: with two a lost sum costs a whole rack's packets past both.
//!
//! And a slot remembers the chunk that it refused last: the chunk's later packets are refused too when the
//! slot has become free meanwhile. In the paper they wait in it for packets that have passed, until all
//! workers take the chunk for lost (section 3.6).

pub mod host;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{
    header::{Header, flag},
    stream::is_later,
};

/// Chunks before the one that a slot refused last that are refused too: more than two windows, beyond which
/// no packet of a lane is on its way.
const REFUSED_CHUNKS: u32 = 1 << 14;

/// The metadata of a slot. Host order. The slot is free when `owner` is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SlotMeta {
    /// [`owner`] of the lane whose chunk it holds; zero: none.
    pub owner: u32,
    /// The chunk.
    pub seq: u32,
    /// The contributors of the sum: workers at the first level; workers' racks, or workers, at the second.
    pub bitmap: u32,
    /// The operation's signature, of the first contribution.
    pub tensor: u32,
    /// The aggregator's clock at the last contribution, in milliseconds; wraps.
    pub stamp: u32,
    /// Elements in the chunk.
    pub elements: u16,
    /// [`flag::MERGED`] flags of all contributions, [`flag::MAXIMUM`] and [`flag::LEVEL`] of the first one.
    pub flags: u16,
    /// The exponent that the values are scaled by.
    pub exponent: i8,
    /// The largest exponent that contributions gave for a later chunk.
    pub next_exponent: i8,
    /// 1: the sum has left to the parameter host, and another chunk may take the slot; else 0.
    pub summed: u16,
    /// The prefix of the lane that all contributors of the sum have received, at least.
    pub received: u32,
    /// [`owner`] of the lane whose chunk the slot refused last; zero: none. It stays when the slot becomes
    /// free.
    pub refused_owner: u32,
    /// The latest chunk of that lane that it refused.
    pub refused_seq: u32,
}

const _: () = assert!(size_of::<SlotMeta>() == 40);

/// The owner of a lane's slots: chunks of different lanes have the same numbers.
///
/// Every lane of every job has another one; none is zero, since no job is.
#[inline(always)]
pub const fn owner(job: u16, epoch: u16, lane: u16) -> u32 {
    ((lane & 0x3f) as u32) << 26 | ((job & 0x3ff) as u32) << 16 | epoch as u32
}

const _: () = assert!(crate::MAX_LANES <= 1 << 6 && crate::MAX_JOBS <= 1 << 10);

//= atp#3.5 slots by hash, first come first served
/// The slot that a lane's chunks begin with, by their place in the window (ATP section 3.5): jobs and chunks
/// that follow one another are spread over the pool.
///
/// `position` is the chunk's number modulo the window, `slots` the pool's size, above zero. The paper hashes
/// the chunk's whole number. Then a job that has learnt to avoid collisions has learnt nothing of its next
/// chunks.
#[inline(always)]
pub const fn hash(job: u16, lane: u16, position: u32, slots: u32) -> u32 {
    mix(spread(job) ^ (lane as u32) << 20 ^ position) % slots
}

/// Returns the next slot after a collision (ATP section 3.6). Another chunk that leaves the same slot goes
/// elsewhere; so nobody goes round in a circle of busy ones.
#[inline(always)]
pub const fn rehash(slot: u32, job: u16, seq: u32, slots: u32) -> u32 {
    mix(slot ^ mix(spread(job) ^ seq)) % slots
}

/// The bits of a job's number, 10, where lanes (5 bits) and places in a window (12 bits) have none.
#[inline(always)]
const fn spread(job: u16) -> u32 {
    (job as u32) << 26 ^ (job as u32 >> 6) << 16
}

/// Every bit of the input moves every bit of the output: multiply and shift, twice (Wellons' lowbias32).
#[inline(always)]
const fn mix(mut x: u32) -> u32 {
    x = (x ^ x >> 16).wrapping_mul(0x7feb_352d);
    x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

/// The decision's input from an admitted contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contribution {
    /// [`owner`] of the lane.
    pub owner: u32,
    /// The chunk.
    pub seq: u32,
    /// The sender's bit at this level.
    pub sender: u32,
    /// The number of senders that complete this level.
    pub fan_in: u8,
    /// The operation's signature.
    pub tensor: u32,
    /// Elements in the chunk.
    pub elements: u16,
    /// The packet's flags; [`flag::LEVEL`]: this aggregator is its second.
    pub flags: u16,
    /// The exponent that the values are scaled by.
    pub exponent: i8,
    /// The sender's exponent of a later chunk.
    pub next_exponent: i8,
    /// The sender has the results of all chunks of this lane before this one.
    pub received: u32,
    /// This aggregator's sums go to the parameter host: there is no other level.
    pub is_one_level: bool,
}

impl Contribution {
    /// Of a packet whose bits and fan-in have been checked.
    #[inline(always)]
    pub fn of(header: &Header) -> Contribution {
        let second = header.has(flag::LEVEL);
        Contribution {
            owner: owner(header.job, header.epoch, header.lane),
            seq: header.seq,
            sender: if second { header.bitmap_1 } else { header.bitmap_0 },
            fan_in: if second { header.fan_in_1 } else { header.fan_in_0 },
            tensor: header.tensor,
            elements: header.elements,
            flags: header.flags,
            exponent: header.exponent,
            next_exponent: header.next_exponent,
            received: header.received,
            is_one_level: header.fan_in_1 == 0,
        }
    }

    #[inline(always)]
    const fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    /// Whether a slot of the first level refused it, so that the second level gets no sum of its rack.
    #[inline(always)]
    const fn has_collided_below(&self) -> bool {
        self.has(flag::LEVEL) && self.has(flag::COLLISION)
    }
}

/// The operation on the slot's values, and the packet's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Replace the values by the packet's; the packet ends here.
    Store,
    /// Add the packet's values, or take the larger ones under [`flag::MAXIMUM`]; the packet ends here.
    Add,
    /// Add the packet's values and send the sum on ([`sum`]): the level is complete. The slot keeps it until
    /// a result frees the slot, somebody who misses it has it flushed, or, with one level, another chunk
    /// takes the slot.
    Complete,
    /// Send on what the slot held ([`flushed`]), with the packet's values added when `adds`: the slot is
    /// free.
    Flush {
        /// Whether the packet's values are not in the slot yet.
        adds: bool,
    },
    /// Send the packet on as it is ([`passed`]).
    Pass,
    /// Send the packet on, marked as one that found its slot busy ([`collided`]).
    Collide,
    /// The values are in the slot already: the packet ends here.
    Drop,
}

impl SlotMeta {
    /// Whether a contribution or a result at `now` may take the slot away from what it holds: its job has
    /// been silent for `timeout` milliseconds (ATP section 3.7).
    #[inline(always)]
    pub const fn is_abandoned(&self, now: u32, timeout: u32) -> bool {
        self.owner != 0 && now.wrapping_sub(self.stamp) >= timeout
    }

    /// Whether it holds values that another chunk may not replace until its job has been silent: those of a
    /// sum that has left to the parameter host may be replaced at once.
    #[inline(always)]
    pub const fn is_held(&self) -> bool {
        self.owner != 0 && self.summed == 0
    }

    /// Whether it holds this chunk.
    #[inline(always)]
    const fn holds(&self, owner: u32, seq: u32) -> bool {
        self.owner == owner && self.seq == seq
    }

    /// The slot without its chunk.
    #[inline(always)]
    fn freed(&self) -> SlotMeta {
        let SlotMeta { refused_owner, refused_seq, .. } = *self;
        SlotMeta { refused_owner, refused_seq, ..SlotMeta::default() }
    }

    /// Whether a packet of this chunk, or of a later one of its lane, was refused: then some of its values
    /// may have passed. Chunks of a lane mostly arrive in order, so one number stands for all that were
    /// refused.
    #[inline(always)]
    const fn has_refused(&self, c: &Contribution) -> bool {
        self.refused_owner == c.owner && self.refused_seq.wrapping_sub(c.seq) < REFUSED_CHUNKS
    }

    /// Notes that packets of this chunk pass.
    #[inline(always)]
    fn refusing(&self, c: &Contribution) -> SlotMeta {
        let refused_seq = if self.has_refused(c) { self.refused_seq } else { c.seq };
        SlotMeta { refused_owner: c.owner, refused_seq, ..*self }
    }

    #[inline(always)]
    fn of(c: &Contribution, now: u32) -> SlotMeta {
        SlotMeta {
            owner: c.owner,
            seq: c.seq,
            bitmap: c.sender,
            tensor: c.tensor,
            stamp: now,
            elements: c.elements,
            flags: c.flags & (flag::MERGED | flag::MAXIMUM | flag::LEVEL),
            exponent: c.exponent,
            next_exponent: c.next_exponent,
            received: c.received,
            ..SlotMeta::default()
        }
    }

    /// With this contribution's values in it.
    #[inline(always)]
    fn with(self, c: &Contribution, now: u32) -> SlotMeta {
        SlotMeta {
            bitmap: self.bitmap | c.sender,
            flags: self.flags | c.flags & flag::MERGED,
            next_exponent: if c.next_exponent > self.next_exponent {
                c.next_exponent
            } else {
                self.next_exponent
            },
            received: if is_later(self.received, c.received) { c.received } else { self.received },
            stamp: now,
            ..self
        }
    }

    /// Whether this contribution's values may be added to those in the slot.
    #[inline(always)]
    const fn is_like(&self, c: &Contribution) -> bool {
        let kind = flag::MAXIMUM | flag::LEVEL;
        self.tensor == c.tensor
            && self.elements == c.elements
            && self.exponent == c.exponent
            && (self.flags ^ c.flags) & kind == 0
    }
}

//= atp#3.7 retransmission flushes partial sums
/// Decides what a contribution does to its slot at `now` (milliseconds): the slot's metadata afterwards, what
/// it held when it is flushed, and the action. A slot in which nobody has added anything for `timeout`
/// milliseconds counts as free, and so does one whose sum has left to the parameter host, for other chunks
/// than its own.
#[inline(always)]
pub fn decide(before: &SlotMeta, c: &Contribution, now: u32, timeout: u32) -> (SlotMeta, Action) {
    let resend = c.has(flag::RESEND);
    if before.holds(c.owner, c.seq) {
        return same_chunk(before, c, now);
    }
    // What is sent again is not aggregated: it would wait for packets that have passed already. Alone, there
    // is nothing to wait for.
    if resend || c.fan_in <= 1 {
        let after = if c.has_collided_below() { before.refusing(c) } else { *before };
        return (after, Action::Pass);
    }
    let is_busy = before.is_held() && !before.is_abandoned(now, timeout);
    if is_busy || before.has_refused(c) {
        return (before.refusing(c), Action::Collide);
    }
    let SlotMeta { refused_owner, refused_seq, .. } = *before;
    (SlotMeta { refused_owner, refused_seq, ..SlotMeta::of(c, now) }, Action::Store)
}

#[inline(always)]
fn same_chunk(before: &SlotMeta, c: &Contribution, now: u32) -> (SlotMeta, Action) {
    let free = before.freed();
    if c.has(flag::RAW_FLOAT) {
        // The parameter host has no use for integers of this chunk any more.
        return (free, Action::Pass);
    }
    if !before.is_like(c) {
        // Workers that do not agree: the parameter host detects and reports it.
        return (*before, Action::Collide);
    }
    let is_in = before.bitmap & c.sender != 0;
    if c.has(flag::RESEND) {
        // At the second level a bit is a whole rack, of which a packet may be a part: what is here cannot be
        // merged.
        return if c.has(flag::LEVEL) {
            (if c.has_collided_below() { free.refusing(c) } else { free }, Action::Pass)
        } else {
            (free, Action::Flush { adds: !is_in })
        };
    }
    let after = before.with(c, now);
    if is_in {
        // Only the marks of congestion; not the time, or a lost result would keep the slot.
        return (SlotMeta { flags: after.flags, ..*before }, Action::Drop);
    }
    if after.bitmap.count_ones() == c.fan_in as u32 {
        return (SlotMeta { summed: c.is_one_level as u16, ..after }, Action::Complete);
    }
    (after, Action::Add)
}

/// The effect of the parameter host's packet for a chunk on the slot that it names: frees it of this chunk,
/// and of any that was abandoned.
#[inline(always)]
pub fn release(before: &SlotMeta, owner: u32, seq: u32, now: u32, timeout: u32) -> SlotMeta {
    if before.holds(owner, seq) || before.is_abandoned(now, timeout) { before.freed() } else { *before }
}

/// The header of a level's sum, from that of the packet that completed it; the elements are the slot's
/// values.
#[inline(always)]
pub fn sum(request: &Header, slot: &SlotMeta) -> Header {
    let merged = slot.flags & flag::MERGED;
    let flags = request.flags | merged | flag::LEVEL;
    let header = Header { flags, next_exponent: slot.next_exponent, received: slot.received, ..*request };
    if slot.flags & flag::LEVEL != 0 {
        Header { bitmap_1: slot.bitmap, ..header }
    } else {
        Header { bitmap_0: slot.bitmap, ..header }
    }
}

/// The header of what a slot held when a packet that was sent again had it flushed. `slot` is the metadata of
/// before.
#[inline(always)]
pub fn flushed(request: &Header, slot: &SlotMeta) -> Header {
    let both = slot.with(&Contribution::of(request), slot.stamp);
    let header = sum(request, &both);
    Header { flags: header.flags | flag::RESEND, ..header }
}

/// The header of a packet that goes on as it came.
#[inline(always)]
pub fn passed(request: &Header) -> Header {
    Header { flags: request.flags | flag::LEVEL, ..*request }
}

/// The header of a packet that found its slot busy: no aggregator shall keep it, and the parameter host shall
/// know.
#[inline(always)]
pub fn collided(request: &Header) -> Header {
    let marks = flag::LEVEL | flag::RESEND | flag::COLLISION;
    Header { flags: request.flags | marks, ..*request }
}

#[cfg(test)]
mod tests;
