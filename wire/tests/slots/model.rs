//! The workers, the network and what must hold.

use std::collections::BTreeSet;

use stateright::{Model, Property};
use sumac_wire::{
    Header, Kind,
    header::{exponent, flag},
    tables::{JobEntry, job_flag},
};

use crate::{
    aggregator::{Aggregator, Sent},
    packet::{JOB, Packet},
};

/// The property that the header's `received` field brings about.
pub const KEPT: &str = "a version is given up only when all senders have its result";

/// The property that budgets bring about.
pub const BUDGET: &str = "no worker is left out of more chunks of an operation than its limit";

/// The system to check.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// Aggregators of workers below the root; none: workers speak to it themselves.
    pub racks: u32,
    /// Aggregators between those and the root, each with as many racks; none: there are two levels. They are
    /// numbered behind the racks.
    pub middles: u32,
    /// Workers of each rack, or of the root.
    pub workers: u32,
    pub slots_log2: u32,
    /// Chunks of the stream.
    pub chunks: u32,
    pub stealing: bool,
    /// Whether chunks need an exponent, and workers may or may not know it a chunk ahead.
    pub rounds: bool,
    /// Whether a contribution is sent only when it is wanted: the first sending of each is lost, and its
    /// worker asks.
    pub questions: bool,
    /// Bounded loss: the chunks of an operation, two long, that each worker may be left out of. Not zero:
    /// every contribution may come as a flush.
    pub limit: u16,
    /// Whether worker 0 also sends flushes and terms of the largest limit, of any operation.
    pub hostile: bool,
    /// Whether aggregators ignore `received`.
    pub infers: bool,
    /// Whether the job is one whose sums hold all workers, which flushes do not change.
    pub whole: bool,
    /// Whether a lane has one budget for all its workers, as on a switch.
    pub lane_budget: bool,
    /// Whether each chunk has the values of one worker. The others say so at first, and send their zeros when
    /// they are wanted.
    pub empties: bool,
}

/// A worker's slot: Algorithm 4.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Place {
    seq: u32,
    /// The chunk after this one.
    next: u32,
    version: u8,
    /// The exponent of this chunk, when it is agreed on.
    agreed: Option<i8>,
    /// Whether a question was answered by that the contribution is wanted.
    wanted: bool,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    root: Aggregator,
    racks: Vec<Aggregator>,
    /// `[worker][slot]`.
    places: Vec<Vec<Place>>,
    /// `[worker]`: what it sent for chunks that it is done with.
    sent: Vec<BTreeSet<Packet>>,
    /// `[worker]`: results that were sent to it.
    results: Vec<BTreeSet<Packet>>,
    /// The packets from racks to their parents.
    parts: BTreeSet<(u32, Packet)>,
    /// `[rack]`: what its parent sent to it.
    conclusions: Vec<BTreeSet<Packet>>,
}

/// An arrival: of a worker at its aggregator, of a rack at its parent, of the parent at a rack, of an
/// aggregator at a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Contribution(Packet, u32),
    Part(u32, Packet),
    Conclusion(u32, Packet),
    Result(u32, Packet),
}

impl System {
    fn all_workers(&self) -> u32 {
        self.workers * self.racks.max(1)
    }

    /// Returns one worker's contribution to a chunk: one, in two bits of its own.
    fn term(worker: u32, chunk: u32) -> u64 {
        1 << (2 * (worker * 8 + chunk))
    }

    /// Whether a worker's contribution to a chunk is zero.
    fn is_empty(&self, worker: u32, chunk: u32) -> bool {
        self.empties && worker != chunk % self.all_workers()
    }

    /// The values that a worker sends of a chunk.
    fn values(&self, worker: u32, chunk: u32) -> u64 {
        if self.is_empty(worker, chunk) { 0 } else { System::term(worker, chunk) }
    }

    /// The first chunk of the operation that a chunk belongs to.
    fn operation(chunk: u32) -> u32 {
        chunk & !1
    }

    fn correct(&self, chunk: u32) -> u64 {
        (0..self.all_workers()).map(|worker| self.values(worker, chunk)).sum()
    }

    /// A worker's exponent of a chunk: now this worker's is the largest, now another's.
    fn exponent(worker: u32, chunk: u32) -> i8 {
        ((worker + chunk) % 2) as i8
    }

    /// Returns the sum of a result's contributors, of whom there are at least half. For a result without
    /// elements, or of fewer contributors, it is a number that no sum has.
    fn sum_of(&self, result: &Packet) -> u64 {
        let Header { seq, elements, bitmap_0, contributors, .. } = result.header;
        if elements == 0 {
            return u64::MAX;
        }
        if !result.header.has(flag::PARTIAL) {
            return self.correct(seq);
        }
        let is_in = |worker: &u32| bitmap_0 >> worker & 1 == 1;
        let is_named = bitmap_0.count_ones() == u32::from(contributors);
        let is_quorum = 2 * u32::from(contributors) >= self.all_workers();
        let sum = (0..self.all_workers()).filter(is_in).map(|worker| self.values(worker, seq)).sum();
        if is_named && is_quorum { sum } else { u64::MAX }
    }

