//! The effect of a packet on its slot: the shared decision, and the passes over the payload that it requires,
//! all under the slot's lock.
//!
//! Two CPUs may hold packets for one slot at once. The lock covers decision and passes, so that
//! metadata and values never disagree.

use core::{
    hint::black_box,
    intrinsics::{AtomicOrdering::SeqCst, atomic_xadd},
};

use sumac_agg_layout::{Slot, VALUES_LEN};
use sumac_wire::{
    Reason, checksum,
    slot::{Action, Version, conclude_version, decide_version},
};

use crate::{
    copied::{Tail, tail_values},
    elements::Elements,
    flush, lock,
    payload::Payload,
    plan,
    work::{Work, stage_ends},
};

/// The source of the number of a version's next chunk.
#[derive(Clone, Copy)]
pub struct Draw {
    /// The lane's counter, of a job that steals work.
    pub counter: *mut u32,
    /// Slots of the lane, for a job that does not.
    pub slots: u32,
    /// Whether the job does.
    pub steal: bool,
}

/// Does to `slot` what the work wants, and notes in it what follows: plan, version, and sum of the payload.
///
/// A payload that fails its checksum leaves the slot's metadata and sums as they were.
#[inline(always)]
pub fn apply<const JUMBO: bool>(
    slot: *mut Slot,
    draw: Draw,
    work: &mut Work,
    payload: Payload<JUMBO>,
) -> Result<(), Reason> {
    // SAFETY: `slot` is a value of the map, from a lookup in this run.
    let word = unsafe { &raw mut (*slot).lock };
    // SAFETY: as above.
    if !unsafe { lock::take(word) } {
        return Err(Reason::Busy);
    }
    let done = locked::<JUMBO>(slot, draw, work, payload);
    // SAFETY: as above, and the lock is held.
    unsafe { lock::give(word) };
    done
}

#[inline(always)]
fn locked<const JUMBO: bool>(
    slot: *mut Slot,
    draw: Draw,
    work: &mut Work,
    payload: Payload<JUMBO>,
) -> Result<(), Reason> {
    let versions = Versions::of(slot, work)?;
    versions.decide(work)?;
    stage_ends();
    take_in::<JUMBO>(slot, work, payload)?;
    stage_ends();
    if work.is_parents == 0 && work.contribution.limit != 0 {
        if work.contribution.is_flush() {
            flush::complete(work);
        } else {
            flush::agree(work);
        }
        stage_ends();
    }
    if work.plan & plan::KEEP != 0 {
        if work.plan & plan::DRAW != 0 {
            work.version.next = next(draw, work.version.seq);
        }
        versions.keep(work);
    } else {
        versions.note(work);
    }
    if work.plan & plan::POSTPONED != 0 {
        return Err(Reason::OutOfTurn);
    }
    if work.plan & (plan::HELD | plan::KEEP) == plan::HELD {
        return Err(Reason::Duplicate);
    }
    if work.plan & plan::WRITE != 0 {
        work.payload_sum = payload.write(values(slot, work)?)?;
        stage_ends();
        if JUMBO && work.tail != 0 {
            work.payload_sum += Tail::copied()?.write(tail_values(work.slot, number(work)?)?)?;
        }
    }
    Ok(())
}

#[inline(always)]
fn take_in<const JUMBO: bool>(
    slot: *mut Slot,
    work: &mut Work,
    payload: Payload<JUMBO>,
) -> Result<(), Reason> {
    if work.plan & plan::ADD != 0 {
        work.payload_sum = payload.add(values(slot, work)?)?;
        stage_ends();
        if JUMBO && work.tail != 0 {
            work.payload_sum += Tail::copied()?.add(tail_values(work.slot, number(work)?)?)?;
            stage_ends();
        }
        if is_intact(work) {
            return Ok(());
        }
        payload.subtract(values(slot, work)?)?;
        stage_ends();
        if JUMBO && work.tail != 0 {
            Tail::copied()?.subtract(tail_values(work.slot, number(work)?)?)?;
        }
        return Err(Reason::BadChecksum);
    }
    // What follows overwrites values or frame and cannot be taken back: it is verified before.
    if work.is_checked != 0 {
        sum::<JUMBO>(work, payload)?;
        if !is_intact(work) {
            return Err(Reason::BadChecksum);
        }
    }
    if work.plan & plan::STORE != 0 {
        payload.store(values(slot, work)?)?;
        stage_ends();
        if JUMBO && work.tail != 0 {
            Tail::copied()?.store(tail_values(work.slot, number(work)?)?)?;
        }
    } else if work.plan & plan::MAXIMUM != 0 {
        payload.maximum(values(slot, work)?)?;
        stage_ends();
        if JUMBO && work.tail != 0 {
            Tail::copied()?.maximum(tail_values(work.slot, number(work)?)?)?;
        }
    }
    Ok(())
}

/// Notes the checksum's sum over the payload.
#[inline(always)]
pub fn sum<const JUMBO: bool>(work: &mut Work, payload: impl Elements) -> Result<(), Reason> {
    work.payload_sum = payload.sum()?;
    stage_ends();
    if JUMBO && work.tail != 0 {
        work.payload_sum += Tail::copied()?.sum()?;
        stage_ends();
    }
    Ok(())
}

/// Whether the checksum is right, when it is to be verified.
#[inline(always)]
pub fn is_intact(work: &Work) -> bool {
    work.is_checked == 0 || checksum::is_intact(work.headers_sum + work.payload_sum)
}

