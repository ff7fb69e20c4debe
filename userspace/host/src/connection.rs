//! A trainer's connection: its handles of jobs and regions, its last outcomes, its limits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sumac_api::{Failure, Limits, MAX_MESSAGE};

use crate::access::Credentials;
use crate::finished::Finished;
use crate::{JobId, Nanos, RegionId};

/// The limits of a connection. That of operations depends on its socket's buffer.
pub const LIMITS: Limits = Limits {
    message_bytes: MAX_MESSAGE as u64,
    regions: 256,
    region_bytes: 1 << 36,
    jobs: 16,
    operations: 1024,
    finished: 1024,
};

/// The bytes that the kernel charges a socket's buffer for a message of up to 1,728 bytes: 2,048 for the
/// text, and its own header. A completion is not longer, since [`crate::explain::MESSAGE_LEN`] bounds the
/// message of its error.
pub const MESSAGE_COST: usize = 2304;

/// A connection's handle of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ConnectionJob {
    pub(crate) job: JobId,
    /// Whether this connection has opened the job, rather than attached to it.
    pub(crate) is_opener: bool,
    pub(crate) state: ConnectionJobState,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ConnectionJobState {
    /// Not all workers have joined yet.
    Opening,
    Open,
    /// Ended; only `close` remains.
    Failed(Failure),
    /// The request is answered once the control plane has been notified.
    Closing {
        request: u64,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Connection {
    pub(crate) credentials: Credentials,
    pub(crate) limits: Limits,
    pub(crate) is_greeted: bool,
    /// The last handle of a job or a region.
    pub(crate) last_handle: u64,
    /// The last handle of an operation; they count from 1 and are never reused.
    pub(crate) last_operation: u64,
    pub(crate) jobs: BTreeMap<u64, ConnectionJob>,
    pub(crate) regions: BTreeMap<u64, RegionId>,
    pub(crate) finished: Finished,
    /// The operations that are outstanding.
    pub(crate) outstanding: u32,
    /// The time from which the next command is read; see `pace`.
    pub(crate) resume: Option<Nanos>,
}

impl Connection {
    pub(crate) fn new(credentials: Credentials, operations: u32) -> Connection {
        Connection {
            credentials,
            limits: Limits { operations, ..LIMITS },
            is_greeted: false,
            last_handle: 0,
            last_operation: 0,
            jobs: BTreeMap::new(),
            regions: BTreeMap::new(),
            finished: Finished::default(),
            outstanding: 0,
            resume: None,
        }
    }

    pub(crate) fn next_handle(&mut self) -> u64 {
        self.last_handle += 1;
        self.last_handle
    }
}
