//! The counters of a control plane's server.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::message::DenialKind;

/// Connections, refusals and the journal of a control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStats {
    /// Connections that are open, and those of them that are not authenticated.
    pub connections: u64,
    pub strangers: u64,
    /// Connections that were accepted, and those that were closed at once, since there were too many.
    pub accepted: u64,
    pub rejected: u64,
    /// Workers that joined a job, and joins that the job refused.
    pub joins: u64,
    pub joins_refused: u64,
    /// Streams that were denied, by the reason.
    pub denied: Denied,
    pub journal: JournalStats,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied {
    /// A wrong secret.
    pub secret: u64,
    /// Another release.
    pub version: u64,
    /// A message that makes no sense.
    pub request: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalStats {
    /// The size of the file.
    pub bytes: u64,
    /// Records written.
    pub records: u64,
    /// Writes that failed. Jobs that they belong to are not found again after a restart.
    pub failures: u64,
}

/// The counters that streams increment.
#[derive(Debug, Default)]
pub(crate) struct StreamCounters {
    joins: AtomicU64,
    joins_refused: AtomicU64,
    secret: AtomicU64,
    version: AtomicU64,
    request: AtomicU64,
}

impl StreamCounters {
    pub fn denied(&self, kind: DenialKind) {
        increment(match kind {
            DenialKind::Secret => &self.secret,
            DenialKind::Version => &self.version,
            DenialKind::Request => &self.request,
        });
    }

    pub fn joined<T, E>(&self, result: &Result<T, E>) {
        increment(if result.is_ok() { &self.joins } else { &self.joins_refused });
    }

    /// Fills in these counters.
    pub fn fill(&self, stats: &mut ServerStats) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (stats.joins, stats.joins_refused) = (count(&self.joins), count(&self.joins_refused));
        stats.denied = Denied {
            secret: count(&self.secret),
            version: count(&self.version),
            request: count(&self.request),
        };
    }
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
