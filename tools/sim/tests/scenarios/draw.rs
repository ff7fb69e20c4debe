//! Scenarios from a seed: several jobs of both modes, or one static job.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_sim::{
    events::{MICRO, MILLI, Nanos},
    link::{Faults, LinkSpec},
    packet::Framing,
};
use sumac_transport::{
    Arithmetic, DType, DynamicParams, JobParams, NonFinitePolicy, Scale, Tuning, WireFormat,
};

use crate::scenario::{Fault, JobPlan, Kind, Replaced, Scenario, Shape, Sums, Tensor};

/// Elements occupy their own length on cables.
pub const FRAMING: Framing = Framing { stretch: 1 };

/// Parameters of a job's first engine; the rest is for the caller to change.
pub fn params(job: u16, world: u16, elements: u16) -> JobParams {
    JobParams { scaling: Scale::Fixed(65536.0), ..JobParams::new(job, world, 1, elements) }
}

/// A job without faults, whose workers are all below one aggregator.
pub fn plan(params: JobParams, tensors: Vec<Tensor>) -> JobPlan {
    let world = usize::from(params.world);
    let hosts = if params.dynamic.is_some() { vec![None] } else { Vec::new() };
    JobPlan {
        params,
        lanes: 1,
        first_slot: 0,
        first_chunk: 0,
        stealing: true,
        tuning: Tuning::default(),
        racks: vec![None; world],
        hosts,
        tensors,
        lateness: vec![0; world],
        replaced: None,
        pause: None,
        ring: 128,
    }
}

/// One to three jobs of both modes.
pub fn mixed(seed: u64) -> Scenario {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
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
    let aggregators = Scenario::aggregators(shape);
    let may_fail = !perfect && jobs.iter().all(JobPlan::is_dynamic) && aggregators > 0;
    let cable = cable(rng, perfect);
    Scenario {
        pool,
        has_room: seed % 2 == 1,
        slot_timeout: [5 * MILLI, 20 * MILLI, 100 * MILLI, 1_000 * MILLI][rng.random_range(0..4)],
        faults: faults(rng, perfect, 0.1),
        aggregator_faults: if may_fail && rng.random_bool(0.4) {
            aggregator_faults(rng, aggregators)
        } else {
            Vec::new()
        },
        orphans: if may_fail && rng.random_bool(0.3) { rng.random_range(1..=2 * pool) } else { 0 },
        flow: !perfect && rng.random_bool(0.1),
        ..Scenario::new(seed, FRAMING, shape, jobs, cable)
    }
}

/// One static job at one or two levels, in any wire format, anywhere in its streams.
pub fn alone(seed: u64) -> Scenario {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let perfect = rng.random_bool(0.2);
    let racks: usize = if rng.random_bool(0.3) { 2 } else { 1 };
    let rack_world = if racks == 1 { rng.random_range(2..=8) } else { rng.random_range(1..=4) };
    let world = racks * rack_world;
    let elements = rng.random_range(1..=20);
    let fixed = if rng.random_bool(0.7) { f32::exp2(rng.random_range(4..20) as f32) } else { 1e6 };
    let params = JobParams {
        slots: 1 << rng.random_range(0..=6),
        scaling: if rng.random_bool(0.6) { Scale::Block } else { Scale::Fixed(fixed) },
        wire: if rng.random_bool(0.3) { WireFormat::Int16 } else { WireFormat::Int32 },
        not_finite: if rng.random_bool(0.5) { NonFinitePolicy::Error } else { NonFinitePolicy::Carry },
        ..params(3, world as u16, elements)
    };
    let lanes = if rng.random_bool(0.3) { 2 } else { 1 };
    let tensors = tensors(rng, &params, lanes);
    let delay = rng.random_range(5 * MICRO..200 * MICRO);
    let frame = FRAMING.chunk_len(elements);
    let spacing = rng.random_range(100..MICRO);
    let cable = LinkSpec::new(frame * 8_000_000_000 / spacing, delay);
    let shape = if racks == 1 { Shape::One } else { Shape::Racks(racks) };
    let outage = (!perfect && rng.random_bool(0.2)).then(|| interval(rng));
    let outages = outage.into_iter().flat_map(|(from, until)| {
        (0..Scenario::aggregators(shape)).map(move |aggregator| Fault::Outage { aggregator, from, until })
    });
    let plan = JobPlan {
        lanes,
        racks: (0..world).map(|rank| (racks > 1).then_some(rank / rack_world)).collect(),
        lateness: lateness(rng, world, (8 * MILLI).max(200 * delay)),
        pause: pause(rng, world),
        first_chunk: if rng.random_bool(0.5) { rng.random() } else { u32::MAX - rng.random_range(0..40) },
        ring: if perfect { 128 } else { rng.random_range(1..128) },
        stealing: rng.random_bool(0.7),
        ..plan(params, tensors)
    };
    let scenario = Scenario {
        has_room: seed % 2 == 1,
        // With more, a handshake may fail: a probe and its answer must arrive within 3 s.
        faults: faults(rng, perfect, 0.3),
        aggregator_faults: outages.collect(),
        restart: (!perfect && rng.random_bool(0.1)).then(|| rng.random_range(0..5 * MILLI)),
        ..Scenario::new(seed, FRAMING, shape, vec![plan], cable)
    };
    with_window(scenario, rng, frame)
}

