//! Regions of memory that trainers and the daemon share.

use serde::{Deserialize, Serialize};

use crate::{JobId, RegionId};

/// A region of a trainer's memory, or one of the daemon's that the ranks of a host share. It counts in its
/// user's shares until the last operation on it has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Region {
    pub(crate) uid: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// The operations that use it.
    pub(crate) users: u32,
    /// The connections that have it, and the job that keeps it for ranks that have not asked yet.
    pub(crate) holders: u32,
    pub(crate) shared: Option<SharedRegion>,
}

/// A region to which results are written once for all ranks of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SharedRegion {
    /// The job of a rank that identifies the host's. Only operations of all its ranks write to the region.
    pub(crate) job: JobId,
    /// Its number among the shared regions of the job on this host, from 1 on: for messages.
    pub(crate) number: u32,
}

/// A region that some ranks have not asked for. The job holds it until they have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PendingRegion {
    pub(crate) region: RegionId,
    pub(crate) number: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// The ranks that have it.
    pub(crate) ranks: Vec<u16>,
}

/// The place of a result that all ranks of a host read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedResult {
    /// The region's, among those of the job on this host.
    pub(crate) number: u32,
    /// In bytes.
    pub(crate) offset: u64,
}
