//! One scenario: everything about a run that is chosen at random.

use std::ops::Range;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use sumac_sim::{
    events::Nanos,
    link::{Faults, LinkSpec},
};
use sumac_transport::{Arithmetic, DType, JobParams, Tuning};

use crate::draw;

/// Who gives and who takes what.
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
    /// Its stream.
    pub lane: u16,
    /// When each worker submits it at the earliest; workers add their own lateness.
    pub at: Nanos,
    /// How large the sums of its elements are.
    pub sums: Sums,
}

/// How large sums are, as integers of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// They fit, and so do those of any workers.
    Fit,
    /// Of some elements, any two workers' are too large.
    TooLarge,
    /// Of some elements, those of some workers are too large and of others not, as their signs have it; so it depends on who meets
    /// first whether anybody sees that. The whole sum may fit or not.
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

    /// What a worker gives, and what it takes.
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

/// What aggregators there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// None: cables meet at a node that passes everything on.
    Nothing,
    /// One above all.
    One,
    /// This many below a root.
    Racks(usize),
}

/// One job.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// Of rank 0 and lane 0.
    pub params: JobParams,
    pub tuning: Tuning,
    pub lanes: u16,
    /// The first slot of a static job.
    pub first_slot: u32,
    /// By rank, the rack of each worker; `None`: below the root, or the only aggregator.
    pub racks: Vec<Option<usize>>,
    /// Its parameter hosts: the rank of the worker at whose node one is, or `None` for one with a node of its own.
    pub hosts: Vec<Option<usize>>,
    pub tensors: Vec<Tensor>,
    /// How late each worker is with everything.
    pub lateness: Vec<Nanos>,
    /// A worker that dies, and another that takes its place.
    pub replaced: Option<Replaced>,
    /// A worker that does nothing from and until these times.
    pub pause: Option<(usize, Nanos, Nanos)>,
    /// Full frames in a worker's ring.
    pub ring: u64,
}

/// A worker that dies (ATP appendix A.3). The one in its place has other values, as one that computes anew may: so it shows whose
/// are in a sum.
#[derive(Clone, Copy, Debug)]
pub struct Replaced {
    pub rank: usize,
    /// When it dies.
    pub at: Nanos,
    /// How long it takes until the parameter hosts go on under another incarnation.
    pub after: Nanos,
    /// How much later the last one hears of it, of aggregators, workers and the newcomer.
    pub spread: Nanos,
}

/// What befalls aggregators. Their number: racks first, the root or the only one last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It loses all its slots.
    Restart { aggregator: usize, at: Nanos },
    /// It answers nothing any more; what is not for it passes.
    Death { aggregator: usize, at: Nanos },
    /// The same, for a while.
    Outage { aggregator: usize, from: Nanos, until: Nanos },
    /// It answers, but for a while nothing gets from it to what is above it, nor back.
    Cut { aggregator: usize, from: Nanos, until: Nanos },
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub shape: Shape,
    pub jobs: Vec<JobPlan>,
    /// Slots that the dynamic jobs share in each shard.
    pub pool: u32,
    /// How long a slot may be silent.
    pub patience: Nanos,
    /// What cables are like, away from aggregators and towards hosts.
    pub cable: LinkSpec,
    pub faults: Faults,
    pub fates: Vec<Fate>,
    /// Chunks of a job that is dead, which lie in the first aggregator's slots.
    pub orphans: u32,
    /// Whether a flow like TCP's goes to the first worker.
    pub flow: bool,
}

impl Scenario {
    pub fn from_seed(seed: u64) -> Scenario {
        draw::scenario(seed, &mut ChaCha8Rng::seed_from_u64(seed))
    }

    /// How many aggregators there are.
    pub fn aggregators(shape: Shape) -> usize {
        match shape {
            Shape::Nothing => 0,
            Shape::One => 1,
            Shape::Racks(racks) => racks + 1,
        }
    }
}
