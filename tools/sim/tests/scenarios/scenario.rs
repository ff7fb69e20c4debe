//! One scenario: everything about a run that is drawn from a seed.

use std::ops::Range;

use sumac_sim::{
    events::{Nanos, SECOND},
    link::{Faults, LinkSpec},
    packet::Framing,
};
use sumac_transport::{
    Arithmetic, DType, JobParams, Tuning,
    convert::{Codec, ExactSum},
    has_exponent_chunk,
};

/// The collective operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    AllReduce(Arithmetic),
    Broadcast { root: usize },
    Reduce { root: usize },
    ReduceScatter,
    AllGather,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    pub kind: Kind,
    pub dtype: DType,
    pub count: usize,
    pub lane: u16,
    /// Earliest time of its submission; each worker adds its own lateness.
    pub at: Nanos,
    pub sums: Sums,
    /// Rank and index of a value that cannot be summed.
    pub poison: Option<(usize, usize)>,
}

/// The size of a tensor's sums, as integers of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// The sums of all subsets of workers fit.
    Fit,
    /// For some elements, the sum of any two workers overflows.
    TooLarge,
    /// For some elements, some subsets overflow and others do not, by their signs. Whether an aggregator sees
    /// an overflow depends on the order of arrival. The whole sum may fit or not.
    InParts,
}

impl Tensor {
    pub fn arithmetic(&self) -> Arithmetic {
        match self.kind {
            Kind::AllReduce(arithmetic) => arithmetic,
            Kind::Broadcast { .. } | Kind::AllGather => Arithmetic::Bits,
            Kind::Reduce { .. } | Kind::ReduceScatter => Arithmetic::Sum,
        }
    }

    pub fn is_sum(&self) -> bool {
        matches!(self.arithmetic(), Arithmetic::Sum | Arithmetic::Mean)
    }

    /// The index of its first element: some are parts of larger tensors.
    pub fn base(&self) -> u32 {
        if self.count % 5 == 3 { 1000 } else { 0 }
    }

    /// The ranges that a worker contributes and receives.
    pub fn parts(&self, rank: usize, world: usize) -> (Range<usize>, Range<usize>) {
        let (all, none) = (0..self.count, 0..0);
        let share = |rank: usize| rank * self.count / world;
        let own = share(rank)..share(rank + 1);
        match self.kind {
            Kind::AllReduce(_) => (all.clone(), all),
            Kind::Broadcast { root } if root == rank => (all, none),
            Kind::Broadcast { .. } => (none, all),
            Kind::Reduce { root } if root == rank => (all.clone(), all),
            Kind::Reduce { .. } => (all, none),
            Kind::ReduceScatter => (all, own),
            Kind::AllGather => (own, all),
        }
    }
}

/// The aggregators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// None: cables meet at a node that forwards.
    Nothing,
    One,
    /// This many below a root.
    Racks(usize),
}

#[derive(Clone, Debug)]
pub struct JobPlan {
    /// Of rank 0 and lane 0.
    pub params: JobParams,
    pub tuning: Tuning,
    pub lanes: u16,
    /// The first slot of a static job.
    pub first_slot: u32,
    /// The first chunk of each lane of a static job.
    pub first_chunk: u32,
    pub stealing: bool,
    /// The rack of each worker; `None`: below the root or the only aggregator.
    pub racks: Vec<Option<usize>>,
    /// Its parameter hosts: the rank of the worker on the same node, or `None` for a node of its own.
    pub hosts: Vec<Option<usize>>,
    pub tensors: Vec<Tensor>,
    /// Delay of each worker's submissions.
    pub lateness: Vec<Nanos>,
    pub replaced: Option<Replaced>,
    /// A worker that does nothing from the first time until the second.
    pub pause: Option<(usize, Nanos, Nanos)>,
    /// Full frames in a worker's ring.
    pub ring: u64,
}

impl JobPlan {
    pub fn is_dynamic(&self) -> bool {
        self.params.dynamic.is_some()
    }

    /// Chunks of a tensor's values.
    pub fn chunks(&self, tensor: &Tensor) -> u64 {
        self.params.chunks(tensor.dtype, tensor.arithmetic(), tensor.count)
    }

    /// Chunks of a tensor in its lane's stream, which continues with chunk `next`: those of its values, and
    /// one of their exponents.
    pub fn stream_chunks(&self, next: u32, tensor: &Tensor) -> u64 {
        let JobParams { world, wire, scaling, .. } = self.params;
        let codec = Codec::new(world, wire, scaling);
        let is_scaled =
            codec.needs_exponent(tensor.dtype, tensor.arithmetic()) && self.exact(tensor).is_none();
        let values = self.chunks(tensor);
        values + u64::from(is_scaled && has_exponent_chunk(next, values))
    }

