//! Runs one scenario and checks what must hold in it.

use std::{cell::RefCell, rc::Rc};

use sumac_sim::{
    aggregator::{Aggregator, Capacity},
    events::{MICRO, Nanos, SECOND},
    job::{Job, Seat, Tree},
    link::LinkSpec,
    network::NodeId,
    packet::{Body, PORT, Packet, ecn, shard_of, socket},
    parameter::Parameter,
    world::World,
};
use sumac_transport::{DynamicParams, EngineStats, Tuning};
use sumac_wire::{Header, Kind, Reason, admit, header::HEADER_LEN};

use crate::{
    draw::FRAMING,
    replacement::{self, Newcomer},
    scenario::{Fate, JobPlan, Replaced, Scenario, Shape},
    tensors,
    totals::Totals,
    trainer::{Checker, Truth},
};

/// No job here takes longer, in nanoseconds of simulated time: it hangs.
const LONGEST: Nanos = 600 * SECOND;

/// What nobody's honest packet ends as, whatever the network does.
const NEVER: [Reason; 10] = [
    Reason::BadLength,
    Reason::BadVersion,
    Reason::BadType,
    Reason::BadFormat,
    Reason::BadToken,
    Reason::WrongEpoch,
    Reason::WrongWorker,
    Reason::WrongSource,
    Reason::WrongSlot,
    Reason::Internal,
];

