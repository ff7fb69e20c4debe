//! Statistics of daemons and aggregators.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use sumac_client::Client;
use sumac_lab::chaos::unaccounted;
use sumac_lab::deployment::{Backend, Deployment};
use sumac_lab::namespace::Namespace;
use sumac_lab::process::Process;

use crate::trainer::Trainer;
use crate::wait::eventually;

/// Asserts that each running daemon knows where all its frames are.
pub fn assert_frames_conserved(sumac: &mut Deployment<'_>) {
    if sumac.options().backend != Backend::Xdp {
        return;
    }
    let is_gone = |daemon: Option<&mut Process>| daemon.is_none_or(|daemon| daemon.ended().is_some());
    for rank in 0..sumac.lab().spec().workers {
        if !is_gone(sumac.daemon(rank)) {
            let stats = sumac.client(rank).unwrap().stats_json().unwrap();
            assert_conserved(&format!("rank {rank}"), &stats);
        }
    }
    for host in 0..sumac.lab().spec().parameter_hosts {
        if !is_gone(sumac.parameter_host(host)) {
            let socket = &sumac.parameter_host_sockets()[usize::from(host)];
            let stats = Client::connect(socket).unwrap().stats_json().unwrap();
            assert_conserved(&format!("parameter host {host}"), &stats);
        }
    }
}

fn assert_conserved(who: &str, stats: &Value) {
    assert_eq!(unaccounted(stats), None, "{who}");
}

/// Asserts that a daemon's packets move as configured: driver XDP and AF_XDP in copy mode, which is what
/// veths have, or a UDP socket.
pub fn assert_bound(client: &Client, backend: Backend) {
    let stats = client.stats_json().unwrap();
    assert_eq!(stats["backend"], backend.of_workers(), "{stats}");
    assert!(stats["fallback"].as_str().unwrap_or_default().is_empty(), "{stats}");
    let ports = stats["ports"].as_array().unwrap();
    for port in ports {
        assert_eq!(port["backend"], backend.of_workers(), "{port}");
        if backend == Backend::Xdp {
            assert_eq!(port["xdp_mode"], "driver", "{port}");
            let sockets = port["sockets"].as_array().unwrap();
            assert!(!sockets.is_empty(), "{port}");
            assert!(sockets.iter().all(|socket| socket["bound"]["zero_copy"] == false), "{port}");
        }
    }
    assert!(!ports.is_empty(), "{stats}");
}

/// The counters of the engine of the trainer's job.
pub fn engine(trainer: &Trainer) -> Value {
    let stats = trainer.client.stats().unwrap();
    let number = trainer.job.opened().wire_job;
    let job = stats.jobs.iter().find(|job| job.job == number);
    job.unwrap_or_else(|| panic!("rank {} has no job {number}", trainer.rank)).engine.clone()
}

/// One counter of it.
pub fn counter(trainer: &Trainer, name: &str) -> u64 {
    let engine = engine(trainer);
    engine[name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {engine}"))
}

/// Waits until the job's engine has written this many results more, or has no more to come: on a busy machine
/// a sum may have ended before the first look.
pub fn wait_for_results(trainer: &Trainer, more: u64) {
    const QUIET: Duration = Duration::from_secs(5);
    let before = counter(trainer, "results");
    let mut last = (before, Instant::now());
    eventually("results on the way", || {
        let results = counter(trainer, "results");
        if results != last.0 {
            last = (results, Instant::now());
        }
        let is_over = last.1.elapsed() > QUIET && counter(trainer, "in_flight") == 0;
        (results >= before + more || is_over).then_some(())
    });
}

/// Waits until a worker has a chunk on the way, which sits in its slot for want of another worker's. It has
/// no more, where the others wait for the exponents in that one.
pub fn wait_until_stuck(trainer: &Trainer) {
    eventually("a chunk without a result", || (counter(trainer, "in_flight") >= 1).then_some(()));
}

/// One counter of all jobs of a parameter host, or of the worker that is one; those of its own come first.
pub fn at_parameter_host(sumac: &Deployment<'_>, host: usize, name: &str) -> u64 {
    let stats = &sumac.parameter_host_stats().unwrap()[host];
    let jobs = stats["parameter_host"].as_array().unwrap_or_else(|| panic!("no parameter host: {stats}"));
    jobs.iter().map(|job| job[name].as_u64().unwrap_or_else(|| panic!("no {name} in {job}"))).sum()
}

/// The eBPF aggregator's frames by what became of them; what never happened is left out.
pub fn at_aggregator(sumac: &Deployment<'_>) -> BTreeMap<String, u64> {
    numbers(&sumac.aggregator_status().unwrap()["counters"])
}

/// The same of the aggregator on a host, such as a rack's.
pub fn counters_of(sumac: &Deployment<'_>, host: &Namespace) -> BTreeMap<String, u64> {
    numbers(&sumac.aggregator_status_on(host).unwrap()["counters"])
}

/// The frames of a worker's host program by what became of them.
pub fn at_host(client: &Client) -> BTreeMap<String, u64> {
    numbers(&client.stats_json().unwrap()["host_program"])
}

fn numbers(object: &Value) -> BTreeMap<String, u64> {
    let entries = object.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect()
}

/// The number of the program on a worker's interface.
pub fn program_id(sumac: &Deployment<'_>, rank: u16) -> u64 {
    let status: Value = serde_json::from_str(&sumac.sumac(rank, &["status", "--json"]).unwrap()).unwrap();
    let interfaces = status["interfaces"].as_array().unwrap();
    // The lab's workers share a folder of pins; those of other namespaces are listed as such.
    let here = interfaces.iter().find(|interface| interface["state"] == "attached");
    here.and_then(|here| here["program_id"].as_u64())
        .unwrap_or_else(|| panic!("nothing is attached on rank {rank}: {status}"))
}