    fn largest_exponent(&self, chunk: u32) -> i8 {
        (0..self.all_workers()).map(|worker| System::exponent(worker, chunk)).max().unwrap_or(exponent::NONE)
    }

    fn job(&self, flags: u16, world: u32) -> JobEntry {
        let stealing = if self.stealing { job_flag::STEALING } else { 0 };
        let whole = if self.whole { job_flag::WHOLE } else { 0 };
        let lane_budget = if self.lane_budget { job_flag::LANE_BUDGET } else { 0 };
        JobEntry {
            slots: 1 << self.slots_log2,
            lane_slots_log2: self.slots_log2 as u16,
            shards: 1,
            elements: 1,
            epoch: 1,
            world: world as u16,
            contributors: self.all_workers() as u16,
            flags: flags | stealing | whole | lane_budget | job_flag::ACTIVE,
            ..JobEntry::default()
        }
    }

    fn root_job(&self) -> JobEntry {
        match self.racks {
            0 => self.job(0, self.workers),
            _ => self.job(job_flag::ROOT, self.below(None).count() as u32),
        }
    }

    fn rack_job(&self, rack: u32) -> JobEntry {
        let job = match rack < self.racks {
            true => self.job(job_flag::CHILD, self.workers),
            false => self.job(job_flag::CHILD | job_flag::ROOT, self.below(Some(rack)).count() as u32),
        };
        let beside = || self.below(self.parent(rack));
        let number = beside().take_while(|other| *other != rack).count();
        JobEntry { rack: number as u16, racks: beside().count() as u16, ..job }
    }

    /// The parent of a rack; none: the root.
    fn parent(&self, rack: u32) -> Option<u32> {
        let has_middle = self.middles > 0 && rack < self.racks;
        has_middle.then(|| self.racks + rack * self.middles / self.racks)
    }

    /// The racks that send to an aggregator.
    fn below(&self, at: Option<u32>) -> impl Iterator<Item = u32> {
        (0..self.racks + self.middles).filter(move |rack| self.parent(*rack) == at)
    }

    /// The workers below an aggregator's senders, as bits.
    fn ranks(&self, at: Option<u32>) -> Vec<u32> {
        let own = |rack: u32| (0..self.workers).map(move |worker| 1 << (rack * self.workers + worker));
        match at {
            None if self.racks == 0 => own(0).collect(),
            Some(rack) if rack < self.racks => own(rack).collect(),
            _ => self
                .below(at)
                .map(|rack| self.ranks(Some(rack)).iter().fold(0, |all, own| all | own))
                .collect(),
        }
    }

    /// Returns the packets that a worker may send for a slot: with its next chunk's exponent, or before it
    /// has that chunk.
    fn packets(&self, worker: u32, slot: u32, place: &Place) -> Vec<Packet> {
        if place.seq >= self.chunks {
            return vec![];
        }
        let version = if place.version == 1 { flag::POOL_VERSION } else { 0 };
        let round = self.rounds && place.agreed.is_none();
        let header = Header {
            kind: Kind::Contribution as u8,
            flags: version | if round { flag::EXPONENT } else { 0 },
            job: JOB,
            epoch: 1,
            seq: place.seq,
            slot,
            elements: u16::from(!round),
            fan_in_0: self.workers as u8,
            bitmap_0: 1 << (worker % self.workers),
            exponent: place.agreed.unwrap_or(exponent::NONE),
            next_exponent: exponent::NONE,
            received: place.seq,
            ..Header::default()
        };
        let packet = |header| Packet::new(header, self.values(worker, place.seq));
        let with = |next_exponent| packet(Header { next_exponent, ..header });
        if round {
            return vec![with(System::exponent(worker, place.seq))];
        }
        let question = packet(Header { flags: version | flag::QUERY, elements: 0, ..header });
        if self.questions && !place.wanted {
            return vec![question];
        }
        let first = System::operation(place.seq);
        let limited = |limit, flags, next_seq, Packet { header, sum }: Packet| {
            let flags = header.flags | flags;
            Packet { header: Header { flags, contributors: limit, next_seq, ..header }, sum }
        };
        let flush = |packet: &Packet| limited(self.limit, flag::PARTIAL, first, *packet);
        if self.is_empty(worker, place.seq) && !place.wanted {
            let empty = Header { flags: version | flag::EMPTY, elements: 0, ..header };
            // A flush has its zeros.
            let flush = (self.limit != 0).then(|| flush(&packet(header)));
            return [question, packet(empty)].into_iter().chain(flush).collect();
        }
        let asks = self.questions.then_some(question);
        let contributions = match self.rounds {
            false => vec![packet(header)],
            true => vec![with(System::exponent(worker, place.next)), with(exponent::UNKNOWN)],
        };
        let is_first = self.limit != 0 && place.seq == first;
        let stated = |packet| if is_first { limited(self.limit, 0, first + 2, packet) } else { packet };
        let contributions: Vec<_> = contributions.into_iter().map(stated).collect();
        let flushes: Vec<_> = contributions.iter().filter(|_| self.limit != 0).map(flush).collect();
        let hostile = |packet: &Packet| {
            [(flag::PARTIAL, place.seq), (flag::PARTIAL, first), (0, self.chunks)]
                .map(|(flags, next_seq)| limited(u16::MAX, flags, next_seq, *packet))
        };
        let is_hostile = self.hostile && worker == 0;
        let hostile: Vec<_> = contributions.iter().filter(|_| is_hostile).flat_map(hostile).collect();
        asks.into_iter().chain(contributions).chain(flushes).chain(hostile).collect()
    }

