//! The checks of jobs that fail.

use sumac_wire::{MAX_HOSTS, MAX_JOBS, MAX_LANES, MAX_WORKERS};
use thiserror::Error;

/// The reason that an aggregator refuses a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    #[error("job number {0}: must be 1 to {max}", max = MAX_JOBS - 1)]
    Number(u16),
    #[error("job {job} is there already (epoch {epoch}); remove it first")]
    Taken { job: u16, epoch: u16 },
    #[error("job {job} had epoch {last} before; take a later one than that, not {epoch}")]
    EpochUsed { job: u16, epoch: u16, last: u16 },
    #[error("a job of {0} workers: must be 1 to {MAX_WORKERS}")]
    World(usize),
    #[error("{0} slots in a lane: must be a power of two")]
    LaneSlots(u32),
    #[error(
        "{slots} slots in lanes of {lane_slots} over {shards} shards: must be 1 to {MAX_LANES} lanes, as \
        many in each shard, and this aggregator has {ports} shards (--shards; of a switch, `shards` of its \
        program)"
    )]
    Lanes { slots: u32, lane_slots: u32, shards: u16, ports: u16 },
    #[error("slots {first} to {first} + {slots} are not all in the pool of {pool}")]
    Range { first: u32, slots: u32, pool: u32 },
    #[error("slots {first} to {first} + {slots} belong to job {other}, some of them")]
    Overlap { first: u32, slots: u32, other: u16 },
    #[error(
        "{slots} slots of each shard for a dynamic job: this aggregator has {pool} (--dynamic-slots; of a \
        switch, `dynamic_slots` of its program)"
    )]
    DynamicSlots { slots: u32, pool: u32 },
    #[error("{shards} shards: this aggregator has {ports} (--shards; of a switch, `shards` of its program)")]
    Shards { shards: u16, ports: u16 },
    #[error("{0} parameter hosts: a dynamic job has 1 to {MAX_HOSTS}")]
    Hosts(usize),
    #[error("{0} parents: a rack's job has one, another static job none")]
    Parents(usize),
    #[error("a dynamic job has two levels of aggregators: no rack has racks below it")]
    Middle,
    #[error("a P4 switch is the only aggregator, the root or a rack of workers, never between two")]
    SwitchInMiddle,
    #[error("rack {rack} of {racks}: a root has 1 to {MAX_WORKERS} racks, counted from 0")]
    Rack { rack: u16, racks: u16 },
    #[error(
        "chunks of {elements} elements: this aggregator takes 1 to {max} (--elements; of a switch, \
        `elements` of its program)"
    )]
    Elements { elements: u16, max: u16 },
    #[error(
        "job {job} cannot be reduced to {lane_slots} slots in each lane: it has {before}, and 0 means that \
        it is not there"
    )]
    Resize { job: u16, lane_slots: u32, before: u32 },
    #[error("job {0} keeps its slots: a worker has contributed already")]
    Held(u16),
}
