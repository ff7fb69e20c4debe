//! A job that is to be aggregated for, and why it cannot be.

use std::net::SocketAddrV4;

#[cfg(doc)]
use sumac_wire::tables::job_flag;
use sumac_wire::{MAX_HOSTS, MAX_JOBS, MAX_LANES, MAX_WORKERS, tables::JobEntry};
use thiserror::Error;

/// The reason that a job cannot be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// The number is outside the table.
    #[error("job number {0}: give 1 to {max}", max = MAX_JOBS - 1)]
    Number(u16),
    /// The number is in use.
    #[error("job {job} is there already (epoch {epoch}); remove it first")]
    Taken {
        /// The number.
        job: u16,
        /// The epoch of the job that is there.
        epoch: u16,
    },
    /// Its slots may remember that epoch's chunks.
    #[error("job {job} had epoch {epoch} before, and slots remember it; take a later one")]
    EpochUsed {
        /// The number.
        job: u16,
        /// The epoch asked for.
        epoch: u16,
    },
    /// The slots are another job's.
    #[error("slots {first} to {first} + {slots} belong to job {other}, some of them")]
    Overlap {
        /// The first slot.
        first: u32,
        /// The number.
        slots: u32,
        /// The job that owns some of them.
        other: u16,
    },
    /// No worker, or too many.
    #[error("{0} workers: give 1 to {MAX_WORKERS}")]
    World(usize),
    /// The chunk does not fit the slots.
    #[error("chunks of {wanted} elements: give 1 to {max}, or start the aggregator with a larger chunk")]
    Elements {
        /// Elements asked for.
        wanted: u16,
        /// The slots' size.
        max: u16,
    },
    /// Slots and lanes that do not go together, or are not in the pool.
    #[error(
        "slots {first} to {first} + {slots} of {total} in lanes of {lane_slots}: give 1 to {MAX_LANES} lanes of a \
         power of two, within the pool"
    )]
    Slots {
        /// The first slot.
        first: u32,
        /// The number.
        slots: u32,
        /// The number in each lane.
        lane_slots: u32,
        /// The pool.
        total: u32,
    },
    /// More shards than there are, none, or not as many lanes in each.
    #[error("{wanted} shards for {lanes} lanes: this aggregator has {ports}, and each takes as many lanes")]
    Shards {
        /// Shards asked for.
        wanted: u16,
        /// The job's lanes.
        lanes: u32,
        /// The aggregator's shards.
        ports: u16,
    },
    /// Too few or too many shared slots.
    #[error(
        "{slots} slots of {total} that dynamic jobs share: give 1 to {total}, or more with --dynamic-slots"
    )]
    Shared {
        /// Slots asked for.
        slots: u32,
        /// The shared slots.
        total: u32,
    },
    /// A child's parent is missing, or a dynamic job's parameter hosts, or somebody else's are there.
    #[error("{0} parents: a child has one, another dynamic job 1 to {MAX_HOSTS}, another static job none")]
    Parents(usize),
    /// Slots that cannot be given back: too few, or no power of two, or the job is not there.
    #[error(
        "job {job} cannot be left {lane_slots} slots in each lane: it has {before}, and 0 means that it is not there"
    )]
    Resize {
        /// The job.
        job: u16,
        /// Slots that each lane was to have.
        lane_slots: u32,
        /// Slots that each lane has; 0: there is no such job.
        before: u32,
    },
    /// Slots that hold something.
    #[error("job {job} keeps its slots: a worker has contributed already")]
    Held {
        /// The job.
        job: u16,
    },
}

/// A job that is to be aggregated for. Addresses are those of shard 0.
#[derive(Clone, Debug, Default)]
pub struct NewJob {
    /// The job; `world`, `hosts` and the active flag are set by the aggregator. `epoch` must be new for the
    /// number of a static job, since slots are not cleared.
    pub entry: JobEntry,
    /// The workers by rank; racks at a root.
    pub workers: Vec<SocketAddrV4>,
    /// The destinations of sums: the aggregator above, of a [`job_flag::CHILD`]; the parameter hosts of a [`job_flag::DYNAMIC`] job
    /// without one, up to [`MAX_HOSTS`], of which each shard has one in turn.
    pub parents: Vec<SocketAddrV4>,
}
