//! The systems that are checked: workers, aggregators, parameter host, and the steps of each.

use sumac_wire::{
    Header, Kind, MAX_WORKERS, Reason,
    dynamic::{
        self, Action, Contribution, SlotMeta, decide,
        host::{self, Bits, ChunkMeta, Outcome},
        owner,
    },
    header::flag,
};

use crate::model::State;

const JOB: u16 = 3;

/// The cause for which a chunk's integers do not fit, so that workers send floats (ATP section 3.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    None,
    /// Worker 0's values.
    Value,
    /// Every sum of two values, in slots and at the host.
    Sum,
}

/// The system to check.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// Workers of each rack.
    pub racks: &'static [u32],
    /// Workers whose first aggregator is the second one; without one they send to the host.
    pub direct: u32,
    /// Whether there is a second aggregator, before the parameter host.
    pub two_levels: bool,
    /// Chunks of the stream.
    pub chunks: u32,
    /// Chunks that a worker sends ahead of its first without a result.
    pub window: u32,
    /// Slots of each aggregator. A packet may name any of them: after a collision workers learn of another
    /// slot at different times.
    pub slots: u32,
    /// Whether a worker may send past the aggregators at any time, and through them again (mixed paths).
    pub bypasses: bool,
    pub overflow: Overflow,
    /// Whether worker 0 may die and be replaced, which renews the job's incarnation.
    pub renews: bool,
    /// Whether another job takes slots that are free, or whose sum has left.
    pub shared: bool,
    /// The chunks of an operation that each worker may be left out of; any worker may flush at any time. 0:
    /// no bounded loss.
    pub limit: u16,
    /// Whether all workers have stated the terms of the first operation before its first chunk.
    pub stated: bool,
    /// Whether worker 0 sends flushes and terms of the largest limit.
    pub hostile: bool,
    /// Whether the host ignores `received` and infers from a complete chunk that all have those a window
    /// older.
    pub infers: bool,
}

/// The form of a worker's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    First,
    /// Marked as sent again.
    Again,
    /// The floats that the parameter host asked for.
    Floats,
    /// A flush.
    Flush,
    /// A flush with floats.
    FlushFloats,
}

impl Form {
    fn is_raw(self) -> bool {
        matches!(self, Form::Floats | Form::FlushFloats)
    }

    fn is_flush(self) -> bool {
        matches!(self, Form::Flush | Form::FlushFloats)
    }
}

/// Chunks of an operation.
pub const OPERATION: u32 = 4;

/// The first chunk of a chunk's operation.
fn operation(seq: u32) -> u32 {
    seq / OPERATION * OPERATION
}

/// A contribution, or what a level made of some, with a sum in the elements' stead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    pub header: Header,
    /// The contributions in the sum.
    pub sum: u64,
}

/// A slot and its value.
pub type Slot = (SlotMeta, u64);

/// An aggregator: its slots, and whether it has the job's new incarnation.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct Aggregator {
    pub slots: Vec<Slot>,
    pub is_renewed: bool,
}

/// The field of a sum for one worker's contribution to a chunk: four bits, which count integers by one, and
/// floats or the integers of a replacement by [`OTHER`].
fn field(worker: usize, chunk: u32) -> u32 {
    4 * (worker as u32 * 5 + chunk)
}

const OTHER: u64 = 4;

pub fn job_owner(is_renewed: bool) -> u32 {
    owner(JOB, 1 + u16::from(is_renewed), 0)
}

impl System {
    pub fn workers(&self) -> usize {
        (self.racks.iter().sum::<u32>() + self.direct) as usize
    }

    /// Returns a worker's bit at the second level, its bit in its rack, and whether it has a rack's
    /// aggregator.
    pub fn place(&self, worker: usize) -> (usize, u32, bool) {
        let mut rank = worker as u32;
        for (rack, workers) in self.racks.iter().enumerate() {
            if rank < *workers {
                return (rack, rank, true);
            }
            rank -= workers;
        }
        (self.racks.len() + rank as usize, 0, false)
    }

    /// Returns the first aggregator of a worker's packets, if there is one.
    pub fn first_hop(&self, worker: usize) -> Option<Option<usize>> {
        match self.place(worker) {
            (rack, _, true) => Some(Some(rack)),
            _ => self.two_levels.then_some(None),
        }
    }

    pub fn aggregators(&self) -> impl Iterator<Item = Option<usize>> {
        (0..self.racks.len()).map(Some).chain(self.two_levels.then_some(None))
    }

    fn all(&self) -> Bits {
        let mut all = [0; host::MAX_RACKS];
        for worker in 0..self.workers() {
            let (rack, rank, _) = self.place(worker);
            all[rack] |= 1 << rank;
        }
        all
    }

    pub fn kept(&self) -> u32 {
        (2 * self.window).next_power_of_two()
    }

