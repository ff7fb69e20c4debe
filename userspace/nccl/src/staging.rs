//! Memory shared with the daemon, in which the tensors of requests are copied: slots of equal size.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sumac_client::{Client, ClientError, Location, Memory};

use crate::memory::UserBytes;

/// Requests in flight on a communicator, at most.
const SLOTS: usize = 16;
/// The size of a slot before a request needs a larger one. Sizes are multiples of it.
const FIRST_SLOT_BYTES: usize = 64 << 10;
/// Bytes of all slots, unless one slot is larger.
const BUDGET: usize = 64 << 20;

/// The slots of a communicator.
#[derive(Debug)]
pub(crate) struct Staging {
    client: Client,
    block: Arc<SlotBlock>,
}

#[derive(Debug)]
struct SlotBlock {
    memory: Memory,
    slot_bytes: usize,
    slots: usize,
    /// A bit for each slot in use.
    used: AtomicU32,
}

impl Staging {
    pub(crate) fn new(client: Client) -> Result<Staging, ClientError> {
        let block = SlotBlock::allocate(&client, FIRST_SLOT_BYTES)?;
        Ok(Staging { client, block })
    }

    /// Returns a free slot of at least `bytes` bytes; `None` if all are in use.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<Option<Slot>, ClientError> {
        if bytes > self.block.slot_bytes {
            // The slots in use keep the former block.
            let size = slot_size(bytes).ok_or(ClientError::TooLarge)?;
            self.block = SlotBlock::allocate(&self.client, size)?;
        }
        let index = self.block.take();
        Ok(index.map(|index| Slot { block: self.block.clone(), index }))
    }
}

impl SlotBlock {
    fn allocate(client: &Client, slot_bytes: usize) -> Result<Arc<SlotBlock>, ClientError> {
        let slots = slots_of(slot_bytes);
        let memory = client.memory(slots.checked_mul(slot_bytes).ok_or(ClientError::TooLarge)?)?;
        Ok(Arc::new(SlotBlock { memory, slot_bytes, slots, used: AtomicU32::new(0) }))
    }

    fn take(&self) -> Option<usize> {
        // Only the holder of the communicator's lock takes slots; others return theirs at any time.
        let index = self.used.load(Ordering::Acquire).trailing_ones() as usize;
        (index < self.slots).then(|| {
            self.used.fetch_or(1 << index, Ordering::AcqRel);
            index
        })
    }
}

/// The size of slots for requests of so many bytes: at most an eighth more, so that sizes that grow allocate
/// seldom; `None` on overflow.
fn slot_size(bytes: usize) -> Option<usize> {
    let step = (bytes.checked_next_power_of_two()? / 8).max(FIRST_SLOT_BYTES);
    bytes.checked_next_multiple_of(step)
}

/// The number of slots of a size: as many as the budget has, at least one.
fn slots_of(slot_bytes: usize) -> usize {
    (BUDGET / slot_bytes).clamp(1, SLOTS)
}

/// A slot in use, free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    block: Arc<SlotBlock>,
    index: usize,
}

impl Slot {
    /// The place of a tensor in the slot, for an operation.
    pub(crate) fn location(&self, offset: usize) -> Location {
        Location { memory: self.block.memory.clone(), offset: self.index * self.block.slot_bytes + offset }
    }

    /// Copies NCCL's bytes into the slot, in which no operation is under way.
    pub(crate) fn copy_in(&self, offset: usize, user: UserBytes) {
        // SAFETY: the slot is this request's, whose bytes NCCL keeps; shared memory is no memory of NCCL's.
        unsafe { user.copy_to(self.pointer(offset, user.length)) };
    }

    /// Copies the slot's bytes to NCCL's, after the operation.
    pub(crate) fn copy_out(&self, offset: usize, user: UserBytes) {
        // SAFETY: as in `copy_in`.
        unsafe { user.copy_from(self.pointer(offset, user.length)) };
    }

    /// Writes a number at the begin of the slot.
    pub(crate) fn write_number(&self, number: u64) {
        let pointer = self.pointer(0, size_of::<u64>()).cast::<u64>();
        // SAFETY: within the slot, which is aligned to pages and this request's.
        unsafe { pointer.write(number) };
    }

    /// Reads the number at the begin of the slot.
    pub(crate) fn read_number(&self) -> u64 {
        let pointer = self.pointer(0, size_of::<u64>()).cast::<u64>();
        // SAFETY: as above; all bits are numbers.
        unsafe { pointer.read() }
    }

    /// The address of bytes of the slot.
    fn pointer(&self, offset: usize, length: usize) -> *mut u8 {
        // Requests take slots of the size that they need.
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.block.slot_bytes),
            "beyond the slot"
        );
        let start = self.block.memory.address() + self.index * self.block.slot_bytes;
        std::ptr::with_exposed_provenance_mut(start + offset)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.block.used.fetch_and(!(1 << self.index), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dozen_requests_of_usual_sizes_have_slots() {
        assert_eq!(slots_of(FIRST_SLOT_BYTES), 16);
        assert_eq!(slots_of(4 << 20), 16);
        assert_eq!(slots_of(32 << 20), 2);
        assert_eq!(slots_of(1 << 30), 1);
    }

    #[test]
    fn a_slot_is_little_larger_than_its_request() {
        assert_eq!(slot_size(1), Some(64 << 10));
        assert_eq!(slot_size((512 << 10) + 16), Some(640 << 10));
        assert_eq!(slot_size(4 << 20), Some(4 << 20));
        assert_eq!(slot_size((256 << 20) + 16), Some(320 << 20));
        assert_eq!(slot_size(usize::MAX), None);
    }
}
