//! Figure 14: completion times of training's transfers on a growing network.

use serde_json::json;
use sumac_sim::job::SetupError;

use super::{
    fabric::HOSTS_PER_RACK,
    model::Model,
    run::{Outcome, Plan, Transport, run, whole},
};
use crate::simulated::{
    Effort,
    figure::{Figure, Target, interval, median, rounded},
    testbed::over_seeds,
};

/// The divisor of tensors and compute times.
pub const SCALE: u64 = 32;
const RACKS: [usize; 3] = [3, 6, 9];
pub const TRANSPORTS: [(&str, Transport); 3] =
    [("DCTCP", Transport::Dctcp), ("direct, p = 0", whole(0.0)), ("direct, p = 10 %", whole(0.1))];
const MODELS: [fn(usize, u64) -> Model; 2] = [Model::resnet50, Model::googlenet];

pub fn figure14(effort: Effort) -> Result<Figure, SetupError> {
    let racks: &[usize] = if effort.quick { &RACKS[..1] } else { &RACKS };
    let mut cases = Vec::new();
    for model in MODELS {
        for racks in racks {
            for (name, transport) in TRANSPORTS {
                cases.push((
                    name,
                    Plan { transport, model, scale: SCALE, racks: *racks, iterations: 1, gray: 0.0 },
                ));
            }
        }
    }
    let results = over_seeds(&cases, effort.seeds, |(_, plan), seed| run(plan, seed))?;
    let rows = cases.iter().zip(&results).map(|((name, plan), runs)| {
        let of = |value: fn(&Outcome) -> f64| rounded(median(runs.iter().map(value)));
        vec![
            json!((plan.model)(1, SCALE).name),
            json!(plan.racks * HOSTS_PER_RACK),
            json!(name),
            of(|run| run.mean),
            of(|run| run.p99),
            of(|run| run.longest),
            of(|run| run.iteration / 1e3),
            interval(runs.iter().map(|run| run.iteration / 1e3)),
            of(|run| run.dropped),
            of(|run| run.lost),
            of(|run| run.timeouts as f64),
        ]
    });
    let largest = racks[racks.len() - 1];
    let targets = MODELS.iter().flat_map(|model| {
        let of = |name: &str, value: fn(&Outcome) -> f64| {
            let is_its =
                |plan: &Plan| (plan.model)(1, SCALE).name == model(1, SCALE).name && plan.racks == largest;
            let at = cases.iter().position(|(other, plan)| *other == name && is_its(plan));
            median(at.into_iter().flat_map(|at| &results[at]).map(value))
        };
        let what = format!("{} on {} hosts", model(1, SCALE).name, largest * HOSTS_PER_RACK);
        let target = |number: &str, paper: &str, value: fn(&Outcome) -> f64| {
            let (dctcp, direct) = (of("DCTCP", value), of("direct, p = 10 %", value));
            let told = format!("{:.1} % lower", (1.0 - direct / dctcp) * 100.0);
            Target::new(
                &format!("{what}, {number}, direct with p = 10 % beside DCTCP"),
                &format!("lower (the paper: up to {paper} %)"),
                told,
                direct < dctcp,
            )
        };
        let [mean, tail] =
            if model(1, SCALE).name == "ResNet50" { ["43.1", "91.8"] } else { ["35.1", "91.7"] };
        [target("mean", mean, |run| run.mean), target("p99", tail, |run| run.p99)]
    });
    Ok(Figure {
        figure: "mlt-fig14",
        title: "completion times of training's transfers, the direct mode beside DCTCP",
        lab: lab(SCALE, 1),
        columns: vec![
            "model",
            "hosts",
            "transport",
            "mean_us",
            "p99_us",
            "longest_us",
            "iteration_ms",
            "of_all_seeds",
            "frames_dropped_percent",
            "chunks_lost_percent",
            "timeouts",
        ],
        targets: targets.collect(),
        rows: rows.collect(),
        ..Figure::default()
    })
}

/// The network and the jobs, in words.
pub fn lab(scale: u64, iterations: usize) -> String {
    let iterations =
        if iterations == 1 { "one iteration".to_owned() } else { format!("{iterations} iterations") };
    let bytes = |model: Model| model.bytes() as f64 / 1e6;
    format!(
        "Racks of {HOSTS_PER_RACK} hosts, 4 spines with a link to each leaf, all of 100 Gbit/s, 24 us for a \
        round trip, ports of 512 KB. One job on all hosts, {iterations}; a quarter of each rack's hosts are \
        parameter servers. Tensors and compute times are those of training divided by {scale} ({:.1} MB a \
        step for ResNet50, {:.1} for GoogleNet), in parts of up to 1 MB before. Forward and backward passes \
        go layer by layer. DCTCP: marks above 65 frames, initial window 10, least timeout 10 ms, a path for \
        each flow. Direct: ports as `sumac qos show` configures them, 64 paths.",
        bytes(Model::resnet50(1, scale)),
        bytes(Model::googlenet(1, scale)),
    )
}
