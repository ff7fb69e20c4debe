//! What is in flight: for every slot, the chunk that it carries or will carry next, and the one after that.

use std::{cmp::Reverse, collections::BinaryHeap};

use sumac_wire::header::exponent;

use crate::{placement::StaticPool, queues::Queues, time::Time};

/// How often a timeout is doubled at most, plus one.
pub(crate) const LEVELS: usize = 8;
/// The queue of chunks whose last packet is taken for lost.
const LOST: usize = LEVELS;
/// The queue of chunks that were never sent.
const READY: usize = LEVELS + 1;
/// The queue of chunks that were sent, of operations that perhaps not all workers have begun.
const UNSURE: usize = LEVELS + 2;

/// What is to become of a slot's chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The stream has not reached the slot's next chunk yet.
    Waiting,
    /// To be sent for the first time, or its elements after its exponent round, or its floats when they were asked for.
    Ready,
    /// Sent, and not answered.
    Flying,
    /// Sent, not answered, and to be asked about; in the dynamic mode, or when it is known to be missing, to be sent again.
    Lost,
}

/// What a packet of a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The chunk's elements.
    Elements,
    /// Its exponent round.
    Round,
    /// The question whether its elements have arrived.
    Question,
}

/// One slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// The chunk.
    pub seq: u64,
    /// The slot's next chunk, which is known while this one is on its way.
    pub after: u64,
    /// The chunk before, as packets carry it.
    pub previous: u32,
    /// Which of the slot's versions the chunk uses.
    pub version: u8,
    /// The exponent that all workers scale the chunk by; `UNKNOWN` asks for an exponent round.
    pub exponent: i8,
    /// Whether what was sent is the chunk's exponent round, not its elements.
    pub asks: bool,
    /// Whether the last packet was a question: what arrives now answers the one before.
    pub questioned: bool,
    /// Whether the aggregator said that it wants the elements.
    pub wanted: bool,
    /// Whether the parameter host asked for the chunk's floats (dynamic mode).
    pub raw: bool,
    /// The number of the operation that the chunk belongs to; meaningless while waiting.
    pub op: u64,
    /// When the chunk was sent for the first time, or its exponent round was.
    pub begun: Time,
    /// When the last packet was sent.
    pub sent: Time,
    /// When its timer began: then, or later when all workers were known to have begun the operation.
    pub since: Time,
    /// Send index of that packet, counted from 1 over all packets.
    pub index: u64,
    /// Only answers to packets with a higher send index than this are a sign that it is lost.
    pub threshold: u64,
    /// Where the chunk stands.
    pub state: State,
    /// How often its timeout is doubled.
    pub level: u8,
    /// Whether more than one packet was sent.
    pub resent: bool,
}

/// All slots, and the queues they stand in: one per back-off level in the order of sending, one of those whose
/// operation some worker may not have begun, one of lost chunks, one of ready ones; those that wait for the stream, by
/// their chunk.
#[derive(Debug)]
pub(crate) struct Slots {
    table: Box<[Slot]>,
    queues: Queues<{ LEVELS + 3 }>,
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
    in_flight: usize,
    /// Of those, the ones taken for lost.
    lost: usize,
}

impl Slots {
    /// Slots that wait for their first chunk of a stream that begins with chunk `first`.
    pub fn new(pool: StaticPool, first: u64) -> Slots {
        let slot = |slot| {
            let (seq, version) = pool.first_of(slot, first);
            Slot {
                seq,
                after: seq + pool.slots(),
                previous: (seq as u32).wrapping_sub(pool.slots() as u32),
                version,
                exponent: exponent::UNKNOWN,
                asks: false,
                questioned: false,
                wanted: false,
                raw: false,
                op: 0,
                begun: Time(0),
                sent: Time(0),
                since: Time(0),
                index: 0,
                threshold: 0,
                state: State::Waiting,
                level: 0,
                resent: false,
            }
        };
        let table: Box<[Slot]> = (0..pool.slots() as usize).map(slot).collect();
        let waiting = table.iter().zip(0..).map(|(entry, slot)| Reverse((entry.seq, slot))).collect();
        Slots { queues: Queues::new(table.len()), table, waiting, in_flight: 0, lost: 0 }
    }

