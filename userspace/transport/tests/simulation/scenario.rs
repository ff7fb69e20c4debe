//! One scenario: everything about a run that is chosen at random, from one seed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::{Arithmetic, DType, JobParams, NonFinitePolicy, Scale, WireFormat};

use crate::support::{self, aggregator::Setup};

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;

/// What one direction of a cable does to frames. Probabilities per frame, times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: f64,
    pub duplication: f64,
    /// How often a frame is held back, and how long at most.
    pub reordering: f64,
    pub held_back: u64,
    pub delay: u64,
    /// Time that one frame occupies the cable.
    pub spacing: u64,
}

/// Who gives and who takes what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    AllReduce(Arithmetic),
    Broadcast { root: u16 },
    Reduce { root: u16 },
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
    pub at: u64,
    /// A value that cannot be summed: whose, and which element.
    pub poison: Option<(u16, usize)>,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    /// Of rank 0 and lane 0.
    pub params: JobParams,
    pub lanes: u16,
    /// Racks with an aggregator each below a root; 1: one aggregator above all workers.
    pub racks: u16,
    /// Whether results name the next chunk that anybody may take.
    pub stealing: bool,
    pub first_seq: u32,
    pub tensors: Vec<Tensor>,
    pub faults: Faults,
    /// Frames that a worker can send before it must wait a little.
    pub ring: usize,
    /// How late each worker is with everything.
    pub lateness: Vec<u64>,
    /// A worker that does nothing from and until these times.
    pub pause: Option<(u16, u64, u64)>,
    /// No aggregator is reachable from and until these times; they keep their state.
    pub outage: Option<(u64, u64)>,
    /// When the aggregators lose their state and the job begins anew, in its next epoch, with the first operation that
    /// anybody lacks.
    pub restart: Option<u64>,
}

impl Scenario {
    pub fn from_seed(seed: u64) -> Scenario {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let perfect = rng.random_bool(0.2);
        let racks = if rng.random_bool(0.3) { 2 } else { 1 };
        let params = params(&mut rng, racks);
        let lanes = if rng.random_bool(0.3) { 2 } else { 1 };
        let tensors = tensors(&mut rng, &params, lanes);
        let faults = faults(&mut rng, perfect);
        let late = rng.random_bool(0.4);
        let latest = (8 * MILLI).max(200 * faults.delay);
        let lateness =
            (0..params.world).map(|_| if late { rng.random_range(0..latest) } else { 0 }).collect();
        let window = |rng: &mut ChaCha8Rng| {
            let from = rng.random_range(0..3 * MILLI);
            (from, from + rng.random_range(MILLI..50 * MILLI))
        };
        let pause = rng.random_bool(0.2).then(|| {
            let (from, until) = window(&mut rng);
            (rng.random_range(0..params.world), from, until)
        });
        let outage = (!perfect && rng.random_bool(0.2)).then(|| window(&mut rng));
        let first_seq = if rng.random_bool(0.5) { rng.random() } else { u32::MAX - rng.random_range(0..40) };
        let ring = if perfect { 128 } else { rng.random_range(1..128) };
        let stealing = rng.random_bool(0.7);
        let restart = (!perfect && rng.random_bool(0.1)).then(|| rng.random_range(0..5 * MILLI));
        Scenario {
            seed,
            params,
            lanes,
            racks,
            stealing,
            first_seq,
            tensors,
            faults,
            ring,
            lateness,
            pause,
            outage,
            restart,
        }
    }

    /// What one engine is told.
    pub fn params_of(&self, rank: u16, lane: u16, epoch: u16) -> JobParams {
        let rack_rank = rank % self.params.rack_world;
        JobParams { rank, rack_rank, lane, epoch, ..self.params.clone() }
    }

    /// What an aggregator is told.
    pub fn setup(&self, level: support::aggregator::Level) -> Setup {
        Setup { level, lanes: self.lanes, first_seq: self.first_seq, stealing: self.stealing }
    }

    /// The tensors of one lane, in order.
    pub fn of_lane(&self, lane: u16) -> impl Iterator<Item = usize> {
        (0..self.tensors.len()).filter(move |number| self.tensors[*number].lane == lane)
    }

