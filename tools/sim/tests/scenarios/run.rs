//! Runs one scenario and checks its invariants.

mod checks;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use sumac_sim::{
    address::NodeId,
    aggregator::{Aggregator, Capacity},
    events::{MICRO, Nanos, SECOND},
    job::{Attachment, Job, Topology},
    link::LinkSpec,
    parameter::Parameter,
    tcp::FlowSpec,
    world::World,
};
use sumac_transport::{DynamicParams, EngineStats, JobError};

use crate::{
    ledger::{Ledger, Witness},
    replacement::{self, Newcomer},
    scenario::{Fault, JobPlan, Scenario, Shape},
    totals::Totals,
    trainer::{Checker, Truth},
};

/// Handovers of a scenario that has them.
const HANDOVERS: u64 = 40;
/// Longest simulated time of a job.
const TIMEOUT: Nanos = 600 * SECOND;

/// Runs a scenario to its end; panics where an invariant does not hold.
pub fn run(scenario: &Scenario) -> Totals {
    let mut simulation = Simulation::new(scenario);
    simulation.go();
    simulation.finish()
}

/// Runs a scenario; returns the time at which each tensor of its first job was complete on all workers.
pub fn ends(scenario: &Scenario) -> Vec<Nanos> {
    ends_with_totals(scenario).0
}

/// As [`ends`], with the counts.
pub fn ends_with_totals(scenario: &Scenario) -> (Vec<Nanos>, Totals) {
    let mut simulation = Simulation::new(scenario);
    simulation.go();
    let ends = simulation.jobs[0].truth.borrow().ends.clone();
    (ends, simulation.finish())
}

/// A job of the scenario as it runs.
struct Running<'a> {
    plan: &'a JobPlan,
    job: Job,
    truth: Rc<RefCell<Truth>>,
    /// Indices in the world by rank.
    workers: Vec<usize>,
    newcomer: Rc<RefCell<Option<Newcomer>>>,
}

pub struct Simulation<'a> {
    scenario: &'a Scenario,
    world: World,
    /// Racks first, the root or the only one last.
    aggregators: Vec<NodeId>,
    parameters: Vec<NodeId>,
    jobs: Vec<Running<'a>>,
    witness: Witness,
    /// Engines of a job's earlier incarnations.
    before: Rc<RefCell<EngineStats>>,
    /// Workers that were handed over.
    handed_over: Rc<Cell<u64>>,
}

