//! Scenarios from a seed.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use sumac_sim::{
    events::{MICRO, MILLI, Nanos},
    link::{Faults, LinkSpec},
    packet::Framing,
};
use sumac_transport::{
    Arithmetic, DType, DynamicParams, JobParams, NonFinitePolicy, Scale, Tuning, WireFormat,
};

use crate::scenario::{Fate, JobPlan, Kind, Replaced, Scenario, Shape, Sums, Tensor};

/// Elements take their own room on cables here.
pub const FRAMING: Framing = Framing { stretch: 1 };

pub fn scenario(seed: u64, rng: &mut ChaCha8Rng) -> Scenario {
    let perfect = rng.random_bool(0.15);
    let shape = match rng.random_range(0..10) {
        0 => Shape::Nothing,
        1..=5 => Shape::One,
        _ => Shape::Racks(rng.random_range(2..=3)),
    };
    let pool = 1 << rng.random_range(0..=6);
    let count = [1, 1, 1, 2, 2, 3][rng.random_range(0..6)];
    let mut first_slot = 0;
    let jobs: Vec<JobPlan> =
        (0..count).map(|number| job(rng, number, shape, pool, &mut first_slot)).collect();
    let all_dynamic = jobs.iter().all(|job| job.params.dynamic.is_some());
    let aggregators = Scenario::aggregators(shape);
    let hardly = !perfect && all_dynamic && aggregators > 0;
    let cable = cable(rng, perfect);
    Scenario {
        seed,
        shape,
        jobs,
        pool,
        patience: [5 * MILLI, 20 * MILLI, 100 * MILLI, 1_000 * MILLI][rng.random_range(0..4)],
        cable,
        faults: faults(rng, perfect),
        fates: if hardly && rng.random_bool(0.4) { fates(rng, aggregators) } else { Vec::new() },
        orphans: if hardly && rng.random_bool(0.3) { rng.random_range(1..=2 * pool) } else { 0 },
        flow: !perfect && rng.random_bool(0.1),
    }
}

fn fates(rng: &mut ChaCha8Rng, aggregators: usize) -> Vec<Fate> {
    let one = |rng: &mut ChaCha8Rng| {
        let aggregator = rng.random_range(0..aggregators);
        let at = rng.random_range(0..20 * MILLI);
        match rng.random_range(0..5) {
            4 => Fate::Cut { aggregator, from: at, until: at + rng.random_range(MILLI..400 * MILLI) },
            0 => Fate::Death { aggregator, at },
            1 => Fate::Outage { aggregator, from: at, until: at + rng.random_range(MILLI..400 * MILLI) },
            _ => Fate::Restart { aggregator, at },
        }
    };
    (0..rng.random_range(1..=3)).map(|_| one(rng)).collect()
}

fn cable(rng: &mut ChaCha8Rng, perfect: bool) -> LinkSpec {
    let rate = 1_000_000_000 << rng.random_range(0..4);
    let frame = FRAMING.chunk_len(20);
    let frames: u64 = if perfect { 100_000 } else { 1 << rng.random_range(3..10) };
    let mark = rng.random_bool(0.7).then(|| frames / rng.random_range(2..8) * frame);
    let delay = rng.random_range(2 * MICRO..100 * MICRO);
    LinkSpec { rate, delay, queue: frames * frame, mark, faults: Faults::default() }
}

fn faults(rng: &mut ChaCha8Rng, perfect: bool) -> Faults {
    let chance = |rng: &mut ChaCha8Rng, most: f64| {
        if perfect || rng.random_bool(0.3) { 0.0 } else { most * rng.random::<f64>().powi(3) }
    };
    Faults {
        loss: chance(rng, 0.1),
        duplication: chance(rng, 0.3),
        reordering: chance(rng, 0.3),
        held_back: rng.random_range(MICRO..5 * MILLI),
    }
}

