//! What a data path's thread is told, and what it tells.

use std::sync::mpsc::Sender;

use sumac_transport::{Completion, JobError, JobParams, Operation, ParamError, SubmitError};

use super::{port::Peer, stats::DatapathStats};

/// An order to the thread. `reply` channels are answered once; that nobody listens any more is no error.
pub(super) enum Command {
    /// Make an engine for a job and start its handshake.
    AddJob { params: JobParams, peer: Peer, reply: Sender<Result<(), AddError>> },
    /// Queue an operation.
    Submit { job: u16, tag: u64, operation: Operation },
    /// End a job: its operations fail, later ones too.
    FailJob { job: u16, why: JobError },
    /// End a job and forget it.
    RemoveJob { job: u16, reply: Sender<()> },
    /// Report.
    Stats { reply: Sender<DatapathStats> },
    /// End all jobs and the thread.
    Shutdown,
}

/// Why a job cannot run on a data path.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AddError {
    /// The parameters contradict the protocol.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// The number is taken. Two aggregators may hand out the same; a host serves one of them at a time.
    #[error("job number {job} is in use on this host already; end the other job first")]
    Exists {
        /// The number.
        job: u16,
    },
    /// The port's packets are too small.
    #[error(
        "packets of {needed} bytes do not fit the port's {capacity}; choose chunks of at most {elements} elements"
    )]
    TooLong {
        /// Bytes of UDP payload of the job's longest packet.
        needed: usize,
        /// Bytes that the port can send.
        capacity: usize,
        /// The largest chunk that fits.
        elements: usize,
    },
    /// Results would arrive at ports where nobody listens.
    #[error(
        "the job's results come in {asked} shards, this port listens to {given}; use the XDP backend with --shards {asked}"
    )]
    Shards {
        /// The job's.
        asked: u16,
        /// The port's.
        given: u16,
    },
    /// The thread has ended.
    #[error("the data path has stopped; restart the daemon and see its log")]
    Stopped,
}

/// Something that happened on the thread.
#[derive(Debug)]
pub enum Event {
    /// The aggregator has answered: chunks flow.
    JobReady {
        /// The job.
        job: u16,
    },
    /// The job is over. Its operations follow, each with an error.
    JobFailed {
        /// The job.
        job: u16,
        /// Why.
        error: JobError,
    },
    /// An operation ended, well or not.
    Completed {
        /// Its job.
        job: u16,
        /// What it was submitted under.
        tag: u64,
        /// How it ended; holds its buffer.
        completion: Completion,
    },
    /// An operation was not taken.
    Refused {
        /// Its job.
        job: u16,
        /// What it was submitted under.
        tag: u64,
        /// Why.
        error: Refusal,
        /// The operation with its buffer.
        operation: Operation,
    },
}

/// Why an operation was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The engine cannot carry it.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// There is no such job, or no more.
    #[error("job number {job} is not open on this host")]
    NoJob {
        /// The number.
        job: u16,
    },
}

/// Takes events, on the data path's thread: it must be quick and must not wait for the data path.
pub type Sink = Box<dyn FnMut(Event) + Send>;
