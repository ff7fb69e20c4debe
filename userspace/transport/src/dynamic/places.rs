//! Which slot a chunk takes (ATP sections 3.5 and 3.6): a hash of its position in the stream's ring at first, and where that
//! collided, what the parameter host says instead.
//!
//! Where slots are few, a position does not leave its slot for one collision. Whoever looks for a slot comes by chance to one in the moment in which it
//! is free: would its owner go at once, each that settles would unsettle another, and collisions never end.
//! So chunks that met nobody earn their position the right to stay, and collisions take more of it than they earn.
//!
//! All workers must choose alike, or a sum never completes in a slot. Where a chunk's result moves its position, that
//! therefore counts from the chunk one window later on: no worker sends that one without the result. So the slot of every chunk
//! follows from results alone, whatever order they arrive in. The same holds for chunks that are to pass the slots, because
//! some workers do not get to the aggregator and no sum would complete there.

use sumac_wire::{dynamic::hash, header::NO_SLOT};

use super::DynamicParams;

/// The most credit that a position has where positions repeat within the window, as they do where slots are few: what it earns with chunks that met nobody, one each.
const MOST_CREDIT: u8 = 8;
/// What a collision costs. Who has less goes; so two that share a slot in turns part.
const COLLISION: u8 = 4;

/// What a chunk's result says of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    /// Nothing that all workers know.
    Unknown,
    /// Nobody else was there.
    Nobody,
    /// It was busy; the position may go to this one.
    Another(u32),
}

/// The slots of the positions, and of the chunks within the window.
#[derive(Debug)]
pub(crate) struct Places {
    slots: u32,
    linear: bool,
    /// The slot of each position.
    positions: Box<[u32]>,
    /// How much collision each position still bears, and how much at most: none where slots are plenty, since another is mostly
    /// free and each collision may hold up a chunk.
    credit: Box<[u8]>,
    most_credit: u8,
    /// By chunk modulo the window: what it met in its slot, until the chunk a window later is sent.
    met: Box<[Met]>,
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
        let window = params.window as usize;
        Places {
            slots,
            linear,
            positions: (0..params.positions).map(first).collect(),
            credit: vec![0; params.positions as usize].into(),
            most_credit: if params.positions < params.window { MOST_CREDIT } else { 0 },
            met: vec![Met::Unknown; window].into(),
            taken: vec![NO_SLOT; window].into(),
            passing: vec![false; window].into(),
        }
    }

    /// Chunk `seq` is to be sent for the first time. Says whether its position has left its slot.
    pub fn begin(&mut self, seq: u64) -> bool {
        let (chunk, position) = (self.chunk(seq), self.position(seq));
        let met = std::mem::replace(&mut self.met[chunk], Met::Unknown);
        // Where positions repeat within the window, the slot that was left is no matter any more.
        let has_left = self.positions[position] == self.taken[chunk] && self.leaves(position, met);
        self.taken[chunk] = match self.linear {
            true => (seq as u32).checked_rem(self.slots).unwrap_or(NO_SLOT),
            false => self.positions[position],
        };
        has_left
    }

    /// Whether a position leaves its slot for what a chunk met there.
    fn leaves(&mut self, position: usize, met: Met) -> bool {
        let (slot, credit) = (&mut self.positions[position], &mut self.credit[position]);
        match met {
            Met::Unknown => false,
            Met::Nobody => {
                *credit = self.most_credit.min(*credit + 1);
                false
            }
            Met::Another(_) if *credit >= COLLISION => {
                *credit -= COLLISION;
                false
            }
            Met::Another(other) => {
                *credit = 0;
                std::mem::replace(slot, other) != other
            }
        }
    }

    /// The slot of a chunk that was sent; [`NO_SLOT`] where there are none.
    pub fn slot(&self, seq: u64) -> u32 {
        self.taken[self.chunk(seq)]
    }

    /// Whether a result may name this slot.
    pub fn has(&self, slot: u32) -> bool {
        slot < self.slots
    }

    /// The result of chunk `seq` says what it met in its slot: nobody, or another, and then this is where its position may go.
    pub fn met(&mut self, seq: u64, other: Option<u32>) {
        if !self.linear {
            let chunk = self.chunk(seq);
            self.met[chunk] = other.map_or(Met::Nobody, Met::Another);
        }
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
        places.met(3, Some(42));
        assert_eq!(places.slot(3), first[3], "the chunk itself stays where it is");
        let mut second = first.clone();
        second[3] = 42;
        assert_eq!(begin(&mut places, 8..16), second);
        assert_eq!(begin(&mut places, 16..24), second);
        places.met(19, Some(42));
        assert!(!places.begin(27) && places.slot(27) == 42, "it has that one");
    }

    /// The slots that a position of one job takes whose chunks meet nobody, or another one who sends it to the slot of its number.
    fn settle(meets: impl IntoIterator<Item = bool>) -> Vec<u32> {
        let mut places = places(4, 100, false);
        places.begin(0);
        let next = |(round, meets): (usize, bool)| {
            let seq = 8 * round as u64;
            places.met(seq, meets.then_some(round as u32));
            places.begin(seq + 8);
            places.slot(seq + 8)
        };
        meets.into_iter().enumerate().map(next).collect()
    }

    #[test]
    fn a_position_that_has_settled_bears_some_collisions() {
        let first = hash(3, 1, 0, 100);
        assert_eq!(settle([false, false, false, true])[3], 3, "three chunks are not enough");
        let long = |meets: &[bool]| settle([[false; 20].as_slice(), meets].concat())[20..].to_vec();
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
        let (mut one, mut other) = (places(2, 100, false), places(2, 100, false));
        begin(&mut one, 0..8);
        begin(&mut other, 0..8);
        // Four chunks of position 1, all of which collided in the same slot: the first move holds.
        for seq in [1, 3, 5, 7] {
            one.met(seq, Some(seq as u32 + 50));
        }
        for seq in [7, 1] {
            other.met(seq, Some(seq as u32 + 50));
        }
        let first = begin(&mut one, 8..10);
        assert_eq!((first[1], begin(&mut other, 8..10)), (51, first));
        for seq in [5, 3] {
            other.met(seq, Some(seq as u32 + 50));
        }
        let rest = begin(&mut one, 10..16);
        assert_eq!(([rest[1], rest[3], rest[5]], begin(&mut other, 10..16)), ([51; 3], rest));
        one.met(9, Some(77));
        other.met(9, Some(77));
        let next = begin(&mut one, 16..20);
        assert_eq!(([next[1], next[3]], begin(&mut other, 16..20)), ([77; 2], next), "it collided there too");
    }

    #[test]
    fn linear_places_follow_one_another_and_stay() {
        let mut places = places(8, 5, true);
        assert_eq!(begin(&mut places, 0..8), [0, 1, 2, 3, 4, 0, 1, 2]);
        places.met(0, Some(4));
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
