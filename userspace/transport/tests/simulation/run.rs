//! Runs one scenario and checks what must hold in it.

use sumac_transport::{Engine, OpError, OpId, Operation, Time, Tuning};
use sumac_wire::{Header, Kind, Reason, slot::Action};

use crate::{
    network::{Event, Network},
    patience::Patience,
    scenario::Scenario,
    support::aggregator::{Aggregator, Outcome},
    tensors,
};

/// No job here takes longer, in nanoseconds of simulated time: it hangs.
const LONGEST: u64 = 600_000_000_000;

/// How long a full ring takes to drain, in nanoseconds.
const DRAINED: u64 = 30_000;

/// What happened in one or many scenarios.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub chunks: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub held_back: u64,
    pub retransmits_fast: u64,
    pub retransmits_timer: u64,
    pub retransmits_spared: u64,
    pub replies: u64,
    pub stale: u64,
    pub duplicates: u64,
    pub failed_operations: u64,
    /// Sent again by the timer although the network lost nothing.
    pub needless: u64,
}

impl Totals {
    pub fn add(&mut self, other: &Totals) {
        let Totals { chunks, lost, duplicated, held_back, .. } = other;
        self.chunks += chunks;
        self.lost += lost;
        self.duplicated += duplicated;
        self.held_back += held_back;
        self.retransmits_fast += other.retransmits_fast;
        self.retransmits_timer += other.retransmits_timer;
        self.retransmits_spared += other.retransmits_spared;
        self.replies += other.replies;
        self.stale += other.stale;
        self.duplicates += other.duplicates;
        self.failed_operations += other.failed_operations;
        self.needless += other.needless;
    }

