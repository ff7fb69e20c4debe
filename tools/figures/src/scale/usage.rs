//! CPU time and memory of Sumac's processes.

use std::fs;

use anyhow::{Context, Result};
use sumac_lab::cpu::of_process;
use sumac_lab::deployment::Deployment;

/// The CPU seconds of worker 0's daemon and of the aggregator, and the memory that they have allocated
/// themselves: trainers' tensors, which the daemon maps, are not in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SumacUsage {
    pub daemon: ProcessUsage,
    pub aggregator: ProcessUsage,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUsage {
    pub cpu_s: f64,
    pub anonymous_kib: u64,
}

impl SumacUsage {
    pub fn of(deployment: &Deployment<'_>) -> Result<SumacUsage> {
        let find = |what: &str| {
            let process = deployment.processes().find(|process| process.what() == what);
            ProcessUsage::of(process.with_context(|| format!("a deployment has {what}"))?.pid())
        };
        Ok(SumacUsage { daemon: find("daemon0")?, aggregator: find("aggregator")? })
    }
}

impl ProcessUsage {
    fn of(pid: u32) -> Result<ProcessUsage> {
        let path = format!("/proc/{pid}/status");
        let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let cpu = of_process(pid).unwrap_or_default();
        Ok(ProcessUsage {
            cpu_s: cpu.user + cpu.system,
            anonymous_kib: anonymous_kib(&status).context(path)?,
        })
    }
}

fn anonymous_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_memory_of_a_process() {
        let status = "Name:\tsumac\nVmRSS:\t  13312 kB\nRssAnon:\t    1536 kB\nThreads:\t8\n";
        assert_eq!(anonymous_kib(status), Some(1536));
        assert_eq!(anonymous_kib("Name:\tsumac\n"), None);
        assert!(ProcessUsage::of(std::process::id()).unwrap().anonymous_kib > 0);
    }
}
