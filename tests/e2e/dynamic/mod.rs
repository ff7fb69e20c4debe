//! Dynamic jobs: shared slots, parameter hosts, and what is left when an aggregator is not.
//!
//! ```text
//! w0 net0 --[cable]-- port0 +-----+
//! w1 net0 --[cable]-- port1 | agg | host0 --[cable]-- net0 ph0
//! w2 net0 --[cable]-- port2 +-----+
//! ```

mod congestion;
mod fate;
mod hostile;
mod levels;
mod places;
mod sums;

use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, DynamicOptions, SumacOptions};
use sumac_tests::{Crew, exact, stats};

/// A lab of `workers` with one parameter host.
fn lab(workers: u16) -> LabSpec {
    LabSpec { parameter_hosts: 1, ..LabSpec::new(workers) }
}

/// Sumac for dynamic jobs, with what they are to find.
fn sumac(dynamic: DynamicOptions) -> SumacOptions {
    SumacOptions { dynamic: Some(dynamic), ..SumacOptions::default() }
}

/// Sums, and asserts that the aggregators made sums of all workers meanwhile.
fn assert_aggregated(what: &str, sumac: &Deployment<'_>, crew: &Crew, seed: u64, count: usize) {
    let before = stats::at_parameter_host(sumac, 0, "full_sums");
    exact::assert_sums(what, seed, &crew.allreduce(seed, count));
    let full = stats::at_parameter_host(sumac, 0, "full_sums") - before;
    println!("{what}: {full} sums of all workers came from the aggregators");
    assert!(full > 0, "{what}: no sum of all workers came from the aggregators");
}
