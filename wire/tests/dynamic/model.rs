//! The states and steps of a [`System`], the network between its members, and what must hold.

use std::collections::BTreeSet;

use stateright::{Model, Property};
use sumac_wire::{
    Header,
    budget::{Budget, Terms},
    dynamic::{self, SlotMeta, host::ChunkMeta, owner},
    header::flag,
};

use crate::system::{Aggregator, Form, OPERATION, Overflow, Packet, System, job_owner};

/// The property that the header's `received` field brings about.
pub const KEPT: &str = "a result is kept until all workers have it";

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    /// `[rack]`
    pub first: Vec<Aggregator>,
    pub second: Aggregator,
    /// The packets from racks to the second aggregator.
    pub between: BTreeSet<Packet>,
    /// The packets at the last hop.
    pub last: BTreeSet<Packet>,
    /// The parameter host's chunks, and their values.
    pub host: Vec<(ChunkMeta, u64)>,
    /// The first chunk that the host had not completed when it renewed the job.
    pub resume: Option<u32>,
    /// `[worker]`: how far the host knows it to have received.
    pub received: Vec<u32>,
    /// Bits of chunks whose result was sent.
    pub complete: u32,
    /// Bits of chunks whose floats were asked for.
    pub asked: u32,
    /// `[worker]`: bits of chunks whose result it has.
    pub have: Vec<u32>,
    /// `[worker]`: bits of chunks whose floats it was asked for.
    pub floats: Vec<u32>,
    /// Bits of workers that continue under the new incarnation.
    pub renewed: u32,
    /// The chunks that each worker was left out of, as the host counts them.
    pub budget: Budget,
    /// `[worker]`: bits of chunks that it was left out of.
    pub left_out: Vec<u32>,
    /// Whether a result was sent that does not hold every worker once.
    pub is_wrong: bool,
    /// Whether the host gave up a result that a worker does not have.
    pub is_early: bool,
}

/// An aggregator: a rack's, or the second.
type At = Option<usize>;

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A worker's packet arrives at its first aggregator: worker, chunk, form, how far it had received when
    /// it was sent, and its slot.
    Contribution(usize, u32, Form, u32, u32),
    /// A worker sends past the aggregators.
    Direct(usize, u32, Form, u32),
    /// A rack's packet arrives at the second aggregator.
    Between(Packet),
    /// One at the host.
    Last(Packet),
    /// A chunk's result passes an aggregator and names a slot.
    Release(At, u32, u32),
    /// A chunk's result arrives at a worker.
    Result(usize, u32),
    /// The request for a chunk's floats arrives at a worker.
    Ask(usize, u32),
    /// The host needs the room of a chunk's floats for an earlier one.
    Forget(usize),
    /// Another job takes a slot that is free, or whose sum has left.
    Take(At, u32),
    /// A slot loses what it has: its aggregator starts anew, another job frees it, its age is up.
    Lose(At, u32),
    /// Worker 0 has died: the host renews the job, then the aggregators in any order, then the workers.
    RenewHost,
    RenewAggregator(At),
    RenewWorker(usize),
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
    summed: 0,
    received: 0,
    refused_owner: 0,
    refused_seq: 0,
};

impl State {
    pub fn at(&mut self, aggregator: At) -> &mut Aggregator {
        match aggregator {
            Some(rack) => &mut self.first[rack],
            None => &mut self.second,
        }
    }

    fn get(&self, aggregator: At) -> &Aggregator {
        match aggregator {
            Some(rack) => &self.first[rack],
            None => &self.second,
        }
    }

    pub fn is_renewed(&self, worker: usize) -> bool {
        self.renewed >> worker & 1 == 1
    }

    fn complete(&self, system: &System) -> impl Iterator<Item = u32> {
        let complete = self.complete;
        (0..system.chunks).filter(move |seq| complete >> seq & 1 == 1)
    }

