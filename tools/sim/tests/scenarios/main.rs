//! Thousands of whole jobs on simulated networks, with faults drawn from a seed.
//!
//! ```text
//!   worker 0 --+   each cable: loss, duplication, reordering, delay, rate, a queue that marks and drops
//!   worker 1 --+-- aggregator --+    restarts, dies, is cut off
//!   ...        |                |
//!   worker 3 --+                +-- root -- parameter hosts
//!   worker 4 --+-- aggregator --+
//!   ...            workers start late, pause, die and are replaced
//! ```
//!
//! `mixed` draws one to three dynamic and static jobs on the same aggregators, with all kinds of operations
//! and types, sums that overflow, lanes, several parameter hosts, aggregator faults and replaced workers.
//! `alone` draws one static job, in any wire format and anywhere in its streams, with values that cannot be
//! summed. Every worker's memory must equal, bit for bit, the results computed beside the engine.
//!
//! `SUMAC_SIM_SCENARIOS=100000` runs more; `SUMAC_SIM_SEED=17` replays and prints one.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on")]
#![allow(clippy::panic, reason = "that is how a test fails")]

mod bounded;
mod direct;
mod draw;
mod handover;
mod large;
mod ledger;
mod replacement;
mod run;
mod scenario;
mod tensors;
mod timing;
mod totals;
mod trainer;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use scenario::{Scenario, Shape};
use totals::{Totals, print};

type Draw = fn(u64) -> Scenario;
type Counts = fn(&Totals) -> Vec<(&'static str, u64)>;

#[test]
fn mixed_jobs_end_with_the_exact_sums() {
    run_all("mixed", draw::mixed, 4_000, 200, Totals::of_mixed);
}

#[test]
fn a_static_job_alone_ends_with_the_exact_sums() {
    let totals = run_all("alone", draw::alone, 12_000, 100, Totals::of_alone);
    let is_few = totals.overtaken < totals.lossless / 1000 || totals.scenarios < 1000;
    assert!(is_few, "{} of {}", totals.overtaken, totals.lossless);
}

#[test]
fn sums_of_few_floats_are_exact() {
    run_all("few", draw::few, 4_000, 100, Totals::of_few);
}

/// Sums do not depend on the number of aggregators between, nor on what is lost on the way.
#[test]
fn two_levels_give_the_bits_of_one() {
    let is_two = |scenario: &Scenario| scenario.shape != Shape::One;
    let two: Vec<Scenario> = (0..2000).map(draw::alone).filter(is_two).collect();
    assert!(two.len() > 300);
    for two in two {
        let mut one = Scenario { shape: Shape::One, aggregator_faults: Vec::new(), ..two.clone() };
        one.jobs[0].racks.fill(None);
        let outputs = |scenario: &Scenario| {
            let truth = trainer::Truth::new(&scenario.jobs[0], scenario.seed);
            truth.outputs.into_iter().flatten().map(|chunk| chunk.allowed).collect::<Vec<_>>()
        };
        assert!(outputs(&one) == outputs(&two), "seed {}", two.seed);
        // Both are compared with these outputs.
        run::run(&one);
        run::run(&two);
    }
}

/// Runs `scenarios` scenarios, of which every `rarest`-th must contain each count.
fn run_all(name: &str, draw: Draw, scenarios: u64, rarest: u64, counts: Counts) -> Totals {
    if let Some(seed) = number("SUMAC_SIM_SEED") {
        let scenario = draw(seed);
        println!("{scenario:#?}");
        let totals = run::run(&scenario);
        print(1, &counts(&totals));
        return totals;
    }
    let scenarios = number("SUMAC_SIM_SCENARIOS").unwrap_or(scenarios);
    let next = AtomicU64::new(0);
    let worker = || {
        let mut totals = Totals::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= scenarios {
                return totals;
            }
            totals.add(&run_one(name, draw, seed));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let totals = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let mut totals = Totals::default();
        handles.into_iter().for_each(|handle| totals.add(&handle.join().expect("a scenario failed")));
        totals
    });
    print(scenarios, &counts(&totals));
    // A simulation without faults proves nothing.
    if scenarios >= 1000 {
        for (what, count) in counts(&totals) {
            assert!(count > scenarios / rarest, "{what} happened {count} times only");
        }
    }
    totals
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")))
}

fn run_one(name: &str, draw: Draw, seed: u64) -> Totals {
    catch_unwind(AssertUnwindSafe(|| run::run(&draw(seed)))).unwrap_or_else(|cause| {
        panic!(
            "seed {seed} failed: {}\nreplay: SUMAC_SIM_SEED={seed} cargo test -p sumac-sim --test scenarios \
            {name}",
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