    /// Whether the network loses and disorders nothing; workers may be late.
    pub fn has_perfect_network(&self) -> bool {
        let f = &self.faults;
        f.loss + f.duplication + f.reordering == 0.0 && self.outage.is_none() && self.restart.is_none()
    }

    /// Whether nothing at all goes wrong, so that nothing may be sent twice.
    pub fn is_perfect(&self) -> bool {
        self.has_perfect_network() && self.lateness.iter().all(|late| *late == 0) && self.pause.is_none()
    }

    /// Chunks of a tensor.
    pub fn chunks(&self, tensor: &Tensor) -> u64 {
        self.params.chunks(tensor.dtype, tensor.arithmetic(), tensor.count)
    }
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
    pub fn parts(&self, rank: u16, world: u16) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (all, none) = (0..self.count, 0..0);
        let share = |rank: u16| usize::from(rank) * self.count / usize::from(world);
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

fn params(rng: &mut ChaCha8Rng, racks: u16) -> JobParams {
    let slots = 1u32 << rng.random_range(0..=6);
    let rack_world = if racks == 1 { rng.random_range(2..=8) } else { rng.random_range(1..=4) };
    let fixed = if rng.random_bool(0.7) { f32::exp2(rng.random_range(4..20) as f32) } else { 1e6 };
    JobParams {
        world: racks * rack_world,
        rack_world,
        scaling: if rng.random_bool(0.6) { Scale::Block } else { Scale::Fixed(fixed) },
        wire: if rng.random_bool(0.3) { WireFormat::Int16 } else { WireFormat::Int32 },
        not_finite: if rng.random_bool(0.5) { NonFinitePolicy::Error } else { NonFinitePolicy::Carry },
        ..support::job(rack_world, slots, rng.random_range(1..=20))
    }
}

fn kind(rng: &mut ChaCha8Rng, world: u16) -> Kind {
    let root = rng.random_range(0..world);
    match rng.random_range(0..12) {
        0 => Kind::AllReduce(Arithmetic::Mean),
        1 => Kind::AllReduce(Arithmetic::Max),
        2 => Kind::AllReduce(Arithmetic::Min),
        3 => Kind::Broadcast { root },
        4 => Kind::Reduce { root },
        5 => Kind::ReduceScatter,
        6 => Kind::AllGather,
        _ => Kind::AllReduce(Arithmetic::Sum),
    }
}

fn tensors(rng: &mut ChaCha8Rng, params: &JobParams, lanes: u16) -> Vec<Tensor> {
    let longest = usize::from(params.elements) * if rng.random_bool(0.2) { 60 } else { 15 };
    let mut at = 0;
    let mut tensor = |rng: &mut ChaCha8Rng| {
        at += if rng.random_bool(0.3) { rng.random_range(0..2 * MILLI) } else { 0 };
        let count = if rng.random_bool(0.1) { 0 } else { rng.random_range(1..=longest) };
        let kind = kind(rng, params.world);
        let is_sum = matches!(kind, Kind::AllReduce(Arithmetic::Sum | Arithmetic::Mean));
        let poisoned = is_sum && count > 0 && rng.random_bool(0.05);
        let dtypes = [DType::Float32, DType::Float32, DType::Int32, DType::Float16, DType::Bfloat16];
        Tensor {
            kind,
            dtype: dtypes[rng.random_range(0..dtypes.len())],
            count,
            lane: rng.random_range(0..lanes),
            at,
            poison: poisoned.then(|| (rng.random_range(0..params.world), rng.random_range(0..count))),
        }
    };
    (0..rng.random_range(1..=6)).map(|_| tensor(rng)).collect()
}

fn faults(rng: &mut ChaCha8Rng, perfect: bool) -> Faults {
    let chance = |rng: &mut ChaCha8Rng, most: f64| {
        if perfect || rng.random_bool(0.3) { 0.0 } else { most * rng.random::<f64>().powi(3) }
    };
    Faults {
        // With more, a handshake may fail in earnest: a probe and its answer must come through in 3 s.
        loss: chance(rng, 0.3),
        duplication: chance(rng, 0.3),
        reordering: chance(rng, 0.3),
        held_back: rng.random_range(MICRO..5 * MILLI),
        delay: rng.random_range(5 * MICRO..200 * MICRO),
        spacing: rng.random_range(100..MICRO),
    }
}
