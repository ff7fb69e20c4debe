//! Errors, one type per phase: parameters, submission, one operation, the whole job.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use sumac_job::limits::{
    ACKNOWLEDGED_EVERY, DYNAMIC_ELEMENTS, MAX_SHARDS, MAX_SLOTS, MAX_WINDOW, MAX_WORLD, MIN_WINDOW,
};
use sumac_wire::{CLASSES, MAX_ELEMENTS, MAX_PATHS, MAX_WORKERS};
use thiserror::Error;

/// Parameters that contradict the protocol.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ParamError {
    #[error("job number 0 means no job; jobs count from 1")]
    Job,
    #[error("a job of {world} workers; two levels of aggregators serve 1 to {MAX_WORLD}")]
    World { world: u16 },
    #[error("rank {rank} in a job of {world} workers; ranks count from 0")]
    Rank { rank: u16, world: u16 },
    #[error(
        "{rack_world} workers below one aggregator in a job of {world}; 1 to {MAX_WORKERS} have their bits \
        there"
    )]
    Rack { rack_world: u16, world: u16 },
    #[error("{slots} slots; a power of two up to {MAX_SLOTS} is needed")]
    Slots { slots: u32 },
    #[error("chunks of {elements} elements; 1 to {MAX_ELEMENTS} fit a packet")]
    Elements { elements: u16 },
    #[error("scale {scale}; it must be positive, and neither it nor its inverse zero, denormal or infinite")]
    Scale { scale: f32 },
    #[error("lane {lane} of {shards} shards; a job has 1 to {MAX_SHARDS} shards with {CLASSES} lanes each")]
    Lane { lane: u16, shards: u16 },
    #[error("the job's peers have no {role}")]
    NoPeer { role: &'static str },
    #[error("the slots of a job cannot change after its first chunk was sent")]
    Started,
    #[error(
        "timeouts must be above zero, min_rto_confirmed <= min_rto <= initial_rto <= max_rto, probe_interval \
        < probe_timeout, 1 to {MAX_PATHS} paths"
    )]
    Tuning,
    #[error(
        "a dynamic job with chunks of {elements} elements; a slot of the shared pool has {DYNAMIC_ELEMENTS}"
    )]
    DynamicElements { elements: u16 },
    #[error("a window of {window} chunks; a power of two from {MIN_WINDOW} to {MAX_WINDOW} is needed")]
    Window { window: u32 },
    #[error(
        "a window of {window} packets to a peer of a direct job; {ACKNOWLEDGED_EVERY} to {MAX_WINDOW} may be \
        in flight"
    )]
    DirectWindow { window: u32 },
    #[error(
        "{positions} positions in a window of {window} chunks; a power of two up to the window is needed"
    )]
    Positions { positions: u32, window: u32 },
    #[error("a congestion window of {initial} chunks at first; 1 to the window, {window}, can be in flight")]
    InitialWindow { initial: u32, window: u32 },
    #[error(
        "{racks} racks below the second aggregator, this one with bits {bitmap:#x}; one of at most 32 bits \
        is needed, or none of none"
    )]
    Racks { racks: u8, bitmap: u32 },
    #[error("a dynamic job has a window instead of slots of its own, and does not measure its path for them")]
    Measure,
}

/// The reason for which an operation was refused; it is returned with its buffer.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SubmitError {
    #[error(
        "operation {signature:08x}: {count} values from {base} on; packets address at most 2^32, split the \
        tensor"
    )]
    TooLong { signature: u32, count: usize, base: u32 },
    #[error("operation {signature:08x}: values {range:?} of {count}")]
    Range { signature: u32, range: Range<usize>, count: usize },
    #[error(
        "operation {signature:08x}: gives {gives:?} of {count}; a minimum or maximum needs every worker's \
        values"
    )]
    Gives { signature: u32, gives: Range<usize>, count: usize },
    #[error(
        "operation {signature:08x}: {skip} chunks to skip; only the first operation of a worker that \
        replaces another one may have summed chunks, and not more than it has"
    )]
    Skip { signature: u32, skip: u64 },
    #[error("operation {signature:08x}: loss bound {bound}; {problem}")]
    LossBound { signature: u32, bound: f32, problem: &'static str },
    #[error(
        "operation {signature:08x}: only jobs in direct mode have transfers between workers, and all of \
        theirs are such"
    )]
    Exchange { signature: u32 },
}

