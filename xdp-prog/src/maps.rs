//! The program's maps.

use aya_ebpf::{
    btf_maps::{Array, PerCpuArray, XskMap},
    macros::btf_map,
};
use sumac_wire::{
    MAX_ELEMENTS, MAX_JOBS, PAGE_ELEMENTS,
    reason::COUNTERS as REASONS,
    tables::{HOST_JOB_WAYS, HostConfig, HostJobEntry, MAX_QUEUES, QueueCounters},
};

/// The attachment's settings, at index 0.
#[btf_map]
pub static CONFIG: Array<HostConfig, 1> = Array::new();

/// The host's jobs, by number and way ([`sumac_wire::tables::host_job_index`]).
#[btf_map]
pub static JOBS: Array<HostJobEntry, { MAX_JOBS * HOST_JOB_WAYS }> = Array::new();

/// The AF_XDP sockets, by receive queue.
#[btf_map]
pub static SOCKETS: XskMap<MAX_QUEUES> = XskMap::new();

/// Frames by `Reason`.
#[btf_map]
pub static COUNTERS: PerCpuArray<u64, REASONS> = PerCpuArray::new();

/// Frames by receive queue.
#[btf_map]
pub static QUEUES: PerCpuArray<QueueCounters, MAX_QUEUES> = PerCpuArray::new();

/// The rate limiter of each kind of message.
#[btf_map]
pub static LIMITERS: PerCpuArray<RateLimiter, 3> = PerCpuArray::new();

/// A buffer for the elements beyond a frame's first buffer, which are copied to be summed: programs access
/// that one only. It holds a page of them, too.
#[btf_map]
pub static TAIL: PerCpuArray<[u32; TAIL_LEN], 1> = PerCpuArray::new();

/// Elements of a packet beyond those of the first page.
pub const TAIL_ELEMENTS: usize = MAX_ELEMENTS - PAGE_ELEMENTS;
/// Elements that the buffer has room for: a power of two.
pub const TAIL_LEN: usize = 2048;
const _: () = assert!(TAIL_LEN.is_power_of_two() && TAIL_LEN >= TAIL_ELEMENTS);
const _: () = assert!(TAIL_ELEMENTS >= PAGE_ELEMENTS);

/// The rate limiter of one kind of message on one CPU.
#[repr(C)]
pub struct RateLimiter {
    /// The earliest time of the next message, in nanoseconds of the monotonic clock.
    pub next: u64,
    /// Frames since the last message that were worth one.
    pub suppressed: u64,
}
