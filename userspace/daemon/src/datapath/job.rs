//! Jobs as the data path installs them, its errors and its events.

use std::{net::Ipv4Addr, sync::Arc};

use sumac_job::OperationId;
use sumac_parameter::{HostError, HostJob};
use sumac_transport::{Completion, JobError, JobParams, Operation, ParamError, PathMeasure, SubmitError};

use super::frame_io::Peer;

/// A job of this host's worker.
#[derive(Clone, Debug)]
pub struct WorkerJob {
    /// The lanes by number, all of the same job. One may measure the path.
    pub lanes: Vec<JobParams>,
    /// The aggregator; a dynamic job may have none.
    pub peer: Option<Peer>,
    /// The parameter hosts of a dynamic job: shard `s` has the one with number `s % hosts`.
    pub hosts: Vec<Peer>,
    /// The first chunk of each lane, for a worker that replaces another one; else empty.
    pub resume: Vec<u32>,
}

/// A job that this host is a parameter host of.
#[derive(Clone, Debug)]
pub struct ParameterJob {
    pub job: HostJob,
    /// One peer for each address of a worker or an aggregator.
    pub peers: Vec<Peer>,
}

/// Reasons that the data path does not install a job.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InstallError {
    #[error(transparent)]
    Params(#[from] ParamError),
    #[error(transparent)]
    ParameterHost(#[from] HostError),
    #[error("the {given} lanes of job number {job} are not numbered from 0, or not of one job")]
    Lanes { job: u16, given: usize },
    #[error("job number {job} is not open on this host")]
    UnknownJob { job: u16 },
    #[error("job number {job} has no {peer}; open it again, and see the control plane's log")]
    NoPeer { job: u16, peer: &'static str },
    #[error("no Ethernet address is known for {ip}; see that it answers ARP, or that there is a route to it")]
    NoAddress { ip: Ipv4Addr },
    /// Two coordinators may assign the same number; a host serves one of the jobs.
    #[error("job number {job} is in use on this host already; end the other job first")]
    InUse { job: u16 },
    #[error(
        "packets of {needed} bytes exceed this host's {capacity}; choose chunks of at most {elements} elements"
    )]
    PacketTooLong { needed: usize, capacity: usize, elements: usize },
    #[error(
        "the job's packets come in {asked} shards, this host listens to {given}; set `shards = {asked}` in its daemon's configuration"
    )]
    Shards { asked: u16, given: u16 },
    #[error("the data path has stopped; restart the daemon and see its log")]
    Stopped,
}

/// A change on a data path thread.
#[derive(Debug)]
pub enum Event {
    /// The path is measured; the job waits for [`super::Datapath::start_job`].
    JobMeasured { job: u16, measure: PathMeasure },
    /// The handshake is complete on every lane.
    JobReady { job: u16 },
    /// The job has ended in all lanes. Each of its operations completes with an error.
    JobFailed { job: u16, error: JobError },
    /// An operation completed in a lane, with or without an error. Returns its buffer.
    Completed { job: u16, lane: u16, id: OperationId, completion: Completion },
    /// An operation was not accepted by a lane.
    Rejected { job: u16, lane: u16, id: OperationId, error: Rejection, operation: Operation },
}

/// Reasons that an operation was not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Rejection {
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error("job number {job} is not open on this host")]
    UnknownJob { job: u16 },
}

/// Receives events on the data path's threads. It must not wait for the data path.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;