impl<'a> Simulation<'a> {
    pub fn new(scenario: &'a Scenario) -> Simulation<'a> {
        let mut simulation = Simulation {
            scenario,
            world: World::new(scenario.framing, scenario.seed),
            aggregators: Vec::new(),
            parameters: Vec::new(),
            jobs: Vec::new(),
            witness: Witness::default(),
            before: Rc::default(),
            handed_over: Rc::default(),
        };
        let center = simulation.connect();
        scenario.jobs.iter().for_each(|plan| simulation.start(plan, center));
        simulation.leave_orphans();
        simulation.schedule_faults();
        simulation.schedule_restart();
        simulation.schedule_handovers();
        if scenario.flow {
            let source = simulation.host_at(center);
            let sink = simulation.world.workers[0].node;
            simulation.world.add_flow(source, sink, FlowSpec::greedy(true), MICRO);
        }
        simulation.world.observer = Some(Box::new(simulation.witness.clone()));
        simulation
    }

    /// Adds the aggregators' nodes; returns the one in the middle.
    fn connect(&mut self) -> NodeId {
        let jobs = &self.scenario.jobs;
        let fixed = jobs.iter().filter(|job| !job.is_dynamic());
        let slots = fixed.map(|job| job.params.slots * u32::from(job.lanes)).sum();
        let capacity = Capacity {
            shards: jobs.iter().map(|job| job.params.shards).max().unwrap(),
            slots,
            dynamic_slots: self.scenario.pool,
            elements: jobs.iter().map(|job| job.params.elements).max().unwrap(),
            slot_timeout: self.scenario.slot_timeout,
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
            let mut aggregator = Aggregator::new(capacity).unwrap();
            aggregator.has_room = self.scenario.has_room;
            self.world.nodes[*node].aggregator = Some(aggregator);
        }
        center
    }

    fn cable(&self) -> LinkSpec {
        LinkSpec { faults: self.scenario.faults, ..self.scenario.cable }
    }

    fn host_at(&mut self, node: NodeId) -> NodeId {
        let host = self.world.add_node();
        let down = self.cable();
        // A host stops sending when its ring is full.
        let up = LinkSpec { queue: u64::MAX, ..down };
        self.world.network.connect(host, node, up, down);
        host
    }

    fn frame(&self, plan: &JobPlan) -> u64 {
        self.scenario.framing.chunk_len(plan.params.elements)
    }

    fn start(&mut self, plan: &'a JobPlan, center: NodeId) {
        let racks = self.aggregators.split_last().map_or(&[][..], |(_, racks)| racks).to_vec();
        let used: Vec<usize> = (0..racks.len()).filter(|rack| plan.racks.contains(&Some(*rack))).collect();
        let attach = |simulation: &mut Simulation<'_>, rack: &Option<usize>| Attachment {
            node: simulation.host_at(rack.map_or(center, |rack| racks[rack])),
            rack: rack.and_then(|rack| used.iter().position(|used| *used == rack)),
        };
        let workers: Vec<Attachment> = plan.racks.iter().map(|rack| attach(self, rack)).collect();
        let ring = plan.ring * self.frame(plan);
        let hosts = plan.hosts.iter().map(|host| self.parameter(*host, &workers, center, ring)).collect();
        let job = Job {
            params: plan.params.clone(),
            tuning: plan.tuning.clone(),
            lanes: plan.lanes,
            topology: Topology {
                root: (self.scenario.shape != Shape::Nothing).then_some(center),
                racks: used.iter().map(|rack| racks[*rack]).collect(),
            },
            workers,
            hosts,
            first_slot: plan.first_slot,
            stealing: plan.stealing,
            first_chunk: plan.first_chunk,
            ring,
        };
        let truth = Rc::new(RefCell::new(Truth::new(plan, self.scenario.seed)));
        let trainer = |rank| Box::new(Checker::new(rank, truth.clone())) as Box<_>;
        let workers = job.start(&mut self.world, trainer).unwrap();
        if let Some((rank, from, until)) = plan.pause {
            self.world.workers[workers[rank]].pause = Some((from, until));
        }
        if !plan.is_dynamic() {
            let ledger = Ledger::new(&workers, plan.params.slots);
            self.witness.0.borrow_mut().ledgers.insert(plan.params.job, ledger);
        }
        let newcomer = Rc::default();
        if let Some(replaced) = plan.replaced {
            let node = self.host_at(plan.racks[replaced.rank].map_or(center, |rack| racks[rack]));
            let (job, truth, newcomer) = (job.clone(), truth.clone(), Rc::clone(&newcomer));
            let replacement = replacement::Replacement { job, node, truth, newcomer };
            replacement.plan(&mut self.world, &replaced, &workers, self.scenario.seed);
        }
        self.jobs.push(Running { plan, job, truth, workers, newcomer });
    }

    fn parameter(
        &mut self,
        beside: Option<usize>,
        workers: &[Attachment],
        center: NodeId,
        ring: u64,
    ) -> NodeId {
        let node = beside.map_or_else(|| self.host_at(center), |rank| workers[rank].node);
        self.world.nodes[node].parameter = Some(Parameter::new(ring));
        self.parameters.push(node);
        node
    }

    /// Leaves chunks of a job of two workers in the first aggregator's slots: one worker contributes, and the
    /// job is removed.
    fn leave_orphans(&mut self) {
        let (Some(node), true) = (self.aggregators.first().copied(), self.scenario.orphans > 0) else {
            return;
        };
        let workers = [self.host_at(node), self.host_at(node)];
        let host = self.host_at(node);
        let Job { mut params, tuning, .. } = self.jobs[0].job.clone();
        (params.job, params.world, params.shards) = (60, 2, 1);
        params.dynamic = Some(DynamicParams::new(self.scenario.pool));
        let job = Job { hosts: vec![host], tuning, ..Job::below(Some(node), params, &workers) };
        self.world.nodes[host].parameter = Some(Parameter::new(1_000_000));
        job.install(&mut self.world).unwrap();
        for seq in 0..self.scenario.orphans {
            let packet = job.contribution(seq, seq % self.scenario.pool, node);
            self.world.at(u64::from(seq) * 10 * MICRO, move |world| world.send(workers[0], packet));
        }
        self.world.at(u64::from(self.scenario.orphans) * 20 * MICRO, move |world| {
            world.nodes[node].aggregator.as_mut().unwrap().remove(60);
        });
    }

