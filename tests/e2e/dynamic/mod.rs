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
use sumac_lab::deployment::{DynamicOptions, SumacOptions};

/// A lab of `workers` with one parameter host.
fn lab(workers: u16) -> LabSpec {
    LabSpec { parameter_hosts: 1, ..LabSpec::new(workers) }
}

/// Sumac for dynamic jobs, with what they are to find.
fn sumac(dynamic: DynamicOptions) -> SumacOptions {
    SumacOptions { dynamic: Some(dynamic), ..SumacOptions::default() }
}
