//! A lane's chunks: the last two windows of its stream, each at its number modulo that. Memory comes with the
//! first chunks and is used again by those that follow.

use sumac_values as values;
use sumac_wire::{
    Header, MAX_WORKERS, Reason, Time,
    budget::Budget,
    dynamic::host::{Action, Bits, ChunkMeta, Job, Outcome, note_received, terms},
    header::{Format, flag},
    stream::is_later,
};

use crate::{
    floats::{FloatStock, Floats},
    members::{Members, Source},
};

/// Time without a contribution after which a lane with a chunk that is not complete is stalled, in
/// nanoseconds.
const STALL_TIMEOUT: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) meta: ChunkMeta,
    /// The sum, or the bits of the complete sum of floats.
    values: Box<[i32]>,
    floats: Option<Floats>,
    /// The own exponent of a complete sum of floats in 16 bits.
    pub(crate) exponent: Option<i8>,
    asked: Option<Asked>,
    /// Of a complete one: whether the chunks up to the one a window later pass the slots, which every answer
    /// repeats.
    pub(crate) next_passes: bool,
}

/// The workers that have requested an answer since the last one to an aggregator.
#[derive(Debug)]
struct Asked {
    upstream: u8,
    who: Bits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// It is in; what follows.
    Taken(Outcome),
    Left(Action),
    /// There is no room for more chunks' floats at once: it must come again.
    NoRoom,
}

#[derive(Debug)]
pub(crate) struct Ring {
    /// A power of two; empty until the lane's first packet.
    chunks: Vec<Chunk>,
    kept: u32,
    elements: usize,
    stock: FloatStock,
    /// The first chunk that is not summed.
    next: u32,
    /// The latest chunk of which something is in.
    latest: u32,
    /// The known prefix of results that each worker has received.
    received: Vec<u32>,
    /// The operations with a loss bound, and the chunks of one that each worker was left out of.
    budget: Budget,
    /// The last contribution; none once the lane is known to be stalled, or to wait for nothing.
    last: Option<Time>,
}

impl Ring {
    pub(crate) fn new(kept: u32, elements: u16, racks: usize, stock: FloatStock) -> Ring {
        let received = vec![0; racks * MAX_WORKERS];
        Ring {
            chunks: Vec::new(),
            kept,
            elements: elements.into(),
            stock,
            next: 0,
            latest: 0,
            received,
            budget: Budget::default(),
            last: None,
        }
    }

    pub(crate) fn note_received(&mut self, bits: &Bits, received: u32) {
        note_received(&mut self.received, bits, received);
    }

    /// Returns the most bytes of one, without floats.
    pub(crate) fn bytes(kept: u32, elements: u16) -> u64 {
        u64::from(kept) * (size_of::<Chunk>() + usize::from(elements) * size_of::<i32>()) as u64
    }

    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    pub(crate) fn get(&self, seq: u32) -> Option<&Chunk> {
        self.chunks.get(self.place(seq)).filter(|chunk| chunk.meta.seq() == Some(seq))
    }

    pub(crate) fn get_mut(&mut self, seq: u32) -> Option<&mut Chunk> {
        let place = self.place(seq);
        self.chunks.get_mut(place).filter(|chunk| chunk.meta.seq() == Some(seq))
    }

    fn place(&self, seq: u32) -> usize {
        (seq & (self.kept - 1)) as usize
    }

    /// Returns those of the 32 chunks after `seq` of which a part is in, a bit each.
    pub(crate) fn begun_after(&self, seq: u32) -> u32 {
        // Mostly all chunks come in order, and as a whole.
        let ahead = if is_later(self.latest, seq) { self.latest.wrapping_sub(seq) } else { 0 };
        let later = |ahead: &u32| self.get(seq.wrapping_add(1 + ahead));
        let begun =
            (0..ahead.min(u32::BITS)).filter(|ahead| later(ahead).is_some_and(|chunk| chunk.meta.is_begun()));
        begun.fold(0, |bits, ahead| bits | 1 << ahead)
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.last.map(|last| last.plus(STALL_TIMEOUT))
    }

