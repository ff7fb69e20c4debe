//! The memory of slots: the metadata of each, and the values of its versions.

use thiserror::Error;

/// The pool does not fit this host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{slots} slots of {elements} elements take {bytes} bytes, more than half of this host's memory; give \
    fewer --slots or --elements"
)]
pub struct NoMemory {
    pub slots: u32,
    pub elements: u16,
    pub bytes: u64,
}

pub struct Pool<M> {
    max_elements: u16,
    versions: usize,
    pub slots: Vec<M>,
    /// Of each slot all versions, `max_elements` values each.
    values: Vec<i32>,
}

impl<M: Clone + Default> Pool<M> {
    /// Returns one of `shards` pools of `slots` slots with so many versions of chunks of at most
    /// `max_elements`.
    pub fn new(slots: u32, max_elements: u16, versions: usize, shards: u16) -> Result<Pool<M>, NoMemory> {
        // Cannot overflow: 2^32 slots of two times 2,224 values of 4 bytes are less than 2^47.
        let values = u64::from(slots) * versions as u64 * u64::from(max_elements);
        let bytes = values * size_of::<i32>() as u64 + u64::from(slots) * size_of::<M>() as u64;
        let bytes = bytes.saturating_mul(u64::from(shards));
        let refused = NoMemory { slots, elements: max_elements, bytes };
        // The kernel promises more than it has, and kills the process that uses the promise.
        if bytes > host_memory() / 2 {
            return Err(refused);
        }
        Ok(Pool {
            max_elements,
            versions,
            slots: filled(u64::from(slots), M::default()).ok_or(refused)?,
            values: filled(values, 0).ok_or(refused)?,
        })
    }

    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn max_elements(&self) -> u16 {
        self.max_elements
    }

    /// Returns a slot, and the values of one of its versions; `None` outside of the pool.
    pub fn get(&mut self, slot: u32, version: u8) -> Option<(&mut M, &mut [i32])> {
        let index = slot as usize;
        let stride = usize::from(self.max_elements);
        let first =
            index.checked_mul(self.versions)?.checked_add(usize::from(version).min(self.versions - 1))?
                * stride;
        Some((self.slots.get_mut(index)?, self.values.get_mut(first..first + stride)?))
    }
}

/// Returns copies of a value; `None` without the memory for them. Zeros are not touched before they are used.
fn filled<T: Clone>(count: u64, value: T) -> Option<Vec<T>> {
    let count = usize::try_from(count).ok()?;
    // A vector that is made in one step ends the process where there is no room for it.
    Vec::<T>::new().try_reserve_exact(count).ok()?;
    Some(vec![value; count])
}

fn host_memory() -> u64 {
    use nix::unistd::{SysconfVar, sysconf};

    let number = |variable| sysconf(variable).ok().flatten().and_then(|number| u64::try_from(number).ok());
    match (number(SysconfVar::_PHYS_PAGES), number(SysconfVar::PAGE_SIZE)) {
        (Some(pages), Some(size)) => pages.saturating_mul(size),
        _ => u64::MAX,
    }
}
