//! The state of jobs whose lanes are on several threads. It changes with a lane's state, never with a packet.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sumac_transport::JobError;

use super::job::{Event, EventSink};
use super::links::Links;

struct Job {
    shards: u16,
    lanes_not_ready: usize,
    has_failed: bool,
}

/// Combines the lanes' states into one event for a job.
pub(super) struct Progress {
    jobs: Mutex<HashMap<u16, Job>>,
    links: Links,
    sink: EventSink,
}

impl Progress {
    pub(super) fn new(links: Links, sink: EventSink) -> Progress {
        Progress { jobs: Mutex::default(), links, sink }
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
        self.fail_lanes(job, &error);
        self.report(Event::JobFailed { job, error });
    }

    /// Fails the job's lanes on all threads. A thread that has ended has failed its lanes already.
    pub(super) fn fail_lanes(&self, job: u16, error: &JobError) {
        for link in self.links.iter() {
            let error = error.clone();
            link.send(move |thread| thread.engines.fail(job, &error));
        }
    }
}
