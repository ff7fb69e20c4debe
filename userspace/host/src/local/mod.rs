//! Jobs whose ranks are all on this host: they need no aggregator, no control plane and no network. The
//! ranks gather here, their operations are matched here, and their tensors are summed where they lie.

mod gather;
mod launch;
mod life;
mod rounds;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use sumac_api::JobSpec;

use self::rounds::Rounds;
use crate::{JobId, OperationKey};

pub use self::gather::NameRefusal;

/// The ranks of one job, each of which is a [`Job`](crate::job::Job) with a trainer of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LocalJob {
    /// The request of the rank that came first.
    spec: JobSpec,
    /// The user that opened it.
    uid: u32,
    /// By rank.
    members: BTreeMap<u16, JobId>,
    /// Whether all ranks have come.
    is_open: bool,
    /// Whether it has failed: no operation begins any more.
    is_over: bool,
    /// The ranks that have closed it.
    departed: Vec<u16>,
    /// The collective operations that some ranks have not submitted.
    rounds: Rounds,
    /// The sends, or the receives, whose other end is not posted, by the sender's rank and the receiver's.
    transfers: BTreeMap<(u16, u16), VecDeque<OperationKey>>,
}
