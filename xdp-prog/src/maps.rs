//! What user space tells the program, and what the program tells back.

use aya_ebpf::{
    btf_maps::{Array, PerCpuArray, XskMap},
    macros::btf_map,
};
use sumac_wire::{
    MAX_ELEMENTS, MAX_JOBS, PAGE_ELEMENTS,
    reason::COUNTERS as REASONS,
    tables::{HostConfig, HostJobEntry, MAX_QUEUES, QueueCounters},
};

/// The attachment's settings, its only entry.
#[btf_map]
pub static CONFIG: Array<HostConfig, 1> = Array::new();

/// The host's jobs, by number.
#[btf_map]
pub static JOBS: Array<HostJobEntry, MAX_JOBS> = Array::new();

/// The AF_XDP sockets, by receive queue.
#[btf_map]
pub static SOCKETS: XskMap<MAX_QUEUES> = XskMap::new();

/// Frames by what became of them, by `Reason`.
#[btf_map]
pub static COUNTERS: PerCpuArray<u64, REASONS> = PerCpuArray::new();

/// Frames by receive queue.
#[btf_map]
pub static QUEUES: PerCpuArray<QueueCounters, MAX_QUEUES> = PerCpuArray::new();

/// When each kind of message was last written, and how many frames have had none since.
#[btf_map]
pub static QUIET: PerCpuArray<Quiet, 3> = PerCpuArray::new();

/// Where the elements of a frame beyond its first page are copied to be summed: programs read only a first buffer.
#[btf_map]
pub static TAIL: PerCpuArray<[u32; TAIL_ELEMENTS], 1> = PerCpuArray::new();

/// Elements of a packet beyond those of the first page.
pub const TAIL_ELEMENTS: usize = MAX_ELEMENTS - PAGE_ELEMENTS;

/// The rate limit of one kind of message on one CPU.
#[repr(C)]
pub struct Quiet {
    /// Nanoseconds of the monotonic clock; no message before.
    pub until: u64,
    /// Frames since the last message that would have been worth one.
    pub silent: u64,
}
