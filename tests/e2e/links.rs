//! Links that flap, and next hops whose MAC address changes, under a running sum.
//!
//! ```text
//! w0 net0 --[c0]-- port0 +-----+
//! w1 net0 --[c1]-- port1 | agg |      [c]: cables at 50 Mbit/s, so that a sum is half way when something happens
//!                        +-----+
//! ```
//!
//! Each operation yields the right sums or fails by name, and the daemons serve the next job without a
//! restart.

use std::thread;
use std::time::{Duration, Instant};

use sumac_client::{ClientError, Code, Failed, Failure, JobOptions, OpOptions, Pending, Reduction};
use sumac_job::Mode;
use sumac_lab::cable::{FAR, NEAR};
use sumac_lab::deployment::{Deployment, DynamicOptions, SumacOptions};
use sumac_lab::namespace::Namespace;
use sumac_lab::units::Rate;
use sumac_lab::{Lab, LabSpec, Topology};
use sumac_tests::exact::{self, ReferenceSum, Results};
use sumac_tests::site::with_sumac;
use sumac_tests::wait::LIMIT;
use sumac_tests::{Crew, Trainer, stats};

const SEED: u64 = 4;
const COUNT: usize = 1_000_000;
/// The rank whose link it is.
const RANK: u16 = 1;

/// A job that ends must name one of these.
const NAMES: [&str; 3] = ["probe", "stopped answering", "lost"];

fn modes() -> [(LabSpec, SumacOptions); 2] {
    [None, Some(DynamicOptions::default())].map(|dynamic| {
        let parameter_hosts = u16::from(dynamic.is_some());
        let spec = LabSpec { rate: Some(Rate(50_000_000)), topology: Topology::PerPort, ..LabSpec::new(2) };
        (LabSpec { parameter_hosts, ..spec }, SumacOptions { dynamic, ..SumacOptions::default() })
    })
}

/// In the middle of a sum something `happens`. Asserts that the sum is right on all workers, or that all fail
/// by name, and that the next job's is right.
fn survives(what: &str, happens: impl Fn(&Lab)) {
    for (spec, options) in modes() {
        with_sumac(spec, &options, |sumac| {
            let crew = Crew::join(sumac, "before");
            let pending = crew.submit(SEED, COUNT);
            stats::wait_for_results(&crew.trainers[0], 200);
            happens(sumac.lab());
            let start = Instant::now();
            let outcomes: Vec<_> = pending.into_iter().map(outcome).collect();
            println!("{what}, {}: after {:.1?}", mode(sumac), start.elapsed());
            if assert_right_or_named(what, mode(sumac), &crew, SEED, outcomes) {
                // Members that were silent for too long may be noticed after that sum.
                let outcomes = crew.trainers.iter().map(next_sum).collect::<Vec<_>>();
                let outcomes = outcomes.into_iter().map(|pending| pending.and_then(outcome)).collect();
                if assert_right_or_named(what, mode(sumac), &crew, SEED + 1, outcomes) {
                    crew.leave();
                }
            }
            let crew = Crew::join(sumac, "next");
            exact::assert_sums("the next job", SEED + 2, &crew.allreduce(SEED + 2, 10_000));
            crew.leave();
        });
    }
}

/// Asserts that a sum is right on all workers, or that all have failed by name. Returns whether it is right.
fn assert_right_or_named(
    what: &str,
    mode: &str,
    crew: &Crew,
    seed: u64,
    outcomes: Vec<Result<Vec<f32>, Failure>>,
) -> bool {
    let Some(failure) = outcomes.iter().find_map(|outcome| outcome.as_ref().err()) else {
        let by_rank = outcomes.into_iter().flatten().collect();
        let numbers = ReferenceSum::of(crew.trainers[0].job.opened(), Reduction::Sum, 0.0);
        exact::assert_sums(what, seed, &Results { numbers, by_rank });
        return true;
    };
    println!("{what}, {mode}: {failure}");
    assert!(outcomes.iter().all(Result::is_err), "{what}: one worker has a sum");
    assert_eq!(failure.code, Code::JobFailed, "{failure}");
    assert!(NAMES.iter().any(|name| failure.message.contains(name)), "{failure}");
    false
}

/// Submits a worker's values of the sum after the event.
fn next_sum(trainer: &Trainer) -> Result<Pending<f32>, Failure> {
    trainer.job.allreduce_with(trainer.values(SEED + 1, 10_000), OpOptions::default()).map_err(daemon_failure)
}

