//! Processes killed at random under a loop of allreduces: every sum is right or fails by name, and nothing is
//! left.
//!
//! Two racks below a root, first of XDP programs, then of host aggregators; for dynamic jobs with a worker on
//! the root and a parameter host; for direct ones without racks. `make chaos` kills 1,500.

use sumac_client::Mode;
use sumac_lab::chaos::{ChaosOptions, chaos};
use sumac_tests::site::in_turn;

fn kill(mode: Mode) {
    // The seed is fixed, so that a failure is found again; `make chaos` chooses others.
    let options = ChaosOptions { kills: 14, seed: 15, mode, elements: 50_000, limit: 20, json: false };
    in_turn(|| {
        let report = chaos(&options).unwrap_or_else(|error| panic!("{error:#}"));
        assert!(
            report.is_good(),
            "{report}\nrepeat with `sumac-lab chaos --mode {mode:?} --kills 14 --seed 15`"
        );
        println!("{report}");
    });
}

#[test]
fn killed_processes_of_a_static_job_are_named_or_passed_over() {
    kill(Mode::Static);
}

#[test]
fn killed_processes_of_a_dynamic_job_are_named_or_passed_over() {
    kill(Mode::Dynamic);
}

#[test]
fn killed_processes_of_a_direct_job_are_named_or_passed_over() {
    kill(Mode::Direct);
}