    /// The slot with this index, which comes from [`StaticPool`] or a queue.
    pub fn get(&self, slot: usize) -> &Slot {
        &self.table[slot]
    }

    /// Packets sent and not answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Packets that are on their way, as far as one can tell.
    pub fn flying(&self) -> usize {
        self.in_flight - self.lost
    }

    /// The earliest chunk that a slot waits for.
    pub fn waits_for(&self) -> Option<u64> {
        self.waiting.peek().map(|Reverse((seq, _))| *seq)
    }

    /// The stream has reached the earliest chunk that a slot waits for: it is one of operation `op`.
    pub fn wake(&mut self, op: u64) {
        if let Some(Reverse((_, slot))) = self.waiting.pop() {
            self.make_ready(slot as usize, op);
        }
    }

    /// The slot's chunk may be sent: it is one of operation `op`.
    pub fn make_ready(&mut self, slot: usize, op: u64) {
        let entry = &mut self.table[slot];
        entry.state = State::Ready;
        entry.op = op;
        self.queues.append(READY, slot);
    }

    /// What should be sent next: lost chunks before new ones.
    pub fn next_to_send(&self) -> Option<usize> {
        self.queues.front(LOST).or_else(|| self.queues.front(READY))
    }

    /// A packet of the slot's chunk was sent at `now` as packet `index`. `level` is the back-off that a packet starts
    /// with; `is_sure`: all workers have begun the operation.
    pub fn launch(&mut self, slot: usize, now: Time, index: u64, level: u8, sent: Sent, is_sure: bool) {
        let entry = &mut self.table[slot];
        let asks = sent == Sent::Round;
        if entry.state == State::Lost {
            self.lost -= 1;
            entry.resent = true;
        } else {
            if (asks || !entry.asks) && !entry.raw {
                entry.begun = now;
            }
            entry.resent = false;
            entry.level = level;
            self.in_flight += 1;
        }
        entry.asks = asks;
        entry.questioned = sent == Sent::Question;
        entry.wanted = false;
        entry.state = State::Flying;
        (entry.sent, entry.since) = (now, now);
        (entry.index, entry.threshold) = (index, index);
        let queue = if is_sure { usize::from(entry.level) } else { UNSURE };
        self.queues.append(queue, slot);
    }

    /// All workers have begun the operation of a flying slot. `anew`: its timer begins now, and only packets after
    /// this send index are a sign of its loss.
    pub fn make_sure(&mut self, slot: usize, anew: Option<(Time, u64)>) {
        let entry = &mut self.table[slot];
        if let Some((since, threshold)) = anew {
            (entry.since, entry.threshold) = (since, threshold);
        }
        self.queues.append(usize::from(entry.level), slot);
    }

    /// The packet of a flying slot is taken for lost, or its answer. `backed_off` doubles its next timeout.
    pub fn lose(&mut self, slot: usize, backed_off: bool) {
        let entry = &mut self.table[slot];
        self.lost += usize::from(entry.state != State::Lost);
        entry.state = State::Lost;
        if backed_off && usize::from(entry.level) + 1 < LEVELS {
            entry.level += 1;
        }
        self.queues.append(LOST, slot);
    }

    /// All packets in flight are taken for lost, for a reason that says nothing of their timers.
    pub fn lose_all(&mut self) {
        for slot in 0..self.table.len() {
            if self.table[slot].state == State::Flying {
                self.lose(slot, false);
            }
        }
    }

    /// Nobody knows the exponents of the chunks any more.
    pub fn forget_exponents(&mut self) {
        self.table.iter_mut().for_each(|entry| entry.exponent = exponent::UNKNOWN);
    }

    /// The aggregator wants the chunk's elements: they go before everything else.
    pub fn want(&mut self, slot: usize) {
        let entry = &mut self.table[slot];
        self.lost += usize::from(entry.state != State::Lost);
        entry.wanted = true;
        entry.state = State::Lost;
        self.queues.append(LOST, slot);
    }

