//! The state of jobs whose lanes are on several threads.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sumac_transport::JobError;

use super::job::{Event, EventSink};

pub(super) type FailLanes = Box<dyn Fn(u16, &JobError) + Send + Sync>;

/// A job whose lanes are on several threads.
struct Job {
    shards: u16,
    lanes_not_ready: usize,
    has_failed: bool,
}

/// Combines the lanes' states into one event for a job. It changes with a lane's state, never with a packet.
pub(super) struct Progress {
    jobs: Mutex<HashMap<u16, Job>>,
    fail_lanes: FailLanes,
    sink: EventSink,
}

impl Progress {
    /// `fail_lanes` fails a job's lanes on all threads.
    pub(super) fn new(fail_lanes: FailLanes, sink: EventSink) -> Progress {
        Progress { jobs: Mutex::default(), fail_lanes, sink }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u16, Job>> {
        // Every statement leaves the map whole.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job with this many lanes. Returns `false` when its number is in use.
    pub(super) fn open(&self, job: u16, shards: u16, lanes: usize) -> bool {
        let mut jobs = self.lock();
        let is_free = !jobs.contains_key(&job);
        if is_free {
            jobs.insert(job, Job { shards, lanes_not_ready: lanes, has_failed: false });
        }
        is_free
    }

    pub(super) fn close(&self, job: u16) {
        self.lock().remove(&job);
    }

    pub(super) fn shards(&self, job: u16) -> Option<u16> {
        self.lock().get(&job).map(|job| job.shards)
    }

    pub(super) fn report(&self, event: Event) {
        (self.sink)(event);
    }

    /// Counts a lane as ready, and reports the job once all its lanes are.
    pub(super) fn lane_ready(&self, job: u16) {
        let mut jobs = self.lock();
        let Some(entry) = jobs.get_mut(&job) else { return };
        entry.lanes_not_ready = entry.lanes_not_ready.saturating_sub(1);
        if entry.lanes_not_ready == 0 && !entry.has_failed {
            drop(jobs);
            self.report(Event::JobReady { job });
        }
    }

    /// Fails the job and its other lanes with the first lane's error.
    pub(super) fn lane_failed(&self, job: u16, error: JobError) {
        let mut jobs = self.lock();
        let Some(entry) = jobs.get_mut(&job) else { return };
        if std::mem::replace(&mut entry.has_failed, true) {
            return;
        }
        drop(jobs);
        (self.fail_lanes)(job, &error);
        self.report(Event::JobFailed { job, error });
    }
}
