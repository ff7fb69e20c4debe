//! The state of a lane's slots: for each, the chunk after the one in flight, and what was agreed on for the
//! current one.

use std::{cmp::Reverse, collections::BinaryHeap};

use serde::{Deserialize, Serialize};
use sumac_wire::header::exponent;

use super::pool::SlotPool;

/// The static mode's part of a slot's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Slot {
    /// The slot's next chunk, which is known while the current one is in flight.
    pub after: u64,
    /// The chunk before, as packets carry it.
    pub previous: u32,
    /// The version of the slot that the chunk uses.
    pub version: u8,
    /// The exponent that all workers scale the chunk by; `UNKNOWN` requires an exponent round.
    pub exponent: i8,
    /// Whether the last packet was the chunk's exponent round.
    pub in_round: bool,
    /// Whether the aggregator has asked for the elements.
    pub is_wanted: bool,
    /// Whether the last packet was a contribution without values.
    pub is_empty: bool,
    /// Whether it echoed a mark.
    pub echoed_mark: bool,
}

impl Slot {
    /// A slot whose chunk has no packet yet.
    fn new(after: u64, previous: u32, version: u8, exponent: i8) -> Slot {
        let [in_round, is_wanted, is_empty, echoed_mark] = [false; 4];
        Slot { after, previous, version, exponent, in_round, is_wanted, is_empty, echoed_mark }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Slots {
    pool: SlotPool,
    table: Box<[Slot]>,
    /// Slots whose chunk the stream has not reached, or a congestion window holds back, by chunk.
    idle: BinaryHeap<Reverse<(u64, u32)>>,
    first: u64,
}

impl Slots {
    /// Idle slots for a stream that begins with chunk `first`.
    pub fn new(pool: SlotPool, first: u64) -> Slots {
        let slot = |slot| {
            let (seq, version) = pool.first_of(slot, first);
            let previous = (seq as u32).wrapping_sub(pool.slots() as u32);
            Slot::new(seq + pool.slots(), previous, version, exponent::UNKNOWN)
        };
        let table: Box<[Slot]> = (0..pool.slots() as usize).map(slot).collect();
        let mut slots = Slots { pool, table, idle: BinaryHeap::new(), first };
        slots.idle = slots.seqs().zip(0..).map(Reverse).collect();
        slots
    }

    pub fn seqs(&self) -> impl Iterator<Item = u64> {
        let (pool, first) = (self.pool, self.first);
        (0..pool.slots() as usize).map(move |slot| pool.first_of(slot, first).0)
    }

    pub fn pool(&self) -> SlotPool {
        self.pool
    }

    pub fn get(&self, slot: usize) -> &Slot {
        &self.table[slot]
    }

    pub fn get_mut(&mut self, slot: usize) -> &mut Slot {
        &mut self.table[slot]
    }

    pub fn next_idle(&self) -> Option<u64> {
        self.idle.peek().map(|Reverse((seq, _))| *seq)
    }

    /// Slots whose chunk was let go and has no result.
    pub fn active(&self) -> usize {
        self.table.len() - self.idle.len()
    }

    /// Takes the idle slot with the earliest chunk.
    pub fn pop_idle(&mut self) -> Option<usize> {
        self.idle.pop().map(|Reverse((_, slot))| slot as usize)
    }

    /// Lets a slot wait until its chunk `seq` may go.
    pub fn push_idle(&mut self, slot: usize, seq: u64) {
        self.idle.push(Reverse((seq, slot as u32)));
    }

    /// Advances a slot from chunk `seq` to its next one, in the other version and with this exponent. `after`
    /// is the chunk after that. Returns the next chunk.
    pub fn advance(&mut self, slot: usize, seq: u64, after: u64, exponent: i8) -> u64 {
        let state = &mut self.table[slot];
        let next = state.after;
        *state = Slot::new(after, seq as u32, state.version ^ 1, exponent);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_alternates_between_its_versions() {
        let mut slots = Slots::new(SlotPool::new(4, 0), 0);
        assert_eq!((slots.next_idle(), slots.pop_idle()), (Some(0), Some(0)));
        assert_eq!(slots.advance(0, 0, 11, 3), 4);
        let slot = *slots.get(0);
        assert_eq!((slot.previous, slot.after, slot.version, slot.exponent), (0, 11, 1, 3));
        assert_eq!(slots.advance(0, 4, 12, 3), 11);
        assert_eq!((slots.get(0).previous, slots.get(0).version), (4, 0));
    }

    #[test]
    fn slots_wake_in_the_order_of_their_chunks() {
        let mut slots = Slots::new(SlotPool::new(4, 0), 0);
        let woken: Vec<_> = std::iter::from_fn(|| slots.pop_idle()).collect();
        assert_eq!(woken, [0, 1, 2, 3]);
        for (slot, seq) in [(2, 8), (3, 7), (0, 4)] {
            slots.push_idle(slot, seq);
        }
        let woken: Vec<_> = std::iter::from_fn(|| Some((slots.next_idle()?, slots.pop_idle()?))).collect();
        assert_eq!(woken, [(4, 0), (7, 3), (8, 2)]);
    }
}
