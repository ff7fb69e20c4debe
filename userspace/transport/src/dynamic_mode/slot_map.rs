//! The slot of each chunk (ATP sections 3.5 and 3.6): at first a hash of its position, and after a collision
//! the slot that the parameter host names.
//!
//! Where slots are few, a position does not leave its slot for one collision. A job that looks for a slot
//! meets others in the moment in which theirs is free. If they left at once, each job that settles would
//! displace another, and collisions would never end. So chunks without a collision earn their position
//! credit, and a collision costs more than a chunk earns.
//!
//! All workers must choose alike, or a sum never completes in a slot. A chunk's result that moves its
//! position therefore counts from the chunk one window later: no worker sends that one without the result. So
//! the slot of every chunk follows from results alone, in whatever order they arrive.
//!
//! While some worker does not reach the aggregator, no sum completes in a slot, and results have a flag for
//! it. From the first such result on a worker sends the chunks up to one window after it past the slots. At
//! the end of that time all workers agree on the last of them; at its beginning they may not, which costs
//! nothing, since these chunks would not complete anyway.

use serde::{Deserialize, Serialize};
use sumac_wire::{dynamic::hash, header::NO_SLOT};

use super::params::DynamicParams;

/// The most credit of a position where positions repeat within the window, as they do where slots are few.
/// Each chunk without a collision earns one.
const MAX_CREDIT: u8 = 8;
/// The cost of a collision. The position with less credit leaves; so two that share a slot in turns part.
const COLLISION_COST: u8 = 4;

/// The feedback of a chunk's result on its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CollisionFeedback {
    /// None that all workers know.
    Unknown,
    Free,
    /// The slot was busy; the position may move to this one.
    Busy(u32),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Assignment {
    slot: u32,
    /// The feedback of its result, until the chunk one window later is sent.
    feedback: CollisionFeedback,
}

const UNASSIGNED: Assignment = Assignment { slot: NO_SLOT, feedback: CollisionFeedback::Unknown };

/// The slots of the positions, and of the chunks within the window.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SlotMap {
    job: u16,
    lane: u16,
    slots: u32,
    is_linear: bool,
    positions: Box<[u32]>,
    credit: Box<[u8]>,
    /// None where slots are plenty: another is mostly free, and each collision may delay a chunk.
    max_credit: u8,
    /// By chunk modulo the window.
    window: Box<[Assignment]>,
    /// The chunks before this one bypass their slots.
    bypass_end: u64,
}

impl SlotMap {
    /// The initial map of a lane. `is_linear`: chunks take slots one after another and never move (the
    /// baseline of ATP's figure 14).
    pub fn new(job: u16, lane: u16, params: &DynamicParams, is_linear: bool) -> SlotMap {
        let DynamicParams { slots, positions, window, .. } = *params;
        let first = |position| if slots == 0 { NO_SLOT } else { hash(job, lane, position, slots) };
        SlotMap {
            job,
            lane,
            slots,
            is_linear,
            positions: (0..positions).map(first).collect(),
            credit: vec![0; positions as usize].into(),
            max_credit: if positions < window { MAX_CREDIT } else { 0 },
            window: vec![UNASSIGNED; window as usize].into(),
            bypass_end: 0,
        }
    }

    pub fn reset(&self) -> SlotMap {
        let (positions, window) = (self.positions.len() as u32, self.window.len() as u32);
        let params = DynamicParams { positions, window, ..DynamicParams::new(self.slots) };
        SlotMap::new(self.job, self.lane, &params, self.is_linear)
    }

    /// Assigns a slot to chunk `seq`, which is sent for the first time. Returns whether its position has
    /// moved.
    pub fn assign(&mut self, seq: u64) -> bool {
        let (chunk, position) = (self.chunk(seq), self.position(seq));
        let Assignment { slot, feedback } = self.window[chunk];
        // Where positions repeat within the window, feedback on a slot that was left is out of date.
        let has_moved = self.positions[position] == slot && self.leaves(position, feedback);
        self.window[chunk].feedback = CollisionFeedback::Unknown;
        self.window[chunk].slot = match self.is_linear {
            true => (seq as u32).checked_rem(self.slots).unwrap_or(NO_SLOT),
            false => self.positions[position],
        };
        has_moved
    }

    /// Whether a position leaves its slot on this feedback.
    fn leaves(&mut self, position: usize, feedback: CollisionFeedback) -> bool {
        let (slot, credit) = (&mut self.positions[position], &mut self.credit[position]);
        match feedback {
            CollisionFeedback::Unknown => false,
            CollisionFeedback::Free => {
                *credit = self.max_credit.min(*credit + 1);
                false
            }
            CollisionFeedback::Busy(_) if *credit >= COLLISION_COST => {
                *credit -= COLLISION_COST;
                false
            }
            CollisionFeedback::Busy(other) => {
                *credit = 0;
                std::mem::replace(slot, other) != other
            }
        }
    }

    /// The slot of a chunk that was sent; [`NO_SLOT`] where there are none.
    pub fn slot(&self, seq: u64) -> u32 {
        self.window[self.chunk(seq)].slot
    }

    pub fn has(&self, slot: u32) -> bool {
        slot < self.slots
    }

    //= atp#3.6 collisions are hashed again
    pub fn on_feedback(&mut self, seq: u64, feedback: CollisionFeedback) {
        if !self.is_linear {
            let chunk = self.chunk(seq);
            self.window[chunk].feedback = feedback;
        }
    }

    /// Records that chunks bypass their slots up to the one a window after `seq`, as the result of `seq` has
    /// it.
    pub fn on_bypass(&mut self, seq: u64) {
        self.bypass_end = self.bypass_end.max(seq + self.window.len() as u64 + 1);
    }

