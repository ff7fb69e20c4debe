//! The end of a job, and the failure that waits for its diagnosis.

use serde::{Deserialize, Serialize};
use sumac_api::Failure;
use sumac_control::Outcome;
use sumac_transport::JobError;

use crate::{Nanos, SECOND, explain};

/// The time to wait for a diagnosis in all. A static job's membership fails before, if the connection is not
/// made anew.
const UNDIAGNOSED_TIMEOUT: Nanos = 15 * SECOND;

/// The end of an open job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobEnd {
    /// The client that opened it closes it; `request` is answered once the control plane was notified.
    Closed { request: u64 },
    /// The errors for the engine and the trainers, and the report to the control plane unless that has ended
    /// the job.
    Failed { error: JobError, failure: Failure, outcome: Option<Outcome> },
}

impl JobEnd {
    pub(crate) fn ours(error: JobError) -> JobEnd {
        let (outcome, failure) = (Outcome::Failed(explain::spoken(&error)), explain::job_error(&error));
        JobEnd::Failed { error, failure, outcome: Some(outcome) }
    }

    /// Returns the end of a job whose trainer has died. In a dynamic job another worker may replace this one.
    pub(crate) fn died(reason: String) -> JobEnd {
        let error = JobError::Ended { reason: reason.clone() };
        let failure = explain::job_error(&error);
        JobEnd::Failed { failure, error, outcome: Some(Outcome::Died(reason)) }
    }
}

/// The end of a failed job, unless the coordinator's diagnosis, which states more, comes in time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Undiagnosed {
    pub(crate) end: JobEnd,
    /// The time that the coordinator has, from now or from when it is connected again.
    timeout: Nanos,
    by: Nanos,
    /// The time by which the job ends, connected or not.
    latest: Nanos,
}

impl Undiagnosed {
    pub(crate) fn new(now: Nanos, end: JobEnd, timeout: Nanos) -> Undiagnosed {
        Undiagnosed { end, timeout, by: now + timeout, latest: now + UNDIAGNOSED_TIMEOUT }
    }

    pub(crate) fn is_due(&mut self, now: Nanos, is_connected: bool) -> bool {
        if !is_connected {
            self.by = now + self.timeout;
        }
        now >= self.by.min(self.latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;

    #[test]
    fn the_coordinator_has_its_time_from_when_it_is_connected() {
        let start = 100 * SECOND;
        let mut undiagnosed = Undiagnosed::new(start, JobEnd::died("unknown job".into()), 3 * SECOND);
        let mut is_due =
            |after_ms: Nanos, is_connected| undiagnosed.is_due(start + after_ms * MILLISECOND, is_connected);
        assert!(!is_due(2_900, true));
        assert!(!is_due(9_000, false));
        assert!(!is_due(11_900, true), "connected again");
        assert!(is_due(12_000, true));
        assert!(!is_due(14_900, false));
        assert!(is_due(15_100, false), "it does not come back");
    }
}