    /// The chunk's exponent round was answered: its elements may be sent.
    pub fn agree(&mut self, slot: usize, exponent: i8) {
        self.in_flight -= 1;
        let entry = &mut self.table[slot];
        self.lost -= usize::from(entry.state == State::Lost);
        entry.exponent = exponent;
        entry.state = State::Ready;
        self.queues.append(READY, slot);
    }

    /// The chunk was answered: the slot goes on to its next chunk, of operation `op` or not there yet.
    pub fn advance(&mut self, slot: usize, after: u64, exponent: i8, op: Option<u64>) {
        self.go_on(slot, after, exponent);
        match op {
            Some(op) => self.make_ready(slot, op),
            None => self.waiting.push(Reverse((self.table[slot].seq, slot as u32))),
        }
    }

    /// The chunk was answered: the slot has its next chunk, in its other version, with this `exponent`; `after` is the one
    /// after that.
    pub fn go_on(&mut self, slot: usize, after: u64, exponent: i8) {
        self.in_flight -= 1;
        self.queues.remove(slot);
        let entry = &mut self.table[slot];
        self.lost -= usize::from(entry.state == State::Lost);
        entry.previous = entry.seq as u32;
        entry.seq = entry.after;
        entry.after = after;
        entry.version ^= 1;
        entry.exponent = exponent;
        entry.asks = false;
        entry.raw = false;
        entry.state = State::Waiting;
    }

    /// The parameter host wants the chunk's floats: they may be sent.
    pub fn want_floats(&mut self, slot: usize) {
        self.in_flight -= 1;
        let entry = &mut self.table[slot];
        self.lost -= usize::from(entry.state == State::Lost);
        entry.raw = true;
        entry.state = State::Ready;
        self.queues.append(READY, slot);
    }

    /// The flying slot of this back-off level that was sent first.
    pub fn first_sent(&self, level: usize) -> Option<(usize, &Slot)> {
        self.queues.front(level).map(|slot| (slot, &self.table[slot]))
    }

    /// Of the flying slots whose operation some worker may not have begun, the one that was sent first.
    pub fn first_unsure(&self) -> Option<(usize, &Slot)> {
        self.first_sent(UNSURE)
    }

    /// The one that came after `slot` to the same queue.
    pub fn next_of(&self, slot: usize) -> Option<(usize, &Slot)> {
        self.queues.next(slot).map(|slot| (slot, &self.table[slot]))
    }

    /// A send index that no packet of all other flying slots exceeds; 0: there are none.
    pub fn latest_sure(&self) -> u64 {
        let latest = |level| self.queues.back(level).map(|slot| self.table[slot].threshold);
        (0..LEVELS).filter_map(latest).max().unwrap_or(0)
    }

