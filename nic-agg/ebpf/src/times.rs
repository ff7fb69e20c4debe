//! The time of chunks, and their last workers: of one chunk in [`SAMPLED`], since the clock costs 20 ns.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use sumac_agg_layout::{Began, SAMPLED};

use crate::{
    maps::{BEGAN, LATENESS, TIMES},
    plan,
    work::Work,
};

/// Looks at a contribution that was taken into its slot.
#[inline(always)]
pub fn look(work: &Work, job: u16) {
    let contribution = &work.contribution;
    if contribution.seq % SAMPLED != 0 || work.plan & plan::TAKEN == 0 {
        return;
    }
    let Some(began) = BEGAN.get_ptr_mut(work.slot) else { return };
    let began = began.cast::<Began>().wrapping_byte_add(version(work) * size_of::<Began>());
    // SAFETY: the helper takes nothing and reads the clock.
    let now = unsafe { bpf_ktime_get_ns() };
    let mut waited = 0;
    // SAFETY: the pointer is into a value of the map. Another CPU may read half of it, and then finds another
    // chunk, or a time of which the worst is one wrong sample.
    let known = unsafe { *began };
    if known.seq == contribution.seq && known.owner == contribution.owner {
        // Values that come after contributions without are stored too.
        waited = now.saturating_sub(known.at);
    } else if work.plan & plan::STORE != 0 {
        // SAFETY: as above.
        unsafe { *began = Began { at: now, seq: contribution.seq, owner: contribution.owner } };
    } else {
        return;
    }
    note(work, job, waited, work.plan & plan::ANSWER != 0);
}

/// Looks at a contribution that was taken into a dynamic job's slot, which holds when the chunk `began`.
#[inline(always)]
pub fn look_dynamic(work: &Work, began: *mut u64) {
    let is_taken = work.plan & plan::TAKEN != 0 && work.plan & plan::FLUSHED == 0;
    if work.chunk.contribution.seq % SAMPLED != 0 || !is_taken {
        return;
    }
    // SAFETY: the helper takes nothing and reads the clock.
    let now = unsafe { bpf_ktime_get_ns() };
    if work.plan & plan::STORE != 0 {
        // SAFETY: the pointer is into a slot that was looked up in this run, and whose lock is held.
        unsafe { *began = now };
    }
    // SAFETY: as above.
    let waited = now.saturating_sub(unsafe { *began });
    note(work, work.job as u16, waited, work.plan & plan::SUM != 0);
}

#[inline(always)]
fn note(work: &Work, job: u16, waited: u64, is_complete: bool) {
    if let Some(late) = LATENESS.get_ptr_mut(work.worker_index) {
        // SAFETY: the pointer is to this CPU's value, and nothing else runs on it meanwhile.
        let late = unsafe { &mut *late };
        late.chunks += 1;
        late.sum += waited;
        if waited > late.max {
            late.max = waited;
        }
    }
    if !is_complete {
        return;
    }
    if let Some(times) = TIMES.get_ptr_mut(u32::from(job)) {
        let bucket = log2(waited) & 31;
        // SAFETY: as above, and there are 32 buckets in front of the sum.
        unsafe {
            *times.cast::<u64>().add(bucket as usize) += 1;
            (*times).sum += waited;
        }
    }
}

/// The version that the contribution names, as a number that the verifier knows to be 0 or 1.
#[inline(always)]
fn version(work: &Work) -> usize {
    core::hint::black_box(usize::from(work.contribution.version)) & 1
}

/// The logarithm to base 2, rounded down, of numbers below 2^32; 31 of larger ones.
#[inline(always)]
fn log2(number: u64) -> u32 {
    if number >> 32 != 0 {
        return 31;
    }
    let (mut rest, mut log) = (number, 0);
    // Written out: the target has no instruction for it.
    if rest >> 16 != 0 {
        (rest, log) = (rest >> 16, log + 16);
    }
    if rest >> 8 != 0 {
        (rest, log) = (rest >> 8, log + 8);
    }
    if rest >> 4 != 0 {
        (rest, log) = (rest >> 4, log + 4);
    }
    if rest >> 2 != 0 {
        (rest, log) = (rest >> 2, log + 2);
    }
    if rest >> 1 != 0 {
        log += 1;
    }
    log
}
