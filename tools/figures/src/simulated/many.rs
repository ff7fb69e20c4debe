//! Figure 14: more and more jobs that always send, on as many slots as they need: hashed, linear, and divided
//! statically. Slots are counted by memory, and hashed also by number.

use serde_json::json;
use sumac_transport::DynamicParams;
use sumac_wire::Reason;

use super::{
    Effort,
    figure::{Figure, Target, median, rounded},
    sharing::VERSIONS,
    testbed::{Allocation, CABLES, Running, Testbed, over_seeds, tensors},
};
use sumac_sim::{
    events::{MILLI, Nanos},
    job::SetupError,
};

const JOBS: [usize; 5] = [1, 2, 4, 6, 8];
const WORKERS: usize = 2;
/// Slots that a job needs statically: the power of two that its window has to be for its peak.
const NEED: u32 = 128;
/// Dynamic ones in the same memory.
const SLOTS: u32 = NEED * VERSIONS;
/// Places that keep a slot where there are no more for each job.
const POSITIONS: u32 = NEED;
const CHUNKS: usize = 500;

#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Hashed,
    Linear,
    Static,
    /// Hashed, with as many slots as static, in half the memory.
    AsMany,
}

impl Variant {
    /// Slots for each job.
    fn slots(self) -> u32 {
        if self == Variant::AsMany { NEED } else { SLOTS }
    }
}

struct Outcome {
    /// Bytes per second of each job, on average.
    goodput: f64,
    /// Collisions among contributions, in the measured time and in the warm-up.
    collided: f64,
    at_first: f64,
}

pub fn figure14(effort: Effort) -> Result<Figure, SetupError> {
    let variants = [Variant::Hashed, Variant::Linear, Variant::Static, Variant::AsMany];
    let cases: Vec<(Variant, usize)> =
        variants.into_iter().flat_map(|variant| JOBS.into_iter().map(move |jobs| (variant, jobs))).collect();
    let time = effort.of(8) as Nanos * 25 * MILLI;
    let results = over_seeds(&cases, effort.seeds, |(variant, jobs), seed| run(*variant, *jobs, time, seed))?;
    let of = |variant: usize, jobs: usize, value: fn(&Outcome) -> f64| {
        median(results[variant * JOBS.len() + jobs].iter().map(value))
    };
    let gbps = |variant, jobs| of(variant, jobs, |outcome| outcome.goodput) * 8e-9;
    let rows = JOBS.iter().enumerate().map(|(at, jobs)| {
        vec![
            json!(jobs),
            json!(SLOTS * *jobs as u32),
            rounded(gbps(0, at)),
            rounded(gbps(1, at)),
            rounded(gbps(2, at)),
            rounded(of(0, at, |outcome| outcome.at_first) * 100.0),
            rounded(of(0, at, |outcome| outcome.collided) * 100.0),
            rounded(of(1, at, |outcome| outcome.collided) * 100.0),
            rounded(gbps(3, at)),
            rounded(of(3, at, |outcome| outcome.collided) * 100.0),
        ]
    });
    let last = JOBS.len() - 1;
    let (hashed, linear, fixed) = (gbps(0, last), gbps(1, last), gbps(2, last));
    let (as_many, collided) = (gbps(3, last), |variant| of(variant, last, |outcome| outcome.collided));
    Ok(Figure {
        figure: "fig14",
        title: "throughput of each of many jobs that always send",
        lab: format!(
            "Jobs of {WORKERS} workers and a parameter host each, one aggregator with {NEED} static slots \
            for each job (what the static mode needs for its peak, 100 %), or {SLOTS} dynamic ones in the \
            same memory, 10 Gbit/s; tensors without a pause. Collisions: of all contributions, in a warm-up \
            and in the time after it, which is as long and is measured. The last columns are the hashed mode \
            with {NEED} slots for each job, in half the memory, and places for {POSITIONS} chunks."
        ),
        columns: vec![
            "jobs",
            "slots",
            "hashed_gbps",
            "linear_gbps",
            "static_gbps",
            "hashed_warmup_percent",
            "hashed_collided_percent",
            "linear_collided_percent",
            "hashed_in_half_the_memory_gbps",
            "its_collided_percent",
        ],
        rows: rows.collect(),
        targets: vec![
            Target::new(
                "8 jobs, hashed, collisions after the warm-up",
                "below 1 % of contributions",
                format!("{:.3} %", collided(0) * 100.0),
                collided(0) < 0.01,
            ),
            Target::new(
                "8 jobs, hashed, on as many slots as static, in half the memory",
                "below 1 % of contributions collide, at least 90 % of static",
                format!("{:.3} %, {:.1} %", collided(3) * 100.0, as_many / fixed * 100.0),
                collided(3) < 0.01 && as_many >= 0.9 * fixed,
            ),
            Target::new(
                "8 jobs, hashed against static",
                "at least 90 %",
                format!("{:.1} %", hashed / fixed * 100.0),
                hashed >= 0.9 * fixed,
            ),
            Target::new(
                "8 jobs, linear against hashed",
                "far less",
                format!("{:.1} %", linear / hashed * 100.0),
                linear <= 0.75 * hashed,
            ),
        ],
        ..Figure::default()
    })
}

fn run(variant: Variant, jobs: usize, time: Nanos, seed: u64) -> Result<Outcome, SetupError> {
    let slots = variant.slots() * jobs as u32;
    let mut testbed = Testbed::new(CABLES, slots, seed);
    let linear = variant == Variant::Linear;
    let usual = DynamicParams::new(slots);
    let positions = if variant == Variant::AsMany { POSITIONS } else { usual.window };
    let dynamic = DynamicParams { positions, ..usual };
    let mode =
        if variant == Variant::Static { Allocation::Static(1, NEED) } else { Allocation::Dynamic(dynamic) };
    let begin = 100 * MILLI;
    let end = begin + 2 * time;
    let mut running: Vec<Running> = Vec::new();
    for _ in 0..jobs {
        let nodes = testbed.hosts(WORKERS);
        let parameter = testbed.parameter_host();
        let mut job = testbed.job(&mode, &nodes, &[parameter]);
        job.tuning.linear_placement = linear;
        let from = begin + testbed.some_of(5 * MILLI);
        // Several tensors at a time, so that there is always something to send.
        let chunks = testbed.cables.rate / 8 * (2 * time / MILLI) / 1_000 / 1_562;
        let plan = tensors(chunks as usize / CHUNKS + 8, CHUNKS, from);
        running.push(testbed.start(job, &plan)?);
    }
    testbed.world.run(begin + time);
    let counts = |testbed: &Testbed| {
        let count = |reason| running.iter().map(|job| testbed.counter(job, reason)).sum::<u64>() as f64;
        let collided = count(Reason::Collided);
        (collided, collided + count(Reason::Added) + count(Reason::Forwarded))
    };
    let warm = counts(&testbed);
    testbed.world.run(end);
    let after = counts(&testbed);
    running.iter().try_for_each(Running::check)?;
    let part = |collided: f64, all: f64| if all > 0.0 { collided / all } else { 0.0 };
    let goodput = running.iter().map(|job| job.goodput(begin + time, end)).sum::<f64>() / jobs as f64;
    Ok(Outcome {
        goodput,
        collided: part(after.0 - warm.0, after.1 - warm.1),
        at_first: part(warm.0, warm.1),
    })
}
