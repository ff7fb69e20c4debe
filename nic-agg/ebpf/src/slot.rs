//! What a contribution does to its slot: the shared decision, and the passes over the payload that
//! it asks for, all under the slot's lock.
//!
//! Two CPUs may hold packets for one slot at once. The lock covers decision and passes, so that
//! metadata and values never disagree; no helper may be called inside it.

use core::hint::black_box;

use aya_ebpf::helpers::generated::{bpf_spin_lock, bpf_spin_unlock};
use sumac_agg_layout::VALUES_LEN;
use sumac_wire::{
    Reason, checksum,
    header::flag,
    slot::{Action, Contribution, decide},
};

use crate::{maps::Slot, payload::Payload};

/// What became of a contribution.
#[derive(Clone, Copy)]
pub enum Effect {
    /// It is in the slot, which waits for more.
    Added,
    /// It was the slot's last: the payload holds the sum now.
    Completed(Sum),
    /// It was in the slot, which is complete: the payload holds the sum now.
    Replied(Sum),
}

/// A result's payload, as it was written into the frame.
#[derive(Clone, Copy)]
pub struct Sum {
    /// Flags that the slot gives to the result.
    pub flags: u16,
    /// The checksum's sum over the payload, in memory order.
    pub checksum: u64,
}

/// Applies `contribution` to `slot`.
///
/// `headers` is the checksum's sum over everything in front of the payload when the checksum is to
/// be verified. A payload that fails it leaves the slot's metadata and sums as they were.
#[inline(always)]
pub fn apply(
    slot: *mut Slot,
    contribution: &Contribution,
    payload: Payload,
    headers: Option<u64>,
) -> Result<Effect, Reason> {
    // SAFETY: `slot` is a value of the map whose BTF names the lock, from a lookup in this run.
    let lock = unsafe { &raw mut (*slot).lock };
    // SAFETY: as above; the lock is released on the one path out of `locked`.
    unsafe { bpf_spin_lock(lock) };
    let effect = locked(slot, contribution, payload, headers);
    // SAFETY: the lock is held.
    unsafe { bpf_spin_unlock(lock) };
    effect
}

#[inline(always)]
fn locked(
    slot: *mut Slot,
    contribution: &Contribution,
    payload: Payload,
    headers: Option<u64>,
) -> Result<Effect, Reason> {
    // SAFETY: the lock is held, so this CPU alone reads and writes the value.
    let slot = unsafe { &mut *slot };
    let (after, action) = decide(&slot.meta, contribution);
    let version = usize::from(contribution.version & 1);
    let offset = black_box(version * VALUES_LEN);
    if offset > VALUES_LEN {
        // Cannot be, but 5.15's verifier does not see through what LLVM makes of the multiplication.
        return Err(Reason::Internal);
    }
    let values = (&raw mut slot.values).cast::<u32>().wrapping_byte_add(offset);
    match action {
        Action::Ignore(reason) => return Err(reason),
        // These overwrite values or frame: what cannot be taken back is verified before.
        Action::Store { .. } | Action::Reply => {
            if let Some(headers) = headers
                && !checksum::is_intact(headers + payload.sum())
            {
                return Err(Reason::BadChecksum);
            }
            if let Action::Store { .. } = action {
                payload.store(values);
            }
        }
        Action::Add { .. } => {
            let sum = payload.add(values);
            if let Some(headers) = headers
                && !checksum::is_intact(headers + sum)
            {
                payload.subtract(values);
                return Err(Reason::BadChecksum);
            }
        }
    }
    slot.meta = after;
    if let Action::Store { complete: false } | Action::Add { complete: false } = action {
        return Ok(Effect::Added);
    }
    let flags =
        if version == 0 { after.versions[0].flags } else { after.versions[1].flags | flag::POOL_VERSION };
    let sum = Sum { flags, checksum: payload.write(values) };
    Ok(if let Action::Reply = action { Effect::Replied(sum) } else { Effect::Completed(sum) })
}
