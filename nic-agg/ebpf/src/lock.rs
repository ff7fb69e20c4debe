//! The lock of a slot: one atomic word, taken by comparing and exchanging.
//!
//! Not `bpf_spin_lock`, which costs 40 ns a frame for its two calls with interrupts off, and inside of which
//! no helper may be called. A program must end, so this lock is given up after [`LOOKS`]: the frame is
//! dropped and counted, as if the network had lost it. Only the passes over one payload run with the lock
//! held, some hundred nanoseconds; whoever holds it for longer was taken off its CPU.

use core::intrinsics::{AtomicOrdering::SeqCst, atomic_cxchg, atomic_xchg};

use aya_ebpf::helpers::bpf_ktime_get_ns;

/// The maximum of attempts to take a lock, with a reading of the clock between, which takes 20 ns and more.
const LOOKS: u32 = 2000;

/// The same of a lock that is held for the passes over a budget alone: the verifier allows few more in one
/// program.
const SHORT_LOOKS: u32 = 200;

/// Takes the lock at `word`. `false`: somebody held it for too long.
///
/// # Safety
/// `word` points to the lock of a slot that was looked up in this run.
#[inline(always)]
pub unsafe fn take(word: *mut u32) -> bool {
    // SAFETY: by the caller's promise.
    unsafe { take_within(word, LOOKS) }
}

/// Takes the lock of a budget at `word`, as [`take`].
///
/// # Safety
/// `word` points to the lock of a budget that was looked up in this run.
#[inline(always)]
pub unsafe fn take_short(word: *mut u32) -> bool {
    // SAFETY: by the caller's promise.
    unsafe { take_within(word, SHORT_LOOKS) }
}

/// Takes the lock at `word` by so many attempts.
///
/// # Safety
/// As [`take`] or [`take_short`].
#[inline(always)]
unsafe fn take_within(word: *mut u32, mut looks: u32) -> bool {
    // SAFETY: by the callers' promise.
    let exchanged = || unsafe { take_free(word) };
    if exchanged() {
        return true;
    }
    while looks > 0 {
        looks -= 1;
        // SAFETY: the helper takes nothing and reads the clock; the time passes, that is what it is for.
        unsafe { bpf_ktime_get_ns() };
        // Looking leaves the cache line to who holds the lock, exchanging would take it away.
        // SAFETY: as above.
        if unsafe { word.read_volatile() } == 0 && exchanged() {
            return true;
        }
    }
    false
}

/// Takes the lock at `word` if nobody has it.
///
/// # Safety
/// `word` points to a lock in a value that was looked up in this run.
#[inline(always)]
pub unsafe fn take_free(word: *mut u32) -> bool {
    // SAFETY: by the caller's promise.
    let (found, _) = unsafe { atomic_cxchg::<u32, { SeqCst }, { SeqCst }>(word, 0, 1) };
    found == 0
}

/// Gives the lock back.
///
/// # Safety
/// As [`take`] or [`take_free`], which gave `true`.
#[inline(always)]
pub unsafe fn give(word: *mut u32) {
    // An exchange and no store: it comes after all that was written under the lock, on every machine.
    // SAFETY: by the caller's promise.
    unsafe { atomic_xchg::<u32, { SeqCst }>(word, 0) };
}
