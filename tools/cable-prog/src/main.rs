//! Marks congestion on a port of a lab's cable, in front of the token bucket that shapes it.
//!
//! The bucket (`tbf`) queues and drops, and does not report its backlog. So the program computes it: the time
//! at which a link of the bucket's rate would have sent all frames so far. The backlog is the distance of
//! that time from now, less the bucket's burst. An ECN-capable frame (ECT(0) or ECT(1), RFC 3168) that finds
//! more than the threshold is marked CE. Frames that the full queue will drop are not counted.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(internal_features, reason = "the target has no atomics in core::sync, only as intrinsics")]

use core::intrinsics::{AtomicOrdering::SeqCst, atomic_xadd};

use aya_ebpf::{
    bindings::TC_ACT_UNSPEC,
    helpers::{bpf_ktime_get_ns, bpf_skb_ecn_set_ce},
    macros::{classifier, map},
    maps::Array,
    programs::TcContext,
};

/// Set by the loader: the bucket's rate.
#[unsafe(no_mangle)]
static BYTES_PER_SECOND: u64 = 0;
/// Set by the loader: the backlog, in nanoseconds, above which frames are marked.
#[unsafe(no_mangle)]
static MARK_ABOVE_NS: u64 = 0;
/// Set by the loader: the backlog, in nanoseconds, of a full queue.
#[unsafe(no_mangle)]
static FULL_NS: u64 = 0;

/// The time at which all frames so far would be sent, by the kernel's monotonic clock, in nanoseconds.
#[map]
static SENT_AT: Array<u64> = Array::with_max_entries(1, 0);

/// The number of marked frames.
#[map]
static MARKED: Array<u64> = Array::with_max_entries(1, 0);

/// Marks a frame if necessary, and leaves the decision about it to the next filter.
#[classifier]
pub fn sumac_cable(ctx: TcContext) -> i32 {
    if exceeds_threshold(ctx.len()) == Some(true) {
        // SAFETY: the context of this call. The helper checks that the packet is IP and ECN-capable.
        let is_marked = unsafe { bpf_skb_ecn_set_ce(ctx.skb.skb) } == 1;
        if is_marked && let Some(marked) = MARKED.get_ptr_mut(0) {
            // SAFETY: a live entry of an array, shared by all CPUs.
            unsafe { atomic_xadd::<u64, u64, { SeqCst }>(marked, 1) };
        }
    }
    TC_ACT_UNSPEC
}

/// Adds a frame of `len` bytes to the backlog, and returns whether the backlog before it was above the
/// threshold.
#[inline(always)]
fn exceeds_threshold(len: u32) -> Option<bool> {
    let sent_at = SENT_AT.get_ptr_mut(0)?;
    // SAFETY: statics that the loader wrote before the program ran, and constant since.
    let (rate, threshold, full) = unsafe {
        (
            (&raw const BYTES_PER_SECOND).read_volatile(),
            (&raw const MARK_ABOVE_NS).read_volatile(),
            (&raw const FULL_NS).read_volatile(),
        )
    };
    if rate == 0 {
        return None;
    }
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: a live entry of an array. Other CPUs may write it meanwhile, by the two accesses here: an idle
    // link starts now, on whichever CPU.
    let before = unsafe {
        let before = sent_at.read_volatile();
        if before < now {
            sent_at.write_volatile(now);
        }
        before
    };
    let waiting = before.saturating_sub(now);
    if waiting < full {
        // SAFETY: as above.
        unsafe { atomic_xadd::<u64, u64, { SeqCst }>(sent_at, u64::from(len) * 1_000_000_000 / rate) };
    }
    Some(waiting > threshold)
}

/// The licence, which the kernel's helpers require; Apache-2.0 is offered as well.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: the verifier would refuse the endless loop.
    loop {}
}