    /// Puts a worker's packet on its way from its first aggregator to the next hop.
    fn send_on(&mut self, system: &System, worker: usize, sent: Option<Packet>) {
        match system.two_levels && system.place(worker).2 {
            true => self.between.extend(sent),
            false => self.send_to_host(sent),
        }
    }

    /// The host does not regard a packet's slot, which is left out.
    fn send_to_host(&mut self, sent: Option<Packet>) {
        self.last
            .extend(sent.map(|Packet { header, sum }| Packet { header: Header { slot: 0, ..header }, sum }));
    }
}

impl System {
    /// Chunks that a worker may send, or have sent.
    pub fn reached(&self, state: &State, worker: usize) -> u32 {
        (state.have[worker].trailing_ones() + self.window).min(self.chunks)
    }

    /// Returns the forms in which a worker may send a chunk now.
    fn forms(&self, state: &State, worker: usize, seq: u32) -> impl Iterator<Item = Form> {
        // After a renewal a window of chunks bypasses the slots, since survivors know other slots than a
        // replacement.
        let settled = state.resume.filter(|_| state.is_renewed(worker)).map(|first| first + self.window);
        let first = settled.is_none_or(|settled| seq >= settled).then_some(Form::First);
        let is_asked = state.floats[worker] >> seq & 1 == 1;
        let floats = [Form::Floats, Form::FlushFloats].into_iter().filter(move |_| is_asked);
        let flushes = self.limit > 0;
        let may_flush = move |form: &Form| flushes || !matches!(form, Form::Flush | Form::FlushFloats);
        first.into_iter().chain([Form::Again, Form::Flush]).chain(floats).filter(may_flush)
    }

    /// Steps of one worker. Its packets arrive at any time from when it may send them.
    fn sendings(&self, state: &State, worker: usize, steps: &mut Vec<Step>) {
        let prefix = state.have[worker].trailing_ones();
        for seq in 0..self.reached(state, worker) {
            for received in (seq + 1).saturating_sub(self.window)..=prefix.min(seq) {
                for form in self.forms(state, worker, seq) {
                    let slots = 0..self.slots;
                    steps.extend(slots.map(|slot| Step::Contribution(worker, seq, form, received, slot)));
                    let is_direct = self.bypasses && form != Form::First;
                    steps.extend(is_direct.then_some(Step::Direct(worker, seq, form, received)));
                }
            }
        }
        steps.extend(state.complete(self).map(|seq| Step::Result(worker, seq)));
        let asked = (0..self.chunks).filter(|seq| state.asked >> seq & 1 == 1);
        steps.extend(asked.map(|seq| Step::Ask(worker, seq)));
    }

    /// The budget where the workers have stated the first operation's terms before.
    fn stated_terms(&self) -> Budget {
        let (limit, mut budget) = (u32::from(self.limit), Budget::default());
        let terms = Terms { owner: 1, operation: 0, end: OPERATION, limit };
        (0..self.workers()).filter(|_| self.stated).for_each(|worker| budget.agree(terms, 1 << worker));
        budget
    }

    fn renewals(&self, state: &State, steps: &mut Vec<Step>) {
        if !self.renews {
            return;
        }
        if state.resume.is_none() {
            return steps.push(Step::RenewHost);
        }
        let old: Vec<At> = self.aggregators().filter(|at| !state.get(*at).is_renewed).collect();
        if old.is_empty() {
            let old = (0..self.workers()).filter(|worker| !state.is_renewed(*worker));
            steps.extend(old.map(Step::RenewWorker));
        }
        steps.extend(old.into_iter().map(Step::RenewAggregator));
    }
}

