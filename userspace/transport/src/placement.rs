//! What is particular to the static mode (SwitchML): which slot a chunk takes, and how far a worker
//! may run ahead. A mode that hashes chunks to slots under a window has another of these.

use sumac_wire::stream::{Place, place};

/// The job's own range of slots: chunk `seq` takes slot `seq % slots`, and the slot's next chunk may
/// be sent when this one's result is there (Algorithm 4). Chunks are counted in 64 bits here; packets carry
/// the low 32, of which slot and version are bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StaticPool {
    slots_log2: u32,
}

impl StaticPool {
    /// A pool of `slots`, a power of two.
    pub fn new(slots: u32) -> StaticPool {
        StaticPool { slots_log2: slots.trailing_zeros() }
    }

    /// How many slots: the most chunks in flight.
    pub fn slots(self) -> u64 {
        1 << self.slots_log2
    }

    /// The slot that chunk `seq` takes, and which of its versions.
    pub fn place(self, seq: u64) -> Place {
        place(seq as u32, self.slots_log2)
    }

    /// The slot of chunk `seq` as an index.
    pub fn slot(self, seq: u64) -> usize {
        self.place(seq).slot as usize
    }

    /// The first chunk at or after `first` that `slot` takes.
    pub fn first_of(self, slot: usize, first: u64) -> u64 {
        first + ((slot as u64).wrapping_sub(first) & (self.slots() - 1))
    }

    /// The chunk that takes the slot of `seq` after it.
    pub fn next(self, seq: u64) -> u64 {
        seq + self.slots()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_partition_the_stream() {
        let pool = StaticPool::new(8);
        for first in [0, 3, 8, u64::from(u32::MAX) - 2] {
            for slot in 0..8 {
                let seq = pool.first_of(slot, first);
                assert!((first..first + 8).contains(&seq), "slot {slot} from {first}");
                assert_eq!(pool.slot(seq), slot);
                assert_eq!(pool.slot(pool.next(seq)), slot);
                assert_ne!(pool.place(seq).version, pool.place(pool.next(seq)).version);
            }
        }
    }
}
