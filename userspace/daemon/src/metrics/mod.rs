//! The daemon's metrics for Prometheus, and the list of them.
//!
//! A scrape reads the data path's snapshot, as `stats` does. It neither stops nor wakes a thread of the data
//! path.

mod daemon;
mod jobs;

use std::fmt;
use std::sync::Arc;

use sumac_datapath::DatapathStats;
use sumac_metrics::{Description, Encode, Encoder, process};

use crate::state::DaemonState;

/// A scraped daemon.
#[derive(Debug)]
pub(crate) struct DaemonMetrics(pub(crate) Arc<DaemonState>);

impl Encode for DaemonMetrics {
    fn encode(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
        let state = &self.0;
        let threads = state.backend.stats().map_err(daemon::unreadable)?;
        daemon::encode(encoder, state, &threads)?;
        jobs::encode(encoder, jobs::samples(&state.core, &threads))?;
        if state.config.parameter_host.is_some() {
            jobs::encode_hosted(encoder, DatapathStats::merge_hosted(&threads).jobs)?;
        }
        process::encode(encoder)
    }
}

/// Returns the descriptions of all metrics, in the order of a scrape.
pub fn describe() -> Vec<Description> {
    daemon::describe().chain(jobs::describe()).chain(process::describe()).collect()
}
