//! The daemon's metrics for Prometheus, and the list of them.
//!
//! A scrape reads the data path's snapshot, as `stats` does. It neither stops nor wakes a thread of the data path.

mod daemon;
mod jobs;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sumac_api::{Code, Failure};
use sumac_metrics::{Description, Encode, Encoder, process};

use crate::datapath::DatapathStats;
use crate::state::DaemonState;

/// A scraped daemon.
#[derive(Debug)]
pub(crate) struct DaemonMetrics(pub(crate) Arc<DaemonState>);

impl Encode for DaemonMetrics {
    fn encode(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let state = &self.0;
        let threads = state.backend.stats().map_err(unreadable)?;
        daemon::encode(encoder, state, &threads)?;
        jobs::encode(encoder, jobs::samples(&state.core, &threads))?;
        if state.config.parameter_host.is_some() {
            jobs::encode_hosted(encoder, DatapathStats::merge_hosted(&threads).jobs)?;
        }
        process::encode(encoder)
    }
}

/// Logs why a scrape is answered with an error.
fn unreadable(failure: Failure) -> fmt::Error {
    tracing::warn!(%failure, "cannot read the data path's statistics for a scrape");
    fmt::Error
}

/// Returns the descriptions of all metrics, in the order of a scrape.
pub fn describe() -> Vec<Description> {
    daemon::describe().chain(jobs::describe()).chain(process::describe()).collect()
}

/// Counts jobs that were opened, or could not be.
#[derive(Debug)]
pub(crate) struct Opens {
    opened: AtomicU64,
    failed: HashMap<Code, AtomicU64>,
}

impl Default for Opens {
    fn default() -> Opens {
        let failed = Code::ALL.iter().map(|code| (*code, AtomicU64::new(0))).collect();
        Opens { opened: AtomicU64::new(0), failed }
    }
}

impl Opens {
    pub(crate) fn count<T>(&self, result: &Result<T, Failure>) {
        let counter = match result {
            Ok(_) => Some(&self.opened),
            Err(failure) => self.failed.get(&failure.code),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Returns the failures by the name of their code, those that never happened among them.
    fn failed(&self) -> Vec<(Vec<String>, u64)> {
        let count = |code| self.failed.get(code).map_or(0, |count| count.load(Ordering::Relaxed));
        Code::ALL.iter().map(|code| (vec![code.name()], count(code))).collect()
    }
}
