//! The numbering of a lane's slots: sequence number, slot, version and lane.

use serde::{Deserialize, Serialize};
use sumac_wire::stream::{is_later, place};

/// The lane's own range of slots. Slot `i` begins with the i-th chunk of the lane's stream, and its second
/// chunk is the one `slots` later. From then on the result of each chunk names the slot's chunk after next,
/// which takes the same of the slot's two versions (the packet's `next seq`). Chunks have 64-bit numbers
/// here; packets carry the low 32 bits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct SlotPool {
    slots_log2: u32,
    lane: u16,
}

impl SlotPool {
    pub fn new(slots: u32, lane: u16) -> SlotPool {
        SlotPool { slots_log2: slots.trailing_zeros(), lane }
    }

    /// The number of slots: the most chunks in flight.
    pub fn slots(self) -> u64 {
        1 << self.slots_log2
    }

    /// The first chunk of a slot in a stream that begins with chunk `first`, and its version.
    pub fn first_of(self, slot: usize, first: u64) -> (u64, u8) {
        let seq = first + ((slot as u64).wrapping_sub(first) & (self.slots() - 1));
        (seq, place(seq as u32, self.slots_log2).version)
    }

    /// The chunk after next of the slot that carries `seq`, if no chunk was reassigned.
    pub fn regular(self, seq: u64) -> u64 {
        seq + 2 * self.slots()
    }

    /// The chunk that `next_seq` names; `None` unless it is later than `after`, the slot's latest so far.
    pub fn follow(after: u64, next_seq: u32) -> Option<u64> {
        let low = after as u32;
        is_later(next_seq, low).then(|| after + u64::from(next_seq.wrapping_sub(low)))
    }

    /// The number of a slot in packets: counted from the job's first.
    pub fn number(self, slot: usize) -> u32 {
        (u32::from(self.lane) << self.slots_log2) + slot as u32
    }

    /// The slot with this number, if it is one of this lane's.
    pub fn slot(self, number: u32) -> Option<usize> {
        let is_ours = number >> self.slots_log2 == u32::from(self.lane);
        is_ours.then_some((number & ((1 << self.slots_log2) - 1)) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_begin_with_a_window_of_the_stream() {
        let pool = SlotPool::new(8, 0);
        for first in [0, 3, 8, u64::from(u32::MAX) - 2] {
            let mut begins: Vec<u64> = (0..8).map(|slot| pool.first_of(slot, first).0).collect();
            begins.sort_unstable();
            assert_eq!(begins, (first..first + 8).collect::<Vec<_>>());
            for slot in 0..8 {
                let (seq, version) = pool.first_of(slot, first);
                let (_, second) = pool.first_of(slot, seq + 1);
                assert_eq!((seq as usize % 8, second), (slot, 1 - version), "slot {slot} from {first}");
            }
        }
    }

    #[test]
    fn chunks_are_followed_over_the_wrap_and_never_back() {
        let end = u64::from(u32::MAX);
        assert_eq!(SlotPool::follow(end, 4), Some(end + 5));
        assert_eq!(SlotPool::follow(end + 5, 5), Some(end + 6));
        for back in [4, 3, u32::MAX, 4 + (1 << 31)] {
            assert_eq!(SlotPool::follow(end + 5, back), None, "{back}");
        }
    }

    #[test]
    fn lanes_have_slots_of_their_own() {
        let pool = SlotPool::new(8, 3);
        assert_eq!((pool.number(0), pool.number(7)), (24, 31));
        assert_eq!((pool.slot(24), pool.slot(31)), (Some(0), Some(7)));
        assert_eq!((pool.slot(23), pool.slot(32), pool.slot(u32::MAX)), (None, None, None));
    }
}