    /// Forgets everything: nothing will be sent any more.
    pub fn clear(&mut self) {
        self.queues.clear();
        self.waiting.clear();
        self.table.iter_mut().for_each(|slot| slot.state = State::Waiting);
        (self.in_flight, self.lost) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Slots {
        Slots::new(StaticPool::new(4, 0), 0)
    }

    #[test]
    fn a_slot_goes_round() {
        let mut slots = slots();
        assert_eq!((slots.next_to_send(), slots.waits_for()), (None, Some(0)));
        slots.wake(7);
        assert_eq!((slots.next_to_send(), slots.waits_for()), (Some(0), Some(1)));
        slots.launch(0, Time(5), 1, 0, Sent::Elements, true);
        assert_eq!((slots.next_to_send(), slots.in_flight()), (None, 1));
        assert_eq!(slots.first_sent(0).map(|(slot, _)| slot), Some(0));
        slots.advance(0, 11, 3, None);
        assert_eq!((slots.next_to_send(), slots.in_flight()), (None, 0));
        let entry = *slots.get(0);
        assert_eq!((entry.previous, entry.seq, entry.after, entry.version), (0, 4, 11, 1));
        (0..4).for_each(|_| slots.wake(8));
        assert_eq!((slots.get(0).op, slots.get(0).exponent), (8, 3));
        slots.launch(0, Time(6), 2, 0, Sent::Elements, true);
        slots.advance(0, 12, 3, Some(9));
        assert_eq!((slots.get(0).seq, slots.get(0).version, slots.get(0).op), (11, 0, 9));
    }

    #[test]
    fn slots_wake_in_the_order_of_their_chunks() {
        let mut slots = slots();
        (0..4).for_each(|_| slots.wake(0));
        (0..4).for_each(|slot| slots.launch(slot, Time(0), slot as u64 + 1, 0, Sent::Elements, true));
        // Slot 2 went twice while the others went once: it stole chunk 8.
        slots.advance(2, 8, 0, Some(0));
        slots.launch(2, Time(0), 5, 0, Sent::Elements, true);
        slots.advance(2, 13, 0, None);
        slots.advance(3, 9, 0, None);
        slots.advance(0, 10, 0, None);
        let woken = |slots: &mut Slots| {
            let seq = slots.waits_for();
            slots.wake(1);
            seq
        };
        assert_eq!([woken(&mut slots), woken(&mut slots), woken(&mut slots)], [Some(4), Some(7), Some(8)]);
        assert_eq!(woken(&mut slots), None, "slot 1 flies");
    }

    #[test]
    fn an_exponent_round_comes_before_the_elements() {
        let mut slots = slots();
        slots.wake(0);
        slots.launch(0, Time(5), 1, 0, Sent::Round, true);
        assert!(slots.get(0).asks);
        slots.agree(0, -3);
        assert_eq!((slots.next_to_send(), slots.in_flight(), slots.get(0).exponent), (Some(0), 0, -3));
        slots.launch(0, Time(9), 2, 0, Sent::Elements, true);
        let entry = slots.get(0);
        assert_eq!((entry.begun, entry.sent, entry.asks), (Time(5), Time(9), false));
    }

    #[test]
    fn lost_chunks_go_first_and_back_off_only_by_the_timer() {
        let mut slots = slots();
        slots.wake(0);
        slots.wake(0);
        slots.launch(0, Time(0), 1, 0, Sent::Elements, true);
        slots.lose(0, false);
        assert_eq!(slots.next_to_send(), Some(0), "before slot 1, which is ready");
        slots.launch(0, Time(1), 2, 0, Sent::Elements, true);
        assert_eq!((slots.get(0).level, slots.get(0).resent, slots.in_flight()), (0, true, 1));
        for round in 1..20usize {
            slots.lose(0, true);
            slots.launch(0, Time(2), 3, 0, Sent::Elements, true);
            assert_eq!(usize::from(slots.get(0).level), round.min(LEVELS - 1));
        }
        assert_eq!(slots.get(0).begun, Time(0));
        slots.advance(0, 8, 0, Some(0));
        slots.launch(0, Time(3), 4, 0, Sent::Elements, true);
        assert_eq!((slots.get(0).level, slots.get(0).resent), (0, false), "a new chunk starts anew");
    }

    #[test]
    fn the_unsure_wait_apart_until_they_are_sure() {
        let mut slots = slots();
        (0..3).for_each(|_| slots.wake(0));
        slots.launch(0, Time(1), 1, 0, Sent::Elements, false);
        slots.launch(1, Time(2), 2, 0, Sent::Elements, false);
        slots.launch(2, Time(3), 3, 0, Sent::Elements, true);
        assert_eq!(slots.first_unsure().map(|(slot, _)| slot), Some(0));
        assert_eq!((slots.first_sent(0).map(|(slot, _)| slot), slots.latest_sure()), (Some(2), 3));
        slots.make_sure(0, Some((Time(9), 4)));
        let entry = slots.get(0);
        assert_eq!((entry.sent, entry.since), (Time(1), Time(9)));
        assert_eq!((entry.index, entry.threshold, slots.latest_sure()), (1, 4, 4));
        slots.make_sure(1, None);
        assert_eq!((slots.get(1).since, slots.first_unsure().is_none()), (Time(2), true));
    }
}