    /// What a set of scenarios must have gone through to prove anything.
    pub fn hardships(&self) -> [(&'static str, u64); 10] {
        [
            ("loss", self.lost),
            ("duplication", self.duplicated),
            ("reordering", self.held_back),
            ("fast retransmission", self.retransmits_fast),
            ("retransmission by timer", self.retransmits_timer),
            ("a result just before its retransmission", self.retransmits_spared),
            ("a lost result sent again", self.replies),
            ("a stale frame", self.stale),
            ("a failed operation", self.failed_operations),
            ("a probe of a straggler", self.needless),
        ]
    }
}

/// Runs a scenario to its end; panics where something does not hold.
pub fn run(scenario: &Scenario) -> Totals {
    run_timed(scenario).0
}

/// The same, and the simulated time in nanoseconds at which the last worker had its last result.
pub fn run_timed(scenario: &Scenario) -> (Totals, u64) {
    let mut sim = Simulation::new(scenario);
    let mut finished = 0;
    while let Some((now, event)) = sim.network.next() {
        assert!(now < LONGEST, "hangs: {:?}", sim.done);
        sim.step(now, event);
        if sim.done.iter().all(|done| *done == scenario.tensors.len()) {
            finished = now;
            break;
        }
    }
    (sim.finish(), finished)
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    network: Network,
    engines: Vec<Engine>,
    aggregator: Aggregator,
    /// `inputs[rank][tensor]`.
    inputs: Vec<Vec<Vec<u8>>>,
    /// `sums[tensor]`.
    sums: Vec<Option<Vec<u8>>>,
    submitted: Vec<usize>,
    done: Vec<usize>,
    /// When each worker's timer event is scheduled.
    timers: Vec<Option<u64>>,
    /// `latest[rank][slot]`: number in the stream of the last chunk sent, plus the slots' number.
    latest: Vec<Vec<u64>>,
    /// How often the contribution of each chunk and rank was added.
    added: Vec<u8>,
    frames_to_worker: Vec<u64>,
    /// How often each worker may probe while nothing is lost.
    patience: Vec<Patience>,
    /// Whose rings have no room.
    full: Vec<bool>,
    totals: Totals,
    answer: Vec<u8>,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario) -> Simulation<'a> {
        let world = scenario.params.world;
        let engine = |rank| {
            let params = sumac_transport::JobParams { rank, ..scenario.params.clone() };
            Engine::starting_at(params, &Tuning::default(), scenario.first_seq).expect("good parameters")
        };
        let inputs: Vec<_> = (0..world).map(|rank| tensors::inputs(scenario, rank)).collect();
        let mut network = Network::new(scenario.faults, world, scenario.seed);
        for tensor in &scenario.tensors {
            for (rank, late) in (0..world).zip(&scenario.lateness) {
                network.schedule(tensor.at + late, Event::Submit { rank });
            }
        }
        let per_worker = usize::from(world);
        Simulation {
            network,
            engines: (0..world).map(engine).collect(),
            aggregator: Aggregator::new(&scenario.params),
            sums: sums(scenario, &inputs),
            inputs,
            submitted: vec![0; per_worker],
            done: vec![0; per_worker],
            timers: vec![None; per_worker],
            latest: vec![vec![0; scenario.params.slots as usize]; per_worker],
            added: vec![0; scenario.chunks() * per_worker],
            frames_to_worker: vec![0; per_worker],
            patience: vec![Patience::default(); per_worker],
            full: vec![false; per_worker],
            totals: Totals::default(),
            answer: Vec::new(),
            scenario,
        }
    }

    fn step(&mut self, now: u64, event: Event) {
        let rank = match &event {
            Event::ToAggregator { .. } => None,
            Event::Submit { rank } | Event::ToWorker { rank, .. } => Some(*rank),
            Event::Timer { rank } | Event::Room { rank } => Some(*rank),
        };
        if let Some(until) = rank.and_then(|rank| self.paused(rank, now)) {
            return self.network.schedule(until, event);
        }
        match event {
            Event::ToAggregator { payload } => self.at_aggregator(now, &payload),
            Event::Submit { rank } => self.submit(now, rank),
            Event::ToWorker { rank, payload } => {
                self.frames_to_worker[usize::from(rank)] += 1;
                self.patience[usize::from(rank)].heard(now);
                self.engines[usize::from(rank)].on_frame(Time(now), &payload);
            }
            Event::Timer { rank } => self.timer(now, rank),
            Event::Room { rank } => self.full[usize::from(rank)] = false,
        }
        rank.into_iter().for_each(|rank| self.pump(now, rank));
    }

    fn paused(&self, rank: u16, now: u64) -> Option<u64> {
        let (who, from, until) = self.scenario.pause?;
        (who == rank && (from..until).contains(&now)).then_some(until)
    }

    fn submit(&mut self, now: u64, rank: u16) {
        let worker = usize::from(rank);
        let number = self.submitted[worker];
        self.submitted[worker] += 1;
        if self.engines[worker].is_idle() {
            self.patience[worker].begin(now);
        }
        let operation = Operation {
            tensor: number as u32,
            dtype: self.scenario.tensors[number].dtype,
            count: self.scenario.tensors[number].count,
            priority: 0,
            loss_bound: 0.0,
            buffer: Box::new(self.inputs[worker][number].clone()),
        };
        let id = self.engines[worker].submit(Time(now), operation).map_err(|(error, _)| error);
        assert_eq!(id, Ok(OpId(number as u64)));
    }

    fn timer(&mut self, now: u64, rank: u16) {
        let worker = usize::from(rank);
        if self.timers[worker].is_some_and(|scheduled| scheduled <= now) {
            self.timers[worker] = None;
        }
        if self.engines[worker].poll_timeout().is_some_and(|at| at <= Time(now)) {
            self.engines[worker].on_timeout(Time(now));
        }
    }

    /// Takes out of a worker's engine all that it has to say.
    fn pump(&mut self, now: u64, rank: u16) {
        let worker = usize::from(rank);
        self.transmit(now, rank);
        while let Some(completion) = self.engines[worker].poll_completion() {
            self.check_completion(rank, &completion);
            self.done[worker] += 1;
        }
        if let Some(Time(at)) = self.engines[worker].poll_timeout() {
            let at = at.max(now);
            if self.timers[worker].is_none_or(|scheduled| at < scheduled) {
                self.timers[worker] = Some(at);
                self.network.schedule(at, Event::Timer { rank });
            }
        }
    }

    /// Sends until the engine has nothing to send or the worker's ring is full, which takes a while
    /// to drain.
    fn transmit(&mut self, now: u64, rank: u16) {
        let worker = usize::from(rank);
        let mut frame = [0; 256];
        for _ in 0..self.scenario.ring {
            if self.full[worker] {
                return;
            }
            let Some(sent) = self.engines[worker].poll_transmit(Time(now), &mut frame) else { return };
            self.check_sent(rank, &frame[..sent.len]);
            self.network.send_up(now, rank, &frame[..sent.len]);
        }
        self.full[worker] = true;
        self.network.schedule(now + DRAINED, Event::Room { rank });
    }

    fn at_aggregator(&mut self, now: u64, payload: &[u8]) {
        if self.scenario.outage.is_some_and(|(from, until)| (from..until).contains(&now)) {
            self.totals.lost += 1;
            return;
        }
        let world = self.scenario.params.world;
        let outcome = self.aggregator.handle(payload, &mut self.answer);
        if let Some((seq, rank, Action::Store(_) | Action::Add(_))) = self.aggregator.last {
            let chunk = seq.wrapping_sub(self.scenario.first_seq) as usize;
            self.added[chunk * usize::from(world) + usize::from(rank)] += 1;
        }
        match outcome {
            Ok(Outcome::Silent) => {}
            Ok(Outcome::Unicast(rank)) => {
                self.totals.replies += u64::from(self.aggregator.last.is_some());
                self.network.send_down(now, rank, &self.answer);
            }
            Ok(Outcome::Multicast) => {
                (0..world).for_each(|rank| self.network.send_down(now, rank, &self.answer));
            }
            Err(Reason::Stale) => self.totals.stale += 1,
            Err(Reason::Duplicate) => self.totals.duplicates += 1,
            Err(reason) => panic!("the aggregator refuses an honest worker's frame: {}", reason.name()),
        }
    }

    /// No worker is more than one chunk ahead of another on a slot.
    fn check_sent(&mut self, rank: u16, payload: &[u8]) {
        let header = Header::read(payload, 0, payload.len()).expect("a valid packet");
        if header.kind == Kind::Probe as u8 {
            return;
        }
        let slots = u64::from(self.scenario.params.slots);
        let chunk = u64::from(header.seq.wrapping_sub(self.scenario.first_seq)) + slots;
        let slot = header.slot as usize;
        self.latest[usize::from(rank)][slot] = chunk;
        for (other, latest) in self.latest.iter().enumerate() {
            // Before its first chunk a slot is at the one that would have been before.
            let there = if latest[slot] == 0 { chunk % slots } else { latest[slot] };
            assert!(chunk <= there + slots, "rank {rank} at {chunk}, rank {other} at {there}");
        }
    }

    /// Operations complete in order, with the exact sum, or with an error that names the value.
    fn check_completion(&self, rank: u16, completion: &sumac_transport::Completion) {
        let number = self.done[usize::from(rank)];
        assert_eq!(completion.id, OpId(number as u64), "rank {rank}");
        let tensor = &self.scenario.tensors[number];
        match (&self.sums[number], &completion.result) {
            (Some(sum), Ok(())) => {
                let output = completion.buffer.input(0, tensor.count * 4);
                assert!(output == sum, "rank {rank}, tensor {number}: wrong sum");
            }
            (None, Err(error)) => {
                let (culprit, at) = tensor.poison.expect("only poison fails an operation");
                let named = match error {
                    OpError::Saturated { index, .. } | OpError::NotFinite { index, .. } => {
                        rank == culprit && *index == at
                    }
                    OpError::Peer { first, last, .. } => rank != culprit && (*first..=*last).contains(&at),
                    _ => false,
                };
                assert!(named, "rank {rank}, tensor {number}, poison {culprit} {at}: {error:?}");
            }
            (_, result) => panic!("rank {rank}, tensor {number}: {result:?}"),
        }
    }

    /// What must hold at the end.
    fn finish(mut self) -> Totals {
        let chunks = self.scenario.chunks() as u64;
        assert!(self.added.iter().all(|times| *times == 1), "added other than once: {:?}", self.added);
        let elements: usize = self.scenario.tensors.iter().map(|tensor| tensor.count).sum();
        for (rank, engine) in self.engines.iter().enumerate() {
            let stats = engine.stats();
            assert_eq!(self.done[rank], self.scenario.tensors.len(), "rank {rank} hangs");
            assert!(engine.is_idle() && stats.in_flight == 0, "rank {rank}");
            assert_eq!((stats.chunks_sent, stats.results), (chunks, chunks), "rank {rank}");
            assert_eq!(stats.elements_received, elements as u64, "rank {rank}");
            assert_eq!(stats.frames.total(), self.frames_to_worker[rank], "rank {rank}: every frame counts");
            if self.scenario.is_perfect() {
                assert_eq!(stats.retransmits(), 0, "rank {rank}: sent again for nothing");
                assert_eq!(stats.elements_sent, elements as u64, "rank {rank}");
                assert_eq!(stats.frames.dropped(), 0, "rank {rank}");
            }
            if self.scenario.has_perfect_network() {
                let most = self.patience[rank].probes();
                assert_eq!(stats.retransmits_fast, 0, "rank {rank}: nothing was lost");
                assert!(stats.retransmits_timer <= most, "rank {rank}: {stats:?}, {most} allowed");
                self.totals.needless += stats.retransmits_timer;
            }
            self.totals.retransmits_fast += stats.retransmits_fast;
            self.totals.retransmits_timer += stats.retransmits_timer;
            self.totals.retransmits_spared += stats.retransmits_spared;
            self.totals.failed_operations += stats.operations_failed;
        }
        self.totals.chunks = chunks;
        self.totals.lost += self.network.lost;
        self.totals.duplicated = self.network.duplicated;
        self.totals.held_back = self.network.held_back;
        self.totals
    }
}

/// The exact sum of each tensor; none where a value is poisoned.
fn sums(scenario: &Scenario, inputs: &[Vec<Vec<u8>>]) -> Vec<Option<Vec<u8>>> {
    let sum = |(number, tensor): (usize, &crate::scenario::Tensor)| {
        let all: Vec<&[u8]> = inputs.iter().map(|worker| worker[number].as_slice()).collect();
        let sum = || tensors::sum(tensor.dtype, scenario.params.scale, &all);
        tensor.poison.is_none().then(sum)
    };
    scenario.tensors.iter().enumerate().map(sum).collect()
}
