//! The state that all connections of a control plane share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::watch;

use super::{
    connections::Table, data_networks::DataNetwork, planes::Links, recorder::Recorder, stats::ServerStats,
};
use crate::{
    Secret,
    coordinator::{Action, Coordinator, Time},
    rate_limiter::RateLimiter,
};

#[derive(Clone, Debug)]
pub struct Secrets {
    /// The secret of jobs without one of their own; `None`: there are no other jobs.
    pub default: Option<Secret>,
    pub jobs: HashMap<String, Secret>,
    /// The secret of racks and parameter hosts.
    pub racks: Secret,
}

impl Secrets {
    pub(super) fn accepts(&self, job: &str, given: &Secret) -> bool {
        self.jobs.get(job).or(self.default.as_ref()).is_some_and(|secret| secret == given)
    }
}

/// The coordinator, and what keeps it in the journal.
pub struct State {
    pub coordinator: Coordinator,
    pub recorder: Recorder,
}

pub struct Shared {
    start: Instant,
    state: Mutex<State>,
    pub secrets: Secrets,
    pub data_networks: Vec<DataNetwork>,
    /// Counts the moments at which there may be commands for planes.
    pub changed: watch::Sender<u64>,
    pub links: Links,
    pub refused: RateLimiter,
    pub connections: Arc<Table>,
    /// The counts of streams.
    counted: Mutex<ServerStats>,
}

impl Shared {
    pub fn new(now: Instant, state: State, secrets: Secrets, data_networks: Vec<DataNetwork>) -> Shared {
        Shared {
            start: now,
            state: Mutex::new(state),
            secrets,
            data_networks,
            changed: watch::Sender::new(0),
            links: Links::default(),
            refused: RateLimiter::new(now),
            connections: Arc::default(),
            counted: Mutex::default(),
        }
    }

    /// A panic elsewhere does not make the state worse than it is: every change is whole.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the coordinator, and journals the change. It wakes the members of the runs that it changes.
    pub fn update<T>(&self, change: impl FnOnce(&mut Coordinator, Time) -> T) -> T {
        let mut guard = self.lock();
        let State { coordinator, recorder } = &mut *guard;
        let now = self.start.elapsed();
        let result = change(coordinator, now);
        recorder.record(now, coordinator);
        while let Some(rack) = coordinator.poll_lost_rack() {
            self.links.close(rack);
        }
        drop(guard);
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        result
    }

    /// Writes the journal anew if it could not be written; an error is the reason.
    pub fn repair_journal(&self) -> Result<(), String> {
        let mut guard = self.lock();
        let State { coordinator, recorder } = &mut *guard;
        recorder.repair(self.start.elapsed(), coordinator)
    }

    /// As [`Shared::update`] for what changes nothing for others.
    pub fn touch<T>(&self, change: impl FnOnce(&mut Coordinator, Time) -> T) -> T {
        change(&mut self.lock().coordinator, self.start.elapsed())
    }

    pub fn stats(&self) -> ServerStats {
        let mut stats = self.counted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.connections.fill(&mut stats);
        stats.journal = self.lock().recorder.stats();
        stats
    }

    /// Counts what happened to a stream.
    pub fn count(&self, counter: impl FnOnce(&mut ServerStats) -> &mut u64) {
        *counter(&mut self.counted.lock().unwrap_or_else(PoisonError::into_inner)) += 1;
    }

    pub fn poll_action(&self) -> Option<Action> {
        self.lock().coordinator.poll_action()
    }
}
