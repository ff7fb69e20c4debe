//! The effect of packets on a chunk at the parameter host (ATP sections 3.6 to 3.8): contributions, partial
//! and full sums are added, each worker exactly once, by bitmap.
//!
//! The host keeps the last chunks of the stream, two windows of them: a worker sends a chunk only when it has
//! the results of all that are a window older, and as long as every sum holds every worker none is further
//! ahead of another than that. A chunk gives way to the one two windows later only when all workers are known
//! to have its result, by the header's `received` field ([`note_received`]). So one that was completed
//! without some workers stays until they have its result.

use super::rehash;
use crate::{
    Kind, MAX_WORKERS, Reason,
    budget::{Budget, Flush, Terms, is_quorum},
    header::{Header, exponent, flag},
    stream::is_later,
    workers::all_workers,
};

/// Most senders below the second aggregator, and with as many workers each, 1,024 workers.
pub const MAX_RACKS: usize = 32;

/// Workers as bits: `[rack]`, a rack being what has one bit at the second level, a single worker for
/// instance.
pub type Bits = [u32; MAX_RACKS];

//= atp#3.4 two levels of aggregation
/// The workers whose values a packet holds, when the job's workers are `all`; none when the packet claims
/// what the job does not have.
pub fn holds(header: &Header, all: &Bits) -> Option<Bits> {
    let mut bits = [0; MAX_RACKS];
    let one_level = header.fan_in_1 == 0;
    let racks = if one_level { 1 } else { header.bitmap_1 };
    let is_whole = racks & racks.wrapping_sub(1) != 0;
    for (rack, (bits, all)) in bits.iter_mut().zip(all).enumerate() {
        if racks >> rack & 1 == 0 {
            continue;
        }
        // The second level takes only racks that are complete.
        *bits = if is_whole { *all } else { header.bitmap_0 };
        if *bits == 0 || *bits & !*all != 0 {
            return None;
        }
    }
    (racks != 0).then_some(bits)
}

/// Notes that the workers in `bits` have the results of all chunks before `received`.
///
/// `known` holds how far each worker of a lane has received: [`MAX_WORKERS`] of each rack.
pub fn note_received(known: &mut [u32], bits: &Bits, received: u32) {
    for (known, bits) in known.chunks_mut(MAX_WORKERS).zip(bits).filter(|(_, bits)| **bits != 0) {
        for (bit, known) in known.iter_mut().enumerate() {
            if bits >> bit & 1 == 1 && is_later(received, *known) {
                *known = received;
            }
        }
    }
}

/// The owner of a lane's budget: a new incarnation of the job continues its operations, and what they have
/// spent.
const OWNER: u32 = 1;

/// The terms of an operation with a loss bound, which a worker states with the operation's first chunk. The
/// packet has to hold that worker's values alone: a slot's sum has the terms of the packet that completed it.
pub fn terms(header: &Header) -> Option<Terms> {
    let (operation, end, limit) = (header.seq, header.next_seq, header.contributors.into());
    let is_one = limit != 0 && !header.has(flag::PARTIAL);
    is_one.then_some(Terms { owner: OWNER, operation, end, limit })
}

/// Returns whether all workers are known to have the result of chunk `seq`.
fn have_received(known: &[u32], all: &Bits, seq: u32) -> bool {
    let racks = all.iter().enumerate().filter(|(_, bits)| **bits != 0);
    racks.into_iter().all(|(rack, bits)| {
        let known = known.chunks(MAX_WORKERS).nth(rack).unwrap_or_default();
        (0..MAX_WORKERS)
            .filter(|bit| bits >> bit & 1 == 1)
            .all(|bit| known.get(bit).is_some_and(|known| is_later(*known, seq)))
    })
}

/// The metadata of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChunkMeta {
    /// Whether it holds a chunk at all.
    used: bool,
    /// Whether the result has been sent.
    complete: bool,
    /// Whether the workers have been asked for their floats, and the sum is of those.
    raw: bool,
    seq: u32,
    tensor: u32,
    elements: u16,
    flags: u16,
    exponent: i8,
    next_exponent: i8,
    seen: Bits,
}

/// The flags that a chunk keeps from every packet: those that slots merge, and the collision.
const KEPT: u16 = flag::MERGED | flag::COLLISION;

/// The operation on the chunk's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Replace them by the packet's, then [`ChunkMeta::settle`].
    Store,
    /// Add the packet's, or take the larger ones under [`flag::MAXIMUM`], then [`ChunkMeta::settle`].
    Add,
    /// The sum is complete, and somebody misses it: send it again.
    Reply,
    /// The workers were asked for their floats, and this one has not heard: ask again.
    AskRaw,
    /// Another operation's chunk: the answer reports it.
    Refuse,
    /// Leave everything as it is and count the reason.
    Ignore(Reason),
}

/// The next step after the values were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Workers are missing.
    Wait,
    /// Send the result to all.
    Complete,
    /// A value did not fit: ask all workers for their floats of this chunk (ATP section 3.8).
    AskRaw,
}