/// The same with tensors of few floats, most of which fit in a packet as exact sums.
pub fn few(seed: u64) -> Scenario {
    let rng = &mut ChaCha8Rng::seed_from_u64(!seed);
    let mut scenario = alone(seed);
    let is_perfect = scenario.has_perfect_network();
    for job in &mut scenario.jobs {
        if is_perfect {
            // A late worker's chunks without an exponent round overtake those with one, which then are sent
            // again although nothing was missing.
            job.lateness.fill(0);
            job.pause = None;
        }
        (job.params.elements, job.params.scaling) = (rng.random_range(20..=60), Scale::Block);
        for tensor in &mut job.tensors {
            tensor.count = tensor.count.min(rng.random_range(1..=6));
            tensor.poison = tensor.poison.map(|(rank, at)| (rank, at % tensor.count));
        }
    }
    scenario
}

/// Some scenarios of one static job have a congestion window, which starts anywhere, and cables that mark.
fn with_window(mut scenario: Scenario, rng: &mut ChaCha8Rng, frame: u64) -> Scenario {
    if rng.random_bool(0.4) {
        scenario.cable.mark = Some(rng.random_range(0..8) * frame);
        for job in &mut scenario.jobs {
            job.params.congestion_control = true;
            job.tuning.initial_window = Some(rng.random_range(1..=job.params.slots));
        }
    }
    scenario
}

fn interval(rng: &mut ChaCha8Rng) -> (Nanos, Nanos) {
    let from = rng.random_range(0..3 * MILLI);
    (from, from + rng.random_range(MILLI..50 * MILLI))
}

fn pause(rng: &mut ChaCha8Rng, world: usize) -> Option<(usize, Nanos, Nanos)> {
    rng.random_bool(0.2).then(|| {
        let (from, until) = interval(rng);
        (rng.random_range(0..world), from, until)
    })
}

fn lateness(rng: &mut ChaCha8Rng, world: usize, latest: Nanos) -> Vec<Nanos> {
    let late = rng.random_bool(0.4);
    (0..world).map(|_| if late { rng.random_range(0..latest) } else { 0 }).collect()
}

