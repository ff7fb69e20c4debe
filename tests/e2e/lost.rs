//! The path of a running job is lost, or its workers wait for one of them: no operation hangs without a word.

use std::time::Instant;

use nix::sys::signal::Signal;
use sumac_lab::deployment::{Deployment, DynamicOptions, SumacOptions};
use sumac_lab::units::Rate;
use sumac_lab::{LabSpec, Topology};
use sumac_tests::crew::assert_job_failed;
use sumac_tests::site::with_sumac;
use sumac_tests::wait::{LIMIT, eventually};
use sumac_tests::{Crew, exact, stats};

const SEED: u64 = 3;
const COUNT: usize = 1_000_000;

/// A lab with slow cables, so that a sum is half way when something happens.
fn slow(topology: Topology) -> LabSpec {
    LabSpec { rate: Some(Rate(50_000_000)), topology, ..LabSpec::new(2) }
}

fn in_dynamic_lab(body: impl FnOnce(&mut Deployment<'_>)) {
    let spec = LabSpec { parameter_hosts: 1, ..slow(Topology::PerPort) };
    let options = SumacOptions { dynamic: Some(DynamicOptions::default()), ..SumacOptions::default() };
    with_sumac(spec, &options, body);
}

/// In the middle of a sum `happens` loses its path; the error names it.
fn named(sumac: &mut Deployment<'_>, culprit: &str, happens: impl FnOnce(&mut Deployment<'_>, &Crew)) {
    let crew = Crew::join(sumac, "lost");
    let pending = crew.submit(SEED, 4 * COUNT);
    stats::wait_for_results(&crew.trainers[0], 200);
    happens(sumac, &crew);
    let start = Instant::now();
    assert_job_failed(pending, culprit);
    println!("named after {:.1?}", start.elapsed());
}

fn assert_next_job(sumac: &Deployment<'_>) {
    let crew = Crew::join(sumac, "next");
    exact::assert_sums("the next job", SEED, &crew.allreduce(SEED, 10_000));
    crew.leave();
}

#[test]
fn a_job_that_leaves_the_aggregators_table_fails_by_name() {
    with_sumac(slow(Topology::PerPort), &SumacOptions::default(), |sumac| {
        named(sumac, "no longer has job", |sumac, crew| {
            let job = crew.trainers[0].job.opened().wire_job.to_string();
            sumac.sumac_agg(&["job", "remove", &job]).unwrap();
        });
        let told = stats::at_aggregator(sumac)["unknown_job"];
        assert!(told > 0, "the aggregator counts what it answers");
        assert_next_job(sumac);
    });
}

#[test]
fn a_dynamic_job_goes_on_when_the_control_plane_is_stopped_in_order() {
    in_dynamic_lab(|sumac| {
        let crew = Crew::join(sumac, "stopped");
        let pending = crew.submit(SEED, COUNT);
        stats::wait_for_results(&crew.trainers[0], 200);
        // The job leaves the aggregator's table, and its programs stay on the ports that straight packets
        // cross.
        sumac.aggregator().unwrap().signal(Signal::SIGTERM);
        exact::assert_sums("half way", SEED, &crew.results(pending));
        assert!(crew.counter("direct") > 0, "past the aggregator");
        exact::assert_sums("afterwards", SEED + 1, &crew.allreduce(SEED + 1, COUNT));
        sumac.stop_aggregator();
        sumac.start_aggregator().unwrap();
        eventually("the way back", || (crew.counter("direct") == 0).then_some(()));
        exact::assert_sums("with the aggregator again", SEED + 2, &crew.allreduce(SEED + 2, COUNT));
        crew.leave();
    });
}

#[test]
fn a_dynamic_job_goes_on_past_an_aggregator_with_too_few_slots() {
    in_dynamic_lab(|sumac| {
        let crew = Crew::join(sumac, "bypassed");
        let pending = crew.submit(SEED, COUNT);
        stats::wait_for_results(&crew.trainers[0], 200);
        sumac.sumac_agg(&["detach", "--all"]).unwrap();
        // The job does not fit, so the control plane does not install it again.
        let ports = sumac.lab().spec().aggregator_ports();
        let ports = ports.iter().map(String::as_str);
        let attach: Vec<&str> = ["attach", "--dynamic-slots", "8"].into_iter().chain(ports).collect();
        sumac.sumac_agg(&attach).unwrap();
        exact::assert_sums("half way", SEED, &crew.results(pending));
        exact::assert_sums("afterwards", SEED + 1, &crew.allreduce(SEED + 1, COUNT));
        assert!(crew.counter("direct") > 0, "past the aggregator");
        crew.leave();
    });
}

#[test]
fn an_mtu_that_shrinks_under_a_job_is_named() {
    with_sumac(slow(Topology::PerPort), &SumacOptions::default(), |sumac| {
        named(sumac, "raise the MTU", |sumac, _| {
            let port = sumac.lab().spec().aggregator_ports()[0].clone();
            sumac.lab().aggregator().ip(&[format!("link set dev {port} mtu 1400")]).unwrap();
        });
        assert_next_job(sumac);
    });
}

#[test]
fn an_interface_that_is_made_anew_serves_the_next_job() {
    let spec = LabSpec { topology: Topology::OneArm, ..LabSpec::new(2) };
    with_sumac(spec, &SumacOptions::default(), |sumac| {
        let crew = Crew::join(sumac, "unplugged");
        let pending = crew.trainers[0].submit(SEED, COUNT);
        stats::wait_until_stuck(&crew.trainers[0]);
        let start = Instant::now();
        sumac.lab().replug(1).unwrap();
        let failure = sumac_tests::crew::failure(pending, LIMIT);
        println!("after {:.1?}: {failure}", start.elapsed());
        assert_eq!(failure.ranks, [1], "{failure}");
        assert!(failure.message.contains("interface net0 of this host was removed"), "{failure}");
        drop(crew);
        // No daemon was started anew; the program is attached again by the one that has lost its interface.
        let log = sumac.daemon(1).unwrap().log().to_owned();
        eventually("the interface's return", || {
            std::fs::read_to_string(&log).is_ok_and(|log| log.contains("in service again")).then_some(())
        });
        assert_next_job(sumac);
    });
}

#[test]
fn an_operation_that_waits_for_a_rank_names_it() {
    for dynamic in [None, Some(DynamicOptions::default())] {
        let spec = LabSpec { parameter_hosts: u16::from(dynamic.is_some()), ..LabSpec::new(3) };
        with_sumac(spec, &SumacOptions { dynamic, ..SumacOptions::default() }, |sumac| {
            let crew = Crew::join(sumac, "waiting");
            exact::assert_sums("before", SEED, &crew.allreduce(SEED, 10_000));
            let mut pending: Vec<_> =
                crew.trainers[..2].iter().map(|trainer| trainer.submit(SEED + 1, 10_000)).collect();
            let start = Instant::now();
            eventually("word of the rank", || {
                // Reads what has arrived.
                let short = std::time::Duration::from_millis(10);
                assert!(!pending[0].wait_timeout(short).unwrap(), "a sum without rank 2");
                let waiting = crew.trainers[0].job.waiting()?;
                println!("after {:.1?}: {waiting}", start.elapsed());
                waiting.contains("waits for ranks [2]").then_some(())
            });
            pending.push(crew.trainers[2].submit(SEED + 1, 10_000));
            exact::assert_sums("it came", SEED + 1, &crew.results(pending));
            assert_eq!(crew.trainers[0].job.waiting(), None);
            crew.leave();
        });
    }
}
