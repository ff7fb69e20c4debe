//! The outputs of the core, and the handles that it refers to by ids.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use sumac_api::{Failure, JobSpec, Open, Outbound, Timing};
use sumac_job::{OperationDescriptor, OperationId};
use sumac_transport::{LocalSum, Operation};

use crate::access::Credentials;
use crate::{ConnectionId, FragmentKey, JobId, OperationKey, RegionId};

/// The place of a completion word: a region of the client, and the offset there in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordPlace {
    pub region: RegionId,
    /// The region's handle on the client's connection, for messages.
    pub handle: u64,
    pub offset: u64,
}

/// The memory of a fragment. Both ranges are in bytes of their region, and empty for a fragment without
/// elements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// Of the input and of the output; they may be the same.
    pub regions: [RegionId; 2],
    /// The output region's handle on the client's connection, for messages.
    pub handle: u64,
    pub input: Range<usize>,
    pub output: Range<usize>,
    /// Bytes of the fragment before its input and before its output.
    pub skips: [usize; 2],
}

/// The handles beside the state: mappings with their leases, completion words, eventfds. Each call takes
/// effect at once.
pub trait Resources {
    /// Leases a fragment's memory. [`Output::Submit`] passes the lease to the data path;
    /// [`Resources::release`] ends it before.
    ///
    /// # Errors
    /// The failure for the client: the range is outside, misaligned or busy.
    fn lease(&mut self, key: FragmentKey, request: &LeaseRequest) -> Result<(), Failure>;

    /// Leases a completion word.
    ///
    /// # Errors
    /// As [`Resources::lease`].
    fn lease_word(&mut self, key: OperationKey, word: &WordPlace) -> Result<(), Failure>;

    /// Sets an operation's completion word and ends its lease; without one nothing happens.
    fn set_word(&mut self, key: OperationKey, is_complete: bool);

    /// Ends the leases of an operation that was not submitted, or whose fragments have all ended.
    fn release(&mut self, key: OperationKey);

    /// Creates the eventfd of a job's handle.
    ///
    /// # Errors
    /// The failure for the client.
    fn create_event(&mut self, connection: ConnectionId, handle: u64) -> Result<(), Failure>;

    /// Closes the eventfd of a job's handle.
    fn close_event(&mut self, connection: ConnectionId, handle: u64);

    /// Checks and completes a request to open a job from the configuration, and keeps the control plane's
    /// address and the secret for it.
    ///
    /// # Errors
    /// The failure for the client.
    fn plan(&mut self, job: JobId, credentials: &Credentials, open: &Open) -> Result<JobSpec, Failure>;

    /// Returns whether this is the secret of a job.
    fn is_secret(&self, job: JobId, secret: &str) -> bool;

    /// Creates a region that the ranks of a host read, without pages.
    ///
    /// # Errors
    /// The failure for the client.
    fn create_region(&mut self, region: RegionId, size: u64) -> Result<(), Failure>;

    /// Unmaps a region, on which no operation has a lease any more.
    fn unmap(&mut self, region: RegionId);
}

/// A file descriptor that goes with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// The eventfd of a job's handle.
    Event(u64),
    /// The file of a region that the ranks of a host read.
    Region(RegionId),
}

/// A message to a connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub outbound: Outbound,
    pub attached: Option<Attached>,
    /// The job's handle whose eventfd is incremented after it was sent.
    pub signalled_event: Option<u64>,
    /// Whether a client that does not read does without it.
    pub is_optional: bool,
}

impl Message {
    pub(crate) fn new(outbound: Outbound) -> Message {
        Message { outbound, attached: None, signalled_event: None, is_optional: false }
    }
}

/// An ended operation with the times of its steps, for spans.
#[derive(Clone, Debug)]
pub struct Span {
    pub id: OperationId,
    pub descriptor: OperationDescriptor,
    pub timing: Timing,
    pub error: Option<String>,
}

/// The sum of the same fragment of several ranks. Its buffers are placeholders for those that were leased
/// under the keys.
#[derive(Debug)]
pub struct RankSum {
    pub keys: Vec<FragmentKey>,
    pub sum: LocalSum,
}

/// An action for the daemon around the core. Those of one call are executed in order, before another call's.
#[derive(Debug)]
pub enum Output {
    Send {
        connection: ConnectionId,
        message: Box<Message>,
    },
    /// Queues a fragment in a lane. Its buffer is a placeholder; its memory was leased under `key`.
    Submit {
        job: JobId,
        lane: u16,
        key: FragmentKey,
        operation: Box<Operation>,
        /// The sum that is its contribution, of a worker with several ranks.
        ranks: Option<Box<RankSum>>,
    },
    /// Sums fragments of a job whose ranks are all on this host, in memory. [`crate::Host::fragment_ended`]
    /// with the first key follows.
    Sum(Box<RankSum>),
    /// Starts to join the other workers. [`crate::Host::joined`] or [`crate::Host::not_opened`] follows.
    Start {
        job: JobId,
    },
    /// There are posts or an end for the job's membership: [`crate::Host::take_posts`],
    /// [`crate::Host::end_of`].
    Wake {
        job: JobId,
    },
    /// Another worker of a direct job has left.
    PeerLeft {
        job: JobId,
        worker: u16,
    },
    Span {
        job: JobId,
        span: Box<Span>,
    },
    Warn {
        job: JobId,
        message: String,
        ranks: Vec<u16>,
    },
}
