//! The memory of the slots: what is known of each, and the values of both its versions.

use sumac_wire::slot::SlotMeta;
use thiserror::Error;

/// The pool does not fit this host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{slots} slots of {elements} elements take {bytes} bytes, more than half of this host's memory; give fewer --slots or --elements"
)]
pub struct NoMemory {
    /// Slots asked for.
    pub slots: u32,
    /// Elements of each.
    pub elements: u16,
    /// The memory, of all shards.
    pub bytes: u64,
}

/// The slots of one shard.
pub struct Pool {
    max_elements: u16,
    slots: Vec<SlotMeta>,
    /// Both versions of each slot, `max_elements` values each.
    values: Vec<i32>,
}

impl Pool {
    /// `slots` slots for chunks of at most `max_elements`, one of `shards` pools of this size.
    pub fn new(slots: u32, max_elements: u16, shards: u16) -> Result<Pool, NoMemory> {
        let values = u64::from(slots) * 2 * u64::from(max_elements);
        let refused = refuse_too_many(slots, max_elements, shards, values, size_of::<SlotMeta>() as u64)?;
        Ok(Pool {
            max_elements,
            slots: filled(u64::from(slots), SlotMeta::default()).ok_or(refused)?,
            values: filled(values, 0).ok_or(refused)?,
        })
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Most elements in a chunk.
    pub fn max_elements(&self) -> u16 {
        self.max_elements
    }

    /// Whether any of `slots` slots from `first` on holds something of this owner's.
    pub fn is_held(&self, first: u32, slots: u32, owner: u32) -> bool {
        self.slots.iter().skip(first as usize).take(slots as usize).any(|meta| meta.owner == owner)
    }

    /// A slot, and the values of one of its versions. `None` outside of the pool.
    pub fn get(&mut self, slot: u32, version: u8) -> Option<(&mut SlotMeta, &mut [i32])> {
        let index = slot as usize;
        let stride = usize::from(self.max_elements);
        let first = (index * 2 + usize::from(version & 1)) * stride;
        Some((self.slots.get_mut(index)?, self.values.get_mut(first..first + stride)?))
    }
}

/// Refuses pools that do not fit this host's memory: `shards` of `slots` slots of `of_slot` bytes each, and with `values` values
/// together. Gives the refusal for where the memory turns out not to be there all the same.
pub fn refuse_too_many(
    slots: u32,
    elements: u16,
    shards: u16,
    values: u64,
    of_slot: u64,
) -> Result<NoMemory, NoMemory> {
    // Cannot overflow: 2^32 slots of two times 2,224 values of 4 bytes are less than 2^47.
    let bytes = values * size_of::<i32>() as u64 + u64::from(slots) * of_slot;
    let bytes = bytes.saturating_mul(u64::from(shards));
    let refused = NoMemory { slots, elements, bytes };
    // The kernel promises more than it has, and kills who takes the promise at its word.
    if bytes > host_memory() / 2 { Err(refused) } else { Ok(refused) }
}

/// This many copies of a value; `None` without the memory for them. Zeros are not touched before they are used.
pub fn filled<T: Clone>(count: u64, value: T) -> Option<Vec<T>> {
    let count = usize::try_from(count).ok()?;
    // A vector that is made in one go ends the process where there is no room for it.
    Vec::<T>::new().try_reserve_exact(count).ok()?;
    Some(vec![value; count])
}

/// Bytes of memory in this host; without bound when it does not say.
fn host_memory() -> u64 {
    use nix::unistd::{SysconfVar, sysconf};

    let number = |variable| sysconf(variable).ok().flatten().and_then(|number| u64::try_from(number).ok());
    match (number(SysconfVar::_PHYS_PAGES), number(SysconfVar::PAGE_SIZE)) {
        (Some(pages), Some(size)) => pages.saturating_mul(size),
        _ => u64::MAX,
    }
}