fn aggregator_faults(rng: &mut ChaCha8Rng, aggregators: usize) -> Vec<Fault> {
    let one = |rng: &mut ChaCha8Rng| {
        let aggregator = rng.random_range(0..aggregators);
        let at = rng.random_range(0..20 * MILLI);
        match rng.random_range(0..5) {
            4 => Fault::Cut { aggregator, from: at, until: at + rng.random_range(MILLI..400 * MILLI) },
            0 => Fault::Death { aggregator, at },
            1 => Fault::Outage { aggregator, from: at, until: at + rng.random_range(MILLI..400 * MILLI) },
            _ => Fault::Restart { aggregator, at },
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
    LinkSpec { queue: frames * frame, mark, ..LinkSpec::new(rate, delay) }
}

fn faults(rng: &mut ChaCha8Rng, perfect: bool, most_loss: f64) -> Faults {
    let chance = |rng: &mut ChaCha8Rng, most: f64| {
        if perfect || rng.random_bool(0.3) { 0.0 } else { most * rng.random::<f64>().powi(3) }
    };
    Faults {
        loss: chance(rng, most_loss),
        duplication: chance(rng, 0.3),
        reordering: chance(rng, 0.3),
        held_back: rng.random_range(MICRO..5 * MILLI),
    }
}

fn job(rng: &mut ChaCha8Rng, number: u16, shape: Shape, pool: u32, first_slot: &mut u32) -> JobPlan {
    // Without aggregators there is no static mode.
    let is_dynamic = number == 0 || shape == Shape::Nothing || rng.random_bool(0.6);
    let world = if is_dynamic { rng.random_range(1..=8) } else { rng.random_range(2..=8) };
    let racks = racks(rng, shape, world, is_dynamic);
    let shards = rng.random_range(1..=2);
    let lanes = shards * rng.random_range(1..=2);
    let pool = if shape == Shape::Nothing { 0 } else { pool };
    let params = JobParams {
        epoch: rng.random_range(0..100),
        token: rng.random(),
        shards,
        slots: if is_dynamic { 1 } else { 1 << rng.random_range(0..=6) },
        scaling: match rng.random_range(0..4) {
            0 => Scale::Block,
            1 => Scale::Fixed(f32::exp2(rng.random_range(4..20) as f32)),
            _ => Scale::Fixed(1e8),
        },
        ..params(number + 1, world as u16, rng.random_range(1..=20))
    };
    let params = JobParams { congestion_control: !is_dynamic && rng.random_bool(0.5), ..params };
    let (dynamic, tuning) = match is_dynamic.then(|| dynamic(rng, pool)) {
        Some((dynamic, tuning)) => (Some(dynamic), tuning),
        None => (None, Tuning::default()),
    };
    // Drawn apart, so that other scenarios stay as they were.
    let wire = match ChaCha8Rng::seed_from_u64(params.token).random_range(0..6) {
        0 | 1 => WireFormat::Int16,
        2 => WireFormat::Auto,
        _ => WireFormat::Int32,
    };
    let params = JobParams { wire, dynamic, ..params };
    let first = *first_slot;
    *first_slot += if is_dynamic { 0 } else { params.slots * u32::from(lanes) };
    let tensors = tensors(rng, &params, lanes);
    let replaced = (is_dynamic && rng.random_bool(0.15)).then(|| Replaced {
        rank: rng.random_range(0..world),
        at: rng.random_range(0..15 * MILLI),
        after: rng.random_range(MICRO..100 * MILLI),
        spread: rng.random_range(MICRO..20 * MILLI),
    });
    let host = |rng: &mut ChaCha8Rng| rng.random_bool(0.3).then(|| rng.random_range(0..world));
    let mut hosts: Vec<Option<usize>> = (0..rng.random_range(1..=3)).map(|_| host(rng)).collect();
    // At most one on a node.
    hosts.sort_unstable();
    hosts.dedup_by(|a, b| a.is_some() && a == b);
    JobPlan {
        tuning,
        lanes,
        first_slot: first,
        racks,
        hosts: if is_dynamic { hosts } else { Vec::new() },
        lateness: lateness(rng, world, 8 * MILLI),
        replaced,
        pause: pause(rng, world),
        ring: 1 << rng.random_range(0..8),
        ..plan(params, tensors)
    }
}

/// Every rack has a worker; in dynamic jobs some are beside the racks.
fn racks(rng: &mut ChaCha8Rng, shape: Shape, world: usize, is_dynamic: bool) -> Vec<Option<usize>> {
    let Shape::Racks(racks) = shape else { return vec![None; world] };
    if !is_dynamic && racks > world {
        return vec![None; world];
    }
    let rack = |rng: &mut ChaCha8Rng, rank: usize| {
        let beside = is_dynamic && rank >= 1 && rng.random_bool(0.2);
        if beside { None } else { Some(if rank < racks { rank } else { rng.random_range(0..racks) }) }
    };
    (0..world).map(|rank| rack(rng, rank)).collect()
}

fn dynamic(rng: &mut ChaCha8Rng, slots: u32) -> (DynamicParams, Tuning) {
    let window = 1u32 << rng.random_range(3..=8);
    let dynamic = DynamicParams {
        window,
        positions: window >> rng.random_range(0..=window.ilog2().min(3)),
        initial_window: Some(rng.random_range(1..=window)),
        congestion: rng.random_bool(0.7),
        ..DynamicParams::new(slots)
    };
    (dynamic, Tuning { linear_placement: rng.random_bool(0.1), ..Tuning::default() })
}

fn tensors(rng: &mut ChaCha8Rng, params: &JobParams, lanes: u16) -> Vec<Tensor> {
    let longest = usize::from(params.elements) * if rng.random_bool(0.2) { 60 } else { 15 };
    let world = usize::from(params.world);
    let is_dynamic = params.dynamic.is_some();
    let mut at: Nanos = 0;
    let mut tensor = |rng: &mut ChaCha8Rng| {
        at += if rng.random_bool(0.3) { rng.random_range(0..2 * MILLI) } else { 0 };
        let count = if rng.random_bool(0.1) { 0 } else { rng.random_range(1..=longest) };
        let dtypes = [DType::Float32, DType::Float32, DType::Int32, DType::Float16, DType::Bfloat16];
        let dtype = dtypes[rng.random_range(0..dtypes.len())];
        let lane = rng.random_range(0..lanes);
        let mut tensor =
            Tensor { kind: kind(rng, world), dtype, count, lane, at, sums: Sums::Fit, poison: None };
        let can_overflow = is_dynamic && matches!(params.scaling, Scale::Fixed(_));
        if tensor.is_sum() && can_overflow && rng.random_bool(0.3) {
            tensor.sums = sums(rng, dtype);
        }
        if tensor.is_sum() && !is_dynamic && count > 0 && rng.random_bool(0.05) {
            tensor.poison = Some((rng.random_range(0..world), rng.random_range(0..count)));
        }
        tensor
    };
    (0..rng.random_range(1..=6)).map(|_| tensor(rng)).collect()
}

/// Sums that overflow 32 bits: float32 is then summed as floats, int32 fails.
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
