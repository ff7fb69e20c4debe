//! The counters of a control plane's server.

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

impl Denied {
    /// The counter of a reason.
    pub(crate) fn of(&mut self, kind: DenialKind) -> &mut u64 {
        match kind {
            DenialKind::Secret => &mut self.secret,
            DenialKind::Version => &mut self.version,
            DenialKind::Request => &mut self.request,
        }
    }
}