/// The job's parameters of the decision.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// All workers.
    pub all: &'a Bits,
    /// Chunks that are kept: a power of two, at least twice the largest window.
    pub kept: u32,
    /// The prefix of the lane that each worker has received: see [`note_received`].
    pub received: &'a [u32],
}

impl ChunkMeta {
    /// The chunk that it holds.
    pub fn seq(&self) -> Option<u32> {
        self.used.then_some(self.seq)
    }

    /// Whether the values are floats.
    pub fn is_raw(&self) -> bool {
        self.raw
    }

    //= atp#3.6 parameter host adds each worker once
    /// Decides what an admitted contribution or sum does, `self` being what stands at `seq % kept`.
    pub fn absorb(&mut self, header: &Header, job: Job<'_>) -> Action {
        let Some(bits) = holds(header, job.all) else { return Action::Ignore(Reason::WrongWorker) };
        if !self.used || self.seq != header.seq {
            return self.begin(header, bits, job);
        }
        if self.is_forgotten() {
            *self = ChunkMeta::of(header, bits);
            return Action::Store;
        }
        if self.tensor != header.tensor || (self.flags ^ header.flags) & flag::MAXIMUM != 0 {
            return Action::Refuse;
        }
        if self.elements != header.elements {
            return Action::Ignore(Reason::WrongElements);
        }
        if self.complete {
            // Nobody who has the result sends again.
            return match header.has(flag::RESEND) {
                true => Action::Reply,
                false => Action::Ignore(Reason::Duplicate),
            };
        }
        if self.raw != header.has(flag::RAW_FLOAT) {
            return match self.raw && header.has(flag::RESEND) {
                true => Action::AskRaw,
                false => Action::Ignore(Reason::Stale),
            };
        }
        if !self.raw && self.exponent != header.exponent {
            return Action::Ignore(Reason::OutOfTurn);
        }
        self.add(header, bits)
    }

    fn begin(&mut self, header: &Header, bits: Bits, job: Job<'_>) -> Action {
        let in_turn = if self.used {
            if !is_later(header.seq, self.seq) {
                return Action::Ignore(Reason::Stale);
            }
            let is_next = self.complete && header.seq.wrapping_sub(self.seq) == job.kept;
            is_next && have_received(job.received, job.all, self.seq)
        } else {
            header.seq < job.kept
        };
        if !in_turn {
            return Action::Ignore(Reason::OutOfTurn);
        }
        *self = ChunkMeta::of(header, bits);
        Action::Store
    }

    /// Returns the metadata after a chunk's first packet.
    fn of(header: &Header, bits: Bits) -> ChunkMeta {
        ChunkMeta {
            used: true,
            seq: header.seq,
            tensor: header.tensor,
            elements: header.elements,
            // Where no exponent is known, all workers send floats at once.
            raw: header.has(flag::RAW_FLOAT),
            flags: header.flags & (KEPT | flag::MAXIMUM),
            exponent: header.exponent,
            next_exponent: header.next_exponent,
            seen: bits,
            ..ChunkMeta::default()
        }
    }

    /// Whether it is to come again as a whole, under a new incarnation ([`ChunkMeta::forget`]).
    fn is_forgotten(&self) -> bool {
        !self.complete && !self.raw && self.seen == [0; MAX_RACKS]
    }

    fn add(&mut self, header: &Header, bits: Bits) -> Action {
        let is_first = self.seen.iter().all(|bits| *bits == 0);
        if self.seen.iter().zip(&bits).any(|(seen, bits)| seen & bits != 0) {
            // A sum that is in here in part cannot be taken apart: the others in it send again, and past the
            // slots.
            self.flags |= header.flags & (flag::ECN_ECHO | flag::COLLISION);
            return Action::Ignore(Reason::Duplicate);
        }
        for (seen, bits) in self.seen.iter_mut().zip(&bits) {
            *seen |= bits;
        }
        self.flags |= header.flags & KEPT;
        self.next_exponent = self.next_exponent.max(header.next_exponent);
        if is_first { Action::Store } else { Action::Add }
    }

    /// After the values are in: what follows. `overflowed`: an addition here was clamped.
    pub fn settle(&mut self, all: &Bits, overflowed: bool) -> Outcome {
        if overflowed {
            self.flags |= flag::OVERFLOW;
        }
        if self.seen != *all {
            return Outcome::Wait;
        }
        // An order's keys are not values that would fit as floats: its result marks the error.
        if self.flags & flag::OVERFLOW != 0 && !self.raw && self.flags & flag::MAXIMUM == 0 {
            self.raw = true;
            self.seen = [0; MAX_RACKS];
            self.flags &= !flag::OVERFLOW;
            return Outcome::AskRaw;
        }
        self.complete = true;
        Outcome::Complete
    }

