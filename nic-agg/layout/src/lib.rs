//! The layout of the eBPF aggregator's maps, shared by its programs and their loader.
//! Host order everywhere.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "replay")]
pub mod replay;

use core::mem::{offset_of, size_of};

use sumac_wire::{
    MAX_ELEMENTS, MAX_HOSTS, MAX_JOBS, MAX_LANES, MAX_WORKERS, PAGE_ELEMENTS, budget::Budget, dynamic,
    slot::SlotMeta,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version of the maps' layout and meaning, and of what programs and loaders do with them. It is
/// incremented with every change after which an older build must not write them, or its programs not run over
/// them.
pub const ABI: u32 = 11;

/// Names of maps and programs, as they stand in the object and below the pin directory.
pub mod name {
    /// Defines the names of maps that are kept across attachments.
    macro_rules! kept {
        ($($(#[$doc:meta])* $name:ident,)*) => {
            $($(#[$doc])* pub const $name: &str = stringify!($name);)*
            pub const KEPT: &[&str] = &[$($name,)* LOGS];
        };
    }

    kept! {
        STATE,
        JOBS,
        /// By `worker_index`, as all tables of workers.
        WORKERS,
        PARENTS,
        /// The chunk that is drawn next, by `lane_index`.
        LANES,
        /// [`super::LaneBudget`], by `lane_index`.
        BUDGETS,
        EGRESS,
        /// The ports that results leave through, with the egress program of each.
        PORTS,
        SLOTS,
        /// As many as slots in a pool for jumbo frames; else one.
        TAILS,
        /// [`super::State::dynamic_slots`] for each shard after the other.
        DYNAMIC_SLOTS,
        /// The programs of tail calls, at [`super::DYNAMIC_ENTRY`] and [`super::INGRESS_ENTRY`].
        MODES,
        COUNTERS,
        JOB_COUNTERS,
        WORKER_COUNTERS,
        /// The records of surveys ([`sumac_wire::result_paths::recorded`]) by worker and lane.
        SURVEYS,
        DROPS,
        INJECTED,
        /// [`super::Began`] of both versions of each slot.
        BEGAN,
        TIMES,
        LATENESS,
        /// The MAC address of each port, in the low 48 bits as they lie in memory, by its interface's index.
        OWN,
        /// The aggregator's addresses that workers and parents of any job ever received.
        ADDRESSES,
    }

    /// aya-log's ring.
    pub const LOGS: &str = "AYA_LOGS";
    pub const INGRESS_PROGRAM: &str = "sumac_agg";
    /// The program that addresses each copy of a result, on the port map's egress.
    pub const EGRESS_PROGRAM: &str = "sumac_agg_out";
    pub const JUMBO_INGRESS_PROGRAM: &str = "sumac_agg_jumbo";
    pub const JUMBO_EGRESS_PROGRAM: &str = "sumac_agg_out_jumbo";
    /// The program that receives the packets of dynamic jobs from [`INGRESS_PROGRAM`] by a tail call.
    pub const DYNAMIC_PROGRAM: &str = "sumac_agg_atp";
    pub const JUMBO_DYNAMIC_PROGRAM: &str = "sumac_agg_atp_jumbo";
}

/// Most ports that results leave through by broadcast: one for each worker of a job.
pub const MAX_PORTS: usize = MAX_WORKERS;
/// Entries of the tables that have some for each job, in the largest aggregator. The loader makes them for
/// [`State::jobs`].
pub const WORKER_ENTRIES: usize = MAX_JOBS * MAX_WORKERS;
pub const PARENT_ENTRIES: usize = MAX_JOBS * MAX_HOSTS;
/// The index of the program for dynamic jobs in [`name::MODES`].
pub const DYNAMIC_ENTRY: u32 = 0;
/// The index there of the first program, for a frame that it has made longer.
pub const INGRESS_ENTRY: u32 = 1;
pub const LANE_ENTRIES: usize = MAX_JOBS * MAX_LANES;
/// Bytes of values of one version of a slot.
pub const VALUES_LEN: usize = PAGE_ELEMENTS * size_of::<i32>();

/// A slot: lock, metadata, and the values of both versions, the whole a multiple of a cache line.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Slot {
    /// Not zero while a program has the slot for itself.
    pub lock: u32,
    pub meta: SlotMeta,
    /// The sums, in host order; a version's first `elements` count.
    pub values: [[u32; PAGE_ELEMENTS]; 2],
}

/// The operations of a lane with a loss bound, and the use that flushes have made of their budget.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LaneBudget {
    /// Not zero while a program has the budget for itself.
    pub lock: u32,
    pub budget: Budget,
}

/// Most elements of a chunk beyond the first page.
pub const TAIL_ELEMENTS: usize = MAX_ELEMENTS - PAGE_ELEMENTS;
/// Bytes of values of one version beyond the first page.
pub const TAIL_LEN: usize = TAIL_ELEMENTS * size_of::<i32>();

/// The part of a slot beyond the first page, under the slot's lock: the values of both versions.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Tail {
    pub values: [[u32; TAIL_ELEMENTS]; 2],
}

const _: () = assert!(offset_of!(Slot, values) == 64 && size_of::<Slot>().is_multiple_of(64));

/// A slot of the pool that dynamic jobs share: lock, metadata and the values of one chunk, the whole a
/// multiple of a cache line. All zero: free.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DynamicSlot {
    pub lock: u32,
    pub meta: dynamic::SlotMeta,
    pub reserved: u32,
    /// When the chunk began, in nanoseconds of the monotonic clock; of sampled chunks only.
    pub began: u64,
    pub padding: [u32; 2],
    /// The sum and 2^31 more, in host order; the first `elements` count. So shifted, a sum that leaves 32
    /// bits is seen by what stands above them.
    pub values: [u32; PAGE_ELEMENTS],
}

const _: () = assert!(offset_of!(DynamicSlot, values) == 64 && size_of::<DynamicSlot>().is_multiple_of(64));

/// The settings of the programs, which later loaders read too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct State {
    /// Random; another one means that the slots' contents were lost.
    pub instance: u64,
    pub slots: u32,
    /// Largest chunk that a job may ask for.
    pub elements: u16,
    pub base_port: u16,
    pub shards: u16,
    pub flags: u16,
    /// The address that the programs answer ARP and ICMP for; zero: none.
    pub own_ip: u32,
    /// Slots of each shard that dynamic jobs share; zero: none.
    pub dynamic_slots: u32,
    /// Milliseconds after which a dynamic job that sends nothing loses its slots.
    pub slot_timeout: u32,
    /// Numbers that the tables of jobs have room for, 0 among them, which no job has.
    pub jobs: u32,
    pub reserved: u32,
}

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

