//! Bounded loss: the terms of operations, and the completion of a slot with the contributions that it has, as
//! far as the budget of the lane allows.

use sumac_wire::tables::lane_index;

use crate::{lock, maps::BUDGETS, plan, work::Work};

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
    let is_complete = unsafe { work.version.flush(&work.contribution, &mut (*lane).budget) };
    // SAFETY: as above.
    unsafe { lock::give(word) };
    if is_complete {
        work.plan |= plan::COMPLETED;
    }
}
