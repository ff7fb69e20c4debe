//! The state that no job may leave in Sumac's processes.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use sumac_client::Client;

use crate::deployment::{Backend, Deployment};
use crate::interrupt;
use crate::process::Process;

/// The time until daemons and control planes have dropped the last job.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns the leftovers of jobs once all trainers are gone: slots, jobs, connections, memory, frames.
pub fn of_jobs(sumac: &mut Deployment<'_>) -> Result<Vec<String>> {
    let mut left = Vec::new();
    interrupt::wait_for(LIMIT, || {
        left = look(sumac);
        left.is_empty().then_some(())
    })?;
    Ok(left)
}

fn look(sumac: &mut Deployment<'_>) -> Vec<String> {
    let mut left = Vec::new();
    for host in sumac.aggregator_hosts() {
        let name = host.name();
        match sumac.aggregator_status_on(host) {
            Ok(status) => left.extend(of_aggregator(name, &status)),
            Err(error) => left.push(format!("{name}: {error:#}")),
        }
    }
    match sumac.control_status() {
        Ok(status) => {
            let jobs = status["jobs"].as_array().map_or(0, Vec::len);
            left.extend((jobs > 0).then(|| format!("the control plane: {jobs} jobs")));
        }
        Err(error) => left.push(format!("the control plane: {error:#}")),
    }
    let is_xdp = sumac.options().backend == Backend::Xdp;
    let workers = (0..sumac.lab().spec().workers).map(|rank| sumac.socket(rank)).collect::<Vec<_>>();
    let hosts = sumac.parameter_host_sockets();
    for socket in workers.iter().chain(hosts.iter().filter(|socket| !workers.contains(socket))) {
        left.extend(of_daemon(socket, is_xdp));
    }
    left.extend(sumac.processes().filter(|process| process.what().starts_with("daemon")).filter_map(memory));
    left
}

fn of_aggregator(name: &str, status: &Value) -> Option<String> {
    let jobs = status["jobs"].as_array().map_or(0, Vec::len);
    let slots = status["slots_used"].as_u64().unwrap_or(0);
    (jobs > 0 || slots > 0).then(|| format!("{name}: {jobs} jobs, {slots} slots"))
}

fn of_daemon(socket: &PathBuf, is_xdp: bool) -> Option<String> {
    let name = socket.display();
    let stats = match Client::connect(socket).and_then(|client| client.stats_json()) {
        Ok(stats) => stats,
        Err(error) => return Some(format!("{name}: {error}")),
    };
    let count = |what: &str| stats[what].as_array().map_or(0, Vec::len);
    let (jobs, sums, clients) = (count("jobs"), count("parameter_host"), stats["clients"].as_u64());
    if jobs > 0 || sums > 0 || clients != Some(1) {
        return Some(format!("{name}: {jobs} jobs, {sums} as a parameter host, {clients:?} connections"));
    }
    unaccounted(&stats).filter(|_| is_xdp).map(|frames| format!("{name}: {frames}"))
}

/// Says when a daemon's counts of frames by state do not add up to its frames, or one was misplaced.
pub fn unaccounted(stats: &Value) -> Option<String> {
    let frames = &stats["frames"];
    let count = |key: &str| frames[key].as_u64();
    let placed = ["free", "held", "sent", "filled", "reading"].map(count).into_iter().sum::<Option<u64>>();
    let (all, misplaced) = (count("frames"), count("misplaced"));
    let is_whole = placed.is_some() && placed == all && all != Some(0) && misplaced == Some(0);
    (!is_whole).then(|| format!("{placed:?} of {all:?} frames are accounted for: {frames}"))
}

/// Says when a process maps or holds shared memory of a trainer.
fn memory(process: &Process) -> Option<String> {
    let (what, pid) = (process.what(), process.pid());
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapped = maps.lines().filter(|line| line.contains("memfd:")).count();
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let is_memory = |path: PathBuf| path.to_string_lossy().contains("memfd:");
    let held = files.filter(|file| fs::read_link(file.path()).is_ok_and(is_memory)).count();
    (mapped + held > 0).then(|| format!("{what}: {mapped} mappings and {held} files of shared memory"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn frames_add_up() {
        let frames = |free: u64, misplaced: u64| {
            json!({"frames": {"frames": 10,
            "free": free, "held": 1, "sent": 2, "filled": 3, "reading": 0, "misplaced": misplaced}})
        };
        assert_eq!(unaccounted(&frames(4, 0)), None);
        assert!(unaccounted(&frames(3, 0)).is_some() && unaccounted(&frames(4, 1)).is_some());
        assert!(unaccounted(&json!({})).is_some());
    }
}
