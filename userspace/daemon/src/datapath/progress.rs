//! The state of a job whose lanes are on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use sumac_host::JobId;
use sumac_job::PathMeasure;
use sumac_transport::JobError;

use super::handoff::HandoffQueue;
use super::job::{Event, EventSink};

/// Combines the states of a job's lanes into one event. It changes with a lane's state, never with a packet.
pub(super) struct Progress {
    pub(super) job: JobId,
    pub(super) shards: u16,
    /// Whether its lanes measure UDP for a job that has AF_XDP, too: silence is a measure, and no failure.
    is_trial: bool,
    lanes_not_ready: AtomicUsize,
    /// The error of the first lane that failed. Each thread fails its lanes with it.
    failure: OnceLock<JobError>,
    /// The queues of all threads, which wake them.
    handoffs: Arc<[HandoffQueue]>,
    sink: EventSink,
}

impl Progress {
    /// Returns the state of a job of which this many lanes are not ready.
    pub(super) fn new(
        job: JobId,
        shards: u16,
        is_trial: bool,
        lanes: usize,
        handoffs: Arc<[HandoffQueue]>,
        sink: EventSink,
    ) -> Progress {
        Progress {
            job,
            shards,
            is_trial,
            lanes_not_ready: lanes.into(),
            failure: OnceLock::new(),
            handoffs,
            sink,
        }
    }

    pub(super) fn report(&self, event: Event) {
        (self.sink)(event);
    }

    /// Counts a lane as ready, and reports the job once all its lanes are.
    pub(super) fn lane_ready(&self) {
        if self.lanes_not_ready.fetch_sub(1, Ordering::AcqRel) == 1 && self.failure.get().is_none() {
            self.report(Event::JobReady { job: self.job });
        }
    }

    /// Fails the job, and its other lanes in the next round of their threads, with the first lane's error.
    pub(super) fn lane_failed(&self, error: &JobError) {
        if self.failure.set(error.clone()).is_err() {
            return;
        }
        self.handoffs.iter().for_each(HandoffQueue::wake);
        self.report(match error {
            JobError::NoReply { .. } | JobError::MtuTooSmall { .. } if self.is_trial => {
                Event::JobMeasured { job: self.job, measure: PathMeasure::default() }
            }
            error => Event::JobFailed { job: self.job, error: error.clone() },
        });
    }

    pub(super) fn failure(&self) -> Option<&JobError> {
        self.failure.get()
    }
}
