//! The tail of an allreduce under loss, with work stealing and without (after SwitchML's figure 7): how many chunks
//! one of four workers gets back in each millisecond, in the simulator, as JSON.
//!
//! ```text
//! cargo run --release -p sumac-transport --example tail -- [LOSS] [CHUNKS] [SEED]
//! ```
//!
//! Loss is that of every frame on every cable (0.01 unless given), links carry a frame in 12 µs, the lane has 64 slots.
#![allow(dead_code, reason = "the simulation is made for its tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a simulation, not a service")]

#[path = "../tests/simulation/ledger.rs"]
mod ledger;
#[path = "../tests/simulation/network.rs"]
mod network;
#[path = "../tests/simulation/patience.rs"]
mod patience;
#[path = "../tests/simulation/plain.rs"]
mod plain;
#[path = "../tests/simulation/run.rs"]
mod run;
#[path = "../tests/simulation/scenario.rs"]
mod scenario;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../tests/simulation/tensors.rs"]
mod tensors;
#[path = "../tests/simulation/totals.rs"]
mod totals;
#[path = "../tests/simulation/worker.rs"]
mod worker;

use std::{env, str::FromStr};

use serde_json::{Value, json};

use crate::{plain::START, run::run_traced, scenario::Scenario};

/// Nanoseconds of one bin.
const BIN: u64 = 1_000_000;

fn main() {
    let (loss, chunks, seed) = (argument(1, 0.01), argument(2, 10_000), argument(3, 0));
    let runs: Vec<Value> = [true, false]
        .map(|stealing| run(&Scenario { stealing, ..plain::link_bound(seed, loss, chunks) }))
        .into();
    println!("{}", json!({ "loss": loss, "chunks": chunks, "seed": seed, "bin_ms": 1, "runs": runs }));
}

fn argument<T: FromStr>(at: usize, otherwise: T) -> T {
    let Some(text) = env::args().nth(at) else { return otherwise };
    text.parse().unwrap_or_else(|_| panic!("argument {at}, {text:?}, is not a number"))
}

fn run(scenario: &Scenario) -> Value {
    let trace = run_traced(scenario);
    let end = trace.results.last().map_or(0, |last| last - START);
    let mut bins = vec![0u64; (end / BIN + 1) as usize];
    trace.results.iter().for_each(|at| bins[((at - START) / BIN) as usize] += 1);
    json!({ "stealing": scenario.stealing, "end_ms": end as f64 / 1e6, "chunks_per_bin": bins })
}