/// The frames dropped intentionally, that arrived (`up`) or would have left (`down`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Injected {
    pub up: u64,
    pub down: u64,
}

/// One chunk of this many is looked at for [`Times`] and [`Lateness`].
pub const SAMPLED: u32 = 16;
pub const TIME_BUCKETS: usize = 32;

/// A histogram of chunks' times, from their first contribution to their last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Times {
    /// Chunks that took less than 2^(index + 1) nanoseconds, and not less than 2^index.
    pub buckets: [u64; TIME_BUCKETS],
    /// Of all of them, in nanoseconds.
    pub sum: u64,
}

/// The delay of one worker's contributions after their chunks' first, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Lateness {
    pub chunks: u64,
    pub sum: u64,
    pub max: u64,
}

/// When the chunk that a slot's version holds began; of sampled chunks only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Began {
    /// Nanoseconds of the monotonic clock.
    pub at: u64,
    pub seq: u32,
    pub owner: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Event {
    UnknownJob = 0,
    BadToken = 1,
    /// A worker of a removed job was answered.
    FormerMember = 2,
}

pub const EVENTS: usize = 3;

/// Limits how often one CPU reports one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Limiter {
    /// When the window began, in nanoseconds of the monotonic clock.
    pub began: u64,
    pub events: u64,
}
