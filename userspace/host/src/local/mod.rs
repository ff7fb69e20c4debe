//! Jobs with several ranks on this host. They gather here, their operations are matched here, and their
//! tensors are summed where they lie.
//!
//! A job whose ranks are all on this host needs nothing else: no aggregator, no control plane and no network.
//! In a job of several hosts they are one worker. The *leader*, the job of the lowest rank, has the worker's
//! membership in the control plane and its part of the data path.

mod gather;
mod launch;
mod life;
mod rounds;
mod shares;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use sumac_api::JobSpec;

use self::rounds::Rounds;
use crate::region::PendingRegion;
use crate::{JobId, OperationKey};

pub use self::gather::NameRefusal;
pub(crate) use self::launch::hull;

/// The ranks of one job on this host, each of which is a [`Job`](crate::job::Job) with a trainer of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LocalJob {
    /// The job of the rank that came first. Identifies the host's job, also when that rank has left.
    id: JobId,
    /// The request of the rank that came first.
    spec: JobSpec,
    /// The user that opened it.
    uid: u32,
    /// By rank.
    members: BTreeMap<u16, JobId>,
    /// Whether all ranks of the job have come, on all hosts.
    is_open: bool,
    /// Whether it has failed: no operation begins any more.
    is_over: bool,
    /// The ranks that have closed it.
    departed: Vec<u16>,
    /// The collective operations that some ranks have not submitted.
    rounds: Rounds,
    /// The sends, or the receives, whose other end is not posted, by the sender's rank and the receiver's.
    transfers: BTreeMap<(u16, u16), VecDeque<OperationKey>>,
    /// Transfers to other hosts that are not posted there, as the data path has last reported.
    unposted: Vec<OperationKey>,
    /// The shared regions that some ranks have not asked for.
    shares: VecDeque<PendingRegion>,
    /// The number of the last shared region.
    last_share: u32,
}

impl LocalJob {
    /// The job's ranks on this host, whether they have come or not.
    fn ranks(&self) -> Range<u16> {
        let local = self.spec.ranks_per_worker();
        let first = self.spec.rank / local * local;
        first..first.saturating_add(local)
    }

    /// Whether all ranks of this host have come.
    fn is_complete(&self) -> bool {
        self.members.len() >= self.ranks().len()
    }
}
