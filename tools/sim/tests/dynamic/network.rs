//! One dynamic job: workers and a parameter host around one aggregator.
//!
//! ```text
//!   worker 0 --+
//!   worker 1 --+-- aggregator -- parameter host      each cable: 10 us, loss, duplication, jitter
//!   worker 2 --+
//! ```

use std::{
    cell::{Ref, RefCell},
    rc::Rc,
};

use sumac_parameter::JobStats;
use sumac_sim::{
    address::{NodeId, socket},
    aggregator::{Aggregator, Capacity},
    events::{MICRO, MILLI, Nanos, SECOND},
    job::Job,
    link::{Faults, LinkSpec},
    packet::Framing,
    parameter::Parameter,
    trainer::Recorder,
    world::World,
};
use sumac_transport::{Completion, Engine, JobParams, JobState, Operation};
use sumac_wire::Reason;

/// Age at which an incomplete slot can be taken.
const SLOT_TIMEOUT: Nanos = SECOND;

pub struct Network {
    pub world: World,
    job: Job,
    center: NodeId,
    host: NodeId,
    /// Indices in the world by rank.
    workers: Vec<usize>,
    completions: Vec<Rc<RefCell<Vec<Completion>>>>,
}

impl Network {
    /// Workers with these parameters of rank 0, and an aggregator if they have slots.
    pub fn new(params: &JobParams, seed: u64, faults: Faults) -> Network {
        let slots = params.dynamic.as_ref().map_or(0, |dynamic| dynamic.slots);
        let mut world = World::new(Framing { stretch: 1 }, seed);
        let cable = LinkSpec { faults, ..LinkSpec::new(10_000_000_000, 10 * MICRO) };
        let center = world.add_node();
        let mut add_host = || {
            let node = world.add_node();
            world.network.connect(node, center, cable, cable);
            node
        };
        let host = add_host();
        let workers: Vec<NodeId> = (0..params.world).map(|_| add_host()).collect();
        world.nodes[host].parameter = Some(Parameter::new(u64::MAX));
        if slots > 0 {
            let (shards, elements, slot_timeout) = (params.shards, params.elements, SLOT_TIMEOUT);
            let capacity = Capacity { shards, slots: 1, dynamic_slots: slots, elements, slot_timeout };
            world.nodes[center].aggregator = Some(Aggregator::new(capacity).expect("memory"));
        }
        let root = (slots > 0).then_some(center);
        let job = Job { hosts: vec![host], ..Job::below(root, params.clone(), &workers) };
        let recorders: Vec<Recorder> = workers.iter().map(|_| Recorder::default()).collect();
        let start = job.start(&mut world, |rank| Box::new(recorders[rank].clone()));
        let workers = start.expect("a good job");
        let completions = recorders.into_iter().map(|recorder| recorder.completions).collect();
        Network { world, job, center, host, workers, completions }
    }

    pub fn size(&self) -> usize {
        self.workers.len()
    }

    pub fn submit(&mut self, rank: usize, operation: Operation) {
        self.world.submit(self.workers[rank], 0, operation);
    }

    pub fn engine(&self, rank: usize) -> &Engine {
        &self.world.workers[self.workers[rank]].engines[0]
    }

    pub fn engines(&self) -> impl Iterator<Item = &Engine> {
        self.workers.iter().map(|id| &self.world.workers[*id].engines[0])
    }

