//! The ids of a host, and its times.

use serde::{Deserialize, Serialize};

/// A moment or a duration in nanoseconds; moments are those of `CLOCK_MONOTONIC`.
pub type Nanos = u64;
/// The number of a connection on its host.
pub type ConnectionId = u64;
/// The number of a registered region on its host.
pub type RegionId = u64;
/// The number of a job on its host, from its `open`. Its number in packets is known once all workers have
/// joined.
pub type JobId = u64;

/// The key of an operation, from the API to the engine's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OperationKey {
    /// The connection that has submitted it.
    pub connection: ConnectionId,
    /// Its handle on that connection.
    pub op: u64,
}

/// A fragment of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FragmentKey {
    pub operation: OperationKey,
    pub fragment: u16,
}

/// One second.
pub(crate) const SECOND: Nanos = 1_000_000_000;
/// One millisecond.
pub(crate) const MILLISECOND: Nanos = 1_000_000;
