//! The conformance vectors on the P4 program, run by the behavioural model: frames through its ports, and after each the counter, all that
//! left, and the registers of the slot.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod model;
mod run;

use std::{env, time::Instant};

use model::{Model, with_program};
use run::{PORTS, Run};
use sumac_vectors::{
    cases, packets,
    random::{self, Profile, SWITCH_SEED},
    record::{Job, Step},
};
use sumac_wire::{Header, Reason};

/// Returns a number from the environment.
fn number(variable: &str, or: u64) -> u64 {
    env::var(variable).map_or(or, |text| text.parse().expect(variable))
}

/// `SUMAC_VECTORS_SEED` and `SUMAC_VECTORS_STEPS` choose others, to show a difference again.
#[test]
fn random_packets() {
    with_program("random_packets", |program| {
        let seed = number("SUMAC_VECTORS_SEED", SWITCH_SEED);
        let steps = number("SUMAC_VECTORS_STEPS", 2000) as usize;
        let setup = packets::setup("random", Some(seed), random::jobs(Profile::Switch, false));
        let mut model = Model::start(PORTS);
        let begin = Instant::now();
        let mut run = Run::new(&mut model, program, &setup);
        run.steps(&random::steps(&setup, seed, steps));
        run.finish();
        println!("seed {seed}: {steps} steps in {:?}", begin.elapsed());
    });
}

#[test]
fn the_table_of_cases() {
    with_program("the_table_of_cases", |program| {
        let parts = cases::all(false);
        let mut model = Model::start(PORTS);
        // All have the same job.
        let mut run = Run::new(&mut model, program, &parts[0].0);
        for (setup, steps) in &parts {
            assert_eq!(setup.jobs, parts[0].0.jobs);
            run.empty();
            run.steps(steps);
        }
        run.finish();
    });
}

/// Vectors have no time: the ticks at which somebody last added are set here.
#[test]
fn a_slot_to_which_nobody_adds_is_taken_back() {
    with_program("a_slot_to_which_nobody_adds_is_taken_back", |program| {
        let jobs = [6, 7].map(|number| Job { whole: true, ..packets::dynamic_job(number, 2, 13) });
        let setup = packets::setup("ageing", None, jobs.to_vec());
        let mut model = Model::start(PORTS);
        let mut run = Run::new(&mut model, program, &setup);
        let [silent, other] = jobs;
        let contributes = |job: &Job, rank: usize, reason: Reason| {
            let header = Header { slot: 3, ..packets::header(job, rank, 3) };
            let from = &job.workers[rank];
            let frame = packets::frame(job, from, &header, &[1; 13], 0, packets::TOS);
            let (interface, reason) = (from.interface, reason.name().into());
            Step { case: None, interface, frame, reason, answer: None, slot: None, shared: None }
        };
        run.steps(&[contributes(&silent, 0, Reason::Added)]);
        run.age();
        run.steps(&[contributes(&other, 0, Reason::Reclaimed)]);
        run.finish();
    });
}
