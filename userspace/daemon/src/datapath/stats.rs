//! What a data path's thread reports.

use serde::Serialize;
use sumac_transport::EngineStats;

use super::port::PortReport;

/// One thread, its port and its jobs.
#[derive(Clone, Debug, Serialize)]
pub struct DatapathStats {
    /// The thread's name.
    pub name: String,
    /// The CPU that it is pinned to.
    pub cpu: Option<usize>,
    /// Its jobs.
    pub jobs: Vec<JobStats>,
    /// Its port.
    pub port: PortReport,
    /// Payloads that no engine was asked about.
    pub strays: Strays,
    /// Rounds of the loop.
    pub rounds: u64,
    /// Rounds that ended asleep. A thread that never sleeps is bound by its CPU.
    pub sleeps: u64,
    /// Errors of the port's system calls.
    pub port_errors: u64,
    /// The last of them.
    pub last_port_error: Option<String>,
}

impl DatapathStats {
    /// Whether every frame is where it should be. True over UDP, which has none.
    pub fn frames_are_conserved(&self) -> bool {
        self.port.frames.is_none_or(|frames| frames.holds())
    }
}

/// One job on a thread.
#[derive(Clone, Debug, Serialize)]
pub struct JobStats {
    /// Its number.
    pub job: u16,
    /// Its incarnation.
    pub epoch: u16,
    /// This worker.
    pub rank: u16,
    /// How many workers.
    pub world: u16,
    /// `probing`, `ready` or `failed`.
    pub state: &'static str,
    /// Why it failed.
    pub error: Option<String>,
    /// What its engine counted.
    pub engine: EngineStats,
}

/// Payloads that belong to no job here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Strays {
    /// Too short to name a job.
    pub truncated: u64,
    /// Of a job that is not open here.
    pub unknown_job: u64,
    /// Not from the job's aggregator.
    pub wrong_source: u64,
}