    /// Whether a chunk that is sent bypasses its slot.
    pub fn bypasses(&self, seq: u64) -> bool {
        seq < self.bypass_end
    }

    fn chunk(&self, seq: u64) -> usize {
        seq as usize & (self.window.len() - 1)
    }

    fn position(&self, seq: u64) -> usize {
        seq as usize & (self.positions.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot_map(positions: u32, slots: u32, is_linear: bool) -> SlotMap {
        let params = DynamicParams { positions, ..DynamicParams::new(slots).with_window(8) };
        SlotMap::new(3, 1, &params, is_linear)
    }

    /// The slots of chunks that are sent now.
    fn assign(map: &mut SlotMap, seqs: std::ops::Range<u64>) -> Vec<u32> {
        seqs.map(|seq| {
            map.assign(seq);
            map.slot(seq)
        })
        .collect()
    }

    fn busy(map: &mut SlotMap, seq: u64, other: u32) {
        map.on_feedback(seq, CollisionFeedback::Busy(other));
    }

    //= atp#3.6 collisions are hashed again
    #[test]
    fn a_position_keeps_its_slot_until_its_chunk_collides() {
        let mut map = slot_map(8, 100, false);
        let first = assign(&mut map, 0..8);
        assert_eq!(first, (0..8).map(|position| hash(3, 1, position, 100)).collect::<Vec<_>>());
        busy(&mut map, 3, 42);
        assert_eq!(map.slot(3), first[3], "the chunk itself keeps its slot");
        let mut second = first.clone();
        second[3] = 42;
        assert_eq!(assign(&mut map, 8..16), second);
        assert_eq!(assign(&mut map, 16..24), second);
        busy(&mut map, 19, 42);
        assert!(!map.assign(27) && map.slot(27) == 42, "it has that one");
        assert_eq!(assign(&mut map.reset(), 0..8), first);
    }

    /// The slots of one position whose chunks find their slots free, or busy and are sent to the slot of
    /// their number.
    fn settle(collides: impl IntoIterator<Item = bool>) -> Vec<u32> {
        let mut map = slot_map(4, 100, false);
        map.assign(0);
        let next = |(round, collides): (usize, bool)| {
            let seq = 8 * round as u64;
            let other = CollisionFeedback::Busy(round as u32);
            map.on_feedback(seq, if collides { other } else { CollisionFeedback::Free });
            map.assign(seq + 8);
            map.slot(seq + 8)
        };
        collides.into_iter().enumerate().map(next).collect()
    }

    #[test]
    fn a_position_with_credit_stays_after_some_collisions() {
        let first = hash(3, 1, 0, 100);
        assert_eq!(settle([false, false, false, true])[3], 3, "three chunks are not enough");
        let long = |collides: &[bool]| settle([[false; 20].as_slice(), collides].concat())[20..].to_vec();
        assert_eq!(long(&[true, true, true, true]), [first, first, 22, 23]);
        assert_eq!(long(&[true, false, false, false, false, true, true, true])[7], 27);
    }

    #[test]
    fn two_that_share_a_slot_in_turns_part() {
        let turns = settle([false; 20].into_iter().chain((0..5).map(|turn| turn % 2 == 0)));
        let first = hash(3, 1, 0, 100);
        assert_eq!(turns[20..], [first, first, first, first, 24]);
    }

    #[test]
    fn slots_do_not_depend_on_the_order_of_results() {
        let (mut one, mut other) = (slot_map(2, 100, false), slot_map(2, 100, false));
        assign(&mut one, 0..8);
        assign(&mut other, 0..8);
        // Four chunks of position 1, all of which collided in the same slot: the first move holds.
        for seq in [1, 3, 5, 7] {
            busy(&mut one, seq, seq as u32 + 50);
        }
        for seq in [7, 1] {
            busy(&mut other, seq, seq as u32 + 50);
        }
        let first = assign(&mut one, 8..10);
        assert_eq!((first[1], assign(&mut other, 8..10)), (51, first));
        for seq in [5, 3] {
            busy(&mut other, seq, seq as u32 + 50);
        }
        let rest = assign(&mut one, 10..16);
        assert_eq!(([rest[1], rest[3], rest[5]], assign(&mut other, 10..16)), ([51; 3], rest));
        busy(&mut one, 9, 77);
        busy(&mut other, 9, 77);
        let next = assign(&mut one, 16..20);
        assert_eq!(
            ([next[1], next[3]], assign(&mut other, 16..20)),
            ([77; 2], next),
            "it collided there too"
        );
    }

    #[test]
    fn chunks_bypass_their_slots_from_now_on_until_a_window_after_the_last_result_that_says_so() {
        let mut map = slot_map(8, 100, false);
        let bypass = |map: &SlotMap| (0..40).filter(|seq| map.bypasses(*seq)).max();
        assert_eq!(bypass(&map), None);
        map.on_bypass(5);
        map.on_bypass(3);
        assert_eq!((bypass(&map), map.bypasses(6)), (Some(13), true));
        map.on_bypass(9);
        assert_eq!(bypass(&map), Some(17));
        assert_eq!(bypass(&map.reset()), None);
    }

    #[test]
    fn linear_slots_follow_one_another_and_stay() {
        let mut map = slot_map(8, 5, true);
        assert_eq!(assign(&mut map, 0..8), [0, 1, 2, 3, 4, 0, 1, 2]);
        busy(&mut map, 0, 4);
        assert_eq!(assign(&mut map, 8..10), [3, 4]);
    }

    #[test]
    fn without_an_aggregator_there_are_no_slots() {
        for is_linear in [false, true] {
            let mut map = slot_map(8, 0, is_linear);
            assert_eq!(assign(&mut map, 0..3), [NO_SLOT; 3]);
            assert!(!map.has(0));
        }
    }
}
