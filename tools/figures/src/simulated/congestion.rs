//! Figure 15: a job with half of the slots that it needs, with and without congestion control.

use sumac_transport::DynamicParams;

use super::{
    Effort,
    figure::{Figure, Series, Target, median, rounded},
    sharing::VERSIONS,
    testbed::{Allocation, CABLES, Testbed, over_seeds, tensors},
};
use sumac_sim::{
    events::{MILLI, Nanos, SECOND},
    job::SetupError,
    trainer::StepPlan,
};

const WORKERS: usize = 8;
/// The job's need: the static mode's for its peak, in dynamic slots of the same memory.
const NEED: u32 = 128 * VERSIONS;
const TENSORS: usize = 12;
const CHUNKS: usize = 1_000;
/// A value of the lines over time.
const STEP: Nanos = 5 * MILLI;

struct Outcome {
    /// Steps per second.
    rate: f64,
    /// Bytes per second that a worker gets while it sends and while it computes.
    goodput: f64,
    /// Frames that queues dropped.
    dropped: f64,
    /// Of the parameter host's packets, those that it had already.
    duplicates: f64,
    series: Vec<f64>,
}

pub fn figure15(effort: Effort) -> Result<Figure, SetupError> {
    let cases = [(true, NEED / 2), (false, NEED / 2), (true, NEED), (false, NEED)];
    let time = effort.of(8) as Nanos * 100 * MILLI;
    let results =
        over_seeds(&cases, effort.seeds, |(congestion, slots), seed| run(*congestion, *slots, time, seed))?;
    let of = |case: usize, value: fn(&Outcome) -> f64| median(results[case].iter().map(value));
    let names = ["with, 50 % of slots", "without, 50 % of slots", "with, all slots", "without, all slots"];
    let rows = names.iter().enumerate().map(|(case, name)| {
        vec![
            serde_json::json!(name),
            rounded(of(case, |outcome| outcome.rate)),
            rounded(of(case, |outcome| outcome.goodput) * 8e-9),
            rounded(of(case, |outcome| outcome.dropped)),
            rounded(of(case, |outcome| outcome.duplicates)),
        ]
    });
    let series = results.iter().zip(["with congestion control", "without"]);
    let series = series.map(|(seeds, name)| Series::new(name, STEP, seeds.first().map(|run| &run.series)));
    let (with, without) = (of(0, |outcome| outcome.rate), of(1, |outcome| outcome.rate));
    Ok(Figure {
        figure: "fig15",
        title: "a job with half of its slots, with and without congestion control",
        lab: format!(
            "One job of {WORKERS} workers and a parameter host, 10 Gbit/s, queues of 256 frames that mark \
            above 64, {} of {NEED} slots; a step is {} chunks and a pause of half the time that these take \
            alone. Without congestion control the window is always 256.",
            NEED / 2,
            TENSORS * CHUNKS
        ),
        columns: vec![
            "congestion_control",
            "steps_per_s",
            "goodput_gbps",
            "frames_dropped",
            "duplicates_percent",
        ],
        rows: rows.collect(),
        series: series.collect(),
        targets: vec![Target::new(
            "training without congestion control",
            "collapses (the paper: 65 % less)",
            format!("{:.1} % less", (1.0 - without / with) * 100.0),
            without <= 0.7 * with,
        )],
        ..Figure::default()
    })
}

fn run(congestion: bool, slots: u32, time: Nanos, seed: u64) -> Result<Outcome, SetupError> {
    let mut testbed = Testbed::new(CABLES, slots, seed);
    let nodes = testbed.hosts(WORKERS);
    let parameter = testbed.parameter_host();
    let usual = DynamicParams::new(slots);
    let dynamic = match congestion {
        true => usual,
        false => usual.without_congestion_control(),
    };
    let job = testbed.job(&Allocation::Dynamic(dynamic), &nodes, &[parameter]);
    let number = job.params.job;
    let sending = testbed.cables.time((TENSORS * CHUNKS) as u64);
    let from = 100 * MILLI + testbed.some_of(MILLI);
    // Small tensors, whose ends make the line over time.
    let plan = StepPlan { pause: sending / 2, ..tensors(TENSORS * 20, CHUNKS / 20, from) };
    let running = testbed.start(job, &plan)?;
    let end = from + time;
    testbed.world.run(end);
    running.check()?;
    let stats = testbed.world.nodes[parameter].parameter.as_ref().map(|parameter| parameter.host.stats());
    let job = stats.as_ref().and_then(|stats| stats.job(number));
    let came = job.map_or(0, |job| job.contributions + job.partial_sums + job.full_sums);
    let duplicates = job.map_or(0, |job| job.duplicates) as f64 / came.max(1) as f64;
    let rate = running.steps(from, end) as f64 * SECOND as f64 / time as f64;
    Ok(Outcome {
        rate,
        goodput: running.goodput(from, end),
        dropped: testbed.world.network.totals().dropped as f64,
        duplicates: duplicates * 100.0,
        series: running.goodput_series(STEP, end),
    })
}