    /// Algorithm 4: a result of what the slot waits for moves it on.
    fn take(&self, state: &mut State, worker: u32, result: &Packet) {
        let (header, version) = (&result.header, result.header.pool_version());
        let place = &state.places[worker as usize][header.slot as usize];
        if place.seq != header.seq || place.version != version {
            return;
        }
        let waits_for_round = self.rounds && place.agreed.is_none();
        if waits_for_round != result.is_round() {
            return;
        }
        if header.has(flag::QUERY) {
            state.places[worker as usize][header.slot as usize].wanted = true;
            return;
        }
        let sent = self.packets(worker, header.slot, place);
        state.sent[worker as usize].extend(sent);
        let place = &mut state.places[worker as usize][header.slot as usize];
        if result.is_round() {
            place.agreed = Some(header.exponent);
        } else {
            let agreed = (header.next_exponent != exponent::UNKNOWN).then_some(header.next_exponent);
            let (seq, next) = (place.next, header.next_seq);
            *place = Place { seq, next, version: 1 - version, agreed, wanted: false };
        }
    }

    /// Hands on what an aggregator sent.
    fn deliver(&self, state: &mut State, rack: Option<u32>, sender: u32, sent: Sent) {
        let sender = sender as usize;
        let is_above_racks = self.racks > 0 && rack.is_none_or(|rack| rack >= self.racks);
        match (sent, rack) {
            (Sent::Up(part), rack) => {
                state.parts.insert((rack.unwrap_or(0), part));
            }
            (Sent::One(answer), _) if is_above_racks => {
                state.conclusions[sender].insert(answer);
            }
            (Sent::All(answer), rack) if is_above_racks => {
                for below in self.below(rack) {
                    state.conclusions[below as usize].insert(answer);
                }
            }
            (Sent::One(answer), _) => {
                state.results[sender].insert(answer);
            }
            (Sent::Worker(rank, answer), rack) => {
                let first = rack.unwrap_or(0) * self.workers;
                state.results[(first + u32::from(rank)) as usize].insert(answer);
            }
            (Sent::All(answer), rack) => {
                let first = (rack.unwrap_or(0) * self.workers) as usize;
                for results in &mut state.results[first..first + self.workers as usize] {
                    results.insert(answer);
                }
            }
        }
    }
}