    /// Whether a complete chunk's sum is one that the workers may get.
    fn is_right(&self, seq: u32, sum: u64) -> bool {
        let mut rest = sum;
        // The integers of one worker fit, unless its value does not.
        let is_alone = |worker| sum == 1 << field(worker, seq) && self.limit > 0;
        for worker in 0..self.workers() {
            let term = sum >> field(worker, seq) & 0xf;
            rest &= !(0xf << field(worker, seq));
            let is_in = match self.overflow {
                Overflow::None => term == 1 || term == OTHER && self.renews && worker == 0,
                Overflow::Value => term == OTHER || is_alone(worker) && worker != 0,
                Overflow::Sum => term == OTHER || is_alone(worker),
            };
            // Of a chunk that was flushed: at most once.
            if !(is_in || self.limit > 0 && term == 0) {
                return false;
            }
        }
        rest == 0
    }

    /// Returns a worker's packet, of the job's first incarnation or of the renewed one.
    pub fn packet(&self, worker: usize, seq: u32, form: Form, received: u32, is_renewed: bool) -> Packet {
        let (rack, rank, has_rack) = self.place(worker);
        let racks = self.racks.len() as u8 + self.direct as u8;
        let is_too_large = self.overflow == Overflow::Value && worker == 0 && !form.is_raw();
        let flags = [
            (!has_rack, flag::LEVEL),
            (form != Form::First, flag::RESEND),
            (form.is_raw(), flag::RAW_FLOAT),
            (form.is_flush(), flag::PARTIAL),
            (is_too_large, flag::OVERFLOW),
        ];
        let header = Header {
            kind: Kind::Contribution as u8,
            flags: flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag),
            job: JOB,
            epoch: 1 + u16::from(is_renewed),
            seq,
            elements: 1,
            fan_in_0: if has_rack { self.racks[rack] as u8 } else { 1 },
            fan_in_1: if self.two_levels || !has_rack { racks } else { 0 },
            bitmap_0: 1 << rank,
            bitmap_1: 1 << rack,
            received,
            ..Header::default()
        };
        let header = self.bounded(header, worker, form);
        let is_other = form.is_raw() || is_renewed && worker == 0;
        let term = if is_other { OTHER } else { 1 };
        Packet { header, sum: term << field(worker, seq) }
    }

    /// Adds limit and operation of a flush, and the terms of an operation to its first chunk. Worker 0 may be
    /// hostile: it sends the largest limit with every chunk.
    fn bounded(&self, header: Header, worker: usize, form: Form) -> Header {
        let Header { seq, .. } = header;
        let is_hostile = self.hostile && worker == 0;
        let (limit, first) = if is_hostile { (u16::MAX, seq) } else { (self.limit, operation(seq)) };
        let end = if is_hostile { self.chunks } else { first + OPERATION };
        match form.is_flush() {
            true => Header { contributors: limit, next_seq: operation(seq), ..header },
            false if seq == first => Header { contributors: limit, next_seq: end, ..header },
            false => header,
        }
    }

    /// Takes a packet at an aggregator; what it sends on. Packets of another incarnation than its own are
    /// refused.
    pub fn aggregate(&self, at: &mut Aggregator, packet: &Packet) -> Option<Packet> {
        let header = &packet.header;
        if header.epoch != 1 + u16::from(at.is_renewed) {
            return None;
        }
        let (meta, value) = &mut at.slots[header.slot as usize];
        let (mut after, action) = decide(meta, &Contribution::of(header), 0, u32::MAX);
        let before = *meta;
        let adds = matches!(action, Action::Add | Action::Complete | Action::Flush { adds: true });
        let overflow = if adds && self.overflow == Overflow::Sum { flag::OVERFLOW } else { 0 };
        match action {
            Action::Store => *value = packet.sum,
            _ if adds => *value += packet.sum,
            _ => {}
        }
        if after.owner != 0 {
            after.flags |= overflow;
        }
        *meta = after;
        let sent = match action {
            Action::Complete => Some((dynamic::sum(header, &after), *value)),
            Action::Flush { .. } => Some((dynamic::flushed(header, &before), *value)),
            Action::Pass => Some((dynamic::passed(header), packet.sum)),
            Action::Collide => Some((dynamic::collided(header), packet.sum)),
            Action::Store | Action::Add | Action::Drop => None,
        };
        if meta.owner == 0 {
            *value = 0;
        }
        sent.map(|(header, sum)| {
            // The mark of a collision is left out: it only chooses a slot for later, and packets may name
            // any.
            let flags = (header.flags | overflow) & !flag::COLLISION;
            Packet { header: Header { flags, ..header }, sum }
        })
    }

    pub fn at_host(&self, state: &mut State, packet: &Packet) {
        let header = &packet.header;
        if header.epoch != 1 + u16::from(state.resume.is_some()) {
            return;
        }
        let all = self.all();
        let place = (header.seq % self.kept()) as usize;
        let received = self.note(state, packet, &all);
        let (chunk, value) = &mut state.host[place];
        let before = chunk.seq();
        let adds = match chunk.absorb(header, host::Job { all: &all, kept: self.kept(), received: &received })
        {
            host::Action::Store => {
                *value = packet.sum;
                false
            }
            host::Action::Add => {
                *value += packet.sum;
                true
            }
            host::Action::Ignore(Reason::Duplicate) => return self.flush(state, header, &all),
            _ => return,
        };
        let worker =
            (0..self.workers()).find(|worker| packet.sum == packet.sum & 0xf << field(*worker, header.seq));
        if let (Some(terms), Some(worker)) = (host::terms(header), worker) {
            state.budget.agree(terms, 1 << worker);
        }
        if let Some(given_up) = before.filter(|seq| *seq != header.seq) {
            state.is_early |= state.have.iter().any(|have| have >> given_up & 1 == 0);
        }
        let is_too_large = adds && self.overflow == Overflow::Sum && !header.has(flag::RAW_FLOAT);
        self.settle(state, place, &all, is_too_large);
        self.flush(state, header, &all);
    }

    /// Notes how far a packet's senders have received; how far all have, as the decision takes it.
    fn note(&self, state: &mut State, packet: &Packet, all: &Bits) -> Vec<u32> {
        let racks = self.racks.len() + self.direct as usize;
        if self.infers {
            return vec![u32::MAX >> 1; racks * MAX_WORKERS];
        }
        let mut received = vec![0; racks * MAX_WORKERS];
        let index = |worker| {
            let (rack, rank, _) = self.place(worker);
            rack * MAX_WORKERS + rank as usize
        };
        (0..).zip(&state.received).for_each(|(worker, known)| received[index(worker)] = *known);
        if let Some(bits) = host::holds(&packet.header, all) {
            host::note_received(&mut received, &bits, packet.header.received);
        }
        (0..).zip(&mut state.received).for_each(|(worker, known)| *known = received[index(worker)]);
        received
    }

    /// Completes a flush's chunk if it may.
    fn flush(&self, state: &mut State, header: &Header, all: &Bits) {
        let (chunk, value) = &mut state.host[(header.seq % self.kept()) as usize];
        let missing = chunk.missing(all);
        let is_missing = |worker: &usize| {
            let (rack, rank, _) = self.place(*worker);
            missing[rack] >> rank & 1 == 1
        };
        let left_out = (0..self.workers()).filter(is_missing).fold(0, |bits, worker| bits | 1u32 << worker);
        if !header.has(flag::PARTIAL) || !chunk.flush(header, all, left_out, &mut state.budget) {
            return;
        }
        let is_in = |worker: usize| *value >> field(worker, header.seq) & 0xf != 0;
        state.is_wrong |= (0..self.workers()).any(|worker| is_in(worker) == (left_out >> worker & 1 == 1));
        state.is_wrong |=
            !self.is_right(header.seq, *value) || 2 * left_out.count_ones() as usize > self.workers();
        state.complete |= 1 << header.seq;
        (0..self.workers()).filter(is_missing).for_each(|worker| state.left_out[worker] |= 1 << header.seq);
    }

    /// Whether a worker was left out of more chunks of an operation than its limit.
    pub fn is_overdrawn(&self, state: &State) -> bool {
        let of = |bits: u32, first| {
            (0..self.chunks).filter(move |seq| operation(*seq) == first && bits >> seq & 1 == 1)
        };
        let count = |bits: &u32| (0..self.chunks).map(|first| of(*bits, first).count()).max();
        state.left_out.iter().filter_map(count).any(|count| count > usize::from(self.limit))
    }

    /// Completes the chunk in `place` if all values are in, or asks for floats.
    fn settle(&self, state: &mut State, place: usize, all: &Bits, overflowed: bool) {
        let (chunk, value) = &mut state.host[place];
        let Some(seq) = chunk.seq() else { return };
        match chunk.settle(all, overflowed) {
            Outcome::Complete => {
                state.is_wrong |= !self.is_right(seq, *value);
                state.complete |= 1 << seq;
            }
            Outcome::AskRaw => state.asked |= 1 << seq,
            Outcome::Wait => {}
        }
    }

    /// The host takes the new incarnation: it keeps complete chunks and begins all others anew. The
    /// replacement of worker 0 begins with the first of those.
    pub fn renew_host(&self, state: &mut State) {
        let first = state.complete.trailing_ones();
        state.resume = Some(first);
        for (chunk, _) in &mut state.host {
            ChunkMeta::forget(chunk);
        }
    }

    /// A worker continues under the new incarnation; worker 0 is another then.
    pub fn renew_worker(&self, state: &mut State, worker: usize) {
        state.renewed |= 1 << worker;
        if let (0, Some(first)) = (worker, state.resume) {
            state.have[0] = (1 << first) - 1;
            state.floats[0] = 0;
        }
    }
}
