//! What a data path's thread reports.

use serde::Serialize;
use sumac_parameter::HostStats;
use sumac_transport::EngineStats;
use sumac_xsk::Conservation;

use super::port::PortReport;

/// One thread, its port and its jobs.
#[derive(Clone, Debug, Serialize)]
pub struct DatapathStats {
    /// The thread's name.
    pub name: String,
    /// The CPU that it is pinned to.
    pub cpu: Option<usize>,
    /// The lanes of jobs that it has.
    pub jobs: Vec<JobStats>,
    /// What it sums as a parameter host.
    pub hosted: HostStats,
    /// Its port.
    pub port: PortReport,
    /// Payloads that neither an engine nor the parameter host was asked about.
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
    /// The jobs of all threads: each with its lanes, which it is the sum of. A job is as far as its slowest lane,
    /// and failed when one is.
    pub fn merge_jobs(threads: &[DatapathStats]) -> Vec<(JobStats, Vec<JobStats>)> {
        let mut jobs: Vec<(JobStats, Vec<JobStats>)> = Vec::new();
        for lane in threads.iter().flat_map(|thread| &thread.jobs) {
            match jobs.iter_mut().find(|(job, _)| job.job == lane.job) {
                None => jobs.push((lane.clone(), vec![lane.clone()])),
                Some((job, lanes)) => {
                    job.engine.merge(&lane.engine);
                    if progress(lane.state) < progress(job.state) {
                        (job.state, job.error) = (lane.state, lane.error.clone());
                    }
                    lanes.push(lane.clone());
                }
            }
        }
        for (_, lanes) in &mut jobs {
            lanes.sort_by_key(|lane| lane.lane);
        }
        jobs
    }

    /// What all threads sum as a parameter host.
    pub fn merge_hosted(threads: &[DatapathStats]) -> HostStats {
        let mut sum = HostStats::default();
        threads.iter().for_each(|thread| sum.merge(&thread.hosted));
        sum
    }

    /// Where the frames of all threads are; none over UDP.
    pub fn frames(threads: &[DatapathStats]) -> Option<Conservation> {
        threads.iter().filter_map(|thread| thread.port.frames).reduce(|sum, one| Conservation {
            frames: sum.frames + one.frames,
            free: sum.free + one.free,
            held: sum.held + one.held,
            sent: sum.sent + one.sent,
            filled: sum.filled + one.filled,
            reading: sum.reading + one.reading,
            misplaced: sum.misplaced + one.misplaced,
        })
    }

    /// Whether every frame is where it should be. True over UDP, which has none.
    pub fn frames_are_conserved(&self) -> bool {
        self.port.frames.is_none_or(|frames| frames.holds())
    }
}

/// The order in which a job comes through its states.
fn progress(state: &str) -> usize {
    ["failed", "probing", "measured", "ready"].iter().position(|other| *other == state).unwrap_or(0)
}

/// One lane of a job.
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
    /// The lane.
    pub lane: u16,
    /// Its slots.
    pub slots: u32,
    /// `probing`, `measured`, `ready` or `failed`.
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
    /// Not from the job's aggregator, nor from a parameter host of its.
    pub wrong_source: u64,
    /// Of a lane that the job does not have, or before its slots were settled.
    pub no_lane: u64,
    /// Not strays: of a lane on another thread, which they were handed to.
    pub crossed: u64,
    /// Those of them that the other thread had no room for.
    pub crossed_lost: u64,
}