impl Model for System {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let slots = 1 << self.slots_log2;
        let place = |slot| Place { seq: slot, next: slots + slot, version: 0, agreed: None, wanted: false };
        let workers = self.all_workers() as usize;
        vec![State {
            root: Aggregator::new(&self.root_job(), self.ranks(None), self.infers),
            racks: (0..self.racks + self.middles)
                .map(|rack| Aggregator::new(&self.rack_job(rack), self.ranks(Some(rack)), self.infers))
                .collect(),
            places: vec![(0..slots).map(place).collect(); workers],
            sent: vec![BTreeSet::new(); workers],
            results: vec![BTreeSet::new(); workers],
            parts: BTreeSet::new(),
            conclusions: vec![BTreeSet::new(); (self.racks + self.middles) as usize],
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for worker in 0..self.all_workers() {
            let index = worker as usize;
            for (slot, place) in state.places[index].iter().enumerate() {
                let now = self.packets(worker, slot as u32, place);
                steps.extend(now.into_iter().map(|packet| Step::Contribution(packet, worker)));
            }
            steps.extend(state.sent[index].iter().map(|packet| Step::Contribution(*packet, worker)));
            steps.extend(state.results[index].iter().map(|packet| Step::Result(worker, *packet)));
        }
        steps.extend(state.parts.iter().map(|(rack, packet)| Step::Part(*rack, *packet)));
        for (rack, packets) in state.conclusions.iter().enumerate() {
            steps.extend(packets.iter().map(|packet| Step::Conclusion(rack as u32, *packet)));
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        let (rack, sender, sent) = match step {
            Step::Contribution(packet, worker) if self.racks > 0 => {
                let rack = worker / self.workers;
                let sent = state.racks[rack as usize].receive(&self.rack_job(rack), &packet);
                (Some(rack), worker, sent)
            }
            Step::Contribution(packet, worker) => {
                (None, worker, state.root.receive(&self.root_job(), &packet))
            }
            Step::Part(rack, packet) => match self.parent(rack) {
                None => (None, rack, state.root.receive(&self.root_job(), &packet)),
                Some(above) => {
                    let sent = state.racks[above as usize].receive(&self.rack_job(above), &packet);
                    (Some(above), rack, sent)
                }
            },
            Step::Conclusion(rack, packet) => {
                let sent = state.racks[rack as usize].receive(&self.rack_job(rack), &packet);
                (Some(rack), 0, sent)
            }
            Step::Result(worker, packet) => {
                self.take(&mut state, worker, &packet);
                return (state != *before).then_some(state);
            }
        };
        if let Ok(Some(sent)) = sent {
            self.deliver(&mut state, rack, sender, sent);
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every sum holds every worker exactly once", |system: &Self, state: &State| {
                let mut sums = state.results.iter().flatten().filter(|result| result.is_sum());
                sums.all(|result| result.sum == system.sum_of(result))
            }),
            Property::always(BUDGET, |system: &Self, state: &State| {
                let sums = || state.results.iter().flatten().filter(|result| result.is_sum());
                // By operation and worker, the chunks that it was left out of.
                let operations = (0..system.chunks).step_by(2);
                operations.into_iter().all(|operation| {
                    (0..system.all_workers()).all(|worker| {
                        let is_left_out = |packet: &&Packet| {
                            System::operation(packet.header.seq) == operation
                                && !system.is_empty(worker, packet.header.seq)
                                && packet.sum & System::term(worker, packet.header.seq) == 0
                        };
                        let chunks: BTreeSet<u32> =
                            sums().filter(is_left_out).map(|packet| packet.header.seq).collect();
                        chunks.len() <= usize::from(system.limit)
                    })
                })
            }),
            Property::always("all workers get the same sum", |_: &Self, state: &State| {
                let sums = || state.results.iter().flatten().filter(|result| result.is_sum());
                sums().all(|a| sums().all(|b| a.header.seq != b.header.seq || a.sum == b.sum))
            }),
            Property::always(KEPT, |system: &Self, state: &State| {
                let workers = state.places.iter().enumerate().all(|(worker, places)| {
                    let aggregator = state.racks.get(worker / system.workers as usize).unwrap_or(&state.root);
                    let mut waiting = (0..).zip(places).filter(|(_, place)| place.seq < system.chunks);
                    !waiting.any(|(slot, place)| aggregator.has_given_up(slot, place.version, place.seq))
                });
                let gives_up = |(rack, below): (u32, &Aggregator)| {
                    let above = system.parent(rack).map_or(&state.root, |above| &state.racks[above as usize]);
                    below.begun().any(|(slot, version, seq)| above.has_given_up(slot, version, seq))
                };
                workers && !(0..).zip(&state.racks).any(gives_up)
            }),
            Property::always("an exponent is the largest of all workers'", |system: &Self, state: &State| {
                let places = state.places.iter().flatten().filter(|place| place.seq < system.chunks);
                !system.rounds
                    || places.into_iter().all(|place| {
                        place.agreed.is_none_or(|agreed| agreed == system.largest_exponent(place.seq))
                    })
            }),
            Property::always("all workers are told the same next chunk", |_: &Self, state: &State| {
                let sums = || state.results.iter().flatten().filter(|result| result.is_sum());
                let sums = || sums().map(|sum| sum.header);
                sums().all(|a| sums().all(|b| a.seq != b.seq || a.next_seq == b.next_seq))
            }),
            Property::always("no chunk is in two slots", |_: &Self, state: &State| {
                state.places.iter().all(|places| {
                    let chunks: BTreeSet<u32> = places.iter().map(|place| place.seq).collect();
                    chunks.len() == places.len()
                })
            }),
            // With every packet allowed to arrive, whoever gets stuck is stuck for good.
            Property::eventually("every chunk completes", |system: &Self, state: &State| {
                state.places.iter().flatten().all(|place| place.seq >= system.chunks)
            }),
        ]
    }
}
