//! SwitchML's figure 7: the tail of an allreduce under loss, with work stealing and without.

use serde_json::json;
use sumac_sim::{
    events::{MICRO, MILLI, Nanos, SECOND},
    job::SetupError,
    link::Faults,
    trainer::StepPlan,
};

use super::{
    Effort,
    figure::{Figure, Series, Target, median, rounded},
    testbed::{Allocation, CABLES, Cables, Testbed, over_seeds, tensors},
};

const WORKERS: usize = 4;
const SLOTS: u32 = 64;
const CHUNKS: usize = 10_000;
const LOSS: f64 = 0.01;
/// 1 Gbit/s, and a window of about ten times the path's.
const SLOW: Cables = Cables { rate: 1_000_000_000, delay: 20 * MICRO, ..CABLES };
const START: Nanos = 2 * SECOND;
/// Time between two values of a series.
const STEP: Nanos = MILLI;

/// Chunks that worker 0 received in each step, and the time of the last worker's last result.
struct Run {
    chunks: Vec<f64>,
    end: f64,
}

pub fn figure7(effort: Effort) -> Result<Figure, SetupError> {
    let cases = [true, false];
    let chunks = effort.of(CHUNKS);
    let results = over_seeds(&cases, effort.seeds, |stealing, seed| run(*stealing, chunks, seed))?;
    let end = |seeds: &Vec<Run>| median(seeds.iter().map(|run| run.end * 1e-6));
    let ends: Vec<f64> = results.iter().map(end).collect();
    let names = ["with stealing", "without"];
    let series = results.iter().zip(names);
    let series = series.map(|(seeds, name)| Series::new(name, STEP, seeds.first().map(|run| &run.chunks)));
    Ok(Figure {
        figure: "tail",
        title: "the tail of an allreduce under loss, with work stealing and without",
        lab: format!(
            "One static job of {WORKERS} workers, {SLOTS} slots, 1 Gbit/s, {} % loss on every cable, \
            {chunks} chunks. The series are the chunks that worker 0 receives in each millisecond.",
            LOSS * 100.0
        ),
        columns: vec!["slots", "end_ms"],
        rows: names.iter().zip(&ends).map(|(name, end)| vec![json!(name), rounded(*end)]).collect(),
        series: series.collect(),
        targets: vec![Target::new(
            "the end with stealing",
            "before the end without",
            format!("{:.2} and {:.2} ms", ends[0], ends[1]),
            ends[0] < ends[1],
        )],
        ..Figure::default()
    })
}

fn run(stealing: bool, chunks: usize, seed: u64) -> Result<Run, SetupError> {
    let mut testbed = Testbed::new(SLOW, 1, seed);
    let center = testbed.center;
    let hosts: Vec<_> = (0..WORKERS).map(|_| testbed.host_at(center)).collect();
    for link in hosts.iter().flat_map(|(_, link)| [*link, *link + 1]) {
        testbed.world.network.link_mut(link).spec.faults = Faults { loss: LOSS, ..Faults::default() };
    }
    let nodes: Vec<_> = hosts.iter().map(|(node, _)| *node).collect();
    let mut job = testbed.job(&Allocation::Static(1, SLOTS), &nodes, &[]);
    job.stealing = stealing;
    let plan = StepPlan { pause: SECOND, until: START + 1, ..tensors(1, chunks, START) };
    let running = testbed.start(job, &plan)?;
    let (first, logs) = (running.workers[0], running.logs.clone());
    let (mut received, mut series) = (0, Vec::new());
    testbed.world.run_until(100 * SECOND, |world| {
        let step = (world.now().saturating_sub(START) / STEP) as usize;
        let results = world.workers[first].stats().results;
        if results > received {
            series.resize(series.len().max(step + 1), 0.0);
            series[step] += (results - received) as f64;
            received = results;
        }
        logs.iter().all(|log| !log.borrow().steps.is_empty())
    });
    running.check()?;
    Ok(Run { chunks: series, end: (testbed.world.now() - START) as f64 })
}
