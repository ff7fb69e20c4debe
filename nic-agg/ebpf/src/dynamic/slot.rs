//! The effect of a packet on a slot of the shared pool: the shared decision, and the passes over the payload
//! that it asks for, all under the slot's lock, as [`crate::slot`] does it for static jobs.

use aya_ebpf::helpers::bpf_ktime_get_coarse_ns;
use sumac_agg_layout::DynamicSlot;
use sumac_wire::{
    Reason,
    dynamic::{Action, SlotMeta, decide, release},
    header::flag,
};

use crate::{
    elements::Elements,
    lock, plan,
    slot::{copy, is_intact, sum},
    times,
    work::{Work, stage_ends},
};

/// Nanoseconds of one tick of the slots' clock, as a power of two: about a millisecond. A division costs more
/// than the whole reading of the clock, which is that of the kernel's own last tick.
const TICK: u32 = 20;

/// Notes the time, with the slot's lock held: a time that another CPU has written into the slot meanwhile
/// would be later, and the slot's age beyond all timeout.
#[inline(always)]
fn read_clock(work: &mut Work, timeout: u32) {
    // SAFETY: the helper takes nothing and reads the clock.
    work.chunk.now = (unsafe { bpf_ktime_get_coarse_ns() } >> TICK) as u32;
    work.chunk.timeout = ((u64::from(timeout) * 1_000_000) >> TICK) as u32;
}

/// Does to `slot` what the work wants, and notes in it what follows. `timeout`: the milliseconds of silence
/// that free it.
///
/// A payload that fails its checksum leaves the slot's metadata and sums as they were.
#[inline(always)]
pub fn apply(
    slot: *mut DynamicSlot,
    work: &mut Work,
    payload: impl Elements,
    timeout: u32,
) -> Result<(), Reason> {
    // SAFETY: `slot` is a value of the map, from a lookup in this run.
    let word = unsafe { &raw mut (*slot).lock };
    // SAFETY: as above.
    if !unsafe { lock::take(word) } {
        return Err(Reason::Busy);
    }
    read_clock(work, timeout);
    stage_ends();
    let done = locked(slot, work, payload);
    // SAFETY: as above, and the lock is held.
    unsafe { lock::give(word) };
    done
}

#[inline(always)]
fn locked(slot: *mut DynamicSlot, work: &mut Work, payload: impl Elements) -> Result<(), Reason> {
    // SAFETY: `slot` is a value of the map, from a lookup in this run, and so are its parts.
    let (meta, values) = unsafe { (&raw mut (*slot).meta, (&raw mut (*slot).values).cast::<u32>()) };
    look(meta, work);
    stage_ends();
    take_in(values, work, payload)?;
    stage_ends();
    // SAFETY: as above; the lock is held.
    unsafe { copy(&work.chunk.after, meta) };
    if work.plan & plan::WRITE != 0 {
        work.payload_sum = payload.write_shifted(values)?;
        stage_ends();
    }
    // SAFETY: as above.
    times::look_dynamic(work, unsafe { &raw mut (*slot).began });
    Ok(())
}

/// The shared decision: notes the slot as it will be, and what to do.
#[inline(always)]
fn look(meta: *const SlotMeta, work: &mut Work) {
    // SAFETY: a value of the map; the lock is held, so this CPU alone reads and writes it.
    let before = unsafe { *meta };
    let chunk = &mut work.chunk;
    if work.is_parents != 0 {
        let of = &chunk.contribution;
        chunk.after = release(&before, of.owner, of.seq, chunk.now, chunk.timeout);
        return;
    }
    let (after, action) = decide(&before, &chunk.contribution, chunk.now, chunk.timeout);
    chunk.sum = if matches!(action, Action::Flush { .. }) { before } else { after };
    chunk.after = after;
    work.plan = plan::of_dynamic(action, chunk.contribution.flags, &before);
}

#[inline(always)]
fn take_in(values: *mut u32, work: &mut Work, payload: impl Elements) -> Result<(), Reason> {
    if work.plan & plan::ADD != 0 {
        let (sum, has_left) = payload.add_shifted(values)?;
        work.payload_sum = sum;
        stage_ends();
        if !is_intact(work) {
            payload.subtract(values)?;
            return Err(Reason::BadChecksum);
        }
        if has_left {
            payload.clamp_shifted(values)?;
            stage_ends();
            note_overflow(work);
        }
        return Ok(());
    }
    // What follows overwrites values or frame and cannot be taken back: it is verified before.
    if work.is_checked != 0 {
        sum::<false>(work, payload)?;
        if !is_intact(work) {
            return Err(Reason::BadChecksum);
        }
    }
    if work.plan & plan::STORE != 0 {
        payload.store_shifted(values)?;
    } else if work.plan & plan::MAXIMUM != 0 {
        payload.maximum_shifted(values)?;
    }
    Ok(())
}

/// A sum did not fit (ATP section 3.8).
#[inline(always)]
fn note_overflow(work: &mut Work) {
    work.chunk.sum.flags |= flag::OVERFLOW;
    // A slot that is flushed is free.
    if work.plan & plan::FLUSHED == 0 {
        work.chunk.after.flags |= flag::OVERFLOW;
    }
}
