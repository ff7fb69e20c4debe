//! What a data path's threads are told, and what they tell.

use std::{
    net::Ipv4Addr,
    sync::{Arc, mpsc::Sender},
};

use sumac_parameter::{HostError, HostJob, Worker};
use sumac_transport::{Completion, JobError, JobParams, Operation, ParamError, PathMeasure, SubmitError};

use super::{port::Peer, stats::DatapathStats};

/// A job as all threads must know it.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// Its lanes, by number. All agree but for the lane; one may be there to measure the path.
    pub lanes: Vec<JobParams>,
    /// Its aggregator. A dynamic job may have none.
    pub peer: Option<Peer>,
    /// The parameter hosts of a dynamic job: shard `s` has the one with number `s % hosts`.
    pub hosts: Vec<Peer>,
    /// Of a worker that takes another's place: by lane, the chunk that its stream begins with. Empty: it takes nobody's.
    pub resume: Vec<u32>,
}

/// A job that this host is a parameter host of, as all threads must know it.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// The job.
    pub job: HostJob,
    /// Whom its packets go to: one for each address of a worker or an aggregator. Only address and MAC are asked for.
    pub peers: Vec<Peer>,
}

/// An order to a thread. `reply` channels are answered once; that nobody listens any more is no error.
pub(super) enum Command {
    /// Make engines for the thread's lanes of a job, and start their handshakes.
    AddJob { plan: JobPlan, reply: Sender<Result<(), AddError>> },
    /// Let the chunks of a job go, with so many slots in each lane.
    StartJob { job: u16, slots: u32, reply: Sender<Result<(), AddError>> },
    /// Go on under another incarnation; with the first chunk of each lane that is not summed.
    RenewJob { job: u16, epoch: u16, resume: Vec<u32>, reply: Sender<Result<(), AddError>> },
    /// Queue an operation in a lane.
    Submit { job: u16, lane: u16, tag: u64, operation: Operation },
    /// End a job: its operations fail, later ones too.
    FailJob { job: u16, why: JobError },
    /// End a job and forget it.
    RemoveJob { job: u16, reply: Sender<()> },
    /// Sum for a job.
    AddHost { plan: HostPlan, reply: Sender<Result<(), HostingError>> },
    /// Go on under another incarnation. Answered with the first chunk of each lane that is not summed, on this thread.
    RenewHost {
        job: u16,
        epoch: u16,
        workers: Vec<Worker>,
        peers: Vec<Peer>,
        reply: Sender<Result<Vec<u32>, HostingError>>,
    },
    /// Sum no more for a job.
    RemoveHost { job: u16, reply: Sender<bool> },
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
    /// The lanes are not those of one job, or there are none.
    #[error("the {given} lanes of job number {job} are not numbered from 0, or not of one job")]
    Lanes {
        /// The number.
        job: u16,
        /// How many lanes.
        given: usize,
    },
    /// There is no such job, or no more.
    #[error("job number {job} is not open on this host")]
    NoJob {
        /// The number.
        job: u16,
    },
    /// Its packets have nowhere to go.
    #[error("job number {job} has no {to}; open it again, and see the control plane's log")]
    NoWay {
        /// The number.
        job: u16,
        /// What is missing.
        to: &'static str,
    },
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
        "the job's results come in {asked} shards, this host listens to {given}; set `shards = {asked}` in the daemon's configuration"
    )]
    Shards {
        /// The job's.
        asked: u16,
        /// The port's.
        given: u16,
    },
    /// The threads have ended.
    #[error("the data path has stopped; restart the daemon and see its log")]
    Stopped,
}

/// Why a data path cannot sum for a job.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HostingError {
    /// The parameter host does not take it.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The port's packets are too small.
    #[error(
        "packets of {needed} bytes do not fit the {capacity} of the parameter host's port; choose chunks of at most {elements} elements"
    )]
    TooLong {
        /// Bytes of UDP payload of the job's longest packet.
        needed: usize,
        /// Bytes that the port can send.
        capacity: usize,
        /// The largest chunk that fits.
        elements: usize,
    },
    /// Contributions would arrive at ports where nobody listens.
    #[error(
        "the job's contributions come in {asked} shards, this parameter host listens to {given}; set `shards = {asked}` in its daemon's configuration"
    )]
    Shards {
        /// The job's.
        asked: u16,
        /// The port's.
        given: u16,
    },
    /// It is not known which way results would go.
    #[error("no Ethernet address is known for {ip}; see that it answers ARP, or that there is a route to it")]
    NoWay {
        /// The address.
        ip: Ipv4Addr,
    },
    /// The threads have ended.
    #[error("the data path has stopped; restart the daemon and see its log")]
    Stopped,
}

/// Something that happened on a thread.
#[derive(Debug)]
pub enum Event {
    /// The path is measured, and [`super::Datapath::start_job`] is waited for.
    JobMeasured {
        /// The job.
        job: u16,
        /// What was measured.
        measure: PathMeasure,
    },
    /// The aggregator has answered on every lane: chunks flow.
    JobReady {
        /// The job.
        job: u16,
    },
    /// The job is over, in all lanes. Its operations end, each with an error; those of other lanes may have before.
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
        /// The lane that it was submitted to.
        lane: u16,
        /// What it was submitted under.
        tag: u64,
        /// How it ended; holds its buffer.
        completion: Completion,
    },
    /// An operation was not taken.
    Refused {
        /// Its job.
        job: u16,
        /// The lane that it was submitted to.
        lane: u16,
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

/// Takes events, on the data path's threads: it must be quick and must not wait for the data path.
pub type Sink = Arc<dyn Fn(Event) + Send + Sync>;
