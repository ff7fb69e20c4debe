//! The report of a data path thread.

use serde::Serialize;
use sumac_host::{JobId, OperationKey};
use sumac_parameter::HostStats;
use sumac_transport::EngineStats;
use sumac_xsk::Conservation;

use super::frame_io::IoReport;

/// One thread with its queue or socket and its jobs. Its JSON form has the thread alone.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DatapathStats {
    pub name: String,
    pub cpu: Option<usize>,
    #[serde(skip)]
    pub jobs: Vec<JobStats>,
    #[serde(skip)]
    pub hosted: HostStats,
    #[serde(skip)]
    pub port: IoReport,
    pub undelivered: Undelivered,
    pub rounds: u64,
    /// Rounds that ended asleep. A thread that never sleeps is bound by its CPU.
    pub sleeps: u64,
    pub port_errors: u64,
    pub last_port_error: Option<String>,
}

impl DatapathStats {
    /// Returns each job of all threads, as the sum of its lanes, and its lanes. A job is in the state of its
    /// slowest lane, and failed when one is.
    pub fn merge_jobs(threads: &[DatapathStats]) -> Vec<(JobStats, Vec<JobStats>)> {
        let mut jobs: Vec<(JobStats, Vec<JobStats>)> = Vec::new();
        for lane in threads.iter().flat_map(|thread| &thread.jobs) {
            match jobs.iter_mut().find(|(job, _)| job.id == lane.id) {
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

    pub fn merge_hosted(threads: &[DatapathStats]) -> HostStats {
        let mut sum = HostStats::default();
        threads.iter().for_each(|thread| sum.merge(&thread.hosted));
        sum
    }

    /// Returns the sum of all threads' frame states; `None` over UDP.
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

    /// Returns whether every frame is accounted for; true over UDP.
    pub fn frames_are_conserved(&self) -> bool {
        self.port.frames.is_none_or(|frames| frames.holds())
    }
}

/// Orders the states of a lane, failed first.
fn progress(state: &str) -> usize {
    ["failed", "probing", "measured", "ready"].iter().position(|other| *other == state).unwrap_or(0)
}

#[derive(Clone, Debug, Serialize)]
pub struct JobStats {
    #[serde(skip)]
    pub id: JobId,
    /// The job's number in packets.
    pub job: u16,
    pub epoch: u16,
    pub rank: u16,
    pub world: u16,
    pub lane: u16,
    pub slots: u32,
    /// `probing`, `measured`, `ready` or `failed`.
    pub state: &'static str,
    pub error: Option<String>,
    pub engine: EngineStats,
    /// Direct jobs: the transfers whose other end was not posted.
    #[serde(skip)]
    pub unposted: Vec<OperationKey>,
}

/// Received packets that no engine of this thread and no parameter host took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Undelivered {
    pub unknown_job: u64,
    /// Packets that come neither from the job's aggregator nor from one of its parameter hosts.
    pub wrong_source: u64,
    /// Packets of a lane that the job does not have, or that came before its number of slots was set.
    pub no_lane: u64,
    pub crossed: u64,
    /// Packets among them that were dropped, because that thread's queue was full.
    pub crossed_lost: u64,
}