/// Runs a scenario to its end; panics where something does not hold.
pub fn run(scenario: &Scenario) -> Totals {
    let mut simulation = Simulation::new(scenario);
    simulation.go();
    simulation.finish()
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    world: World,
    /// Racks first, the root or the only one last.
    aggregators: Vec<NodeId>,
    parameters: Vec<NodeId>,
    truths: Vec<Rc<RefCell<Truth>>>,
    /// The workers of each job.
    workers: Vec<Vec<usize>>,
    /// Who has taken a dead worker's place, by job.
    newcomers: Vec<Rc<RefCell<Option<Newcomer>>>>,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario) -> Simulation<'a> {
        let world = World::new(FRAMING, scenario.seed);
        let mut simulation = Simulation {
            scenario,
            world,
            aggregators: Vec::new(),
            parameters: Vec::new(),
            truths: Vec::new(),
            workers: Vec::new(),
            newcomers: Vec::new(),
        };
        let center = simulation.wire();
        scenario.jobs.iter().for_each(|plan| simulation.start(plan, center));
        simulation.leave_orphans();
        simulation.plan_fates();
        if scenario.flow {
            let source = simulation.host_at(center);
            let sink = simulation.world.workers[0].node;
            simulation.world.add_flow(source, sink, true, MICRO);
        }
        simulation
    }

    /// Makes the nodes of aggregators; gives the one in the middle.
    fn wire(&mut self) -> NodeId {
        let jobs = &self.scenario.jobs;
        let fixed = jobs.iter().filter(|job| job.params.dynamic.is_none());
        let slots = fixed.map(|job| job.params.slots * u32::from(job.lanes)).sum();
        let capacity = Capacity {
            shards: jobs.iter().map(|job| job.params.shards).max().unwrap(),
            slots,
            dynamic_slots: self.scenario.pool,
            elements: jobs.iter().map(|job| job.params.elements).max().unwrap(),
            patience: self.scenario.patience,
        };
        let center = self.world.add_node();
        if let Shape::Racks(racks) = self.scenario.shape {
            for _ in 0..racks {
                let rack = self.world.add_node();
                let cable = self.cable();
                self.world.network.connect(rack, center, cable, cable);
                self.aggregators.push(rack);
            }
        }
        if self.scenario.shape != Shape::Nothing {
            self.aggregators.push(center);
        }
        for node in &self.aggregators {
            self.world.nodes[*node].aggregator = Some(Aggregator::new(capacity).unwrap());
        }
        center
    }

    fn cable(&self) -> LinkSpec {
        LinkSpec { faults: self.scenario.faults, ..self.scenario.cable }
    }

    fn host_at(&mut self, node: NodeId) -> NodeId {
        let host = self.world.add_node();
        let down = self.cable();
        // A host stops to send when its ring is full.
        let up = LinkSpec { queue: u64::MAX, ..down };
        self.world.network.connect(host, node, up, down);
        host
    }

    fn start(&mut self, plan: &JobPlan, center: NodeId) {
        let racks = self.aggregators.split_last().map_or(&[][..], |(_, racks)| racks).to_vec();
        let used: Vec<usize> = (0..racks.len()).filter(|rack| plan.racks.contains(&Some(*rack))).collect();
        let seat = |simulation: &mut Simulation<'_>, rack: &Option<usize>| Seat {
            node: simulation.host_at(rack.map_or(center, |rack| racks[rack])),
            rack: rack.and_then(|rack| used.iter().position(|used| *used == rack)),
        };
        let seats: Vec<Seat> = plan.racks.iter().map(|rack| seat(self, rack)).collect();
        let ring = plan.ring * FRAMING.chunk_len(plan.params.elements);
        let hosts: Vec<NodeId> =
            plan.hosts.iter().map(|host| self.parameter(*host, &seats, center, ring)).collect();
        let job = Job {
            params: plan.params.clone(),
            tuning: plan.tuning.clone(),
            lanes: plan.lanes,
            tree: Tree {
                root: (self.scenario.shape != Shape::Nothing).then_some(center),
                racks: used.iter().map(|rack| racks[*rack]).collect(),
            },
            seats,
            hosts,
            first_slot: plan.first_slot,
            stealing: true,
            ring,
        };
        let truth = Rc::new(RefCell::new(truth(plan, self.scenario.seed)));
        let trainer = |rank| Box::new(Checker::new(rank, truth.clone())) as Box<_>;
        let workers = job.start(&mut self.world, trainer).unwrap();
        if let Some((rank, from, until)) = plan.pause {
            self.world.workers[workers[rank]].pause = Some((from, until));
        }
        let newcomer = Rc::default();
        if let Some(replaced) = plan.replaced {
            let node = self.host_at(plan.racks[replaced.rank].map_or(center, |rack| racks[rack]));
            let place =
                replacement::Place { job, node, truth: truth.clone(), newcomer: Rc::clone(&newcomer) };
            place.plan(&mut self.world, &replaced, &workers, self.scenario.seed);
        }
        self.truths.push(truth);
        self.workers.push(workers);
        self.newcomers.push(newcomer);
    }

    fn parameter(&mut self, beside: Option<usize>, seats: &[Seat], center: NodeId, ring: u64) -> NodeId {
        let node = beside.map(|rank| seats[rank].node).unwrap_or_else(|| self.host_at(center));
        self.world.nodes[node].parameter = Some(Parameter::new(ring));
        self.parameters.push(node);
        node
    }

    /// A job of two workers at the first aggregator: one of them contributes, and then there is no such job any more.
    fn leave_orphans(&mut self) {
        let (Some(node), true) = (self.aggregators.first().copied(), self.scenario.orphans > 0) else {
            return;
        };
        let ghosts = [self.host_at(node), self.host_at(node)];
        let host = self.host_at(node);
        let mut params = self.scenario.jobs[0].params.clone();
        (params.job, params.world, params.shards) = (60, 2, 1);
        params.dynamic = Some(DynamicParams::new(self.scenario.pool));
        let job = Job {
            params,
            tuning: Tuning::default(),
            lanes: 1,
            seats: ghosts.iter().map(|node| Seat { node: *node, rack: None }).collect(),
            tree: Tree { root: Some(node), racks: Vec::new() },
            hosts: vec![host],
            first_slot: 0,
            stealing: true,
            ring: 1_000_000,
        };
        self.world.nodes[host].parameter = Some(Parameter::new(1_000_000));
        job.install(&mut self.world).unwrap();
        for seq in 0..self.scenario.orphans {
            let packet = orphan(&job, seq, ghosts[0], node, self.scenario.pool);
            self.world.at(u64::from(seq) * 10 * MICRO, move |world| world.inject(ghosts[0], packet));
        }
        self.world.at(u64::from(self.scenario.orphans) * 20 * MICRO, move |world| {
            world.nodes[node].aggregator.as_mut().unwrap().remove(60);
        });
    }

    fn plan_fates(&mut self) {
        for fate in &self.scenario.fates {
            let (Fate::Restart { aggregator, .. }
            | Fate::Death { aggregator, .. }
            | Fate::Outage { aggregator, .. }
            | Fate::Cut { aggregator, .. }) = *fate;
            let node = self.aggregators[aggregator];
            let mut plan = |at, change: fn(&mut Aggregator)| {
                self.world.at(at, move |world| change(world.nodes[node].aggregator.as_mut().unwrap()));
            };
            match *fate {
                Fate::Restart { at, .. } => plan(at, |aggregator| {
                    if !aggregator.is_dead {
                        aggregator.restart().unwrap();
                    }
                }),
                Fate::Death { at, .. } => plan(at, |aggregator| aggregator.is_dead = true),
                Fate::Outage { from, until, .. } => {
                    plan(from, |aggregator| aggregator.is_dead = true);
                    plan(until, |aggregator| aggregator.is_dead = false);
                }
                Fate::Cut { from, until, .. } => {
                    plan(from, |aggregator| aggregator.is_cut = true);
                    plan(until, |aggregator| aggregator.is_cut = false);
                }
            }
        }
    }

    fn go(&mut self) {
        let truths = self.truths.clone();
        let is_done = move |_: &World| truths.iter().all(|truth| truth.borrow().open == 0);
        self.world.run_until(LONGEST, &is_done);
        if !is_done(&self.world) {
            self.explain();
            panic!("hangs");
        }
    }

    /// What every engine waits for.
    fn explain(&self) {
        for (number, workers) in self.workers.iter().enumerate() {
            for (rank, id) in workers.iter().enumerate() {
                for (lane, engine) in self.world.workers[*id].engines.iter().enumerate() {
                    let stats = engine.stats();
                    println!(
                        "job {}, rank {rank}, lane {lane}: {:?}, {} results of {} sent, {} in flight, direct {}, frames {}",
                        number + 1,
                        engine.state(),
                        stats.results,
                        stats.chunks_sent,
                        stats.in_flight,
                        stats.direct,
                        serde_json::to_string(&stats.frames).unwrap(),
                    );
                }
            }
        }
    }

    /// What must hold at the end.
    fn finish(mut self) -> Totals {
        let scenario = self.scenario;
        // What is under way still, and what is late.
        let end = self.world.now() + SECOND;
        self.world.run(end);
        let mut totals = self.totals();
        for ((plan, workers), newcomer) in scenario.jobs.iter().zip(&self.workers).zip(&self.newcomers) {
            let newcomer = newcomer.borrow();
            for (rank, id) in workers.iter().enumerate() {
                let newcomer = newcomer.as_ref().filter(|newcomer| newcomer.rank == rank);
                let id = newcomer.map_or(*id, |newcomer| newcomer.id);
                let worker = &self.world.workers[id];
                assert_eq!(worker.lost_its_way, 0, "job {}, node {}", plan.params.job, worker.node);
                for (lane, engine) in worker.engines.iter().enumerate() {
                    let stats = engine.stats();
                    let what = format!("job {}, node {}, lane {lane}", plan.params.job, worker.node);
                    assert!(engine.is_idle() && stats.in_flight == 0, "{what}");
                    let of_lane = plan.tensors.iter().filter(|tensor| usize::from(tensor.lane) == lane);
                    let chunks: u64 = of_lane
                        .map(|tensor| plan.params.chunks(tensor.dtype, tensor.arithmetic(), tensor.count))
                        .sum();
                    let skipped = newcomer.map_or(0, |newcomer| u64::from(newcomer.resume[lane]));
                    totals.replaced += u64::from(0 < skipped && skipped < chunks);
                    let chunks = chunks - skipped;
                    assert_eq!((stats.chunks_sent, stats.results), (chunks, chunks), "{what}");
                    for reason in self.never() {
                        assert_eq!(stats.frames.get(reason), 0, "{what}: {}", reason.name());
                    }
                }
                let counted: u64 = worker.engines.iter().map(|engine| frames(engine.stats())).sum();
                assert_eq!(counted, worker.taken, "job {}, rank {rank}: frames", plan.params.job);
                let sum = if plan.params.dynamic.is_some() { &mut totals.dynamic } else { &mut totals.fixed };
                sum.merge(&worker.stats());
            }
        }
        totals
    }

    /// What nobody's honest packet ends as here. Some are late where a job goes on under another incarnation.
    fn never(&self) -> impl Iterator<Item = Reason> + use<> {
        let is_renewed = self.scenario.jobs.iter().any(|job| job.replaced.is_some());
        let is_late =
            move |reason: Reason| is_renewed && [Reason::WrongEpoch, Reason::WrongSource].contains(&reason);
        NEVER.into_iter().filter(move |reason| !is_late(*reason))
    }

    fn totals(&self) -> Totals {
        let scenario = self.scenario;
        let is_mixed = scenario.jobs.iter().any(|job| job.params.dynamic.is_none());
        let mut totals = Totals {
            scenarios: 1,
            two_levels: u64::from(matches!(scenario.shape, Shape::Racks(_))),
            without_aggregator: u64::from(scenario.shape == Shape::Nothing),
            mixed: u64::from(is_mixed),
            links: self.world.network.totals(),
            orphans: u64::from(scenario.orphans),
            ..Totals::default()
        };
        for fate in &scenario.fates {
            match fate {
                Fate::Restart { .. } => totals.restarts += 1,
                Fate::Death { .. } => totals.deaths += 1,
                Fate::Cut { .. } => totals.cuts += 1,
                Fate::Outage { .. } => {}
            }
        }
        for node in &self.aggregators {
            let aggregator = self.world.nodes[*node].aggregator.as_ref().unwrap();
            totals.of_aggregator(aggregator);
            for reason in self.never() {
                assert_eq!(aggregator.counter(reason), 0, "aggregator at node {node}: {}", reason.name());
            }
        }
        for node in &self.parameters {
            let parameter = self.world.nodes[*node].parameter.as_ref().unwrap();
            let stats = parameter.host.stats();
            assert_eq!(
                stats.counters.iter().sum::<u64>(),
                parameter.taken,
                "parameter host at node {node}: frames"
            );
            for reason in self.never() {
                assert_eq!(stats.counter(reason), 0, "parameter host at node {node}: {}", reason.name());
            }
            for job in &stats.jobs {
                totals.raw += job.raw;
                totals.direct += u64::from(job.direct);
                totals.partial_sums += job.partial_sums;
                totals.full_sums += job.full_sums;
                totals.replies += job.replies;
            }
        }
        totals
    }
}