fn mode(sumac: &Deployment<'_>) -> &'static str {
    if sumac.options().dynamic.is_some() { "dynamic" } else { "static" }
}

fn outcome(mut pending: Pending<f32>) -> Result<Vec<f32>, Failure> {
    match pending.wait_timeout(LIMIT).map(|ended| (ended, pending)) {
        Ok((true, pending)) => Ok(pending.wait().unwrap_or_else(|error| panic!("the sum: {error}")).to_vec()),
        Ok((false, _)) => panic!("the operation hangs"),
        Err(failed) => Err(daemon_failure(failed)),
    }
}

fn daemon_failure(failed: Box<Failed<f32>>) -> Failure {
    match failed.error {
        ClientError::Daemon(failure) => failure,
        other => panic!("the daemon's answer is lost: {other}"),
    }
}

/// A second without the link.
fn flap(host: &Namespace, interface: &str) {
    host.ip(&[format!("link set dev {interface} down")]).unwrap();
    thread::sleep(Duration::from_secs(1));
    host.ip(&[format!("link set dev {interface} up")]).unwrap();
}

#[test]
fn a_workers_link_that_flaps_ends_no_daemon() {
    survives("a worker's link", |lab| {
        flap(lab.worker(RANK), lab.worker_interface());
        // Its network's configuration does this on a real host.
        let gateway = lab.spec().aggregator_ip(RANK);
        lab.worker(RANK).ip(&[format!("route replace default via {gateway}")]).unwrap();
    });
}

/// Takes a worker's link down for so long, as when a port negotiates its speed anew.
fn bounce(lab: &Lab, length: Duration) {
    let worker = lab.worker(RANK);
    worker.ip(&[format!("link set dev {} down", lab.worker_interface())]).unwrap();
    thread::sleep(length);
    worker.ip(&[format!("link set dev {} up", lab.worker_interface())]).unwrap();
    let gateway = lab.spec().aggregator_ip(RANK);
    worker.ip(&[format!("route replace default via {gateway}")]).unwrap();
}

/// Longer than a control plane needs to find out that a connection is silent, and than a client needs for
/// another.
#[test]
fn a_workers_link_that_is_down_for_seven_seconds_ends_no_job() {
    for (spec, options) in modes() {
        with_sumac(spec, &options, |sumac| {
            let crews = [Crew::join(sumac, "running"), Crew::join_with(sumac, "direct", direct)];
            let pending = crews.each_ref().map(|crew| crew.submit(SEED, COUNT));
            stats::wait_for_results(&crews[0].trainers[0], 200);
            bounce(sumac.lab(), Duration::from_secs(7));
            let start = Instant::now();
            for (crew, pending) in crews.iter().zip(pending) {
                exact::assert_sums("the sum", SEED, &crew.results(pending));
                println!("{}: after {:.1?}", mode(sumac), start.elapsed());
                exact::assert_sums("the next", SEED + 1, &crew.allreduce(SEED + 1, 10_000));
            }
            crews.into_iter().for_each(Crew::leave);
        });
    }
}

fn direct(options: JobOptions) -> JobOptions {
    options.mode(Mode::Direct)
}

#[test]
fn an_aggregators_link_that_flaps_ends_no_daemon() {
    survives("an aggregator's link", |lab| {
        flap(lab.aggregator(), &lab.spec().aggregator_ports()[usize::from(RANK)]);
    });
}

/// Gives an interface another MAC address. The cable then passes nothing to the former one, as a NIC's filter
/// does.
fn rename_mac(lab: &Lab, host: &Namespace, interface: &str) {
    let [a, b, c, d, e, f] = host.mac(interface).unwrap();
    let (former, mac) = (
        format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
        format!("02:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{:02x}", f ^ 0xff),
    );
    let chain = |port| {
        format!(
            " chain {port} {{\n  type filter hook ingress device \"{port}\" priority -1\n  ether daddr \
            {former} drop\n }}\n"
        )
    };
    let filter = format!("table netdev nic {{\n{}{}}}\n", chain(NEAR), chain(FAR));
    lab.cables()[usize::from(RANK)].namespace().nft(&filter).unwrap();
    host.ip(&[format!("link set dev {interface} address {mac}")]).unwrap();
}

#[test]
fn an_aggregators_new_mac_address_ends_no_daemon() {
    survives("an aggregator's MAC address", |lab| {
        rename_mac(lab, lab.aggregator(), &lab.spec().aggregator_ports()[usize::from(RANK)]);
    });
}

#[test]
fn a_workers_new_mac_address_ends_no_daemon() {
    survives("a worker's MAC address", |lab| {
        rename_mac(lab, lab.worker(RANK), lab.worker_interface());
    });
}
