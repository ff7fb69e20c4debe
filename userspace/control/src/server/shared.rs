//! The state that all connections of a control plane share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::watch;

use super::{
    connections::Table,
    planes::Links,
    stats::{JournalStats, ServerStats, StreamCounters},
};
use crate::{
    Secret,
    coordinator::{Action, Coordinator, Record, Time},
    journal::{Journal, JournalError},
    rate_limiter::RateLimiter,
};

#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The secret of jobs without one of their own; `None`: there are no other jobs.
    pub default: Option<Secret>,
    pub jobs: HashMap<String, Secret>,
    /// The secret of racks and parameter hosts; `None`: there are none.
    pub racks: Option<Secret>,
}

impl Secrets {
    pub(super) fn accepts(&self, job: &str, given: &Secret) -> bool {
        self.jobs.get(job).or(self.default.as_ref()).is_some_and(|secret| secret == given)
    }
}

pub struct Shared {
    start: Instant,
    state: Mutex<State>,
    pub secrets: Secrets,
    /// Counts the moments at which something may have changed for somebody.
    pub changed: watch::Sender<u64>,
    pub links: Links,
    pub refused: RateLimiter,
    pub connections: Arc<Table>,
    pub counters: StreamCounters,
}

pub struct State {
    pub coordinator: Coordinator,
    pub journal: Journal,
    pub journal_failures: u64,
}

impl Shared {
    pub fn new(now: Instant, state: State, secrets: Secrets) -> Shared {
        Shared {
            start: now,
            state: Mutex::new(state),
            secrets,
            changed: watch::Sender::new(0),
            links: Links::default(),
            refused: RateLimiter::new(now),
            connections: Arc::default(),
            counters: StreamCounters::default(),
        }
    }

    /// A panic elsewhere does not make the state worse than it is: every change is whole.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the coordinator, journals the change, and lets everybody look.
    pub fn update<T>(&self, change: impl FnOnce(&mut Coordinator, Time) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state.coordinator, self.start.elapsed());
        let records = state.coordinator.poll_records();
        if let Err(error) = state.append(&records) {
            state.journal_failures += 1;
            tracing::error!(%error, "running jobs will not be found again after a restart");
        }
        while let Some(rack) = state.coordinator.poll_lost_rack() {
            self.links.close(rack);
        }
        drop(state);
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        result
    }

    /// As [`Shared::update`] for what changes nothing for others.
    pub fn touch<T>(&self, change: impl FnOnce(&mut Coordinator, Time) -> T) -> T {
        change(&mut self.lock().coordinator, self.start.elapsed())
    }

    pub fn stats(&self) -> ServerStats {
        let mut stats = ServerStats::default();
        self.connections.fill(&mut stats);
        self.counters.fill(&mut stats);
        let state = self.lock();
        stats.journal = JournalStats { failures: state.journal_failures, ..state.journal.stats() };
        stats
    }

    pub fn poll_action(&self) -> Option<Action> {
        self.lock().coordinator.poll_action()
    }
}

impl State {
    pub fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if !records.is_empty() {
            self.journal.append(records)?;
        }
        if self.journal.is_large() {
            self.journal.compact(&self.coordinator.all_records())?;
        }
        Ok(())
    }
}