impl Model for System {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let aggregator =
            Aggregator { slots: vec![Default::default(); self.slots as usize], is_renewed: false };
        vec![State {
            first: vec![aggregator.clone(); self.racks.len()],
            second: aggregator,
            between: BTreeSet::new(),
            last: BTreeSet::new(),
            host: vec![Default::default(); self.kept() as usize],
            resume: None,
            received: vec![0; self.workers()],
            complete: 0,
            asked: 0,
            have: vec![0; self.workers()],
            floats: vec![0; self.workers()],
            renewed: 0,
            budget: self.stated_terms(),
            left_out: vec![0; self.workers()],
            is_wrong: false,
            is_early: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for worker in 0..self.workers() {
            self.sendings(state, worker, steps);
        }
        steps.extend(state.between.iter().copied().map(Step::Between));
        steps.extend(state.last.iter().copied().map(Step::Last));
        for (place, (chunk, _)) in
            state.host.iter().enumerate().filter(|(_, (chunk, _))| !chunk.is_complete())
        {
            steps.extend(chunk.is_raw().then_some(Step::Forget(place)));
        }
        for at in self.aggregators() {
            for slot in 0..self.slots {
                steps.extend(state.complete(self).map(|seq| Step::Release(at, seq, slot)));
                steps.extend(self.shared.then_some(Step::Take(at, slot)));
                steps.push(Step::Lose(at, slot));
            }
        }
        self.renewals(state, steps);
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Contribution(worker, seq, form, received, slot) => {
                let at = self.first_hop(worker);
                // What its receiver refuses for its incarnation has no effect.
                let is_renewed = match at {
                    Some(at) => state.get(at).is_renewed,
                    None => state.resume.is_some(),
                };
                if is_renewed && !state.is_renewed(worker) {
                    return None;
                }
                let mut packet = self.packet(worker, seq, form, received, is_renewed);
                packet.header.slot = slot;
                match at {
                    Some(at) => {
                        let sent = self.aggregate(state.at(at), &packet);
                        state.send_on(self, worker, sent);
                    }
                    // It arrives again when the worker's next sending does.
                    None => self.at_host(&mut state, &packet),
                }
            }
            Step::Direct(worker, seq, form, received) => {
                let is_renewed = state.is_renewed(worker);
                state.last.insert(self.packet(worker, seq, form, received, is_renewed));
            }
            Step::Between(packet) => {
                let sent = self.aggregate(&mut state.second, &packet);
                state.send_to_host(sent);
            }
            Step::Last(packet) => self.at_host(&mut state, &packet),
            Step::Release(at, seq, slot) => {
                let at = state.at(at);
                let owner = job_owner(at.is_renewed);
                let (meta, value) = &mut at.slots[slot as usize];
                *meta = dynamic::release(meta, owner, seq, 0, u32::MAX);
                *value = if meta.owner == 0 { 0 } else { *value };
            }
            Step::Result(worker, seq) => state.have[worker] |= 1 << seq,
            Step::Ask(worker, seq) => state.floats[worker] |= 1 << seq,
            Step::Forget(place) => state.host[place].0.forget_floats(),
            Step::Take(at, slot) => {
                let slot = &mut state.at(at).slots[slot as usize];
                if !slot.0.is_held() {
                    *slot = (FOREIGN, 0);
                }
            }
            Step::Lose(at, slot) => state.at(at).slots[slot as usize] = Default::default(),
            Step::RenewHost => self.renew_host(&mut state),
            Step::RenewAggregator(at) => state.at(at).is_renewed = true,
            Step::RenewWorker(worker) => self.renew_worker(&mut state, worker),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every sum holds every worker exactly once", |_: &Self, state: &State| {
                !state.is_wrong
            }),
            Property::always(
                "no worker is left out of more chunks than its limit",
                |system: &Self, state: &State| !system.is_overdrawn(state),
            ),
            Property::sometimes("a chunk is flushed", |system: &Self, state: &State| {
                system.limit == 0 || state.left_out.iter().any(|bits| *bits != 0)
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
            Property::sometimes(
                "floats are asked for, or a job is renewed",
                |system: &Self, state: &State| {
                    (system.overflow == Overflow::None || state.asked != 0)
                        && (!system.renews || state.renewed.count_ones() as usize == system.workers())
                },
            ),
        ]
    }
}
