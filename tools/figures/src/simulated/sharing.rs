//! Figure 13a: three jobs that train with on and off phases, while there are fewer and fewer slots; shared
//! dynamically, and divided statically.

use serde_json::json;
use sumac_transport::DynamicParams;
use sumac_wire::Reason;

use super::{
    Effort,
    figure::{Figure, Target, median, rounded},
    testbed::{Allocation, CABLES, Running, Testbed, over_seeds, tensors},
};
use sumac_sim::{
    events::{MILLI, Nanos, SECOND},
    job::SetupError,
    trainer::StepPlan,
};

/// As in the paper's testbed: three jobs of two workers and a parameter server on nine machines.
const JOBS: usize = 3;
const WORKERS: usize = 2;
/// Slots of one job that give it all the throughput that there is, statically: see the row of 100 %.
pub const NEED: u32 = 96;
/// Chunks of a step, in tensors that go to lanes in turn.
const TENSORS: usize = 12;
const CHUNKS: usize = 500;
/// The part of a step in isolation that is spent without sending: computing. The paper's job takes 20 of the
/// 60 Gbit/s that its parameter server can do (sections 5.5 and D.1).
const OFF: f64 = 2.0 / 3.0;

/// A part of what is needed: static slots of each job as lanes and slots of a lane, which must be a power of
/// two.
const PARTS: [(&str, (u16, u32)); 6] = [
    ("100 %", (3, 32)),
    ("83 %", (5, 16)),
    ("67 %", (2, 32)),
    ("50 %", (3, 16)),
    ("42 %", (5, 8)),
    ("33 %", (1, 32)),
];

/// Chunks that a static slot has room for: its sum, and the one before, which somebody may lack (SwitchML's
/// shadow copy).
pub const VERSIONS: u32 = 2;

struct Outcome {
    /// Steps per second and job.
    rate: f64,
    /// Of the first contributions to chunks, the part that found its slot busy.
    collided: f64,
}

pub fn figure13a(effort: Effort) -> Result<Figure, SetupError> {
    // In as much memory; in as many slots, which is half of that; and statically.
    let modes = PARTS.iter().flat_map(|(_, (lanes, lane_slots))| {
        let slots = JOBS as u32 * u32::from(*lanes) * lane_slots;
        let shared = |slots| {
            (slots, Allocation::Dynamic(DynamicParams { positions: 128, ..DynamicParams::new(slots) }))
        };
        [shared(VERSIONS * slots), shared(slots), (0, Allocation::Static(*lanes, *lane_slots))]
    });
    let alone = (0, Allocation::Static(4, 64));
    let cases: Vec<(u32, Allocation)> = modes.chain([alone]).collect();
    let steps = effort.of(40);
    let results = over_seeds(&cases, effort.seeds, |(slots, mode), seed| run(*slots, mode, steps, seed))?;
    let medians: Vec<(f64, f64)> = results
        .iter()
        .map(|seeds| {
            let of = |value: fn(&Outcome) -> f64| median(seeds.iter().map(value));
            (of(|outcome| outcome.rate), of(|outcome| outcome.collided))
        })
        .collect();
    let peak = medians[3 * PARTS.len()].0;
    let part = |at: usize| [0, 1, 2].map(|way| medians[3 * at + way].0 / peak);
    let rows = PARTS.iter().enumerate().map(|(at, (name, (lanes, lane_slots)))| {
        let [dynamic, as_many, fixed] = part(at);
        let slots = JOBS as u32 * u32::from(*lanes) * lane_slots;
        vec![
            json!(name),
            json!(slots),
            json!(VERSIONS * slots),
            rounded(fixed),
            rounded(dynamic),
            rounded(dynamic / fixed),
            rounded(medians[3 * at].1 * 100.0),
            rounded(as_many),
        ]
    });
    let ([full, ..], [half, ..], [third, _, third_fixed]) = (part(0), part(3), part(5));
    Ok(Figure {
        figure: "fig13a",
        title: "training throughput of three jobs against the slots that there are",
        lab: format!(
            "Three equal jobs of {WORKERS} workers and a parameter host each, one aggregator, 10 Gbit/s; a \
            step alone is a third sending ({} chunks), the rest computing. Steps per second, against a job \
            with all the slots it can use. 100 % are the {NEED} slots of each job that the static mode needs \
            for its peak. A static slot has room for two chunks, a dynamic one for one: there are twice as \
            many in the same memory. The last column is the dynamic mode with as many slots, and so half the \
            memory.",
            TENSORS * CHUNKS
        ),
        columns: vec![
            "memory_of_need",
            "static_slots",
            "dynamic_slots",
            "static",
            "dynamic",
            "dynamic_to_static",
            "collided_percent",
            "dynamic_in_half_the_memory",
        ],
        rows: rows.collect(),
        targets: vec![
            Target::new(
                "dynamic with half of what is needed",
                "at most 10 % below all of it",
                format!("{:.1} % below", (1.0 - half / full) * 100.0),
                half >= 0.9 * full,
            ),
            Target::new(
                "a third of what is needed, dynamic against static",
                "38 % more or better",
                format!("{:.1} % more", (third / third_fixed - 1.0) * 100.0),
                third >= 1.38 * third_fixed,
            ),
        ],
        ..Figure::default()
    })
}

fn run(slots: u32, mode: &Allocation, steps: usize, seed: u64) -> Result<Outcome, SetupError> {
    let mut testbed = Testbed::new(CABLES, slots, seed);
    let sending = testbed.cables.time((TENSORS * CHUNKS) as u64);
    let pause = (sending as f64 * OFF / (1.0 - OFF)) as Nanos;
    let mut jobs: Vec<Running> = Vec::new();
    for _ in 0..JOBS {
        let nodes = testbed.hosts(WORKERS);
        let parameter = testbed.parameter_host();
        let job = testbed.job(mode, &nodes, &[parameter]);
        // No two trainers take the same time; all workers of one do, about.
        let pause = pause - pause / 20 + testbed.some_of(pause / 10);
        let from = 100 * MILLI + testbed.some_of(sending + pause);
        let plan = StepPlan { pause, ..tensors(TENSORS * 5, CHUNKS / 5, from) };
        jobs.push(testbed.start(job, &plan)?);
    }
    let warm = steps / 4;
    let ends: Vec<_> = jobs.iter().map(|job| job.logs[0].clone()).collect();
    testbed.world.run_until(60 * SECOND, |_| ends.iter().all(|log| log.borrow().steps.len() > warm + steps));
    jobs.iter().try_for_each(Running::check)?;
    let rates = jobs.iter().map(|job| 1e9 / job.step_time(warm).unwrap_or(f64::INFINITY));
    let rate = rates.sum::<f64>() / JOBS as f64;
    let count = |reason| jobs.iter().map(|job| testbed.counter(job, reason)).sum::<u64>() as f64;
    let collided = count(Reason::Collided);
    let all = collided + count(Reason::Added) + count(Reason::Forwarded);
    Ok(Outcome { rate, collided: if all > 0.0 { collided / all } else { 0.0 } })
}
