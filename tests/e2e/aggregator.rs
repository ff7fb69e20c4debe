//! The aggregator taken away in the middle of a sum.
//!
//! ```text
//! w0 net0 --[50 Mbit/s]-- port0 +-----+
//! w1 net0 --[50 Mbit/s]-- port1 | agg |
//! w2 net0 --[50 Mbit/s]-- port2 +-----+
//! ```
//!
//! The cables are slow, so that a sum is half way when the aggregator goes.

use nix::sys::signal::Signal;
use sumac_client::{Pending, Reduction};
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_lab::units::Rate;
use sumac_tests::crew::assert_job_failed;
use sumac_tests::site::with_sumac;
use sumac_tests::wait::eventually;
use sumac_tests::{Crew, exact, stats};

const SEED: u64 = 3;
const COUNT: usize = 1_000_000;

/// Rank 2 hands some tensors in late, so that the others' sums are certain to be outstanding until then.
const LATE: usize = 2;

fn in_slow_lab(body: impl FnOnce(&mut Deployment<'_>)) {
    let spec = LabSpec { rate: Some(Rate(50_000_000)), ..LabSpec::new(3) };
    with_sumac(spec, &SumacOptions { metrics: true, ..SumacOptions::default() }, body);
}

/// Asserts that a scrape of the control plane, which has no privileges left, has these series of the XDP
/// programs' maps.
fn assert_scraped(sumac: &Deployment<'_>, expected: &[&str]) {
    let scrape = sumac.aggregator_metrics().unwrap();
    for series in expected {
        assert!(scrape.lines().any(|line| line == *series), "{series} is not in {scrape}");
    }
}

/// All but rank 2 hand their values in.
fn submit_but_one(crew: &Crew, seed: u64) -> Vec<Pending<f32>> {
    crew.trainers[..LATE].iter().map(|trainer| trainer.submit(seed, COUNT)).collect()
}

/// All hand in a sum, and all but rank 2 the next one. Making the values takes longer than the first sum, so
/// it is done before.
fn submit_two(crew: &Crew) -> [Vec<Pending<f32>>; 2] {
    let (whole, mut rest) = (crew.prepare(SEED, COUNT), crew.prepare(SEED + 1, COUNT));
    rest.truncate(LATE);
    [whole, rest].map(|tensors| crew.hand_in(tensors, Reduction::Sum))
}

/// Waits until more chunks were asked for: timers have noticed that nothing is answered.
fn wait_for_questions(crew: &Crew) {
    let before = crew.counter("questions");
    eventually("questions in vain", || (crew.counter("questions") > before).then_some(()));
}

#[test]
fn sums_go_on_when_the_programs_are_attached_again() {
    in_slow_lab(|sumac| {
        let crew = Crew::join(sumac, "resumed");
        let [whole, mut rest] = submit_two(&crew);
        stats::wait_for_results(&crew.trainers[0], 500);

        assert_scraped(
            sumac,
            &[
                concat!(
                    "sumac_aggregator_info{version=\"",
                    env!("CARGO_PKG_VERSION"),
                    "\",plane=\"ebpf\"} 1"
                ),
                "sumac_aggregator_attached 1.0",
                "sumac_aggregator_interface_info{interface=\"port0\",mode=\"driver\"} 1",
                "sumac_aggregator_job_workers{job_name=\"resumed\",job_number=\"1\"} 3.0",
            ],
        );
        sumac.detach_aggregator().unwrap();
        let results = stats::counter(&crew.trainers[0], "results");
        println!("detached when {results} of {} chunks were summed", COUNT.div_ceil(256));
        let status = sumac.aggregator_status().unwrap();
        assert_eq!(status["ports"].as_array().map(Vec::len), Some(0), "{status}");
        assert_eq!(status["jobs"].as_array().map(Vec::len), Some(1), "the job's slots are kept: {status}");
        assert_scraped(sumac, &["sumac_aggregator_attached 0.0", "sumac_aggregator_jobs 1.0"]);
        wait_for_questions(&crew);
        sumac.attach_aggregator().unwrap();
        exact::assert_sums("interrupted half way", SEED, &crew.results(whole));

        // Once more, while the slots hold two contributions of three.
        stats::wait_until_stuck(&crew.trainers[0]);
        sumac.detach_aggregator().unwrap();
        rest.push(crew.trainers[LATE].submit(SEED + 1, COUNT));
        wait_for_questions(&crew);
        sumac.attach_aggregator().unwrap();
        exact::assert_sums("interrupted with slots half full", SEED + 1, &crew.results(rest));
        crew.leave();
    });
}

#[test]
fn a_job_whose_slots_are_gone_fails_by_name() {
    in_slow_lab(|sumac| {
        let crew = Crew::join(sumac, "bereft");
        let [_whole, pending] = submit_two(&crew);
        stats::wait_for_results(&crew.trainers[0], 500);
        sumac.sumac_agg(&["detach", "--all"]).unwrap();
        sumac.attach_aggregator().unwrap();
        assert_job_failed(pending, "aggregator");
        drop(crew);
        let crew = Crew::join(sumac, "bereft");
        exact::assert_sums("the job's next incarnation", SEED, &crew.allreduce(SEED, 10_000));
        crew.leave();
    });
}

#[test]
fn a_job_whose_control_plane_dies_fails_by_name() {
    in_slow_lab(|sumac| {
        let crew = Crew::join(sumac, "orphaned");
        let pending = submit_but_one(&crew, SEED);
        stats::wait_until_stuck(&crew.trainers[0]);
        sumac.aggregator().unwrap().signal(Signal::SIGKILL);
        assert_job_failed(pending, "aggregator");
        drop(crew);
        sumac.stop_aggregator();
        sumac.start_aggregator().unwrap();
        let crew = Crew::join(sumac, "orphaned");
        exact::assert_sums("after the control plane's restart", SEED, &crew.allreduce(SEED, 10_000));
        crew.leave();
    });
}
