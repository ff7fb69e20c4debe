//! Whole jobs in a simulated network, thousands of them: everything that may go wrong on the way does, from a seed.
//!
//! Jobs are dynamic or static, one to three on the same aggregators, at one level or two or without any; with several
//! parameter hosts, beside workers or by themselves; with lanes, all kinds of operations and types, sums that overflow. Cables
//! lose, repeat and reorder, queues overflow and mark. Workers die, and others take their places. Aggregators lose their slots, or die for good; slots are left by jobs that
//! are dead. Every worker's memory must come out bit for bit as computed beside the engine, which knows nothing of all this.
//!
//! `SUMAC_SIM_SCENARIOS=100000` runs more; `SUMAC_SIM_SEED=17` replays exactly one and prints it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on")]
#![allow(clippy::panic, reason = "that is how a test fails")]

mod draw;
mod large;
mod replacement;
mod run;
mod scenario;
mod tensors;
mod totals;
mod trainer;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use scenario::Scenario;
use totals::Totals;

const SCENARIOS: u64 = 8_000;

#[test]
fn every_scenario_ends_with_the_exact_sum_everywhere() {
    if let Some(seed) = number("SUMAC_SIM_SEED") {
        let scenario = Scenario::from_seed(seed);
        println!("{scenario:#?}");
        run::run(&scenario).tell();
        return;
    }
    let scenarios = number("SUMAC_SIM_SCENARIOS").unwrap_or(SCENARIOS);
    let totals = run_all(scenarios);
    totals.tell();
    // A simulation in which nothing goes wrong proves nothing.
    if scenarios >= 1000 {
        for (what, count) in totals.hardships() {
            assert!(count > scenarios / 200, "{what} happened {count} times only");
        }
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
            "seed {seed} failed: {}\nreplay: SUMAC_SIM_SEED={seed} cargo test -p sumac-sim --test scenarios",
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
