//! One scenario: everything about a run that is chosen at random, from one seed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::{DType, JobParams};

use crate::support;

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

/// One allreduce.
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    pub dtype: DType,
    pub count: usize,
    /// When each worker submits it at the earliest; workers add their own lateness.
    pub at: u64,
    /// A value that cannot be summed: whose, and which element.
    pub poison: Option<(u16, usize)>,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub params: JobParams,
    pub first_seq: u32,
    pub tensors: Vec<Tensor>,
    pub faults: Faults,
    /// Frames that a worker can send before it must wait a little.
    pub ring: usize,
    /// How late each worker is with everything.
    pub lateness: Vec<u64>,
    /// A worker that does nothing from and until these times.
    pub pause: Option<(u16, u64, u64)>,
    /// The aggregator is unreachable from and until these times; it keeps its state.
    pub outage: Option<(u64, u64)>,
}

impl Scenario {
    pub fn from_seed(seed: u64) -> Scenario {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let perfect = rng.random_bool(0.2);
        let params = params(&mut rng);
        let tensors = tensors(&mut rng, &params);
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
        Scenario { seed, params, first_seq, tensors, faults, ring, lateness, pause, outage }
    }

    /// Whether the network loses and disorders nothing; workers may be late.
    pub fn has_perfect_network(&self) -> bool {
        let f = &self.faults;
        f.loss + f.duplication + f.reordering == 0.0 && self.outage.is_none()
    }

    /// Whether nothing at all goes wrong, so that nothing may be sent twice.
    pub fn is_perfect(&self) -> bool {
        self.has_perfect_network() && self.lateness.iter().all(|late| *late == 0) && self.pause.is_none()
    }

    /// Chunks of all tensors.
    pub fn chunks(&self) -> usize {
        self.tensors.iter().map(|t| t.count.div_ceil(usize::from(self.params.elements))).sum()
    }
}

fn params(rng: &mut ChaCha8Rng) -> JobParams {
    let slots = 1u32 << rng.random_range(0..=6);
    JobParams {
        scale: if rng.random_bool(0.7) { f32::exp2(rng.random_range(4..20) as f32) } else { 1e6 },
        shards: rng.random_range(1..=slots.min(4)) as u16,
        ..support::job(rng.random_range(2..=8), slots, rng.random_range(1..=20))
    }
}

fn tensors(rng: &mut ChaCha8Rng, params: &JobParams) -> Vec<Tensor> {
    let longest = usize::from(params.elements) * if rng.random_bool(0.2) { 60 } else { 15 };
    let mut at = 0;
    let mut tensor = |rng: &mut ChaCha8Rng| {
        at += if rng.random_bool(0.3) { rng.random_range(0..2 * MILLI) } else { 0 };
        let count = if rng.random_bool(0.1) { 0 } else { rng.random_range(1..=longest) };
        let poisoned = count > 0 && rng.random_bool(0.02);
        Tensor {
            dtype: if rng.random_bool(0.5) { DType::F32 } else { DType::I32 },
            count,
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
