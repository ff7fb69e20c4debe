//! Two levels, and aggregators of either that go and come back while a sum is half way.
//!
//! ```text
//! w0 net0 --[cable]-- port0 +-------+
//! w1 net0 --[cable]-- port1 | rack0 | up --[cable]-- port0 +-----+
//!                           +-------+                      | agg | host0 --[cable]-- net0 ph0
//! w2 net0 --[cable]-- port0 +-------+ up --[cable]-- port1 +-----+
//! w3 net0 --[cable]-- port1 | rack1 |
//!                           +-------+
//! ```

use nix::sys::signal::Signal;
use sumac_client::{Pending, Reduction};
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Backend, Deployment, DynamicOptions, SumacOptions};
use sumac_lab::namespace::Namespace;
use sumac_lab::units::Rate;
use sumac_tests::site::with_sumac;
use sumac_tests::wait::eventually;
use sumac_tests::{Crew, exact, stats};

use super::{assert_aggregated, lab, sumac};

const SEED: u64 = 13;

/// Half a second on the cables, more where workers send for themselves.
const COUNT: usize = 500_000;

fn in_racks(backend: Backend, body: impl FnOnce(&mut Deployment<'_>)) {
    let spec = LabSpec { racks: 2, rate: Some(Rate(50_000_000)), ..lab(4) };
    with_sumac(spec, &SumacOptions { backend, ..sumac(DynamicOptions::default()) }, body);
}

/// Hands sums in and returns when the first is a part of the way: a busy machine takes long to end somebody.
fn half_way(crew: &Crew, seed: u64) -> [Vec<Pending<f32>>; 3] {
    let tensors = [(); 3].map(|()| crew.prepare(seed, COUNT));
    let pending = tensors.map(|tensors| crew.hand_in(tensors, Reduction::Sum));
    stats::wait_for_results(&crew.trainers[0], 200);
    pending
}

fn assert_all(what: &str, crew: &Crew, seed: u64, pending: [Vec<Pending<f32>>; 3]) {
    pending.into_iter().for_each(|pending| exact::assert_sums(what, seed, &crew.results(pending)));
}

/// Takes the program of an aggregator off in mid-sum: these ranks go past it. Then it comes back, and so do
/// they.
fn goes_and_comes_back(sumac: &Deployment<'_>, crew: &Crew, host: &Namespace, ranks: &[usize], seed: u64) {
    let lanes_past = |rank: &usize| stats::counter(&crew.trainers[*rank], "direct");
    let pending = half_way(crew, seed);
    sumac.detach_aggregator_on(host).unwrap();
    eventually("the way past it", || ranks.iter().all(|rank| lanes_past(rank) > 0).then_some(()));
    assert_all(&format!("without {}", host.name()), crew, seed, pending);

    sumac.attach_aggregator_on(host).unwrap();
    eventually("the way back", || (crew.counter("direct") == 0).then_some(()));
    assert_aggregated(&format!("{} is back", host.name()), sumac, crew, seed + 1, COUNT);
}

#[test]
fn sums_go_on_without_a_racks_programs_and_without_the_roots() {
    in_racks(Backend::Xdp, |sumac| {
        let crew = Crew::join(sumac, "levels");
        goes_and_comes_back(sumac, &crew, &sumac.lab().racks()[0], &[0, 1], SEED);
        goes_and_comes_back(sumac, &crew, sumac.lab().aggregator(), &[0, 1, 2, 3], SEED + 2);
        crew.leave();
    });
}

/// Kills the process of an aggregator in mid-sum and starts it again: it takes the job up again.
fn dies_and_is_replaced(
    sumac: &mut Deployment<'_>,
    what: &str,
    kill: impl FnOnce(&mut Deployment<'_>),
    start: impl FnOnce(&mut Deployment<'_>),
) {
    let crew = Crew::join(sumac, what);
    let pending = half_way(&crew, SEED);
    kill(sumac);
    assert_all(&format!("without {what}"), &crew, SEED, pending);
    start(sumac);
    eventually("the way back", || (crew.counter("direct") == 0).then_some(()));
    assert_aggregated(&format!("{what} is back"), sumac, &crew, SEED + 1, COUNT);
    crew.leave();
}

#[test]
fn sums_go_on_when_a_racks_process_is_killed() {
    in_racks(Backend::Udp, |sumac| {
        let kill = |sumac: &mut Deployment<'_>| sumac.rack(0).unwrap().signal(Signal::SIGKILL);
        dies_and_is_replaced(sumac, "rack", kill, |sumac| sumac.start_rack(0).unwrap());
    });
}

#[test]
fn sums_go_on_when_the_roots_process_is_killed() {
    in_racks(Backend::Udp, |sumac| {
        let kill = |sumac: &mut Deployment<'_>| sumac.aggregator().unwrap().signal(Signal::SIGKILL);
        dies_and_is_replaced(sumac, "root", kill, |sumac| sumac.start_root().unwrap());
    });
}
