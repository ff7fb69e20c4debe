//! The workers, the aggregators, the parameter host, the network between them, and what must hold.

use std::collections::BTreeSet;

use stateright::{Model, Property};
use sumac_wire::{
    Header, Kind, MAX_WORKERS,
    dynamic::{
        self, Action, Contribution, SlotMeta, decide,
        host::{self, Bits, ChunkMeta, Outcome},
        owner,
    },
    header::flag,
};

const JOB: u16 = 3;
const EPOCH: u16 = 1;

/// A contribution, or what a level made of some, with a sum in the elements' stead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    header: Header,
    /// The contributions in the sum.
    sum: u64,
}

/// The system to check. All chunks have the same slot, the only one of each aggregator.
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
    /// Whether another job takes free slots.
    pub shared: bool,
    /// Whether the host may complete a chunk at any time with the contributions that it has (bounded loss).
    pub flushes: bool,
    /// Whether the host ignores `received` and infers from a complete chunk that all have those a window older.
    pub infers: bool,
}

/// The property that the header's `received` field brings about.
pub const KEPT: &str = "a result is kept until all workers have it";

/// A slot and its value.
type Slot = (SlotMeta, u64);

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    /// `[rack]`
    first: Vec<Slot>,
    second: Slot,
    /// The packets from racks to the second aggregator.
    between: BTreeSet<Packet>,
    /// The packets at the last hop.
    last: BTreeSet<Packet>,
    /// The parameter host's chunks, and their values.
    host: Vec<(ChunkMeta, u64)>,
    /// `[worker]`: how far the host knows it to have received.
    received: Vec<u32>,
    /// Bits of chunks whose result was sent.
    complete: u32,
    /// `[worker]`: bits of chunks whose result it has.
    have: Vec<u32>,
    /// Whether a result was sent that does not hold every worker once.
    is_wrong: bool,
    /// Whether the host gave up a result that a worker does not have.
    is_early: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A worker's packet arrives at its first aggregator: worker, chunk, whether it is marked as sent again, how far it
    /// had received when it was sent.
    Contribution(usize, u32, bool, u32),
    /// A rack's at the second.
    Between(Packet),
    /// One at the host.
    Last(Packet),
    /// A chunk's result passes an aggregator: a rack's, or the second.
    Release(Option<usize>, u32),
    /// A chunk's result arrives at a worker.
    Result(usize, u32),
    /// Another job takes a free slot.
    Take(Option<usize>),
    /// A slot loses what it has: its aggregator starts anew, another job frees it, its age is up.
    Lose(Option<usize>),
    /// The host completes the chunk in this place.
    Flush(usize),
}

const FOREIGN: SlotMeta = SlotMeta {
    owner: owner(9, 9, 0),
    seq: 0,
    bitmap: 1,
    tensor: 0,
    stamp: 0,
    elements: 1,
    flags: 0,
    exponent: 0,
    next_exponent: 0,
    reserved: 0,
    received: 0,
};

impl System {
    fn workers(&self) -> usize {
        (self.racks.iter().sum::<u32>() + self.direct) as usize
    }

    /// Returns a worker's bit at the second level, its bit in its rack, and whether it has a rack's aggregator.
    fn place(&self, worker: usize) -> (usize, u32, bool) {
        let mut rank = worker as u32;
        for (rack, workers) in self.racks.iter().enumerate() {
            if rank < *workers {
                return (rack, rank, true);
            }
            rank -= workers;
        }
        (self.racks.len() + rank as usize, 0, false)
    }

    fn all(&self) -> Bits {
        let mut all = [0; host::MAX_RACKS];
        for worker in 0..self.workers() {
            let (rack, rank, _) = self.place(worker);
            all[rack] |= 1 << rank;
        }
        all
    }

    fn kept(&self) -> u32 {
        (2 * self.window).next_power_of_two()
    }

    /// Returns one worker's contribution to a chunk: one, in four bits of its own.
    fn term(worker: usize, chunk: u32) -> u64 {
        1 << (4 * (worker as u32 * 4 + chunk))
    }

    fn correct(&self, chunk: u32) -> u64 {
        (0..self.workers()).map(|worker| System::term(worker, chunk)).sum()
    }

    fn packet(&self, worker: usize, seq: u32, again: bool, received: u32) -> Packet {
        let (rack, rank, has_rack) = self.place(worker);
        let level = if has_rack { 0 } else { flag::LEVEL };
        let racks = self.racks.len() as u8 + self.direct as u8;
        let header = Header {
            kind: Kind::Contribution as u8,
            flags: level | if again { flag::RESEND } else { 0 },
            job: JOB,
            epoch: EPOCH,
            seq,
            elements: 1,
            fan_in_0: if has_rack { self.racks[rack] as u8 } else { 1 },
            fan_in_1: if self.two_levels || !has_rack { racks } else { 0 },
            bitmap_0: 1 << rank,
            bitmap_1: 1 << rack,
            received,
            ..Header::default()
        };
        Packet { header, sum: System::term(worker, seq) }
    }

