//! Marks congestion on a port of a lab's cable, in front of the token bucket that shapes it.
//!
//! The bucket (`tbf`) queues and drops, and tells nobody how much waits. So the program keeps the same account: the time
//! at which a wire of the bucket's rate would have sent all that came so far. What that time is ahead of now, less what
//! the bucket lets pass at once, waits behind the program. A frame that finds more than the threshold waiting is marked
//! CE, when its sender said that it minds (ECT(0) or ECT(1), RFC 3168). Frames that the full queue will drop are not
//! counted.
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
/// Set by the loader: how far ahead the account is when frames are marked, in nanoseconds.
#[unsafe(no_mangle)]
static MARK_ABOVE_NS: u64 = 0;
/// Set by the loader: how far ahead it is when the queue is full, in nanoseconds.
#[unsafe(no_mangle)]
static FULL_NS: u64 = 0;

/// The account: when all frames so far would be sent, by the kernel's monotonic clock, in nanoseconds.
#[map]
static SENT_AT: Array<u64> = Array::with_max_entries(1, 0);

/// How many frames were marked.
#[map]
static MARKED: Array<u64> = Array::with_max_entries(1, 0);

/// Looks at a frame that goes to the bucket, and leaves it to whoever comes next.
#[classifier]
pub fn sumac_cable(ctx: TcContext) -> i32 {
    if is_behind_too_many(ctx.len()) == Some(true) {
        // SAFETY: the context of this call. The helper checks that it is IP and that its sender minds.
        let is_marked = unsafe { bpf_skb_ecn_set_ce(ctx.skb.skb) } == 1;
        if is_marked && let Some(marked) = MARKED.get_ptr_mut(0) {
            // SAFETY: a live entry of an array, in reach of all CPUs.
            unsafe { atomic_xadd::<u64, u64, { SeqCst }>(marked, 1) };
        }
    }
    TC_ACT_UNSPEC
}

/// Puts a frame of `len` bytes on the account, and says whether more than the threshold was waiting before it.
#[inline(always)]
fn is_behind_too_many(len: u32) -> Option<bool> {
    let sent_at = SENT_AT.get_ptr_mut(0)?;
    // SAFETY: statics that the loader wrote before the program ran; nothing writes them now.
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
    // SAFETY: a live entry of an array. Other CPUs may write it meanwhile, by the two accesses here alone: an idle wire
    // starts now, whichever CPU says so.
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

/// Licence of the program, as the kernel wants it for its helpers: Apache-2.0 is offered as well.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing here panics; the verifier would refuse the endless loop that a panic compiles to.
    loop {}
}
