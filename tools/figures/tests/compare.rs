//! Another library's numbers in a lab of two workers, as `sumac-figures compare` gets them:
//!
//! ```text
//! rank 0 in w0 ---- agg (routes) ---- w1 with rank 1
//! ```

use std::time::Duration;

use clap::ValueEnum;
use sumac_figures::compare::{
    comparison::Outcome,
    contender::{Contender, compare},
    offloads::TcpOffloads,
};
use sumac_lab::LabSpec;
use sumac_lab::capture::CaptureOptions;
use sumac_lab::deployment::SumacOptions;
use sumac_lab::run::{Operation, RunOptions};

#[test]
fn all_libraries_sum_in_one_lab() {
    if !nix::unistd::geteuid().is_root() {
        let required = std::env::var_os("REQUIRE_PRIVILEGED").is_some_and(|value| value == "1");
        assert!(!required, "network namespaces need root");
        println!("SKIP all_libraries_sum_in_one_lab: network namespaces need root");
        return;
    }
    let options = RunOptions {
        lab: LabSpec { name: format!("cmp{}", std::process::id()), ..LabSpec::new(2) },
        sumac: SumacOptions::default(),
        // Longer than the pauses of the thread that counts frames, on a busy machine.
        operation: Operation::sum(500_000),
        jobs: 1,
        iterations: 2,
        warmup: 1,
        seed: 1,
        limit: Duration::from_secs(60),
        trace: true,
        captures: CaptureOptions::default(),
    };
    let comparison = compare(&options, Contender::value_variants(), TcpOffloads::default(), |_| ()).unwrap();
    println!("{comparison}");
    assert_eq!(comparison.rows.len(), 4);
    for row in &comparison.rows {
        match &row.outcome {
            Outcome::Measured(measurement) => {
                assert!(measurement.verified, "{}", row.library);
                // Segments of TCP may be longer than the MTU.
                let sent: f64 = measurement.trace.iter().flat_map(|trace| &trace.frames).sum();
                assert!(sent >= 1.0, "{}: {sent} frames", row.library);
            }
            Outcome::Missing { install } => println!("{} is not installed: {install}", row.library),
            Outcome::Failed { error } => panic!("{}: {error}", row.library),
        }
    }
}