    /// Chunks that a worker may send, or have sent.
    fn reached(&self, state: &State, worker: usize) -> u32 {
        (state.have[worker].trailing_ones() + self.window).min(self.chunks)
    }

    /// Takes a packet at an aggregator; what it sends on.
    fn aggregate((meta, value): &mut Slot, packet: &Packet) -> Option<Packet> {
        let header = &packet.header;
        let (after, action) = decide(meta, &Contribution::of(header), 0, u32::MAX);
        let before = std::mem::replace(meta, after);
        match action {
            Action::Store => *value = packet.sum,
            Action::Add | Action::Complete | Action::Flush { adds: true } => *value += packet.sum,
            Action::Flush { adds: false } | Action::Pass | Action::Collide | Action::Drop => {}
        }
        let sent = match action {
            Action::Complete => Some(Packet { header: dynamic::sum(header, &after), sum: *value }),
            Action::Flush { .. } => Some(Packet { header: dynamic::flushed(header, &before), sum: *value }),
            Action::Pass => Some(Packet { header: dynamic::passed(header), ..*packet }),
            Action::Collide => Some(Packet { header: dynamic::collided(header), ..*packet }),
            Action::Store | Action::Add | Action::Drop => None,
        };
        if meta.owner == 0 {
            *value = 0;
        }
        sent
    }

    fn at_worker(
        &self,
        state: &mut State,
        worker: usize,
        seq: u32,
        again: bool,
        received: u32,
    ) -> Option<Packet> {
        let packet = self.packet(worker, seq, again, received);
        match self.place(worker) {
            (rack, _, true) => System::aggregate(&mut state.first[rack], &packet),
            _ if self.two_levels => System::aggregate(&mut state.second, &packet),
            _ => Some(packet),
        }
    }

    fn at_host(&self, state: &mut State, packet: &Packet) {
        let all = self.all();
        let header = &packet.header;
        let place = (header.seq % self.kept()) as usize;
        let received = self.note(state, packet, &all);
        let (chunk, value) = &mut state.host[place];
        let before = chunk.seq();
        match chunk.absorb(header, host::Job { all: &all, kept: self.kept(), received: &received }) {
            host::Action::Store => *value = packet.sum,
            host::Action::Add => *value += packet.sum,
            _ => return,
        }
        if let Some(given_up) = before.filter(|seq| *seq != header.seq) {
            state.is_early |= state.have.iter().any(|have| have >> given_up & 1 == 0);
        }
        self.settle(state, place, &all);
    }

    /// Notes how far a packet's senders have received; how far all have, as the decision takes it.
    fn note(&self, state: &mut State, packet: &Packet, all: &Bits) -> Vec<u32> {
        if self.infers {
            return vec![u32::MAX >> 1; host::MAX_RACKS * MAX_WORKERS];
        }
        let mut received = vec![0; host::MAX_RACKS * MAX_WORKERS];
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

    /// Returns the contributors of a sum of chunk `seq`.
    fn holders(&self, seq: u32, sum: u64) -> Bits {
        let mut holders = [0; host::MAX_RACKS];
        for worker in (0..self.workers()).filter(|worker| sum & System::term(*worker, seq) != 0) {
            let (rack, rank, _) = self.place(worker);
            holders[rack] |= 1 << rank;
        }
        holders
    }

    /// Completes the chunk in `place` if the values of `of` are in.
    fn settle(&self, state: &mut State, place: usize, of: &Bits) {
        let (chunk, value) = &mut state.host[place];
        let Some(seq) = chunk.seq() else { return };
        if chunk.settle(of, false) == Outcome::Complete {
            let correct = self.correct(seq);
            // Of a chunk that was flushed: at most once.
            state.is_wrong |= *value != correct && !(self.flushes && *value & !correct == 0);
            state.complete |= 1 << seq;
        }
    }

    fn slot(state: &mut State, rack: Option<usize>) -> &mut Slot {
        match rack {
            Some(rack) => &mut state.first[rack],
            None => &mut state.second,
        }
    }

    fn aggregators(&self) -> impl Iterator<Item = Option<usize>> {
        (0..self.racks.len()).map(Some).chain(self.two_levels.then_some(None))
    }

    /// Whether all chunks complete when the network loses nothing any more and workers send again what they miss.
    fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        let done = (1 << self.chunks) - 1;
        for _ in 0..4 * self.chunks {
            for worker in 0..self.workers() {
                for seq in state.have[worker].trailing_ones()..self.reached(&state, worker) {
                    self.send_again(&mut state, worker, seq);
                }
            }
        }
        !state.is_wrong && state.have.iter().all(|have| *have == done)
    }

