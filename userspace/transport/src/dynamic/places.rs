//! Which slot a chunk takes (ATP sections 3.5 and 3.6): a hash of its position in the stream's ring at first, and where that
//! collided, what the parameter host says instead.
//!
//! All workers must choose alike, or a sum never completes in a slot. Where a chunk's result moves its position, that
//! therefore counts from the chunk one window later on: no worker sends that one without the result. So the slot of every chunk
//! follows from results alone, whatever order they arrive in. The same holds for chunks that are to pass the slots, because
//! some workers do not get to the aggregator and no sum would complete there.

use sumac_wire::{dynamic::hash, header::NO_SLOT};

use super::DynamicParams;

/// The slots of the positions, and of the chunks within the window.
#[derive(Debug)]
pub(crate) struct Places {
    slots: u32,
    linear: bool,
    /// The slot of each position.
    positions: Box<[u32]>,
    /// By chunk modulo the window: the slot that its result gave to its position, until the chunk a window later takes it.
    moved: Box<[u32]>,
    /// By chunk modulo the window: the chunk's slot.
    taken: Box<[u32]>,
    /// By chunk modulo the window: whether the chunk passes its slot, as the result of the one a window before has it.
    passing: Box<[bool]>,
}

impl Places {
    /// Where the chunks of a lane begin.
    pub fn new(job: u16, lane: u16, params: &DynamicParams) -> Places {
        let DynamicParams { slots, linear, .. } = *params;
        let first = |position| if slots == 0 { NO_SLOT } else { hash(job, lane, position, slots) };
        let none = || vec![NO_SLOT; params.window as usize].into_boxed_slice();
        let positions = (0..params.positions).map(first).collect();
        let passing = vec![false; params.window as usize].into_boxed_slice();
        Places { slots, linear, positions, moved: none(), taken: none(), passing }
    }

    /// Chunk `seq` is to be sent for the first time.
    pub fn begin(&mut self, seq: u64) {
        let (chunk, position) = (self.chunk(seq), self.position(seq));
        let moved = std::mem::replace(&mut self.moved[chunk], NO_SLOT);
        // Where positions repeat within the window, a later chunk may have collided in the slot that was left already.
        if moved != NO_SLOT && self.positions[position] == self.taken[chunk] {
            self.positions[position] = moved;
        }
        self.taken[chunk] = match self.linear {
            true => (seq as u32).checked_rem(self.slots).unwrap_or(NO_SLOT),
            false => self.positions[position],
        };
    }

    /// The slot of a chunk that was sent; [`NO_SLOT`] where there are none.
    pub fn slot(&self, seq: u64) -> u32 {
        self.taken[self.chunk(seq)]
    }

    /// Whether a result may name this slot.
    pub fn has(&self, slot: u32) -> bool {
        slot < self.slots
    }

    /// The result of chunk `seq` says that its position shall have this slot from now on. Says whether that is another one.
    pub fn move_to(&mut self, seq: u64, slot: u32) -> bool {
        if self.linear {
            return false;
        }
        let chunk = self.chunk(seq);
        self.moved[chunk] = slot;
        self.taken[chunk] != slot
    }

    /// The result of chunk `seq` says whether the chunk one window later passes its slot.
    pub fn pass(&mut self, seq: u64, passes: bool) {
        let chunk = self.chunk(seq);
        self.passing[chunk] = passes;
    }

    /// Whether a chunk that was sent is none for its slot.
    pub fn passes(&self, seq: u64) -> bool {
        self.passing[self.chunk(seq)]
    }

    fn chunk(&self, seq: u64) -> usize {
        seq as usize & (self.taken.len() - 1)
    }

    fn position(&self, seq: u64) -> usize {
        seq as usize & (self.positions.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(positions: u32, slots: u32, linear: bool) -> Places {
        let params = DynamicParams { positions, linear, ..DynamicParams::new(slots).with_window(8) };
        Places::new(3, 1, &params)
    }

    /// The slots of chunks that begin now.
    fn begin(places: &mut Places, seqs: std::ops::Range<u64>) -> Vec<u32> {
        seqs.map(|seq| {
            places.begin(seq);
            places.slot(seq)
        })
        .collect()
    }

    #[test]
    fn a_position_keeps_its_slot_until_its_chunk_collides() {
        let mut places = places(8, 100, false);
        let first = begin(&mut places, 0..8);
        assert_eq!(first, (0..8).map(|position| hash(3, 1, position, 100)).collect::<Vec<_>>());
        assert!(places.move_to(3, 42));
        assert_eq!(places.slot(3), first[3], "the chunk itself stays where it is");
        let mut second = first.clone();
        second[3] = 42;
        assert_eq!(begin(&mut places, 8..16), second);
        assert_eq!(begin(&mut places, 16..24), second);
        assert!(!places.move_to(19, 42), "it has that one");
    }

    #[test]
    fn slots_do_not_depend_on_the_order_of_results() {
        let (mut one, mut other) = (places(2, 100, false), places(2, 100, false));
        begin(&mut one, 0..8);
        begin(&mut other, 0..8);
        // Four chunks of position 1, all of which collided in the same slot: the first move holds.
        for seq in [1, 3, 5, 7] {
            one.move_to(seq, seq as u32 + 50);
        }
        for seq in [7, 1] {
            other.move_to(seq, seq as u32 + 50);
        }
        let first = begin(&mut one, 8..10);
        assert_eq!((first[1], begin(&mut other, 8..10)), (51, first));
        for seq in [5, 3] {
            other.move_to(seq, seq as u32 + 50);
        }
        let rest = begin(&mut one, 10..16);
        assert_eq!(([rest[1], rest[3], rest[5]], begin(&mut other, 10..16)), ([51; 3], rest));
        one.move_to(9, 77);
        other.move_to(9, 77);
        let next = begin(&mut one, 16..20);
        assert_eq!(([next[1], next[3]], begin(&mut other, 16..20)), ([77; 2], next), "it collided there too");
    }

    #[test]
    fn linear_places_follow_one_another_and_stay() {
        let mut places = places(8, 5, true);
        assert!(!places.move_to(0, 4));
        assert_eq!(begin(&mut places, 0..8), [0, 1, 2, 3, 4, 0, 1, 2]);
        assert_eq!(begin(&mut places, 8..10), [3, 4]);
    }

    #[test]
    fn without_an_aggregator_there_are_no_slots() {
        for linear in [false, true] {
            let mut places = places(8, 0, linear);
            assert_eq!(begin(&mut places, 0..3), [NO_SLOT; 3]);
            assert!(!places.has(0));
        }
    }
}