/// How many frames an engine has counted.
fn frames(stats: &EngineStats) -> u64 {
    Reason::ALL.iter().map(|reason| stats.frames.get(*reason)).sum()
}

/// What the workers of a job start with and must end with.
fn truth(plan: &JobPlan, seed: u64) -> Truth {
    let world = usize::from(plan.params.world);
    let inputs: Vec<_> = (0..world).map(|rank| tensors::inputs(plan, seed, rank, 0)).collect();
    let numbers = 0..plan.tensors.len();
    let mut outputs: Vec<_> = numbers.map(|number| tensors::outputs(plan, number, &inputs, 0)).collect();
    if let Some(Replaced { rank, .. }) = plan.replaced {
        let mut inputs = inputs.clone();
        inputs[rank] = tensors::inputs(plan, seed, rank, 1);
        for (number, chunks) in outputs.iter_mut().enumerate() {
            let after = tensors::outputs(plan, number, &inputs, 1);
            chunks.iter_mut().zip(after).for_each(|(chunk, after)| chunk.or(after));
        }
    }
    let forms = outputs
        .iter()
        .map(|chunks| {
            chunks.iter().map(|chunk| chunk.allowed.iter().map(|(form, _)| *form).collect()).collect()
        })
        .collect();
    let ended_well = vec![None; plan.tensors.len()];
    let ended = vec![vec![false; plan.tensors.len()]; world];
    let open = world * plan.tensors.len();
    Truth { job: plan.clone(), inputs, outputs, forms, ended_well, ended, open }
}

/// The first worker's contribution to a chunk of the job that is going to die.
fn orphan(job: &Job, seq: u32, from: NodeId, to: NodeId, pool: u32) -> Packet {
    let params = &job.params;
    let header = Header {
        kind: Kind::Contribution as u8,
        job: params.job,
        epoch: params.epoch,
        token: params.token,
        seq,
        slot: seq % pool,
        fan_in_0: 2,
        bitmap_0: 1,
        elements: params.elements,
        ..Header::default()
    };
    let mut payload = header.to_bytes().to_vec();
    payload.resize(admit::payload_len(params.elements), 1);
    assert!(payload.len() > HEADER_LEN);
    let (source, destination) = (shard_of(socket(from), 0), socket(to));
    assert_eq!(destination.port(), PORT);
    Packet { source, destination, ecn: ecn::CAPABLE, body: Body::Sumac(payload) }
}