    /// A worker sends again, and everything arrives.
    fn send_again(&self, state: &mut State, worker: usize, seq: u32) {
        if state.have[worker] >> seq & 1 == 1 {
            return;
        }
        let (_, _, has_rack) = self.place(worker);
        let received = state.have[worker].trailing_ones().min(seq);
        let sent = self.at_worker(state, worker, seq, true, received);
        let sent = match sent {
            Some(packet) if self.two_levels && has_rack => System::aggregate(&mut state.second, &packet),
            other => other,
        };
        if let Some(packet) = sent {
            self.at_host(state, &packet);
        }
        if state.complete >> seq & 1 == 1 {
            for have in &mut state.have {
                *have |= 1 << seq;
            }
        }
    }
}

impl Model for System {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            first: vec![Default::default(); self.racks.len()],
            second: Default::default(),
            between: BTreeSet::new(),
            last: BTreeSet::new(),
            host: vec![Default::default(); self.kept() as usize],
            received: vec![0; self.workers()],
            complete: 0,
            have: vec![0; self.workers()],
            is_wrong: false,
            is_early: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for worker in 0..self.workers() {
            let prefix = state.have[worker].trailing_ones();
            for seq in 0..self.reached(state, worker) {
                // Sent at any time from when the worker may send it until it has its result.
                for received in (seq + 1).saturating_sub(self.window)..=prefix.min(seq) {
                    steps.extend([false, true].map(|again| Step::Contribution(worker, seq, again, received)));
                }
            }
            let results = (0..self.chunks).filter(|seq| state.complete >> seq & 1 == 1);
            steps.extend(results.map(|seq| Step::Result(worker, seq)));
        }
        steps.extend(state.between.iter().copied().map(Step::Between));
        steps.extend(state.last.iter().copied().map(Step::Last));
        if self.flushes {
            let begun =
                |place: &usize| state.host[*place].0.seq().is_some() && !state.host[*place].0.is_complete();
            steps.extend((0..state.host.len()).filter(begun).map(Step::Flush));
        }
        for aggregator in self.aggregators() {
            let results = (0..self.chunks).filter(|seq| state.complete >> seq & 1 == 1);
            steps.extend(results.map(|seq| Step::Release(aggregator, seq)));
            steps.extend(self.shared.then_some(Step::Take(aggregator)));
            steps.push(Step::Lose(aggregator));
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Contribution(worker, seq, again, received) => {
                let sent = self.at_worker(&mut state, worker, seq, again, received);
                let has_rack = self.place(worker).2;
                if self.aggregators().next().is_none() {
                    // It arrives again when the worker's next sending does.
                    sent.iter().for_each(|packet| self.at_host(&mut state, packet));
                    return (state != *before).then_some(state);
                }
                let hop = if self.two_levels && has_rack { &mut state.between } else { &mut state.last };
                hop.extend(sent);
            }
            Step::Between(packet) => {
                let sent = System::aggregate(&mut state.second, &packet);
                state.last.extend(sent);
            }
            Step::Last(packet) => self.at_host(&mut state, &packet),
            Step::Release(rack, seq) => {
                let (meta, value) = System::slot(&mut state, rack);
                *meta = dynamic::release(meta, owner(JOB, EPOCH, 0), seq, 0, u32::MAX);
                *value = if meta.owner == 0 { 0 } else { *value };
            }
            Step::Result(worker, seq) => state.have[worker] |= 1 << seq,
            Step::Take(rack) => {
                let slot = System::slot(&mut state, rack);
                if slot.0.owner == 0 {
                    *slot = (FOREIGN, 0);
                }
            }
            Step::Flush(place) => {
                let (chunk, value) = &state.host[place];
                let of = self.holders(chunk.seq().unwrap_or(0), *value);
                self.settle(&mut state, place, &of);
            }
            Step::Lose(rack) => *System::slot(&mut state, rack) = Default::default(),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every sum holds every worker exactly once", |_: &Self, state: &State| {
                !state.is_wrong
            }),
            Property::always(KEPT, |_: &Self, state: &State| !state.is_early),
            Property::always("sending again completes every chunk", |system: &Self, state: &State| {
                system.recovers(state)
            }),
            Property::sometimes("every chunk completes", |system: &Self, state: &State| {
                state.have.iter().all(|have| *have == (1 << system.chunks) - 1)
            }),
            Property::sometimes("an aggregator completes a sum", |system: &Self, state: &State| {
                system.aggregators().next().is_none()
                    || state.last.iter().any(|packet| !packet.header.has(flag::RESEND))
            }),
        ]
    }
}
