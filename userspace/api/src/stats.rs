//! The counters of a daemon, in pages: a daemon has many jobs, and a message a longest length.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{DynamicReply, Mode};

/// Requests a page of the daemon's counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stats {
    /// The handle of a job: the page has this job alone. Absent: all that the daemon has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
    /// The `next` of the page before; absent for the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

/// A job in `stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStats {
    /// The job's name.
    pub name: String,
    /// The job's number in packets.
    pub job: u16,
    /// The job's incarnation.
    pub epoch: u16,
    /// This worker's number.
    pub rank: u16,
    /// The number of workers.
    pub world: u16,
    /// Servers, as in [`crate::OpenReply`].
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub servers: u16,
    /// `probing`, `ready` or `failed`.
    pub state: String,
    /// The reason of a failure; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Connections that submit operations.
    pub clients: u32,
    /// The use of the aggregators' slots.
    pub mode: Mode,
    /// Slots, as in [`crate::OpenReply`].
    pub slots: u32,
    /// The reason for the number.
    pub slots_reason: String,
    /// The backend of its packets, as in [`crate::OpenReply`].
    #[serde(default)]
    pub backend: String,
    /// The granted parameters of a dynamic job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<DynamicReply>,
    /// The maximum of 32-bit words per packet.
    pub elements: u16,
    /// Accepted operations.
    pub operations_submitted: u64,
    /// Ended operations, with or without an error.
    pub operations_ended: u64,
    /// The engine's counters (`EngineStats`), of all lanes together.
    pub engine: Value,
    /// The same for each lane.
    pub lanes: Vec<Value>,
}

/// The privileges of a daemon that has dropped those it does not need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReply {
    /// The capabilities that it keeps.
    pub capabilities: Vec<String>,
    /// Whether no program that it executes may gain privileges.
    pub no_new_privs: bool,
    /// Whether its system calls are restricted; `false` if `seccomp` is false in its configuration.
    pub seccomp: bool,
}

/// A page of the answer to `stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatsReply {
    /// The backend: `xdp` or `udp`.
    pub backend: String,
    /// The reason why the backend is not the requested one; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fallback: String,
    /// The reason why the backend `auto` is `xdp`; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub backend_reason: String,
    /// The privileges that the daemon has left; absent if it keeps those of its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReply>,
    /// Open connections.
    pub clients: u32,
    /// Open jobs, in the order of their numbers.
    pub jobs: Vec<JobStats>,
    /// Jobs of a parameter host; absent if the daemon is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter_host: Option<Vec<Value>>,
    /// The data path's sockets, as bound, with their counters.
    pub ports: Vec<Value>,
    /// The data path's threads: rounds, sleeps, packets of no job.
    #[serde(default)]
    pub threads: Vec<Value>,
    /// The UMEM's frames by state; they add up to `frames` (XDP only).
    #[serde(default)]
    pub frames: Value,
    /// The host program's counters by reason (XDP only).
    #[serde(default)]
    pub host_program: serde_json::Map<String, Value>,
    /// The `after` of the request for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl StatsReply {
    /// Appends the next page, which may begin with further lanes of the last job.
    pub fn append(&mut self, page: StatsReply) {
        let StatsReply { jobs, parameter_host, ports, threads, next, .. } = page;
        for mut job in jobs {
            match self.jobs.last_mut() {
                // Two control planes assign the same number.
                Some(last) if (&last.name, last.job, last.epoch) == (&job.name, job.job, job.epoch) => {
                    last.lanes.append(&mut job.lanes);
                }
                _ => self.jobs.push(job),
            }
        }
        if let (Some(all), Some(mut more)) = (&mut self.parameter_host, parameter_host) {
            all.append(&mut more);
        }
        self.ports.extend(ports);
        self.threads.extend(threads);
        self.next = next;
    }
}
