//! What is in flight: for every slot, the chunk that it carries or will carry next.

use crate::{placement::StaticPool, queues::Queues, time::Time};

/// How often a timeout is doubled at most, plus one.
pub(crate) const LEVELS: usize = 8;
/// The queue of chunks whose last packet is taken for lost.
const LOST: usize = LEVELS;
/// The queue of chunks that were never sent.
const READY: usize = LEVELS + 1;

/// What is to become of a slot's chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The stream has not reached the slot's next chunk yet.
    Waiting,
    /// To be sent for the first time.
    Ready,
    /// Sent, and not answered.
    Flying,
    /// Sent, not answered, and to be sent again.
    Lost,
}

/// One slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// The chunk.
    pub seq: u64,
    /// The number of the operation that the chunk belongs to; meaningless while waiting.
    pub op: u64,
    /// When the chunk was last sent.
    pub sent: Time,
    /// Send index of that packet, counted from 1 over all packets.
    pub index: u64,
    /// Where the chunk stands.
    pub state: State,
    /// How often its timeout is doubled.
    pub level: u8,
    /// Whether it was sent more than once.
    pub resent: bool,
}

/// All slots, and the queues they stand in: one per back-off level in the order of sending, one of
/// lost chunks, one of ready ones.
#[derive(Debug)]
pub(crate) struct Slots {
    table: Box<[Slot]>,
    queues: Queues<{ LEVELS + 2 }>,
    in_flight: usize,
}

impl Slots {
    /// Slots that wait for their first chunk of a stream that begins with chunk `first`.
    pub fn new(pool: StaticPool, first: u64) -> Slots {
        let slot = |slot| Slot {
            seq: pool.first_of(slot, first),
            op: 0,
            sent: Time(0),
            index: 0,
            state: State::Waiting,
            level: 0,
            resent: false,
        };
        let table: Box<[Slot]> = (0..pool.slots() as usize).map(slot).collect();
        Slots { queues: Queues::new(table.len()), table, in_flight: 0 }
    }

    /// The slot with this index, which comes from [`StaticPool`] or a queue.
    pub fn get(&self, slot: usize) -> &Slot {
        &self.table[slot]
    }

    /// Chunks sent and not answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The stream has reached the chunk `seq` of operation `op`: its slot is ready if it waits for it.
    pub fn wake(&mut self, slot: usize, seq: u64, op: u64) {
        let entry = &mut self.table[slot];
        if entry.state == State::Waiting && entry.seq == seq {
            entry.state = State::Ready;
            entry.op = op;
            self.queues.append(READY, slot);
        }
    }

    /// What should be sent next: lost chunks before new ones.
    pub fn next_to_send(&self) -> Option<usize> {
        self.queues.front(LOST).or_else(|| self.queues.front(READY))
    }

    /// The slot's chunk was sent at `now` as packet `index`. `level` is the back-off that a chunk
    /// starts with.
    pub fn launch(&mut self, slot: usize, now: Time, index: u64, level: u8) {
        let entry = &mut self.table[slot];
        if entry.state == State::Lost {
            entry.resent = true;
        } else {
            entry.resent = false;
            entry.level = level;
            self.in_flight += 1;
        }
        entry.state = State::Flying;
        entry.sent = now;
        entry.index = index;
        self.queues.append(usize::from(entry.level), slot);
    }

    /// The packet of a flying slot is taken for lost. `backed_off` doubles its next timeout.
    pub fn lose(&mut self, slot: usize, backed_off: bool) {
        let entry = &mut self.table[slot];
        entry.state = State::Lost;
        if backed_off && usize::from(entry.level) + 1 < LEVELS {
            entry.level += 1;
        }
        self.queues.append(LOST, slot);
    }

    /// The chunk was answered: the slot goes on to chunk `seq`, of operation `op` or not there yet.
    pub fn advance(&mut self, slot: usize, seq: u64, op: Option<u64>) {
        self.in_flight -= 1;
        self.queues.remove(slot);
        let entry = &mut self.table[slot];
        entry.seq = seq;
        entry.state = State::Waiting;
        if let Some(op) = op {
            entry.state = State::Ready;
            entry.op = op;
            self.queues.append(READY, slot);
        }
    }

    /// The flying slot of this back-off level that was sent first.
    pub fn first_sent(&self, level: usize) -> Option<(usize, &Slot)> {
        self.queues.front(level).map(|slot| (slot, &self.table[slot]))
    }

    /// Forgets everything: nothing will be sent any more.
    pub fn clear(&mut self) {
        self.queues.clear();
        self.table.iter_mut().for_each(|slot| slot.state = State::Waiting);
        self.in_flight = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Slots {
        Slots::new(StaticPool::new(4), 0)
    }

    #[test]
    fn a_slot_goes_round() {
        let mut slots = slots();
        assert_eq!(slots.next_to_send(), None);
        slots.wake(2, 6, 0);
        assert_eq!(slots.next_to_send(), None, "slot 2 waits for chunk 2, not 6");
        slots.wake(2, 2, 0);
        assert_eq!(slots.next_to_send(), Some(2));
        slots.launch(2, Time(5), 1, 0);
        assert_eq!((slots.next_to_send(), slots.in_flight()), (None, 1));
        assert_eq!(slots.first_sent(0).map(|(slot, _)| slot), Some(2));
        slots.advance(2, 6, None);
        assert_eq!((slots.next_to_send(), slots.in_flight()), (None, 0));
        slots.wake(2, 6, 1);
        assert_eq!(slots.next_to_send(), Some(2));
    }

    #[test]
    fn lost_chunks_go_first_and_back_off_only_by_the_timer() {
        let mut slots = slots();
        slots.wake(0, 0, 0);
        slots.wake(1, 1, 0);
        slots.launch(0, Time(0), 1, 0);
        slots.lose(0, false);
        assert_eq!(slots.next_to_send(), Some(0), "before slot 1, which is ready");
        slots.launch(0, Time(1), 2, 0);
        assert_eq!((slots.get(0).level, slots.get(0).resent, slots.in_flight()), (0, true, 1));
        for round in 1..20usize {
            slots.lose(0, true);
            slots.launch(0, Time(2), 3, 0);
            assert_eq!(usize::from(slots.get(0).level), round.min(LEVELS - 1));
        }
        slots.advance(0, 4, Some(0));
        slots.launch(0, Time(3), 4, 0);
        assert_eq!((slots.get(0).level, slots.get(0).resent), (0, false), "a new chunk starts anew");
    }
}
