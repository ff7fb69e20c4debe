//! The aggregator taken away in the middle of a sum.
//!
//! ```text
//! w0 net0 --[50 Mbit/s]-- port0 +-----+
//! w1 net0 --[50 Mbit/s]-- port1 | agg |
//! w2 net0 --[50 Mbit/s]-- port2 +-----+
//! ```
//!
//! The cables are slow, so that a sum is still on its way when a command has done its work.

use sumac_client::Code;
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_lab::units::Rate;
use sumac_tests::crew::{failure, sum};
use sumac_tests::site::with_sumac;
use sumac_tests::wait::{LIMIT, eventually};
use sumac_tests::{Crew, exact, stats};

const SEED: u64 = 3;
const COUNT: usize = 2_000_000;
const CHUNKS: u64 = (COUNT as u64).div_ceil(256);

fn in_slow_lab(test: &str, body: impl FnOnce(&mut Deployment<'_>)) {
    let spec = LabSpec { rate: Some(Rate(50_000_000)), ..LabSpec::new(3) };
    with_sumac(test, spec, &SumacOptions::default(), body);
}

/// Asserts that the sum is neither at its beginning nor at its end.
fn assert_half_way(crew: &Crew) {
    let results = stats::counter(&crew.trainers[0], "results");
    assert!((1..CHUNKS).contains(&results), "{results} of {CHUNKS} chunks are done: not in the middle");
}

#[test]
fn a_sum_goes_on_when_the_programs_are_attached_again() {
    in_slow_lab("attached_again", |sumac| {
        let crew = Crew::join(sumac, "resumed");
        let pending = crew.submit(SEED, COUNT);
        for _ in 0..2 {
            stats::wait_for_results(&crew.trainers[0], 500);
            sumac.detach_aggregator().unwrap();
            assert_half_way(&crew);
            let status = sumac.aggregator_status().unwrap();
            assert_eq!(status["ports"].as_array().map(Vec::len), Some(0), "{status}");
            assert_eq!(
                status["jobs"].as_array().map(Vec::len),
                Some(1),
                "the job's slots are kept: {status}"
            );
            // Chunks go unanswered until their timers have noticed.
            let before = stats::retransmits(&crew);
            eventually("chunks sent in vain", || (stats::retransmits(&crew) > before).then_some(()));
            sumac.attach_aggregator().unwrap();
        }
        let sums: Vec<_> = pending.into_iter().map(|pending| sum(pending).to_vec()).collect();
        exact::assert_sums("after two interruptions", SEED, &sums);
        crew.leave();
    });
}

#[test]
fn a_job_whose_slots_are_gone_fails_by_name() {
    in_slow_lab("slots_gone", |sumac| {
        let crew = Crew::join(sumac, "bereft");
        let pending = crew.submit(SEED, COUNT);
        stats::wait_for_results(&crew.trainers[0], 500);
        sumac.sumac_agg(&["detach", "--all"]).unwrap();
        assert_half_way(&crew);
        sumac.attach_aggregator().unwrap();
        for (rank, pending) in pending.into_iter().enumerate() {
            let failure = failure(pending, LIMIT);
            println!("rank {rank}: {failure}");
            assert_eq!(failure.code, Code::JobFailed, "rank {rank}: {failure}");
            assert!(failure.message.contains("aggregator"), "rank {rank}: {failure}");
        }
        drop(crew);
        let crew = Crew::join(sumac, "bereft");
        exact::assert_sums("the job's next incarnation", SEED, &crew.allreduce(SEED, 10_000));
        crew.leave();
    });
}

#[test]
fn a_job_whose_control_plane_dies_fails_by_name() {
    in_slow_lab("control_plane_dies", |sumac| {
        let crew = Crew::join(sumac, "orphaned");
        // Rank 2 hands nothing in: the sum cannot come before the loss is noticed.
        let waiting = &crew.trainers[..2];
        let pending: Vec<_> = waiting.iter().map(|trainer| trainer.submit(SEED, COUNT)).collect();
        stats::wait_until_stuck(&crew.trainers[0]);
        sumac.aggregator().unwrap().signal(nix::sys::signal::Signal::SIGKILL);
        for (rank, pending) in pending.into_iter().enumerate() {
            let failure = failure(pending, LIMIT);
            println!("rank {rank}: {failure}");
            assert_eq!(failure.code, Code::JobFailed, "rank {rank}: {failure}");
            assert!(failure.message.contains("aggregator"), "rank {rank}: {failure}");
        }
        drop(crew);
        sumac.stop_aggregator();
        sumac.start_aggregator().unwrap();
        let crew = Crew::join(sumac, "orphaned");
        exact::assert_sums("after the control plane's restart", SEED, &crew.allreduce(SEED, 10_000));
        crew.leave();
    });
}