    /// Returns the workers that the first chunk which is not complete waits for, once when the lane stalls.
    pub(crate) fn on_timeout(&mut self, now: Time, all: &Bits) -> Option<Bits> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        self.last = None;
        let mut begun = (0..self.kept).filter_map(|ahead| self.get(self.next.wrapping_add(ahead)));
        begun.find(|chunk| !chunk.meta.is_complete()).map(|chunk| chunk.meta.missing(all))
    }

    /// Adds a contribution or a sum that was admitted, and completes its chunk if it is a flush that may;
    /// `rank`: of the only worker in it.
    pub(crate) fn take(
        &mut self,
        now: Time,
        header: &Header,
        payload: &[u8],
        members: &Members,
        rank: Option<u16>,
    ) -> Done {
        let done = self.absorb(now, header, payload, members.all(), rank);
        if let (Done::Taken(_), Some(terms), Some(rank)) = (done, terms(header), rank)
            && usize::from(rank) < MAX_WORKERS
        {
            self.budget.agree(terms, 1 << rank);
        }
        let is_waiting =
            matches!(done, Done::Taken(Outcome::Wait) | Done::Left(Action::Ignore(Reason::Duplicate)));
        match header.has(flag::PARTIAL) && is_waiting && self.flush(header, members) {
            true => Done::Taken(Outcome::Complete),
            false => done,
        }
    }

    /// Completes a chunk without some workers. Returns whether it may.
    fn flush(&mut self, header: &Header, members: &Members) -> bool {
        let place = self.place(header.seq);
        let Some(chunk) = self.chunks.get_mut(place) else { return false };
        let Some(left_out) = members.rank_bits(&chunk.meta.missing(members.all())) else { return false };
        if !chunk.meta.flush(header, members.all(), left_out, &mut self.budget) {
            return false;
        }
        self.complete(place, header, left_out);
        true
    }

    fn absorb(&mut self, now: Time, header: &Header, payload: &[u8], all: &Bits, rank: Option<u16>) -> Done {
        if self.chunks.is_empty() {
            self.chunks.resize_with(self.kept as usize, Chunk::default);
        }
        let place = self.place(header.seq);
        let Some(chunk) = self.chunks.get_mut(place) else { return Done::NoRoom };
        let mut after = chunk.meta;
        let action = after.absorb(header, Job { all, kept: self.kept, received: &self.received });
        let overflowed = match action {
            Action::Store | Action::Add if header.has(flag::RAW_FLOAT) => {
                if !self.keep_floats(header, rank, payload) {
                    return Done::NoRoom;
                }
                false
            }
            Action::Store => {
                values::store(chunk.values(self.elements), payload);
                false
            }
            Action::Add if header.has(flag::MAXIMUM) => {
                values::maximum(chunk.values(self.elements), payload);
                false
            }
            Action::Add => values::add_saturating(chunk.values(self.elements), payload),
            Action::Reply | Action::AskRaw | Action::Refuse | Action::Ignore(_) => {
                // It may have learnt of congestion.
                chunk.meta = after;
                return Done::Left(action);
            }
        };
        let Some(chunk) = self.chunks.get_mut(place) else { return Done::NoRoom };
        chunk.meta = after;
        self.last = Some(now);
        self.latest = if is_later(header.seq, self.latest) { header.seq } else { self.latest };
        let outcome = chunk.meta.settle(all, overflowed);
        if outcome == Outcome::Complete {
            self.complete(place, header, 0);
        }
        Done::Taken(outcome)
    }

    /// Keeps a worker's floats of a chunk; returns whether there was room.
    fn keep_floats(&mut self, header: &Header, rank: Option<u16>, payload: &[u8]) -> bool {
        let Some(rank) = rank else { return false };
        let seq = header.seq;
        let place = self.place(seq);
        let own = self.chunks.get_mut(place).and_then(|chunk| chunk.floats.take());
        let Some(mut floats) = own.or_else(|| self.room_for_floats(seq)) else { return false };
        self.stock.put(&mut floats, rank, header.exponent, payload);
        if let Some(chunk) = self.chunks.get_mut(place) {
            chunk.floats = Some(floats);
        }
        true
    }

    /// Returns room for the floats of chunk `seq`: free room, or that of the chunk furthest ahead. Workers
    /// wait for the earliest chunk with all others in flight: if it had to wait for room, none would ever
    /// become free.
    fn room_for_floats(&mut self, seq: u32) -> Option<Floats> {
        if let Some(floats) = self.stock.take() {
            return Some(floats);
        }
        let mut later = (1..self.kept).rev().map(|ahead| seq.wrapping_add(ahead));
        let last = later.find(|seq| self.get(*seq).is_some_and(|chunk| chunk.floats.is_some()))?;
        let chunk = self.get_mut(last)?;
        chunk.meta.forget_floats();
        chunk.floats.take()
    }

    /// Ends the sum of a chunk, for the packet with `header`; `left_out`: the ranks of the workers that are
    /// not in it.
    fn complete(&mut self, place: usize, header: &Header, left_out: u32) {
        if let Some(chunk) = self.chunks.get_mut(place) {
            chunk.exponent = None;
            if let Some(floats) = chunk.floats.take() {
                let values = chunk.values(self.elements);
                if header.format == Format::Int16 as u8 {
                    let words = values.len().min(header.elements.into());
                    chunk.exponent = Some(self.stock.sum_halves(&floats, left_out, &mut values[..words]));
                } else {
                    self.stock.sum(&floats, left_out, values);
                }
                self.stock.give(floats);
            }
        }
        while self.get(self.next).is_some_and(|chunk| chunk.meta.is_complete()) {
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Drops the sums that are not complete.
    pub(crate) fn renew(&mut self) {
        for chunk in &mut self.chunks {
            chunk.meta.forget();
            if let Some(floats) = chunk.floats.take() {
                self.stock.give(floats);
            }
        }
    }
}

impl Chunk {
    fn values(&mut self, elements: usize) -> &mut [i32] {
        if self.values.is_empty() {
            self.values = vec![0; elements].into();
        }
        &mut self.values
    }

    /// Notes an answer to all. A packet that completed the chunk asks for nothing, also when it was sent
    /// again: the others have not missed an answer.
    pub(crate) fn answered(&mut self) {
        self.asked = None;
    }

    /// Returns whether workers that ask again for a chunk's answer are to get it.
    ///
    /// An aggregator distributes it to all below, and those that miss it ask at the same time: one answer is
    /// enough. A worker that asks twice has missed that one too.
    pub(crate) fn is_to_answer(&mut self, bits: &Bits, source: Source) -> bool {
        let Source::Upstream(upstream) = source else { return true };
        if let Some(asked) = &mut self.asked
            && asked.upstream == upstream
            && asked.who.iter().zip(bits).all(|(who, bits)| who & bits == 0)
        {
            asked.who.iter_mut().zip(bits).for_each(|(who, bits)| *who |= bits);
            return false;
        }
        self.asked = Some(Asked { upstream, who: *bits });
        true
    }

    pub(crate) fn write(&self, payload: &mut [u8]) {
        values::write(payload, &self.values);
    }
}
