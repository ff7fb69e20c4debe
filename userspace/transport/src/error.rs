//! What goes wrong, one type per phase: parameters, submission, one operation, the whole job.

use sumac_wire::{MAX_ELEMENTS, MAX_WORKERS};
use thiserror::Error;

use crate::params::MAX_SLOTS;

/// A job that cannot be set up: its parameters contradict the protocol.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ParamError {
    #[error("job number 0 means no job; jobs count from 1")]
    Job,
    #[error("a job of {world} workers; one aggregator serves 1 to {MAX_WORKERS}")]
    World { world: u16 },
    #[error("rank {rank} in a job of {world} workers; ranks count from 0")]
    Rank { rank: u16, world: u16 },
    #[error("{slots} slots; a power of two up to {MAX_SLOTS} is needed")]
    Slots { slots: u32 },
    #[error("chunks of {elements} elements; 1 to {MAX_ELEMENTS} fit a packet")]
    Elements { elements: u16 },
    #[error("scale {scale}; it must be positive, and neither it nor its inverse zero, denormal or infinite")]
    Scale { scale: f32 },
    #[error("{shards} shards for {slots} slots; every shard needs a slot")]
    Shards { shards: u16, slots: u32 },
    #[error("timeouts must be above zero, min_rto <= initial_rto <= max_rto, probe_interval < probe_timeout")]
    Tuning,
}

/// An operation that was not taken; it is handed back with its buffer.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SubmitError {
    #[error("tensor {tensor}: {count} elements; packets address at most 2^32, split the tensor")]
    TooLong { tensor: u32, count: usize },
    #[error("tensor {tensor}: loss bound {bound}; this job is reliable, ask for 0")]
    LossBound { tensor: u32, bound: f32 },
}

/// An operation that was carried through, or given up, without a usable result.
///
/// The contents of its output are then unspecified.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum OpError {
    /// A value of this worker was too large for the wire; all workers' operations fail.
    #[error(
        "tensor {tensor}, element {index}: {value} times scale {scale} exceeds {limit}, this job's largest \
         value per worker; lower the job's scale or clip the gradients"
    )]
    Saturated { tensor: u32, index: usize, value: f64, scale: f32, limit: i32 },
    /// A value of this worker was NaN or infinite; all workers' operations fail.
    #[error("tensor {tensor}, element {index} is {value}; only finite values can be summed")]
    NotFinite { tensor: u32, index: usize, value: f32 },
    /// Another worker reported one of the above for this range; that worker knows the element.
    #[error(
        "tensor {tensor}: a value of another worker among elements {first} to {last} was too large or not \
         finite; that worker's error names the element"
    )]
    Peer { tensor: u32, first: usize, last: usize },
    /// The buffer gave fewer bytes than the operation's count asks for.
    #[error("tensor {tensor}: the buffer ends before element {index}; register enough memory for the count")]
    ShortBuffer { tensor: u32, index: usize },
    /// The whole job failed.
    #[error(transparent)]
    Job(#[from] JobError),
}

/// The end of a job: everything outstanding and everything later fails with it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum JobError {
    #[error(
        "no answer from the aggregator to {probes} probes in {waited_ms} ms; is its program attached, does it \
         know the job, and do UDP packets reach it?"
    )]
    NoReply { probes: u64, waited_ms: u64 },
    #[error(
        "the aggregator answers small packets but not those of {elements} elements ({bytes} bytes of UDP \
         payload); raise the MTU on the path or choose smaller chunks"
    )]
    MtuTooSmall { elements: u16, bytes: usize },
    #[error("the aggregator has {field} {theirs} where this worker has {ours}; restart the job")]
    Mismatch { field: &'static str, ours: u64, theirs: u64 },
    #[error("packets of this job need {needed} bytes, the port gives {given}; choose smaller chunks")]
    FrameTooSmall { needed: usize, given: usize },
    /// Another worker is at fault; `reason` reads like "(10.77.2.2) stopped answering".
    #[error("rank {rank} {reason}")]
    Worker { rank: u16, reason: String },
    /// The aggregator or its state is gone.
    #[error("aggregator lost: {reason}")]
    AggregatorLost { reason: String },
    /// The control plane ended the job or cannot be reached.
    #[error("the job was ended: {reason}")]
    Ended { reason: String },
    /// A local client or the operator ended the job.
    #[error("cancelled by {by}")]
    Cancelled { by: String },
}