/// An operation that ended without a usable result.
///
/// The contents of its output are then unspecified. Elements are counted in the whole tensor
/// ([`base`](crate::Operation::base) and index). The engine knows tensors by their signatures only; names are
/// added by its caller.
#[derive(Clone, Debug, PartialEq, Error, Serialize, Deserialize)]
pub enum OpError {
    /// A value of this worker was too large for the wire; all workers' operations fail.
    #[error(
        "element {index}: {value} times scale {scale} exceeds {limit}, this job's largest value per worker; \
         lower the job's scale or clip the values"
    )]
    Saturated { index: usize, value: f64, scale: f32, limit: i32 },
    /// An integer of this worker was too large for the sum of all workers' integers; all workers' operations
    /// fail.
    #[error(
        "element {index}: {value} exceeds {limit}, the largest integer per worker whose sum has 32 bits; \
         split the values or sum them as floats"
    )]
    IntegerTooLarge { index: usize, value: i32, limit: i32 },
    /// A value of this worker was NaN or infinite; all workers' operations fail.
    #[error("element {index} is {value}; only finite values can be reduced")]
    NotFinite { index: usize, value: f32 },
    /// Another worker has one of the errors above in this range.
    #[error(
        "a value of another worker among elements {first} to {last} was too large or not finite; that \
         worker's error names the element"
    )]
    Peer { first: usize, last: usize },
    /// The sum of the workers' integers left 32 bits somewhere in this range; all workers' operations fail
    /// (dynamic jobs, where each value may use all of them).
    #[error(
        "a sum of integers among elements {first} to {last} exceeds 2147483647, or a value of another worker \
        does; split the values or sum them as floats"
    )]
    SumTooLarge { first: usize, last: usize },
    /// The two ends of a transfer do not mean the same; nothing was transferred.
    #[error("rank {rank} has {theirs} where this worker has {ours}; give both the same")]
    Disagrees { rank: u16, ours: String, theirs: String },
    /// The buffer gave fewer bytes than the operation's count asks for.
    #[error("the buffer ends before element {index}; register enough memory for the count")]
    ShortBuffer { index: usize },
    /// A job that has ended is not handed over.
    #[error(transparent)]
    #[serde(skip)]
    Job(#[from] JobError),
}

/// The end of a job: everything outstanding and everything later fails with it.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum JobError {
    #[error(
        "no answer from the aggregator to {probes} probes in {waited_ms} ms; is its program attached, does \
        it know the job, and do UDP packets reach it?"
    )]
    NoReply { probes: u64, waited_ms: u64 },
    #[error(
        "small packets are answered but not those of {elements} elements ({bytes} bytes of UDP \
         payload); raise the MTU on the path or choose smaller chunks"
    )]
    MtuTooSmall { elements: u16, bytes: usize },
    #[error(
        "no answer from the parameter host to {probes} probes in {waited_ms} ms; is its daemon up, does it \
        know the job, and do UDP packets reach it?"
    )]
    HostSilent { probes: u64, waited_ms: u64 },
    #[error("the path of the running job is lost: {reason}")]
    PathLost { reason: String },
    #[error(
        "the aggregator no longer has job {job} (epoch {epoch}): its control plane was stopped, or another \
        one has taken its place; open the job again on all workers"
    )]
    UnknownJob { job: u16, epoch: u16 },
    #[error("the aggregator has {field} {theirs} where this worker has {ours}; restart the job")]
    Disagrees { field: String, ours: u64, theirs: u64 },
    /// Another worker has another operation in the same chunk of the lane's stream.
    #[error(
        "chunk {seq} of lane {lane}, element {base} of operation {signature:08x} here, belongs to another \
         operation ({theirs:08x}) on another worker; submit the same operations in the same order"
    )]
    Mismatch { lane: u16, seq: u32, base: u32, signature: u32, theirs: u32 },
    #[error(
        "packets of this job need {needed} bytes, and frames have room for {given}; choose smaller chunks"
    )]
    FrameTooSmall { needed: usize, given: usize },
    /// Another worker is at fault; `reason` reads like "(10.77.2.2) stopped answering".
    #[error("rank {rank} {reason}")]
    Worker { rank: u16, reason: String },
    #[error("aggregator lost: {reason}")]
    AggregatorLost { reason: String },
    /// The control plane ended the job or cannot be reached.
    #[error("the job was ended: {reason}")]
    Ended { reason: String },
    #[error("cancelled by {by}")]
    Cancelled { by: String },
}

/// The reason for which a sum of a host's ranks has no result.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalFault {
    /// The index of the part at fault; `None` for a sum that does not fit.
    pub part: Option<usize>,
    pub error: OpError,
}