    pub fn completions(&self, rank: usize) -> Ref<'_, Vec<Completion>> {
        self.completions[rank].borrow()
    }

    pub fn aggregator(&mut self) -> &mut Aggregator {
        self.world.nodes[self.center].aggregator.as_mut().expect("an aggregator")
    }

    pub fn collisions(&mut self) -> u64 {
        self.aggregator().counter(Reason::Collided)
    }

    /// Loses the packets of a worker to the aggregator; `None`: of no worker.
    pub fn cut_off(&mut self, rank: Option<usize>) {
        let sender = rank.map(|rank| socket(self.job.workers[rank].node));
        self.aggregator().deaf_to = sender;
    }

    /// The job at the parameter host.
    pub fn host_stats(&self) -> JobStats {
        let parameter = self.world.nodes[self.host].parameter.as_ref().expect("a parameter host");
        parameter.host.stats().jobs[0].clone()
    }

    /// Fills all slots with chunks of another job, which is then removed.
    pub fn occupy_slots(&mut self, slots: u32) {
        let mut job = self.job.clone();
        (job.params.job, job.params.epoch) = (60, 1);
        job.install(&mut self.world).expect("a good job");
        for slot in 0..slots {
            let packet = job.contribution(slot, slot, self.center);
            self.world.send(job.workers[0].node, packet);
        }
        self.idle(1);
        self.aggregator().remove(60);
        let host = self.world.nodes[self.host].parameter.as_mut().expect("a parameter host");
        host.host.remove(60);
        assert_eq!(self.aggregator().slots_in_use(), slots);
    }

    /// Runs until all workers have completed `operations` operations; panics after `limit` seconds.
    pub fn run(&mut self, operations: usize, limit: u64) {
        self.run_until(limit, |completions| {
            completions.iter().all(|ended| ended.borrow().len() >= operations)
        });
    }

    /// Runs until the completions of all workers fulfil a condition; panics after `limit` seconds.
    pub fn run_until(&mut self, limit: u64, is_done: impl Fn(&[Rc<RefCell<Vec<Completion>>>]) -> bool) {
        let end = self.world.now() + limit * SECOND;
        let completions = self.completions.clone();
        if !is_done(&completions) {
            self.world.run_until(end, |_| is_done(&completions));
        }
        assert!(is_done(&completions), "stuck at {} ms: {}", self.world.now() / MILLI, self.summary());
    }

    /// Replaces the worker of `rank`, whose operations are lost. Returns the first chunk that is not summed.
    pub fn replace(&mut self, rank: usize) -> u32 {
        self.world.workers[self.workers[rank]].is_dead = true;
        self.job.params.epoch += 1;
        let resume = self.job.renew_hosts(&mut self.world).expect("the same hosts");
        let aggregators: Vec<NodeId> = self.job.aggregators().collect();
        for node in aggregators {
            self.job.install_at(&mut self.world, node).expect("the same job");
        }
        for (other, id) in self.workers.clone().into_iter().enumerate() {
            if other != rank {
                self.world.renew_worker(id, self.job.params.epoch, &resume);
            }
        }
        let recorder = Recorder::default();
        self.completions[rank] = recorder.completions.clone();
        let replaced = self.job.replace(&mut self.world, rank, &resume, Box::new(recorder));
        self.workers[rank] = replaced.expect("good parameters");
        resume[0]
    }

    /// Runs for some milliseconds.
    pub fn idle(&mut self, milliseconds: u64) {
        let end = self.world.now() + milliseconds * MILLI;
        self.world.run(end);
    }

    /// Runs until all workers may send chunks.
    pub fn join(&mut self) {
        let end = self.world.now() + 3 * SECOND;
        let workers = self.workers.clone();
        let is_ready =
            |world: &World| workers.iter().all(|id| world.workers[*id].engines[0].state() == JobState::Ready);
        self.world.run_until(end, is_ready);
        assert!(is_ready(&self.world), "{:?}", self.engine(0).state());
    }

    /// Returns the counters of every part.
    pub fn summary(&self) -> String {
        let workers = self.engines().map(|engine| {
            let stats = serde_json::to_value(engine.stats()).expect("statistics");
            let fields = stats.as_object().expect("an object").iter();
            let fields = fields.filter(|(name, value)| {
                !name.starts_with("elements") && **value != 0 && !value["buckets"].is_array()
            });
            fields.map(|(name, value)| format!("{name}: {value} ")).collect::<String>()
        });
        workers.map(|worker| worker + "\n").collect::<String>() + &format!("{:?}", self.host_stats())
    }
}
