//! The layout of the eBPF aggregator's maps, shared by its programs and their loader.
//! Host order everywhere.
#![no_std]
#![forbid(unsafe_code)]

use core::mem::{offset_of, size_of};

use sumac_wire::{
    MAX_ELEMENTS, MAX_HOSTS, MAX_JOBS, MAX_LANES, MAX_WORKERS, PAGE_ELEMENTS, dynamic, slot::SlotMeta,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Names of maps and programs, as they stand in the object and below the pin directory.
pub mod name {
    /// One [`super::State`].
    pub const STATE: &str = "STATE";
    /// [`sumac_wire::tables::JobEntry`] by the job's number.
    pub const JOBS: &str = "JOBS";
    /// [`sumac_wire::tables::WorkerEntry`] by `worker_index`.
    pub const WORKERS: &str = "WORKERS";
    /// [`sumac_wire::tables::WorkerEntry`] of where a job's sums go, by [`sumac_wire::tables::parent_index`].
    pub const PARENTS: &str = "PARENTS";
    /// The chunk that is drawn next, by [`sumac_wire::tables::lane_index`].
    pub const LANES: &str = "LANES";
    /// The rank, by [`sumac_wire::tables::EgressKey`].
    pub const EGRESS: &str = "EGRESS";
    /// The ports that results leave through, with the egress program of each.
    pub const PORTS: &str = "PORTS";
    /// [`super::Began`] of both versions of each slot.
    pub const BEGAN: &str = "BEGAN";
    /// [`super::Slot`]s.
    pub const SLOTS: &str = "SLOTS";
    /// [`super::Tail`]s of the slots, of a pool for jumbo frames; else one.
    pub const TAILS: &str = "TAILS";
    /// [`super::DynamicSlot`]s, [`super::State::dynamic_slots`] for each shard after the other.
    pub const DYNAMIC_SLOTS: &str = "DYNAMIC_SLOTS";
    /// The program that takes the packets of dynamic jobs, at [`super::DYNAMIC_ENTRY`].
    pub const MODES: &str = "MODES";
    /// Per CPU, frames by `Reason`.
    pub const COUNTERS: &str = "COUNTERS";
    /// Per CPU, frames by `Reason`, of each job, by the job's number.
    pub const JOB_COUNTERS: &str = "JOB_COUNTERS";
    /// [`super::Drops`] by the job's number.
    pub const DROPS: &str = "DROPS";
    /// Per CPU, [`super::Injected`] by the job's number.
    pub const INJECTED: &str = "INJECTED";
    /// Per CPU, [`super::Times`] by the job's number.
    pub const TIMES: &str = "TIMES";
    /// Per CPU, [`super::Lateness`] by `worker_index`.
    pub const LATENESS: &str = "LATENESS";
    /// The MAC address of each port, in the low 48 bits as they lie in memory, by its interface's index.
    pub const OWN: &str = "OWN";
    /// Per CPU, `WorkerCounters` by `worker_index`.
    pub const WORKER_COUNTERS: &str = "WORKER_COUNTERS";
    /// Per CPU, [`super::Limiter`]s of events.
    pub const LIMITERS: &str = "LIMITERS";
    /// One [`super::Replay`].
    pub const REPLAY: &str = "REPLAY";
    /// aya-log's ring.
    pub const LOGS: &str = "AYA_LOGS";
    /// The program that aggregates, on every port's ingress.
    pub const INGRESS_PROGRAM: &str = "sumac_agg";
    /// The program that addresses each copy of a result, on the port map's egress.
    pub const EGRESS_PROGRAM: &str = "sumac_agg_out";
    /// [`INGRESS_PROGRAM`] for frames of several buffers.
    pub const JUMBO_INGRESS_PROGRAM: &str = "sumac_agg_jumbo";
    /// [`EGRESS_PROGRAM`] for frames of several buffers.
    pub const JUMBO_EGRESS_PROGRAM: &str = "sumac_agg_out_jumbo";
    /// The program that [`INGRESS_PROGRAM`] hands packets of dynamic jobs to.
    pub const DYNAMIC_PROGRAM: &str = "sumac_agg_atp";
    /// [`DYNAMIC_PROGRAM`] for frames of several buffers.
    pub const JUMBO_DYNAMIC_PROGRAM: &str = "sumac_agg_atp_jumbo";
    /// The program that plays a whole job from one frame: for measurements, never attached.
    pub const REPLAY_PROGRAM: &str = "sumac_agg_replay";
}

/// Most ports that results leave through by broadcast: one for each worker of a job.
pub const MAX_PORTS: usize = MAX_WORKERS;
/// Entries in the tables of workers.
pub const WORKER_ENTRIES: usize = MAX_JOBS * MAX_WORKERS;
/// Entries in the table of parents.
pub const PARENT_ENTRIES: usize = MAX_JOBS * MAX_HOSTS;
/// The index of the program for dynamic jobs in [`name::MODES`].
pub const DYNAMIC_ENTRY: u32 = 0;
/// Entries in the table of lanes.
pub const LANE_ENTRIES: usize = MAX_JOBS * MAX_LANES;
/// Bytes of values of one version of a slot.
pub const VALUES_LEN: usize = PAGE_ELEMENTS * size_of::<i32>();

/// A slot: lock, metadata, and the values of both versions, the whole a multiple of a cache line.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Slot {
    /// Not zero while a program has the slot for itself.
    pub lock: u32,
    /// The slot's owner and contents.
    pub meta: SlotMeta,
    /// The sums, in host order; a version's first `elements` count.
    pub values: [[u32; PAGE_ELEMENTS]; 2],
}

