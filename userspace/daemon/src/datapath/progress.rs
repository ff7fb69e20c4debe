//! How far jobs have come whose lanes are on several threads. Touched when a lane's state changes, never by a packet.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use sumac_transport::{JobError, PathMeasure};

use super::{
    command::{Command, Event, Sink},
    links::Links,
};

struct Job {
    /// Lanes that are not ready yet.
    waiting: usize,
    has_failed: bool,
}

/// Makes one event of what the lanes of a job tell.
pub(super) struct Progress {
    jobs: Mutex<HashMap<u16, Job>>,
    links: Links,
    sink: Sink,
}

impl Progress {
    pub(super) fn new(links: Links, sink: Sink) -> Progress {
        Progress { jobs: Mutex::default(), links, sink }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u16, Job>> {
        // Every statement leaves the map whole.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job with so many lanes is about to open; `false`: its number is taken.
    pub(super) fn open(&self, job: u16, lanes: usize) -> bool {
        let mut jobs = self.lock();
        let is_free = !jobs.contains_key(&job);
        if is_free {
            jobs.insert(job, Job { waiting: lanes, has_failed: false });
        }
        is_free
    }

    pub(super) fn close(&self, job: u16) {
        self.lock().remove(&job);
    }

    /// Tells an event that needs no other lane.
    pub(super) fn tell(&self, event: Event) {
        (self.sink)(event);
    }

    pub(super) fn measured(&self, job: u16, measure: PathMeasure) {
        self.tell(Event::JobMeasured { job, measure });
    }

    /// One more lane is ready.
    pub(super) fn ready(&self, job: u16) {
        let mut jobs = self.lock();
        let Some(entry) = jobs.get_mut(&job) else { return };
        entry.waiting = entry.waiting.saturating_sub(1);
        if entry.waiting == 0 && !entry.has_failed {
            drop(jobs);
            self.tell(Event::JobReady { job });
        }
    }

    /// A lane has failed: so has the job, and with it the other lanes.
    pub(super) fn failed(&self, job: u16, error: JobError) {
        let mut jobs = self.lock();
        let Some(entry) = jobs.get_mut(&job) else { return };
        if std::mem::replace(&mut entry.has_failed, true) {
            return;
        }
        drop(jobs);
        for link in self.links.iter() {
            // A thread that has ended has failed all jobs.
            let _ = link.order(Command::FailJob { job, why: error.clone() });
        }
        self.tell(Event::JobFailed { job, error });
    }
}
