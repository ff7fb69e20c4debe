//! Bounded loss: the terms of operations, and the completion of a slot with the contributions that it has, as
//! far as the budget of the lane allows.

use sumac_wire::{
    MAX_WORKERS,
    tables::{lane_index, worker_index},
};

use crate::{
    lock,
    maps::{BUDGETS, WORKERS},
    plan,
    work::{Work, stage_ends},
};

/// Takes in the terms that a contribution states, if it was taken into its slot. The slot's lock is held.
#[inline(always)]
pub fn agree(work: &Work) {
    if work.plan & plan::TAKEN == 0 {
        return;
    }
    let lane = lane_index(work.job as u16, work.contribution.lane);
    let Some(lane) = BUDGETS.get_ptr_mut(lane) else { return };
    // SAFETY: the pointer is to a value of the map, from a lookup in this run.
    let word = unsafe { &raw mut (*lane).lock };
    // It is waited for, since the contribution does not come again. Whoever holds it waits for no slot. If it
    // is held for too long, no flush of the operation is granted.
    // SAFETY: as above.
    if !unsafe { lock::take_short(word) } {
        return;
    }
    // SAFETY: as above, and the lock is held.
    unsafe { (*lane).budget.agree(work.contribution.terms(), work.contribution.worker) };
    // SAFETY: as above.
    unsafe { lock::give(word) };
}

/// Completes the version that a flush was taken into, or is held by. The slot's lock is held.
#[inline(always)]
pub fn complete(work: &mut Work) {
    if work.plan & plan::ANSWER != 0 || work.plan & (plan::KEEP | plan::HELD) == 0 {
        return;
    }
    if work.contribution.child {
        // A worker's contribution leaves out nobody itself: the field is free.
        work.contribution.left_out = ranks_of(work, work.contribution.all & !work.version.seen);
        stage_ends();
    }
    let lane = lane_index(work.job as u16, work.contribution.lane);
    let Some(lane) = BUDGETS.get_ptr_mut(lane) else { return };
    // SAFETY: the pointer is to a value of the map, from a lookup in this run.
    let word = unsafe { &raw mut (*lane).lock };
    // Another slot of the lane is being completed on another CPU: this flush does nothing, and its worker
    // sends another.
    // SAFETY: as above.
    if !unsafe { lock::take_free(word) } {
        return;
    }
    // SAFETY: as above, and the lock is held.
    let is_complete =
        unsafe { work.version.flush(&work.contribution, work.contribution.left_out, &mut (*lane).budget) };
    // SAFETY: as above.
    unsafe { lock::give(word) };
    if is_complete {
        work.plan |= if work.contribution.child { plan::COMPLETED_PART } else { plan::COMPLETED };
    }
}

/// The job's ranks of the workers with these bits, by the table of workers.
#[inline(always)]
fn ranks_of(work: &Work, workers: u32) -> u32 {
    let mut ranks = 0;
    for rank in 0..MAX_WORKERS as u16 {
        let Some(worker) = WORKERS.get(worker_index(work.job as u16, rank)) else { return 0 };
        // Without branches: eBPF's verifier follows every combination of them.
        ranks |= worker.ranks & (workers >> rank & 1).wrapping_neg();
    }
    ranks
}