    /// Completes the chunk with the contributions that it has, for the flush `header` that
    /// [`ChunkMeta::absorb`] has taken in or found in already; `left_out`: the ranks of the workers that are
    /// not in it. Returns `false`, with nothing changed, where the chunk has to wait.
    ///
    /// It waits for a quorum and for budget, and for all where integers do not fit: floats are asked for
    /// then. It also waits where a part of the flush's sum is in: that sum was dropped, and the others in it
    /// send again.
    pub fn flush(&mut self, header: &Header, all: &Bits, left_out: u32, budget: &mut Budget) -> bool {
        let is_in = |bits: Bits| self.seen.iter().zip(bits).all(|(seen, bits)| bits & !seen == 0);
        let is_this = self.seq() == Some(header.seq) && self.raw == header.has(flag::RAW_FLOAT);
        let is_waiting = !self.complete && self.seen != *all && holds(header, all).is_some_and(is_in);
        let fits = self.raw || self.flags & flag::OVERFLOW == 0;
        let workers = all.iter().map(|bits| bits.count_ones()).sum();
        let contributors = self.seen.iter().map(|bits| bits.count_ones()).sum();
        let flush = Flush { owner: OWNER, operation: header.next_seq, seq: header.seq };
        if !is_this || !is_waiting || !fits || !is_quorum(contributors, workers) {
            return false;
        }
        if !budget.spend(flush, all_workers(workers as u16), left_out) {
            return false;
        }
        self.complete = true;
        // A worker that is left out may have a larger one: the chunk one window later goes as floats.
        self.next_exponent = exponent::UNKNOWN;
        true
    }

    /// The header of the result, which answers `request`; the elements are the chunk's values.
    ///
    /// The result names the request's slot, which it frees on its way. Where a slot was busy, it says in
    /// `bitmap_0` which one the workers shall take for this chunk's place in the window from now on; `slots`:
    /// how many there are to choose from, zero to leave them where they are.
    pub fn result(&self, request: &Header, contributors: u16, slots: u32) -> Header {
        let raw = if self.raw { flag::RAW_FLOAT } else { 0 };
        let stays = slots == 0 || request.slot >= slots;
        let (collision, slot) = match self.flags & flag::COLLISION {
            0 => (0, 0),
            _ if stays => (0, 0),
            collision => (collision, rehash(request.slot, request.job, self.seq, slots)),
        };
        Header {
            kind: Kind::Result as u8,
            flags: self.flags & !flag::COLLISION | collision | raw,
            bitmap_0: slot,
            bitmap_1: 0,
            elements: self.elements,
            contributors,
            exponent: self.exponent,
            next_exponent: self.next_exponent,
            tensor: self.tensor,
            ..*request
        }
    }

    /// The header of the result of a chunk that was completed without the workers of these ranks. In
    /// `bitmap_0` it has the ranks that are in, so it names no new slot.
    pub fn partial_result(&self, request: &Header, world: u16, left_out: u32) -> Header {
        let contributors = all_workers(world) & !left_out;
        let result = self.result(request, contributors.count_ones() as u16, 0);
        Header { flags: result.flags | flag::PARTIAL, bitmap_0: contributors, ..result }
    }

    //= atp#3.8 overflow is sent again as floats
    /// The header that asks for a chunk's floats.
    pub fn ask(&self, request: &Header, contributors: u16) -> Header {
        let flags = self.flags & !flag::COLLISION | flag::RAW_FLOAT;
        Header { flags, elements: 0, bitmap_0: 0, ..self.result(request, contributors, 0) }
    }

    /// The header that tells workers that a chunk is another operation's: `bitmap_0` and `bitmap_1` still say
    /// whose packet it answers, `tensor` is what the chunk holds. No elements.
    pub fn refusal(&self, request: &Header) -> Header {
        let kind = Kind::Result as u8;
        Header { kind, flags: flag::MISMATCH, elements: 0, tensor: self.tensor, ..*request }
    }

    /// Under a new incarnation: forgets who is in a sum that is not complete, whose values are to come again.
    /// A complete one stays: workers may miss its result.
    pub fn forget(&mut self) {
        if !self.complete {
            self.seen = [0; MAX_RACKS];
            self.flags &= flag::MAXIMUM;
            self.next_exponent = i8::MIN;
        }
    }

    /// Forgets whose floats are in, which are to come again: an earlier chunk needs their room. The chunk
    /// stays one of floats.
    pub fn forget_floats(&mut self) {
        if self.raw && !self.complete {
            self.seen = [0; MAX_RACKS];
        }
    }

    /// Whether some of its values are in, and not all.
    pub fn is_begun(&self) -> bool {
        !self.complete && self.seen != [0; MAX_RACKS]
    }

    /// Whether its result has been sent.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The workers of `all` whose values it does not have.
    pub fn missing(&self, all: &Bits) -> Bits {
        core::array::from_fn(|rack| all[rack] & !self.seen[rack])
    }

    /// Whether somebody is missing in its result, which all workers get all the same.
    pub fn is_partial(&self, all: &Bits) -> bool {
        self.complete && self.seen != *all
    }

    /// Whether a slot was busy on some packet's way.
    pub fn has_collided(&self) -> bool {
        self.flags & flag::COLLISION != 0
    }
}
