//! Figures 16 and 17: the three parts of MLT, added one by one in two orders.

use serde_json::json;
use sumac_sim::job::SetupError;
use sumac_wire::DEFAULT_PATHS;

use super::{
    direct::Components,
    model::Model,
    run::{Outcome, Plan, Transport, run},
    scale::{SCALE, lab},
};
use crate::simulated::{
    Effort,
    figure::{Figure, Target, interval, median, rounded},
    testbed::over_seeds,
};

/// Racks and iterations.
const FULL: (usize, usize) = (9, 1);
const QUICK: (usize, usize) = (3, 2);

/// A: bounded loss; B: queueing and dropping by tags; C: many paths.
const fn with(a: bool, b: bool, c: bool) -> Transport {
    let loss_bound = if a { 0.1 } else { 0.0 };
    Transport::Direct(Components { loss_bound, is_tagged: b, paths: if c { DEFAULT_PATHS } else { 1 } })
}

const CASES: [(&str, Transport); 7] = [
    ("DCTCP", Transport::Dctcp),
    ("none", with(false, false, false)),
    ("A", with(true, false, false)),
    ("A, B", with(true, true, false)),
    ("A, B, C", with(true, true, true)),
    ("C", with(false, false, true)),
    ("C, B", with(false, true, true)),
];

pub fn figures16_and_17(effort: Effort) -> Result<Figure, SetupError> {
    let (racks, iterations) = if effort.quick { QUICK } else { FULL };
    let plan =
        |transport| Plan { transport, model: Model::resnet50, scale: SCALE, racks, iterations, gray: 0.0 };
    let plans: Vec<Plan> = CASES.iter().map(|(_, transport)| plan(*transport)).collect();
    let results = over_seeds(&plans, effort.seeds, run)?;
    let of = |case: usize, value: fn(&Outcome) -> f64| median(results[case].iter().map(value));
    let rows = CASES.iter().enumerate().map(|(case, (name, _))| {
        vec![
            json!(name),
            rounded(of(case, |run| run.iteration / 1e3)),
            interval(results[case].iter().map(|run| run.iteration / 1e3)),
            rounded(of(1, |run| run.iteration) / of(case, |run| run.iteration)),
            rounded(of(case, |run| run.mean)),
            rounded(of(case, |run| run.p99)),
            rounded(of(case, |run| run.dropped)),
            rounded(of(case, |run| run.lost)),
            rounded(of(case, |run| run.lost_important)),
        ]
    });
    let place = |name: &str| CASES.iter().position(|(other, _)| *other == name).unwrap_or(0);
    let gain = |what: &str, from: &str, to: &str| {
        let (before, after) = (of(place(from), |run| run.iteration), of(place(to), |run| run.iteration));
        let told = format!("{:.1} % shorter", (1.0 - after / before) * 100.0);
        Target::new(what, "a shorter iteration", told, after < before)
    };
    Ok(Figure {
        figure: "mlt-fig16",
        title: "the three parts of MLT, added one by one",
        lab: format!(
            "{} {} hosts, ResNet50. A is the loss bound of 10 %; B are priorities by layer, importance by \
            magnitude and the queues for them; C are 64 paths, one otherwise. Control packets have a queue \
            of their own in all cases but DCTCP's.",
            lab(SCALE, iterations),
            racks * 16
        ),
        columns: vec![
            "parts",
            "iteration_ms",
            "of_all_seeds",
            "speed_to_none",
            "mean_us",
            "p99_us",
            "frames_dropped_percent",
            "chunks_lost_percent",
            "important_lost_percent",
        ],
        rows: rows.collect(),
        targets: vec![
            gain("figure 16: A beside none", "none", "A"),
            gain("figure 16: B added to A", "A", "A, B"),
            gain("figure 16: C added to A and B", "A, B", "A, B, C"),
            gain("figure 17: C beside none", "none", "C"),
            gain("figure 17: B added to C", "C", "C, B"),
            gain("figure 17: A added to C and B", "C, B", "A, B, C"),
        ],
        ..Figure::default()
    })
}