    fn schedule_faults(&mut self) {
        for fault in &self.scenario.aggregator_faults {
            let (Fault::Restart { aggregator, .. }
            | Fault::Death { aggregator, .. }
            | Fault::Outage { aggregator, .. }
            | Fault::Cut { aggregator, .. }) = *fault;
            let node = self.aggregators[aggregator];
            let mut schedule = |at, change: fn(&mut Aggregator)| {
                self.world.at(at, move |world| change(world.nodes[node].aggregator.as_mut().unwrap()));
            };
            match *fault {
                Fault::Restart { at, .. } => schedule(at, |aggregator| {
                    if !aggregator.is_dead {
                        aggregator.restart().unwrap();
                    }
                }),
                Fault::Death { at, .. } => schedule(at, |aggregator| aggregator.is_dead = true),
                Fault::Outage { from, until, .. } => {
                    schedule(from, |aggregator| aggregator.is_dead = true);
                    schedule(until, |aggregator| aggregator.is_dead = false);
                }
                Fault::Cut { from, until, .. } => {
                    schedule(from, |aggregator| aggregator.is_cut = true);
                    schedule(until, |aggregator| aggregator.is_cut = false);
                }
            }
        }
    }

    /// The aggregators lose their memory; the control plane ends the job, and its trainers begin it anew.
    fn schedule_restart(&mut self) {
        let (Some(at), [running]) = (self.scenario.restart, &self.jobs[..]) else { return };
        let (mut job, truth, workers) = (running.job.clone(), running.truth.clone(), running.workers.clone());
        let (witness, before) = (self.witness.clone(), Rc::clone(&self.before));
        self.world.at(at, move |world| {
            for node in job.aggregators() {
                let aggregator = world.nodes[node].aggregator.as_mut().unwrap();
                let is_dead = aggregator.is_dead;
                aggregator.restart().unwrap();
                aggregator.is_dead = is_dead;
            }
            job.params.epoch = job.params.epoch.wrapping_add(1);
            job.install(world).unwrap();
            truth.borrow_mut().is_restarting = true;
            for id in &workers {
                world.fail_worker(*id, &JobError::AggregatorLost { reason: "it was restarted".into() });
                before.borrow_mut().merge(&world.workers[*id].stats());
            }
            truth.borrow_mut().restart();
            let ledger = Ledger::new(&workers, job.params.slots);
            witness.0.borrow_mut().ledgers.insert(job.params.job, ledger);
            witness.0.borrow_mut().probes.clear();
            for (rank, id) in workers.iter().enumerate() {
                let trainer = Checker::restarted(rank, truth.clone());
                world.restart_worker(*id, job.engines(rank).unwrap(), Box::new(trainer));
            }
        });
    }

    fn schedule_handovers(&mut self) {
        let Some(interval) = self.scenario.handovers else { return };
        for number in 1..=HANDOVERS {
            let handed_over = Rc::clone(&self.handed_over);
            self.world.at(number * interval, move |world| {
                for worker in &mut world.workers {
                    handed_over.set(handed_over.get() + u64::from(worker.hand_over()));
                }
            });
        }
    }

    /// Runs a script at a time.
    pub fn at(&mut self, time: Nanos, script: impl FnOnce(&mut World) + 'static) {
        self.world.at(time, script);
    }

    pub fn go(&mut self) {
        let truths: Vec<_> = self.jobs.iter().map(|job| job.truth.clone()).collect();
        let is_done = move |_: &World| truths.iter().all(|truth| truth.borrow().open == 0);
        self.world.run_until(TIMEOUT, &is_done);
        if !is_done(&self.world) {
            self.explain();
            panic!("timeout");
        }
    }

    /// Prints the state of every engine.
    fn explain(&self) {
        for Running { plan, workers, .. } in &self.jobs {
            for (rank, id) in workers.iter().enumerate() {
                for (lane, engine) in self.world.workers[*id].engines.iter().enumerate() {
                    let stats = engine.stats();
                    println!(
                        "job {}, rank {rank}, lane {lane}: {:?}, {} results of {} sent, {} in flight, direct \
                        {}, frames {}",
                        plan.params.job,
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

    /// Checks the end, when late packets have arrived.
    fn finish(mut self) -> Totals {
        // A replaced or restarted job that ended early stays as it is.
        let end = self.world.now() + SECOND;
        let has_restarted = self.scenario.restart.is_some_and(|at| at <= self.world.now());
        if self.scenario.restart.is_none() || has_restarted {
            self.world.run(end);
        }
        let mut totals = self.totals();
        totals.begun_anew = u64::from(has_restarted);
        totals.handed_over = self.handed_over.get();
        totals.fixed.merge(&self.before.borrow());
        for running in &self.jobs {
            for rank in 0..running.workers.len() {
                self.check_worker(running, rank, &mut totals);
            }
            if !running.plan.is_dynamic() {
                self.check_static(running, &mut totals);
            }
            totals.carried += running.truth.borrow().carried;
            let exact = running.plan.tensors.iter().filter(|tensor| running.plan.exact(tensor).is_some());
            totals.exact += exact.filter(|tensor| tensor.count > 0).count() as u64;
        }
        totals
    }
}
