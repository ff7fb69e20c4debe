//! Whole jobs in a simulated network: everything that may go wrong on the way does, from a seed.
//!
//! ```text
//!   worker 0 ──┐   each line: loss, duplication, reordering, delay, serialisation
//!   worker 1 ──┼── aggregator ──┐    sumac_wire::slot::decide; may be unreachable for a while,
//!   ...        │                │    or lose its state: then the job begins anew
//!   worker 3 ──┘                ├── root, where there are two racks
//!   worker 4 ──┬── aggregator ──┘
//!   ...        │       workers start late and pause
//! ```
//!
//! Jobs have one lane or two (a bulk and an urgent one), block exponents or a fixed scale, 32 or 16 bits on the
//! wire, and operations of all kinds and types. Every worker's memory must come out bit for bit as computed beside
//! the engine, which knows nothing of levels, lanes and slots: so all of these give the same bits.
//!
//! `SUMAC_SIM_SCENARIOS=100000` runs more; `SUMAC_SIM_SEED=17` replays exactly one and prints it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on")]
#![allow(clippy::panic, reason = "that is how a test fails")]

mod ledger;
mod network;
mod patience;
mod plain;
mod run;
mod scenario;
#[path = "../support/mod.rs"]
mod support;
mod tensors;
mod timing;
mod totals;
mod worker;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use scenario::Scenario;
use sumac_transport::JobParams;
use totals::Totals;

const SCENARIOS: u64 = 30_000;

#[test]
fn every_scenario_ends_with_the_exact_sum_everywhere() {
    if let Some(seed) = number("SUMAC_SIM_SEED") {
        let scenario = Scenario::from_seed(seed);
        println!("{scenario:#?}");
        println!("{:#?}", run::run(&scenario));
        return;
    }
    let scenarios = number("SUMAC_SIM_SCENARIOS").unwrap_or(SCENARIOS);
    let totals = run_all(scenarios);
    println!("{scenarios} scenarios: {totals:#?}");
    // A simulation in which nothing goes wrong proves nothing.
    if scenarios >= 1000 {
        assert!(totals.overtaken < totals.lossless / 1000, "{} of {}", totals.overtaken, totals.lossless);
        for (what, count) in totals.hardships() {
            assert!(count > scenarios / 100, "{what} happened {count} times only");
        }
    }
}

/// The aggregators between do not show in the sums: neither their number, nor what is lost on the way.
#[test]
fn two_levels_give_the_bits_of_one() {
    let two: Vec<Scenario> =
        (0..2000).map(Scenario::from_seed).filter(|scenario| scenario.racks == 2).collect();
    assert!(two.len() > 300);
    for two in two {
        let params = JobParams { rack_world: two.params.world, ..two.params.clone() };
        let one = Scenario { racks: 1, params, ..two.clone() };
        let inputs = |scenario: &Scenario| -> Vec<_> {
            (0..scenario.params.world).map(|rank| tensors::inputs(scenario, rank)).collect()
        };
        for number in 0..two.tensors.len() {
            let outputs = |scenario: &Scenario| tensors::outputs(scenario, number, &inputs(scenario));
            assert!(outputs(&one) == outputs(&two), "seed {}, tensor {number}", two.seed);
        }
        // Both hold what they do against these outputs.
        run::run(&one);
        run::run(&two);
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")))
}

fn run_all(scenarios: u64) -> Totals {
    let next = AtomicU64::new(0);
    let worker = || {
        let mut totals = Totals::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= scenarios {
                return totals;
            }
            totals.add(&run_one(seed));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let mut totals = Totals::default();
        handles.into_iter().for_each(|handle| totals.add(&handle.join().expect("a scenario failed")));
        totals
    })
}

fn run_one(seed: u64) -> Totals {
    catch_unwind(AssertUnwindSafe(|| run::run(&Scenario::from_seed(seed)))).unwrap_or_else(|cause| {
        panic!(
            "seed {seed} failed: {}\nreplay: SUMAC_SIM_SEED={seed} cargo test -p sumac-transport --test simulation",
            message(cause.as_ref())
        )
    })
}

fn message(cause: &(dyn Any + Send)) -> &str {
    cause
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| cause.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}