/// The values of the version that the packet names.
#[inline(always)]
fn values(slot: *mut Slot, work: &Work) -> Result<*mut u32, Reason> {
    // SAFETY: `slot` is a value of the map, from a lookup in this run.
    let values = unsafe { &raw mut (*slot).values };
    Ok(values.cast::<u32>().wrapping_byte_add(number(work)? * VALUES_LEN))
}

/// The number of the version that the packet names: 0 or 1, and known to the verifier to be.
#[inline(always)]
fn number(work: &Work) -> Result<usize, Reason> {
    let of = if work.is_parents != 0 { work.conclusion.version } else { work.contribution.version };
    // Opaque, or LLVM makes of multiplications with it what verifiers do not see through.
    let number = black_box(usize::from(of));
    if number > 1 { Err(Reason::Internal) } else { Ok(number) }
}

/// The two versions of a slot, where they lie.
#[derive(Clone, Copy)]
struct Versions {
    owner: *mut u32,
    /// The one that the packet names.
    active: *mut Version,
    /// The other one.
    shadow: *mut Version,
}

impl Versions {
    #[inline(always)]
    fn of(slot: *mut Slot, work: &Work) -> Result<Versions, Reason> {
        const LEN: usize = size_of::<Version>();
        let number = number(work)?;
        let other = black_box(number ^ 1);
        if other > 1 {
            return Err(Reason::Internal);
        }
        // SAFETY: `slot` is a value of the map, from a lookup in this run, and so are its parts.
        let meta = unsafe { &raw mut (*slot).meta };
        // SAFETY: as above.
        let (owner, versions) = unsafe { (&raw mut (*meta).owner, &raw mut (*meta).versions) };
        let first = versions.cast::<Version>();
        Ok(Versions {
            owner,
            active: first.wrapping_byte_add(number * LEN),
            shadow: first.wrapping_byte_add(other * LEN),
        })
    }

    /// The shared decision: notes the version that the packet names as it will be, and what to do.
    #[inline(always)]
    fn decide(self, work: &mut Work) -> Result<(), Reason> {
        // SAFETY: the lock is held, so this CPU alone reads and writes the slot.
        let (owner, mut active, mut shadow) = unsafe { (*self.owner, *self.active, *self.shadow) };
        // Under another owner neither was used.
        let mine = mask_if_equal(owner, owner_of(work));
        disown(&mut active, mine);
        disown(&mut shadow, mine);
        let is_parents = work.is_parents != 0;
        let (version, action) = if is_parents {
            conclude_version(active, &work.conclusion)
        } else {
            active.note(&work.contribution);
            shadow.note(&work.contribution);
            decide_version(active, &shadow, &work.contribution)
        };
        if let Action::Ignore(reason) = action {
            return Err(reason);
        }
        // A parent's refusal names what the parent holds.
        let tensor = if matches!(action, Action::Refuse) && is_parents {
            work.conclusion.tensor
        } else {
            version.tensor
        };
        work.version = Version { tensor, ..version };
        work.other_received = shadow.received;
        work.plan = plan::of(action, work.contribution.flags, is_parents);
        Ok(())
    }

    /// Writes what the decision gave.
    #[inline(always)]
    fn keep(self, work: &Work) {
        let owner = owner_of(work);
        // SAFETY: as in `decide`.
        unsafe {
            let mine = mask_if_equal(*self.owner, owner);
            disown(&mut *self.shadow, mine);
            (*self.shadow).received = work.other_received;
            *self.owner = owner;
            copy(&work.version, self.active);
        }
    }

    /// Writes only how far the packet's sender has received.
    #[inline(always)]
    fn note(self, work: &Work) {
        // SAFETY: as in `decide`. Under another owner neither version was used, so that no bit is set.
        unsafe {
            (*self.active).received |= work.version.received;
            (*self.shadow).received |= work.other_received;
        }
    }
}

/// Makes a version one that was never used, unless `mine` is all ones.
#[inline(always)]
fn disown(version: &mut Version, mine: u32) {
    version.seen &= mine;
    version.received &= mine;
    version.state &= mine as u8;
}

/// Copies a struct of words word by word: the compiler would call a function for it.
///
/// # Safety
/// `to` may be written to, and `T` is made of 32-bit words.
#[inline(always)]
pub unsafe fn copy<T>(from: &T, to: *mut T) {
    let (from, to) = (&raw const *from, to.cast::<u32>());
    for word in 0..size_of::<T>() / size_of::<u32>() {
        // SAFETY: by the caller's promise.
        unsafe { *to.add(word) = from.cast::<u32>().add(word).read_volatile() };
    }
}

#[inline(always)]
fn owner_of(work: &Work) -> u32 {
    if work.is_parents != 0 { work.conclusion.owner } else { work.contribution.owner }
}

/// All ones when `a` is `b`, else zero: without a branch.
#[inline(always)]
fn mask_if_equal(a: u32, b: u32) -> u32 {
    (u64::from(a ^ b).wrapping_sub(1) as i64 >> 63) as u32
}

/// The chunk that takes the version of chunk `seq` next.
#[inline(always)]
fn next(draw: Draw, seq: u32) -> u32 {
    if !draw.steal {
        return seq.wrapping_add(draw.slots.wrapping_mul(2));
    }
    // Relaxed would do, but LLVM takes the addend for the result of a relaxed addition.
    // SAFETY: the counter is a value of its map, from a lookup in this run.
    unsafe { atomic_xadd::<u32, u32, { SeqCst }>(draw.counter, 1) }
}
