//! A dynamic job outlives its aggregator, and not its parameter host.
//!
//! The cables are slow, so that a sum is half way when somebody goes.

use nix::sys::signal::Signal;
use sumac_client::{JobOptions, Reduction};
use sumac_lab::deployment::{Backend, Deployment, DynamicOptions, SumacOptions};
use sumac_lab::units::Rate;
use sumac_lab::{LabSpec, Topology};
use sumac_tests::crew::assert_job_failed;
use sumac_tests::leg::Leg;
use sumac_tests::site::with_sumac;
use sumac_tests::wait::{LIMIT, eventually};
use sumac_tests::{Crew, Trainer, exact, stats};

use super::{assert_aggregated, lab, sumac};

const SEED: u64 = 3;
const COUNT: usize = 500_000;

fn in_slow_lab(backend: Backend, body: impl FnOnce(&mut Deployment<'_>)) {
    let spec = LabSpec { rate: Some(Rate(50_000_000)), ..lab(3) };
    with_sumac(spec, &SumacOptions { backend, ..sumac(DynamicOptions::default()) }, body);
}

#[test]
fn sums_go_on_without_the_programs_and_with_them_again() {
    in_slow_lab(Backend::Xdp, |sumac| {
        let crew = Crew::join(sumac, "fate");
        // Several, since a busy machine takes long to detach.
        let tensors = [(); 3].map(|()| crew.prepare(SEED, COUNT));
        let pending = tensors.map(|tensors| crew.hand_in(tensors, Reduction::Sum));
        stats::wait_for_results(&crew.trainers[0], 200);
        sumac.detach_aggregator().unwrap();
        eventually("the way past the aggregator", || (crew.counter("direct") >= 3).then_some(()));
        for pending in pending {
            exact::assert_sums("without the aggregator", SEED, &crew.results(pending));
        }
        let straight = stats::at_parameter_host(sumac, 0, "contributions");
        assert!(straight > 0, "nobody sent straight to the parameter host");

        sumac.attach_aggregator().unwrap();
        eventually("the way back", || (crew.counter("direct") == 0).then_some(()));
        println!("{straight} contributions came straight");
        assert_aggregated("with the aggregator again", sumac, &crew, SEED + 1, COUNT);
        crew.leave();
    });
}

/// Over UDP the aggregator dies with its control plane, over XDP the programs go on.
fn sums_go_on_when_the_aggregators_process_is_killed(backend: Backend) {
    in_slow_lab(backend, |sumac| {
        let crew = Crew::join(sumac, "orphans");
        let pending = crew.submit(SEED, COUNT);
        stats::wait_for_results(&crew.trainers[0], 200);
        sumac.aggregator().unwrap().signal(Signal::SIGKILL);
        exact::assert_sums("half way", SEED, &crew.results(pending));
        exact::assert_sums("afterwards", SEED + 1, &crew.allreduce(SEED + 1, COUNT));

        // Started anew, and in the middle of a sum, it takes the job up.
        let pending = crew.submit(SEED + 2, COUNT);
        sumac.stop_aggregator();
        sumac.start_aggregator().unwrap();
        eventually("the job at the new control plane", || is_whole(sumac, "orphans").then_some(()));
        eventually("the way back", || (crew.counter("direct") == 0).then_some(()));
        exact::assert_sums("taken up", SEED + 2, &crew.results(pending));
        assert_aggregated("with the aggregator again", sumac, &crew, SEED + 3, COUNT);
        crew.leave();
        let crew = Crew::join(sumac, "heirs");
        exact::assert_sums("the next job", SEED, &crew.allreduce(SEED, 10_000));
        crew.leave();
    });
}

/// Whether the control plane has a job of this name that runs, and lacks nothing.
fn is_whole(sumac: &Deployment<'_>, name: &str) -> bool {
    // It may not be quite there.
    let Ok(said) = sumac.control_status() else { return false };
    said["jobs"].as_array().unwrap().iter().any(|job| {
        let lacks = |what: &str| job[what].as_array().is_none_or(|missing| !missing.is_empty());
        job["name"] == name && job["state"] == "running" && !lacks("missing") && !lacks("without")
    })
}

#[test]
fn sums_go_on_when_the_control_plane_is_killed() {
    sums_go_on_when_the_aggregators_process_is_killed(Backend::Xdp);
}

#[test]
fn sums_go_on_when_an_aggregator_process_is_killed() {
    sums_go_on_when_the_aggregators_process_is_killed(Backend::Udp);
}

#[test]
fn a_worker_that_takes_a_dead_ones_place_goes_on_where_the_stream_stopped() {
    replaced(lab(3), 0);
}

#[test]
fn a_dead_workers_place_is_taken_where_another_worker_is_the_parameter_host() {
    replaced(LabSpec::new(3), 1);
}

/// So many of the workers that do not die are parameter hosts, too.
fn replaced(spec: LabSpec, co_located: u16) {
    let dynamic = DynamicOptions { rejoin_grace: 30, co_located, ..DynamicOptions::default() };
    let spec = LabSpec { rate: Some(Rate(50_000_000)), ..spec };
    with_sumac(spec, &sumac(dynamic), |sumac| {
        let mut crew = Crew::join(sumac, "replaced");
        let mut pending = crew.submit(SEED, COUNT);
        stats::wait_for_results(&crew.trainers[0], 200);
        sumac.daemon(2).unwrap().signal(Signal::SIGKILL);
        pending.truncate(2);
        crew.trainers.truncate(2);
        sumac.stop_daemon(2);
        sumac.start_daemon(2).unwrap();

        let options = sumac.in_its_mode(JobOptions::new("replaced", 2, 3).timeout(LIMIT));
        let newcomer = Trainer::open(sumac.socket(2), 2, &options).unwrap();
        assert!(newcomer.job.opened().dynamic.as_ref().unwrap().resumed);
        let mut again = newcomer.submit(SEED, COUNT);
        assert!(again.wait_timeout(LIMIT).unwrap(), "the newcomer's sum hangs");
        let missed = again.missed().to_vec();
        let mut results = crew.results(pending);
        let mut own = again.wait().unwrap().to_vec();
        // What was summed before it came it has not got; the others have.
        for (from, to) in missed.iter().map(|(from, to)| (*from as usize, *to as usize)) {
            own[from..to].copy_from_slice(&results.by_rank[0][from..to]);
        }
        println!("summed before the newcomer came: {missed:?} of {COUNT}");
        assert!(!missed.is_empty() && missed.iter().all(|(from, to)| (to - from) < COUNT as u64));
        results.by_rank.push(own);
        exact::assert_sums("after the change", SEED, &results);
        crew.trainers.push(newcomer);
        exact::assert_sums("the next sum", SEED + 1, &crew.allreduce(SEED + 1, COUNT));
        crew.leave();
    });
}

#[test]
fn a_job_whose_parameter_host_dies_fails_by_name() {
    in_slow_lab(Backend::Xdp, |sumac| {
        let crew = Crew::join(sumac, "bereft");
        let pending = crew.submit(SEED, 10 * COUNT);
        stats::wait_for_results(&crew.trainers[0], 200);
        sumac.parameter_host(0).unwrap().signal(Signal::SIGKILL);
        assert_job_failed(pending, "parameter host");
        drop(crew);
        sumac.stop_parameter_host(0);
        sumac.start_parameter_host(0).unwrap();
        let crew = Crew::join(sumac, "bereft");
        exact::assert_sums("with a new parameter host", SEED, &crew.allreduce(SEED, 10_000));
        crew.leave();
    });
}

/// Everybody else is reached: workers go past the aggregator, which answers nobody for the parameter host,
/// and come back.
fn sums_go_on_without_the_way_up(backend: Backend) {
    let topology = if backend == Backend::Xdp { Topology::OneArm } else { Topology::PerPort };
    let spec = LabSpec { rate: Some(Rate(50_000_000)), topology, ..lab(3) };
    with_sumac(spec, &SumacOptions { backend, ..sumac(DynamicOptions::default()) }, |sumac| {
        let (crew, leg) = (Crew::join(sumac, "cut"), Leg::of(sumac));
        let pending = crew.submit(SEED, COUNT);
        stats::wait_for_results(&crew.trainers[0], 200);
        leg.cut();
        eventually("the way past the aggregator", || (crew.counter("direct") >= 3).then_some(()));
        exact::assert_sums("with a dead leg", SEED, &crew.results(pending));
        exact::assert_sums("still with a dead leg", SEED + 1, &crew.allreduce(SEED + 1, COUNT));

        leg.mend();
        eventually("the way back", || (crew.counter("direct") == 0).then_some(()));
        assert_aggregated("with the leg again", sumac, &crew, SEED + 2, COUNT);
        crew.leave();
    });
}

#[test]
fn sums_go_on_when_programs_lose_the_parameter_host() {
    sums_go_on_without_the_way_up(Backend::Xdp);
}

#[test]
fn sums_go_on_when_an_aggregator_process_loses_the_parameter_host() {
    sums_go_on_without_the_way_up(Backend::Udp);
}