fn job(rng: &mut ChaCha8Rng, number: u16, shape: Shape, pool: u32, first_slot: &mut u32) -> JobPlan {
    // Without aggregators there is no static mode.
    let is_dynamic = number == 0 || shape == Shape::Nothing || rng.random_bool(0.6);
    let world = rng.random_range(2..=8);
    let racks = racks(rng, shape, world, is_dynamic);
    let shards = rng.random_range(1..=2);
    let lanes = shards * rng.random_range(1..=2);
    let slots = 1u32 << rng.random_range(0..=6);
    let mut params = JobParams {
        job: number + 1,
        epoch: rng.random_range(0..100),
        token: rng.random(),
        rank: 0,
        world: world as u16,
        rack_rank: 0,
        rack_world: world as u16,
        lane: 0,
        shards,
        slots,
        elements: rng.random_range(1..=20),
        wire: WireFormat::Int32,
        scaling: scaling(rng),
        not_finite: NonFinitePolicy::Error,
        measure: false,
        dynamic: None,
    };
    let mut tuning = Tuning::default();
    if is_dynamic {
        params.slots = 1;
        let (dynamic, its) = dynamic(rng, if shape == Shape::Nothing { 0 } else { pool });
        (params.dynamic, tuning) = (Some(dynamic), its);
    }
    let mine = *first_slot;
    *first_slot += if is_dynamic { 0 } else { params.slots * u32::from(lanes) };
    let tensors = tensors(rng, &params, lanes, is_dynamic);
    let late = rng.random_bool(0.4);
    let lateness = (0..world).map(|_| if late { rng.random_range(0..8 * MILLI) } else { 0 }).collect();
    let pause = rng.random_bool(0.2).then(|| {
        let from = rng.random_range(0..3 * MILLI);
        (rng.random_range(0..world), from, from + rng.random_range(MILLI..50 * MILLI))
    });
    let replaced = (is_dynamic && rng.random_bool(0.15)).then(|| Replaced {
        rank: rng.random_range(0..world),
        at: rng.random_range(0..15 * MILLI),
        after: rng.random_range(MICRO..100 * MILLI),
        spread: rng.random_range(MICRO..20 * MILLI),
    });
    let host = |rng: &mut ChaCha8Rng| rng.random_bool(0.3).then(|| rng.random_range(0..world));
    let mut hosts: Vec<Option<usize>> = (0..rng.random_range(1..=3)).map(|_| host(rng)).collect();
    // One at a node at most.
    hosts.sort_unstable();
    hosts.dedup_by(|a, b| a.is_some() && a == b);
    JobPlan {
        params,
        tuning,
        lanes,
        first_slot: mine,
        racks,
        hosts: if is_dynamic { hosts } else { Vec::new() },
        tensors,
        lateness,
        replaced,
        pause,
        ring: 1 << rng.random_range(0..8),
    }
}

/// Every rack has a worker; in dynamic jobs some sit beside the racks.
fn racks(rng: &mut ChaCha8Rng, shape: Shape, world: usize, is_dynamic: bool) -> Vec<Option<usize>> {
    let Shape::Racks(racks) = shape else { return vec![None; world] };
    if !is_dynamic && racks > world {
        return vec![None; world];
    }
    let seat = |rng: &mut ChaCha8Rng, rank: usize| {
        let beside = is_dynamic && rank >= 1 && rng.random_bool(0.2);
        if beside { None } else { Some(if rank < racks { rank } else { rng.random_range(0..racks) }) }
    };
    (0..world).map(|rank| seat(rng, rank)).collect()
}

fn scaling(rng: &mut ChaCha8Rng) -> Scale {
    match rng.random_range(0..4) {
        0 => Scale::Block,
        1 => Scale::Fixed(f32::exp2(rng.random_range(4..20) as f32)),
        _ => Scale::Fixed(1e8),
    }
}

fn dynamic(rng: &mut ChaCha8Rng, slots: u32) -> (DynamicParams, Tuning) {
    let window = 1u32 << rng.random_range(3..=8);
    let positions = window >> rng.random_range(0..=window.ilog2().min(3));
    let mut dynamic = DynamicParams::new(slots);
    dynamic.window = window;
    dynamic.positions = positions;
    dynamic.initial_window = rng.random_range(1..=window);
    dynamic.congestion = rng.random_bool(0.7);
    let tuning = Tuning { linear_placement: rng.random_bool(0.1), ..Tuning::default() };
    (dynamic, tuning)
}

fn tensors(rng: &mut ChaCha8Rng, params: &JobParams, lanes: u16, is_dynamic: bool) -> Vec<Tensor> {
    let longest = usize::from(params.elements) * if rng.random_bool(0.2) { 60 } else { 15 };
    let mut at: Nanos = 0;
    let mut tensor = |rng: &mut ChaCha8Rng| {
        at += if rng.random_bool(0.3) { rng.random_range(0..2 * MILLI) } else { 0 };
        let count = if rng.random_bool(0.1) { 0 } else { rng.random_range(1..=longest) };
        let kind = kind(rng, usize::from(params.world));
        let dtypes = [DType::Float32, DType::Float32, DType::Int32, DType::Float16, DType::Bfloat16];
        let dtype = dtypes[rng.random_range(0..dtypes.len())];
        let is_sum = matches!(kind, Kind::AllReduce(Arithmetic::Sum | Arithmetic::Mean));
        let can = is_dynamic && is_sum && matches!(params.scaling, Scale::Fixed(_));
        Tensor {
            kind,
            dtype,
            count,
            lane: rng.random_range(0..lanes),
            at,
            sums: if can && rng.random_bool(0.3) { sums(rng, dtype) } else { Sums::Fit },
        }
    };
    (0..rng.random_range(1..=6)).map(|_| tensor(rng)).collect()
}

/// Sums that leave 32 bits: of float32, which are then summed as floats, or of int32, which fail.
fn sums(rng: &mut ChaCha8Rng, dtype: DType) -> Sums {
    match dtype {
        DType::Float32 => [Sums::TooLarge, Sums::InParts][rng.random_range(0..2)],
        DType::Int32 if rng.random_bool(0.5) => Sums::InParts,
        _ => Sums::Fit,
    }
}

fn kind(rng: &mut ChaCha8Rng, world: usize) -> Kind {
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
