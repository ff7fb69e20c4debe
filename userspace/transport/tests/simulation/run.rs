//! Runs one scenario and checks what must hold in it.

use sumac_transport::{Completion, JobError, JobParams, LaneField, OpError, Packet, PeerId, Time};
use sumac_wire::{Header, Reason, slot::Action};

use crate::{
    ledger::Ledger,
    network::{Event, Frame, Network},
    scenario::Scenario,
    support::aggregator::{Aggregator, Level, Outcome},
    tensors,
    totals::Totals,
    worker::Worker,
};

/// No job here takes longer, in nanoseconds of simulated time: it hangs.
const LONGEST: u64 = 600_000_000_000;

/// How long a full ring takes to drain, in nanoseconds.
const DRAINED: u64 = 30_000;

/// What happened when.
#[derive(Debug, Default)]
pub struct Trace {
    /// When each tensor's last result was at the last worker, in nanoseconds of simulated time.
    pub ends: Vec<u64>,
    /// When each result came to the first worker.
    pub results: Vec<u64>,
}

/// Runs a scenario to its end; panics where something does not hold.
pub fn run(scenario: &Scenario) -> Totals {
    Simulation::new(scenario).run().0
}

/// The same, to look at its times.
pub fn run_traced(scenario: &Scenario) -> Trace {
    Simulation::new(scenario).run().1
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    network: Network,
    workers: Vec<Worker>,
    /// The racks' aggregators and then their root; or the only one.
    nodes: Vec<Aggregator>,
    /// `outputs[tensor][rank]`; none where the operation must fail.
    outputs: Vec<Option<Vec<Vec<u8>>>>,
    ledger: Ledger,
    epoch: u16,
    /// The tensor of each lane that the job's incarnation began with.
    resumed: Vec<usize>,
    totals: Totals,
    trace: Trace,
    answer: Vec<u8>,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario) -> Simulation<'a> {
        let world = scenario.params.world;
        let workers: Vec<Worker> = (0..world).map(|rank| Worker::new(scenario, rank)).collect();
        let inputs: Vec<_> = workers.iter().map(|worker| worker.inputs.clone()).collect();
        let cables = usize::from(world + scenario.racks);
        let mut network = Network::new(scenario.faults, cables, scenario.seed);
        for (number, tensor) in scenario.tensors.iter().enumerate() {
            for (rank, late) in (0..world).zip(&scenario.lateness) {
                network.schedule(tensor.at + late, Event::Submit { rank, number });
            }
        }
        scenario.restart.into_iter().for_each(|at| network.schedule(at, Event::Restart));
        let outputs = (0..scenario.tensors.len()).map(|number| tensors::outputs(scenario, number, &inputs));
        Simulation {
            network,
            outputs: outputs.collect(),
            workers,
            nodes: nodes(scenario, scenario.params.epoch),
            ledger: Ledger::default(),
            epoch: scenario.params.epoch,
            resumed: vec![0; usize::from(scenario.lanes)],
            totals: Totals { scenarios: 1, ..Totals::default() },
            trace: Trace { ends: vec![0; scenario.tensors.len()], ..Trace::default() },
            answer: Vec::new(),
            scenario,
        }
    }

    fn run(mut self) -> (Totals, Trace) {
        while let Some((now, event)) = self.network.next() {
            assert!(now < LONGEST, "hangs");
            self.step(now, event);
            if self.is_done() {
                break;
            }
        }
        let trace = std::mem::take(&mut self.trace);
        (self.finish(), trace)
    }

    fn is_done(&self) -> bool {
        let counts: Vec<usize> =
            (0..self.scenario.lanes).map(|lane| self.scenario.of_lane(lane).count()).collect();
        let is_done =
            |worker: &Worker| worker.lanes.iter().zip(&counts).all(|(lane, count)| lane.done == *count);
        self.workers.iter().all(is_done)
    }

    fn step(&mut self, now: u64, event: Event) {
        let rank = match &event {
            Event::Up { .. } | Event::Down { .. } | Event::Restart => None,
            Event::Submit { rank, .. } | Event::ToWorker { rank, .. } => Some(*rank),
            Event::Timer { rank } | Event::Room { rank } => Some(*rank),
        };
        if let Some(until) = rank.and_then(|rank| self.paused(rank, now)) {
            return self.network.schedule(until, event);
        }
        match event {
            Event::Up { node, frame } => self.at_node(now, node, &frame, false),
            Event::Down { node, frame } => self.at_node(now, node, &frame, true),
            Event::Submit { rank, number } => {
                self.workers[usize::from(rank)].submit(now, self.scenario, number);
            }
            Event::ToWorker { rank, frame } => self.deliver(now, rank, &frame.payload),
            Event::Timer { rank } => self.timer(now, rank),
            Event::Room { rank } => self.workers[usize::from(rank)].full = false,
            Event::Restart => self.restart(now),
        }
        rank.into_iter().for_each(|rank| self.pump(now, rank));
    }

    fn paused(&self, rank: u16, now: u64) -> Option<u64> {
        let (who, from, until) = self.scenario.pause?;
        (who == rank && (from..until).contains(&now)).then_some(until)
    }

    fn deliver(&mut self, now: u64, rank: u16, payload: &[u8]) {
        let packet = Packet::parse(payload, PeerId(0), false).expect("a valid packet");
        let lane = LaneField::Slot(self.scenario.params.slots).lane(&packet.header).expect("a lane");
        let lane = &mut self.workers[usize::from(rank)].lanes[usize::from(lane)];
        lane.frames += 1;
        lane.patience.heard(now);
        let before = lane.engine.stats().results;
        lane.engine.on_packet(Time(now), &packet);
        if rank == 0 && lane.engine.stats().results > before {
            self.trace.results.push(now);
        }
    }

    fn timer(&mut self, now: u64, rank: u16) {
        let worker = &mut self.workers[usize::from(rank)];
        if worker.timer.is_some_and(|scheduled| scheduled <= now) {
            worker.timer = None;
        }
        for lane in &mut worker.lanes {
            if lane.engine.poll_timeout().is_some_and(|at| at <= Time(now)) {
                lane.engine.on_timeout(Time(now));
            }
        }
    }

    /// Takes out of a worker's engines all that they have to say.
    fn pump(&mut self, now: u64, rank: u16) {
        self.transmit(now, rank);
        for lane in 0..usize::from(self.scenario.lanes) {
            while let Some((number, completion)) = self.workers[usize::from(rank)].collect(lane) {
                self.trace.ends[number] = now;
                self.check(rank, number, completion);
            }
        }
        let worker = &mut self.workers[usize::from(rank)];
        if let Some(Time(at)) = worker.lanes.iter().filter_map(|lane| lane.engine.poll_timeout()).min() {
            let at = at.max(now);
            if worker.timer.is_none_or(|scheduled| at < scheduled) {
                worker.timer = Some(at);
                self.network.schedule(at, Event::Timer { rank });
            }
        }
    }

    /// Sends until the engines have nothing to send or the worker's ring is full, which takes a while
    /// to drain. The urgent class, the later lane, goes first.
    fn transmit(&mut self, now: u64, rank: u16) {
        let (world, slots) = (self.scenario.params.world, self.scenario.params.slots);
        let worker = &mut self.workers[usize::from(rank)];
        let mut frame = [0; 256];
        for _ in 0..self.scenario.ring {
            if worker.full {
                return;
            }
            let sent = worker
                .lanes
                .iter_mut()
                .rev()
                .find_map(|lane| lane.engine.poll_transmit(Time(now), &mut frame));
            let Some(sent) = sent else { return };
            let payload = &frame[..sent.len];
            let header = Header::read(payload, 0, payload.len()).expect("a valid packet");
            self.ledger.sent(rank, world, slots, &header);
            let rack = usize::from(rank / self.scenario.params.rack_world);
            self.network.send_up(now, usize::from(rank), rack, sent.port_offset, payload);
        }
        worker.full = true;
        self.network.schedule(now + DRAINED, Event::Room { rank });
    }

    /// A frame is at an aggregator, from its workers or racks, or from its parent.
    fn at_node(&mut self, now: u64, node: usize, frame: &Frame, from_parent: bool) {
        if self.scenario.outage.is_some_and(|(from, until)| (from..until).contains(&now)) {
            self.totals.lost += 1;
            return;
        }
        let Frame { shard, payload } = frame;
        let aggregator = &mut self.nodes[node];
        let outcome = if from_parent {
            aggregator.conclude(*shard, payload, &mut self.answer)
        } else {
            aggregator.handle(*shard, payload, &mut self.answer)
        };
        if !from_parent {
            let last = aggregator.last;
            self.totals.forwarded +=
                u64::from(matches!(last, Some((_, _, Action::Forward | Action::ForwardExponent))));
            self.totals.replies +=
                u64::from(matches!(last, Some((_, _, Action::Reply | Action::ReplyExponent))));
            self.ledger.added(node, self.scenario.params.slots, last);
        }
        match outcome {
            Ok(Outcome::Silent) => {}
            Ok(Outcome::Unicast(sender)) => self.send_down(now, node, sender, *shard),
            Ok(Outcome::Multicast) => {
                (0..self.below(node)).for_each(|sender| self.send_down(now, node, sender, *shard));
            }
            Ok(Outcome::Up) => {
                let (cable, root) = (usize::from(self.scenario.params.world) + node, self.nodes.len() - 1);
                self.network.send_up(now, cable, root, *shard, &self.answer);
            }
            Err(Reason::Stale) => self.totals.stale += 1,
            Err(Reason::Duplicate) => self.totals.duplicates += 1,
            Err(Reason::WrongEpoch) if self.scenario.restart.is_some() => {}
            // A rack's part that the root answered by another path; or what was sent before the others moved on.
            Err(Reason::OutOfTurn) if self.scenario.faults.reordering > 0.0 => self.totals.stale += 1,
            Err(reason) => panic!("node {node} refuses an honest frame: {}", reason.name()),
        }
    }

    /// Senders below an aggregator.
    fn below(&self, node: usize) -> u16 {
        let is_root = self.scenario.racks > 1 && node + 1 == self.nodes.len();
        if is_root { self.scenario.racks } else { self.scenario.params.rack_world }
    }

    fn send_down(&mut self, now: u64, node: usize, sender: u16, shard: u16) {
        let frame = || Frame { shard, payload: self.answer.clone() };
        let (world, len) = (usize::from(self.scenario.params.world), self.answer.len());
        if self.scenario.racks > 1 && node + 1 == self.nodes.len() {
            let node = usize::from(sender);
            self.network.send_down(now, world + node, len, || Event::Down { node, frame: frame() });
        } else {
            let rank = node as u16 * self.scenario.params.rack_world + sender;
            self.network.send_down(now, usize::from(rank), len, || Event::ToWorker { rank, frame: frame() });
        }
    }

    /// The aggregators lose their state, and the control plane ends the job; its trainers begin it anew.
    fn restart(&mut self, now: u64) {
        self.epoch = self.epoch.wrapping_add(1);
        self.totals.restarts += 1;
        for rank in 0..self.scenario.params.world {
            for lane in 0..usize::from(self.scenario.lanes) {
                let why = JobError::AggregatorLost { reason: "it started anew".into() };
                self.workers[usize::from(rank)].lanes[lane].engine.fail(why);
                while let Some((number, completion)) = self.workers[usize::from(rank)].collect(lane) {
                    if !matches!(completion.result, Err(OpError::Job(_))) {
                        self.check(rank, number, completion);
                    }
                }
            }
        }
        let done = |lane: usize| self.workers.iter().map(|worker| worker.lanes[lane].done).min();
        self.resumed = (0..usize::from(self.scenario.lanes)).filter_map(done).collect();
        self.nodes = nodes(self.scenario, self.epoch);
        self.ledger = Ledger::default();
        for worker in &mut self.workers {
            worker.lanes.iter().for_each(|lane| self.totals.engines.merge(lane.engine.stats()));
            worker.restart(now, self.scenario, self.epoch, &self.resumed);
        }
        (0..self.scenario.params.world).for_each(|rank| self.pump(now, rank));
    }

    /// Operations complete with the exact result, or with an error that names the value.
    fn check(&mut self, rank: u16, number: usize, completion: Completion) {
        let tensor = &self.scenario.tensors[number];
        let what = || format!("rank {rank}, tensor {number}, {tensor:?}");
        match (&self.outputs[number], &completion.result) {
            (Some(outputs), Ok(())) => {
                let memory = completion.buffer.input(0, tensor.count * tensor.dtype.size());
                assert!(memory == outputs[usize::from(rank)], "{}: wrong result", what());
                self.totals.carried += u64::from(tensor.poison.is_some());
            }
            (None, Err(error)) => {
                let (culprit, at) = tensor.poison.expect("only poison fails an operation");
                let at = 1000 + at;
                let named = match error {
                    OpError::Saturated { index, .. } | OpError::NotFinite { index, .. } => {
                        rank == culprit && *index == at
                    }
                    OpError::Peer { first, last } => rank != culprit && (*first..=*last).contains(&at),
                    _ => false,
                };
                assert!(named, "{}: {error:?}", what());
            }
            (_, result) => panic!("{}: {result:?}", what()),
        }
    }

    /// What must hold at the end.
    fn finish(mut self) -> Totals {
        let scenario = self.scenario;
        assert!(self.is_done(), "hangs");
        let running = |lane: u16| scenario.of_lane(lane).skip(self.resumed[usize::from(lane)]);
        let chunks =
            |lane| running(lane).map(|number| scenario.chunks(&scenario.tensors[number])).sum::<u64>();
        let senders =
            if scenario.racks > 1 { scenario.params.world + scenario.racks } else { scenario.params.world };
        self.ledger.close((0..scenario.lanes).map(chunks).sum::<u64>() * u64::from(senders));
        for worker in &self.workers {
            for (number, lane) in (0..).zip(&worker.lanes) {
                let what = format!("rank {}, lane {number}", worker.rank);
                let stats = lane.engine.stats();
                assert!(lane.engine.is_idle() && stats.in_flight == 0, "{what}");
                assert_eq!((stats.chunks_sent, stats.results), (chunks(number), chunks(number)), "{what}");
                assert_eq!(stats.completions.count(), stats.results, "{what}");
                assert_eq!(stats.frames.total(), lane.frames, "{what}: every frame counts");
                let parts =
                    |number: usize| scenario.tensors[number].parts(worker.rank, scenario.params.world);
                let taken: usize = running(number).map(|number| parts(number).1.len()).sum();
                assert_eq!(stats.elements_received, taken as u64, "{what}");
                assert!(scenario.stealing || stats.steals == 0, "{what}");
                if scenario.is_perfect() {
                    let given: usize = running(number).map(|number| parts(number).0.len()).sum();
                    assert_eq!((stats.questions, stats.resent), (0, 0), "{what}: for nothing");
                    assert_eq!(stats.elements_sent, given as u64, "{what}");
                    assert_eq!(stats.frames.dropped(), 0, "{what}");
                }
                if scenario.has_perfect_network() {
                    // Silence allows some. Few are overtaken: late workers may send in another order than the others.
                    let probes = lane.patience.probes();
                    assert_eq!(stats.resent, 0, "{what}: nothing was missing");
                    self.totals.needless += stats.questions;
                    self.totals.overtaken += stats.questions.saturating_sub(probes);
                    self.totals.lossless += stats.chunks_sent;
                }
                self.totals.engines.merge(stats);
            }
        }
        self.totals.lost += self.network.lost;
        self.totals.duplicated = self.network.duplicated;
        self.totals.held_back = self.network.held_back;
        self.totals
    }
}

/// All aggregators of a scenario.
fn nodes(scenario: &Scenario, epoch: u16) -> Vec<Aggregator> {
    let racks = scenario.racks;
    let params = JobParams { epoch, ..scenario.params.clone() };
    let levels: Vec<Level> = match racks {
        1 => vec![Level::Only],
        _ => (0..racks).map(|rack| Level::Rack { rack, racks }).chain([Level::Root { racks }]).collect(),
    };
    levels.into_iter().map(|level| Aggregator::new(&params, scenario.setup(level))).collect()
}
