//! The common part of the figures' labs: hosts around one aggregator, jobs on them, and numbers from what
//! their trainers wrote down.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::{DynamicParams, JobParams, Scale};
use sumac_wire::Reason;

use sumac_sim::{
    address::NodeId,
    aggregator::{Aggregator, Capacity},
    events::{MICRO, Nanos, SECOND},
    job::{Job, SetupError},
    link::{Faults, LinkSpec},
    network::LinkId,
    packet::Framing,
    parameter::Parameter,
    trainer::{StepPlan, Steps, TrainerLog},
    world::World,
};

/// Elements of a chunk here, each in place of [`STRETCH`] words: 360 words, a frame of 1,538 bytes.
pub const ELEMENTS: u16 = 4;
/// Words on the cable for each element.
pub const STRETCH: u64 = 90;
/// Bytes of tensor in a chunk.
pub const CHUNK_BYTES: u64 = ELEMENTS as u64 * STRETCH * 4;
/// The framing on the figures' cables.
pub const FRAMING: Framing = Framing { stretch: STRETCH };

/// The properties of all cables.
#[derive(Clone, Copy, Debug)]
pub struct Cables {
    /// Bits per second.
    pub rate: u64,
    /// One way.
    pub delay: Nanos,
    /// Full frames that a port of the aggregator's node holds.
    pub queue: u64,
    /// Full frames above which it marks.
    pub mark: u64,
}

/// 10 Gbit/s, and as far as a window of 96 chunks reaches to the aggregator and back.
pub const CABLES: Cables = Cables { rate: 10_000_000_000, delay: 57 * MICRO, queue: 256, mark: 64 };

impl Cables {
    /// From the node to a host.
    pub fn down(&self) -> LinkSpec {
        let frame = FRAMING.chunk_len(ELEMENTS);
        LinkSpec {
            rate: self.rate,
            delay: self.delay,
            queue: self.queue * frame,
            mark: Some(self.mark * frame),
            classes: None,
            faults: Faults::default(),
        }
    }

    /// From a host, which stops to send before its own queue is full.
    pub fn up(&self) -> LinkSpec {
        LinkSpec { queue: u64::MAX, mark: None, ..self.down() }
    }

    /// Bytes of tensor in a second of full chunks.
    pub fn goodput(&self) -> f64 {
        self.rate as f64 / 8.0 * CHUNK_BYTES as f64 / FRAMING.chunk_len(ELEMENTS) as f64
    }

    /// Returns a cable's time for `chunks` chunks.
    pub fn time(&self, chunks: u64) -> Nanos {
        chunks * FRAMING.chunk_len(ELEMENTS) * 8 * SECOND / self.rate
    }
}

/// A job's use of the aggregator.
#[derive(Clone, Debug)]
pub enum Allocation {
    /// Slots of its own: lanes, each in a shard of its own, and slots of each.
    Static(u16, u32),
    /// Slots that it shares.
    Dynamic(DynamicParams),
}

/// Hosts around an aggregator.
pub struct Testbed {
    pub world: World,
    pub center: NodeId,
    pub cables: Cables,
    pub rng: ChaCha8Rng,
    jobs: u16,
    slots: u32,
}

/// A job that runs.
pub struct Running {
    pub job: Job,
    /// Its workers' places in the world.
    pub workers: Vec<usize>,
    /// The log of each worker's trainer.
    pub logs: Vec<Rc<RefCell<TrainerLog>>>,
    pub plan: StepPlan,
}

impl Testbed {
    /// An aggregator with this many shared slots, and nobody around it.
    pub fn new(cables: Cables, dynamic_slots: u32, seed: u64) -> Testbed {
        let mut world = World::new(FRAMING, seed);
        let center = world.add_node();
        let slot_timeout = SECOND;
        let capacity = Capacity { shards: 16, slots: 4_096, dynamic_slots, elements: ELEMENTS, slot_timeout };
        world.nodes[center].aggregator = Aggregator::new(capacity).ok();
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Testbed { world, center, cables, rng, jobs: 0, slots: 0 }
    }

    /// A host on a cable of its own to some node; and the cable to it.
    pub fn host_at(&mut self, node: NodeId) -> (NodeId, LinkId) {
        let host = self.world.add_node();
        let link = self.world.network.connect(host, node, self.cables.up(), self.cables.down());
        (host, link)
    }

    /// Hosts on cables of their own to the aggregator.
    pub fn hosts(&mut self, count: usize) -> Vec<NodeId> {
        (0..count).map(|_| self.host_at(self.center).0).collect()
    }

    /// A host beside the aggregator that sums.
    pub fn parameter_host(&mut self) -> NodeId {
        let (node, _) = self.host_at(self.center);
        self.world.nodes[node].parameter = Some(Parameter::new(self.ring()));
        node
    }

    /// Bytes of a host's ring: 64 frames.
    pub fn ring(&self) -> u64 {
        64 * FRAMING.chunk_len(ELEMENTS)
    }