    /// The form of a tensor of few floats, which has no exponent in a static job.
    pub fn exact(&self, tensor: &Tensor) -> Option<ExactSum> {
        let JobParams { world, wire, scaling, elements, .. } = self.params;
        let codec = Codec::new(world, wire, scaling);
        let exact = codec.exact(tensor.dtype, tensor.arithmetic(), tensor.count, elements.into());
        exact.filter(|_| !self.is_dynamic() && tensor.base() == 0)
    }

    /// Chunks of the tensors of a lane that run, in order, in its stream that begins with chunk `first`.
    pub fn stream<'a>(&self, first: u32, tensors: impl Iterator<Item = &'a Tensor>) -> u64 {
        tensors.fold(0, |sum, tensor| sum + self.stream_chunks(first.wrapping_add(sum as u32), tensor))
    }

    /// The tensors of one lane, in order.
    pub fn of_lane(&self, lane: usize) -> impl Iterator<Item = usize> {
        (0..self.tensors.len()).filter(move |number| usize::from(self.tensors[*number].lane) == lane)
    }
}

/// A worker that dies and is replaced (ATP appendix A.3). The replacement has other values, which shows whose
/// values a sum contains.
#[derive(Clone, Copy, Debug)]
pub struct Replaced {
    pub rank: usize,
    /// Time of death.
    pub at: Nanos,
    /// Time until the parameter hosts continue under another incarnation.
    pub after: Nanos,
    /// Longest further delay until an aggregator or worker learns of it, and until the replacement starts.
    pub spread: Nanos,
}

/// A fault of an aggregator. Their numbers: racks first, the root or the only one last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It loses all its slots.
    Restart { aggregator: usize, at: Nanos },
    /// It answers nothing from then on; its node forwards.
    Death { aggregator: usize, at: Nanos },
    /// It answers nothing for a while, and keeps its slots.
    Outage { aggregator: usize, from: Nanos, until: Nanos },
    /// Packets between it and its parents are lost for a while.
    Cut { aggregator: usize, from: Nanos, until: Nanos },
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub framing: Framing,
    pub shape: Shape,
    pub jobs: Vec<JobPlan>,
    /// Slots that the dynamic jobs share in each shard.
    pub pool: u32,
    /// Age at which an incomplete dynamic slot can be taken.
    pub slot_timeout: Nanos,
    /// Whether frames without values have room for a result.
    pub has_room: bool,
    /// Cables towards hosts, and between aggregators.
    pub cable: LinkSpec,
    pub faults: Faults,
    pub aggregator_faults: Vec<Fault>,
    /// Time at which all aggregators lose the only job, a static one, and it begins anew in its next epoch
    /// with the first operation that any worker lacks.
    pub restart: Option<Nanos>,
    /// The interval at which the workers' engines are handed over to other processes.
    pub handovers: Option<Nanos>,
    /// Chunks of a removed job in the first aggregator's slots.
    pub orphans: u32,
    /// Whether a TCP-like flow goes to the first worker.
    pub flow: bool,
}

impl Scenario {
    /// These jobs without faults, and one slot for dynamic ones.
    pub fn new(seed: u64, framing: Framing, shape: Shape, jobs: Vec<JobPlan>, cable: LinkSpec) -> Scenario {
        Scenario {
            seed,
            framing,
            shape,
            jobs,
            pool: 1,
            slot_timeout: SECOND,
            has_room: false,
            cable,
            faults: Faults::default(),
            aggregator_faults: Vec::new(),
            restart: None,
            handovers: None,
            orphans: 0,
            flow: false,
        }
    }

    pub fn aggregators(shape: Shape) -> usize {
        match shape {
            Shape::Nothing => 0,
            Shape::One => 1,
            Shape::Racks(racks) => racks + 1,
        }
    }

    /// Whether the network neither loses, duplicates nor reorders; workers may be late.
    pub fn has_perfect_network(&self) -> bool {
        let Faults { loss, duplication, reordering, .. } = self.faults;
        let is_perfect = loss + duplication + reordering == 0.0 && self.cable.queue == u64::MAX;
        is_perfect && self.aggregator_faults.is_empty() && self.restart.is_none()
    }

    /// Whether nothing goes wrong, so that nothing may be sent twice.
    pub fn is_perfect(&self) -> bool {
        let on_time = |job: &JobPlan| job.pause.is_none() && job.lateness.iter().all(|late| *late == 0);
        self.has_perfect_network() && self.jobs.iter().all(on_time)
    }
}