/// Most elements of a chunk beyond the first page.
pub const TAIL_ELEMENTS: usize = MAX_ELEMENTS - PAGE_ELEMENTS;
/// Bytes of values of one version beyond the first page.
pub const TAIL_LEN: usize = TAIL_ELEMENTS * size_of::<i32>();

/// The part of a slot beyond the first page, under the slot's lock: the values of both versions.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Tail {
    /// The sums, in host order.
    pub values: [[u32; TAIL_ELEMENTS]; 2],
}

const _: () = assert!(offset_of!(Slot, values) == 64 && size_of::<Slot>().is_multiple_of(64));

/// A slot of the pool that dynamic jobs share: lock, metadata and the values of one chunk, the whole a multiple of a
/// cache line. All zero: free.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DynamicSlot {
    /// As in [`Slot`].
    pub lock: u32,
    /// The slot's owner and chunk.
    pub meta: dynamic::SlotMeta,
    /// Zero.
    pub reserved: u32,
    /// When the chunk began, in nanoseconds of the monotonic clock; of sampled chunks only.
    pub began: u64,
    /// Zero.
    pub padding: [u32; 4],
    /// The sum and 2^31 more, in host order; the first `elements` count. So shifted, a sum that leaves 32 bits is seen by
    /// what stands above them.
    pub values: [u32; PAGE_ELEMENTS],
}

const _: () = assert!(offset_of!(DynamicSlot, values) == 64 && size_of::<DynamicSlot>().is_multiple_of(64));

/// The settings of the programs, which later loaders read too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct State {
    /// Random; another one means that the slots' contents were lost.
    pub instance: u64,
    /// Slots in the pool.
    pub slots: u32,
    /// Largest chunk that a job may ask for.
    pub elements: u16,
    /// UDP destination port of shard 0.
    pub base_port: u16,
    /// Shards.
    pub shards: u16,
    /// [`state_flag`] bits.
    pub flags: u16,
    /// The address that the programs answer ARP and ICMP for; zero: none.
    pub own_ip: u32,
    /// Slots of each shard that dynamic jobs share; zero: none.
    pub dynamic_slots: u32,
    /// Milliseconds after which a dynamic job that sends nothing loses its slots.
    pub slot_timeout: u32,
}

/// Bits of [`State::flags`].
pub mod state_flag {
    /// The programs and the pool are those for jumbo frames.
    pub const JUMBO: u16 = 1 << 0;
    /// Frames are dropped on purpose: see [`super::Drops`].
    pub const DROPS: u16 = 1 << 1;
}

/// The loss injection of a job, as parts of 2^32: the switch's drop simulator of SwitchML (section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Drops {
    /// Of those that arrive.
    pub up: u32,
    /// Of those that leave; of a result, each worker's copy for itself.
    pub down: u32,
}

/// The counters of injected drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Injected {
    /// Of those that arrived.
    pub up: u64,
    /// Of those that would have left.
    pub down: u64,
}

/// One chunk of this many is looked at for [`Times`] and [`Lateness`].
pub const SAMPLED: u32 = 16;
/// Entries of [`Times`].
pub const TIME_BUCKETS: usize = 32;

/// A histogram of chunks' times, from their first contribution to their last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Times {
    /// Chunks that took less than 2^(index + 1) nanoseconds, and not less than 2^index.
    pub buckets: [u64; TIME_BUCKETS],
}

/// The delay of one worker's contributions after their chunks' first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Lateness {
    /// Chunks that were looked at.
    pub chunks: u64,
    /// The sum of all, in nanoseconds.
    pub sum: u64,
    /// The latest, in nanoseconds.
    pub max: u64,
}

/// When the chunk that a slot's version holds began; of sampled chunks only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Began {
    /// Nanoseconds of the monotonic clock.
    pub at: u64,
    /// The chunk.
    pub seq: u32,
    /// [`SlotMeta::owner`].
    pub owner: u32,
}

/// The event of a [`Limiter`]: its index in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Event {
    /// Packets for a job that is not here.
    UnknownJob = 0,
    /// Packets with a wrong token.
    BadToken = 1,
}

/// The number of events.
pub const EVENTS: usize = 2;

/// Limits how often one CPU tells of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Limiter {
    /// When the window began, in nanoseconds of the monotonic clock.
    pub began: u64,
    /// Events in the window.
    pub events: u64,
}

/// The frames of the replay. The program writes `turn`, the loader the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Replay {
    /// Frames played; the next one is of rank `turn mod world` to chunk `turn / world`. A dynamic job has one rank more
    /// that takes its turn: the parameter host, which sends the chunk's result.
    pub turn: u32,
    /// Workers of the job.
    pub world: u32,
    /// Slots of the job, a power of two.
    pub slots: u32,
    /// Rank 0's address; rank r has the r-th after it.
    pub first_ip: u32,
    /// The aggregator's address.
    pub aggregator_ip: u32,
    /// A dynamic job's parameter host; zero: the job is static.
    pub host_ip: u32,
    /// Not zero: stop before the pipeline, to measure what the replay itself costs.
    pub dry: u32,
}