    /// A job on these hosts, which are all right below the aggregator.
    pub fn job(&mut self, mode: &Allocation, nodes: &[NodeId], hosts: &[NodeId]) -> Job {
        self.jobs += 1;
        let (lanes, slots, dynamic) = match mode {
            Allocation::Static(lanes, slots) => (*lanes, *slots, None),
            Allocation::Dynamic(dynamic) => (1, 1, Some(initial(dynamic))),
        };
        let first_slot = self.slots;
        self.slots += slots * u32::from(lanes);
        let params = JobParams {
            shards: lanes,
            scaling: Scale::Fixed(1e8),
            dynamic,
            ..JobParams::new(self.jobs, nodes.len() as u16, slots, ELEMENTS)
        };
        let (hosts, ring) = (hosts.to_vec(), self.ring());
        Job { lanes, hosts, first_slot, ring, ..Job::below(Some(self.center), params, nodes) }
    }

    /// Has a job's trainers begin.
    pub fn start(&mut self, job: Job, plan: &StepPlan) -> Result<Running, SetupError> {
        let logs: Vec<Rc<RefCell<TrainerLog>>> = job.workers.iter().map(|_| Rc::default()).collect();
        let plan = StepPlan { lanes: usize::from(job.lanes), ..plan.clone() };
        let workers =
            job.start(&mut self.world, |rank| Box::new(Steps::new(plan.clone(), logs[rank].clone())))?;
        Ok(Running { job, workers, logs, plan })
    }

    /// Some part of `most`, drawn.
    pub fn some_of(&mut self, most: Nanos) -> Nanos {
        self.rng.random_range(0..most.max(1))
    }

    /// Packets of a job at the aggregator, by what became of them.
    pub fn counter(&self, job: &Running, reason: Reason) -> u64 {
        let aggregator = self.world.nodes[self.center].aggregator.as_ref();
        aggregator.map_or(0, |aggregator| aggregator.job_counter(job.job.params.job, reason))
    }
}

/// With the paper's initial window in bytes of the cable, of which the engine does not know.
fn initial(dynamic: &DynamicParams) -> DynamicParams {
    let chunks = (60_000 / FRAMING.chunk_len(ELEMENTS)) as u32;
    let initial_window = dynamic.initial_window.or(Some(chunks.min(dynamic.window)));
    DynamicParams { initial_window, ..dynamic.clone() }
}

/// A plan of tensors without a pause, from this time on.
pub fn tensors(tensors: usize, chunks: usize, from: Nanos) -> StepPlan {
    let (elements, chunk) = (chunks * usize::from(ELEMENTS), 4 * usize::from(ELEMENTS));
    StepPlan { lanes: 1, tensors, elements, chunk, pause: 0, from, until: 100 * SECOND }
}

impl Running {
    /// Steps of worker 0 between two times.
    pub fn steps(&self, from: Nanos, until: Nanos) -> usize {
        let log = self.logs[0].borrow();
        log.steps.iter().filter(|at| (from..until).contains(at)).count()
    }

    /// Nanoseconds that a step of worker 0 takes, from the end of the `skipped`-th step to the last one;
    /// `None`: it has not come so far.
    pub fn step_time(&self, skipped: usize) -> Option<f64> {
        let log = self.logs[0].borrow();
        let (first, last) = (log.steps.get(skipped)?, log.steps.last()?);
        let steps = log.steps.len() - 1 - skipped;
        (steps > 0).then(|| (last - first) as f64 / steps as f64)
    }

    /// Bytes of tensor that worker 0 got per second between two times.
    pub fn goodput(&self, from: Nanos, until: Nanos) -> f64 {
        let log = self.logs[0].borrow();
        let tensors = log.tensors.iter().filter(|at| (from..until).contains(at)).count();
        tensors as f64 * self.tensor_bytes() * SECOND as f64 / (until - from) as f64
    }

    /// The same in each `step` from the beginning to `end`, in Gbit/s.
    pub fn goodput_series(&self, step: Nanos, end: Nanos) -> Vec<f64> {
        let goodput = |number| self.goodput(number * step, (number + 1) * step) * 8e-9;
        (0..end / step).map(goodput).collect()
    }

    /// Checks that no operation of any worker ended with an error.
    pub fn check(&self) -> Result<(), SetupError> {
        let failed = self.logs.iter().find_map(|log| log.borrow().failed.first().cloned());
        failed.map_or(Ok(()), |why| Err(SetupError::Operation(why)))
    }

    fn tensor_bytes(&self) -> f64 {
        (self.plan.elements as u64 * STRETCH * 4) as f64
    }
}

/// Calls `run` for all seeds of all cases, on all cores; gives the results by case, in the seeds' order.
pub fn over_seeds<C: Sync, R: Send>(
    cases: &[C],
    seeds: u64,
    run: impl Fn(&C, u64) -> Result<R, SetupError> + Sync,
) -> Result<Vec<Vec<R>>, SetupError> {
    let next = AtomicU64::new(0);
    let done = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get((number / seeds) as usize) else { return };
                    let result = run(case, number % seeds);
                    done.lock().unwrap_or_else(PoisonError::into_inner).insert(number, result);
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values();
    cases.iter().map(|_| done.by_ref().take(seeds as usize).collect()).collect()
}
