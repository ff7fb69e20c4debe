//! The records of the periodic looks at an open job.

use serde::{Deserialize, Serialize};
use sumac_job::OperationId;

use crate::{Nanos, OperationKey};

/// The counters of the data path that a look at a job needs, and whether the next look is urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// The number of the job's results: [`Observed::Results`] follows.
    pub wants_results: bool,
    /// The transfers whose other end is not posted: [`Observed::Unposted`] follows.
    pub wants_unposted: bool,
    /// The job has nothing that waits for time to pass.
    pub is_idle: bool,
}

/// A counter of the data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    Results(Option<u64>),
    Unposted(Vec<OperationKey>),
}

/// The records of the last looks at a job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Watch {
    /// The oldest operation, the time since which it is the oldest, and whether it was reported.
    pub(crate) oldest: Option<(OperationId, Nanos, bool)>,
    pub(crate) results: Option<u64>,
    /// The time of the last new result, and of the last look at their number.
    pub(crate) progressed: Nanos,
    pub(crate) looked_at_results: Nanos,
    /// The operation that was reported to be without a result.
    pub(crate) idle: Option<OperationId>,
    /// Whether the trainers know for which workers it waits.
    pub(crate) is_wait_reported: bool,
    /// Whether the trainer knows for which other ranks of this host it waits.
    pub(crate) is_late_reported: bool,
    pub(crate) looked_at_transfers: Option<Nanos>,
    /// The transfers of which trainers were notified that their other end is not posted.
    pub(crate) unposted: Vec<OperationKey>,
    /// The time since which operations wait for workers that have left.
    pub(crate) deserted: Option<Nanos>,
    /// The workers that the data path knows to have left.
    pub(crate) departed: Vec<u16>,
}
