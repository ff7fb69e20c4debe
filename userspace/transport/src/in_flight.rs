//! The table of the chunks that may be in flight, and the queues that they wait in. A chunk's index is its
//! slot in the static mode and its place in the window in the dynamic one. Modes keep state of their own
//! beside this table.

use serde::{Deserialize, Serialize};

use crate::{queues::Queues, time::Time};

/// Back-off levels: a timeout is doubled at most one time less than this.
pub(crate) const BACKOFF_LEVELS: usize = 8;
/// The queue of chunks whose last packet is considered lost.
const LOST: usize = BACKOFF_LEVELS;
/// The queue of chunks that are to be sent for the first time.
const READY: usize = BACKOFF_LEVELS + 1;
/// The queue of sent chunks whose operation may not have begun on all workers.
const UNCONFIRMED: usize = BACKOFF_LEVELS + 2;
/// The queue of chunks that wait for their exponent.
const HELD: usize = BACKOFF_LEVELS + 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ChunkState {
    /// The chunk may not be sent yet.
    Idle,
    /// May be sent once the result of an exponent chunk has come.
    Held,
    /// To be sent for the first time, or in another form after an answer to the form before.
    Ready,
    /// Sent and not answered.
    Sent,
    /// Sent, not answered, and considered lost: a query or a retransmission follows.
    Lost,
}

impl ChunkState {
    /// Whether an answer is waited for.
    pub const fn is_sent(self) -> bool {
        matches!(self, ChunkState::Sent | ChunkState::Lost)
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ChunkRecord {
    pub seq: u64,
    /// The number of its operation in the stream; of no meaning while idle.
    pub operation: u64,
    pub state: ChunkState,
    /// The time of its first packet.
    pub first_sent: Time,
    pub sent: Time,
    /// The start of its timer: `sent`, or the later time at which all workers were known to have begun the
    /// operation.
    pub timer_start: Time,
    /// The number of its last packet. The engine numbers all its packets, from 1 (RFC 9002).
    pub packet: u64,
    /// Only answers to packets with a higher number than this indicate its loss.
    pub threshold: u64,
    /// The answer to a later packet by which it was last considered lost; `None`: a timer did, or it was not.
    pub overtaken: Option<Time>,
    /// The path of its last packet that was no query.
    pub path: u16,
    /// The path of the packet last considered lost.
    pub lost_path: u16,
    /// The number of times that its timeout is doubled.
    pub backoff: u8,
    /// Whether more than one packet was sent.
    pub is_resent: bool,
    /// Whether the last packet was a query: an answer that comes now may be to the packet before it.
    pub is_query: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SentPacket {
    pub now: Time,
    pub packet: u64,
    pub path: u16,
    /// The back-off of chunks that are sent for the first time.
    pub backoff: u8,
    /// Whether the chunk's completion time counts from here, unless it was sent before.
    pub is_start: bool,
    pub is_query: bool,
    /// Whether all workers have begun the operation.
    pub is_confirmed: bool,
}

/// The table and its queues: one for each back-off level in the order of sending, one of unconfirmed chunks,
/// one of lost ones, one of ready ones, one of held ones.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InFlight {
    records: Box<[ChunkRecord]>,
    queues: Queues<{ BACKOFF_LEVELS + 4 }>,
    /// Chunks that were sent and not answered.
    unanswered: usize,
    /// Of those, the ones considered lost.
    lost: usize,
}

impl InFlight {
    /// A table of idle chunks with these sequence numbers.
    pub fn new(seqs: impl Iterator<Item = u64>) -> InFlight {
        let record = |seq| ChunkRecord {
            seq,
            operation: 0,
            state: ChunkState::Idle,
            first_sent: Time(0),
            sent: Time(0),
            timer_start: Time(0),
            packet: 0,
            threshold: 0,
            overtaken: None,
            path: 0,
            lost_path: 0,
            backoff: 0,
            is_resent: false,
            is_query: false,
        };
        let records: Box<[ChunkRecord]> = seqs.map(record).collect();
        InFlight { queues: Queues::new(records.len()), records, unanswered: 0, lost: 0 }
    }

    /// The chunks that may be in flight.
    pub fn capacity(&self) -> usize {
        self.records.len()
    }

    pub fn get(&self, index: usize) -> &ChunkRecord {
        &self.records[index]
    }

    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Chunks sent, not answered, and not considered lost.
    pub fn in_network(&self) -> usize {
        self.unanswered - self.lost
    }

    /// Allows the chunk to be sent, as one of this operation.
    pub fn make_ready(&mut self, index: usize, operation: u64) {
        let record = &mut self.records[index];
        record.state = ChunkState::Ready;
        record.operation = operation;
        self.queues.append(READY, index);
    }

    /// Lets the chunk wait for its exponent, as one of this operation.
    pub fn hold(&mut self, index: usize, operation: u64) {
        let record = &mut self.records[index];
        if record.state == ChunkState::Held {
            return;
        }
        record.state = ChunkState::Held;
        record.operation = operation;
        self.queues.append(HELD, index);
    }

    /// The chunk that has waited longest for its exponent.
    pub fn first_held(&self) -> Option<usize> {
        self.queues.front(HELD)
    }

    /// The chunk to send next: lost chunks come before new ones.
    pub fn next_to_send(&self) -> Option<usize> {
        self.queues.front(LOST).or_else(|| self.queues.front(READY))
    }

    pub fn on_sent(&mut self, index: usize, sent: SentPacket) {
        let record = &mut self.records[index];
        if record.state == ChunkState::Lost {
            self.lost -= 1;
            record.is_resent = true;
        } else {
            if sent.is_start {
                record.first_sent = sent.now;
            }
            record.is_resent = false;
            record.overtaken = None;
            record.backoff = sent.backoff;
            self.unanswered += 1;
        }
        record.is_query = sent.is_query;
        if !sent.is_query {
            record.path = sent.path;
        }
        record.state = ChunkState::Sent;
        (record.sent, record.timer_start) = (sent.now, sent.now);
        (record.packet, record.threshold) = (sent.packet, sent.packet);
        let queue = if sent.is_confirmed { usize::from(record.backoff) } else { UNCONFIRMED };
        self.queues.append(queue, index);
    }

    /// Records that all workers have begun the operation of a sent chunk. With `restart` its timer begins at
    /// that time, and only packets after that number indicate its loss.
    pub fn confirm(&mut self, index: usize, restart: Option<(Time, u64)>) {
        let record = &mut self.records[index];
        if let Some((timer_start, threshold)) = restart {
            (record.timer_start, record.threshold) = (timer_start, threshold);
        }
        self.queues.append(usize::from(record.backoff), index);
    }

    /// Considers the last packet of a sent chunk, or its answer, lost. `backs_off` doubles its next timeout.
    pub fn mark_lost(&mut self, index: usize, backs_off: bool) {
        let record = &mut self.records[index];
        self.lost += usize::from(record.state != ChunkState::Lost);
        record.state = ChunkState::Lost;
        (record.overtaken, record.lost_path) = (None, record.path);
        if backs_off && usize::from(record.backoff) + 1 < BACKOFF_LEVELS {
            record.backoff += 1;
        }
        self.queues.append(LOST, index);
    }

    /// Considers the last packet of a sent chunk lost because a later one was answered at `at`.
    pub fn mark_overtaken(&mut self, index: usize, at: Time) {
        self.mark_lost(index, false);
        self.records[index].overtaken = Some(at);
    }

    /// Considers all sent chunks lost, without back-off.
    pub fn mark_all_lost(&mut self) {
        for index in 0..self.records.len() {
            if self.records[index].state == ChunkState::Sent {
                self.mark_lost(index, false);
            }
        }
    }

    /// Records an answer after which the same chunk is to be sent in another form.
    pub fn reopen(&mut self, index: usize) {
        self.answered(index);
        self.records[index].state = ChunkState::Ready;
        self.queues.append(READY, index);
    }

    /// Records the result of a chunk, sent or not. Its entry goes to chunk `seq`, which is idle.
    pub fn advance(&mut self, index: usize, seq: u64) {
        if self.records[index].state.is_sent() {
            self.answered(index);
        }
        self.queues.remove(index);
        let record = &mut self.records[index];
        record.seq = seq;
        record.state = ChunkState::Idle;
    }

    fn answered(&mut self, index: usize) {
        self.unanswered -= 1;
        self.lost -= usize::from(self.records[index].state == ChunkState::Lost);
    }

    /// The chunk of a back-off level whose last packet was sent first.
    pub fn first_of_level(&self, level: usize) -> Option<(usize, &ChunkRecord)> {
        self.queues.front(level).map(|index| (index, &self.records[index]))
    }

    fn first_of_levels(&self) -> impl Iterator<Item = (usize, &ChunkRecord)> {
        (0..BACKOFF_LEVELS).filter_map(|level| self.first_of_level(level))
    }

    /// The unconfirmed chunk whose last packet was sent first.
    pub fn first_unconfirmed(&self) -> Option<(usize, &ChunkRecord)> {
        self.first_of_level(UNCONFIRMED)
    }

    /// The chunk after this one in its queue.
    pub fn next_in_queue(&self, index: usize) -> Option<(usize, &ChunkRecord)> {
        self.queues.next(index).map(|index| (index, &self.records[index]))
    }

    /// A number that the last packet of no confirmed chunk exceeds; 0 when there is none.
    pub fn latest_confirmed(&self) -> u64 {
        let latest = |level| self.queues.back(level).map(|index| self.records[index].threshold);
        (0..BACKOFF_LEVELS).filter_map(latest).max().unwrap_or(0)
    }

    /// The confirmed chunk that was sent first, and its threshold.
    pub fn oldest_confirmed(&self) -> Option<(usize, u64)> {
        let thresholds = self.first_of_levels().map(|(index, record)| (index, record.threshold));
        thresholds.min_by_key(|(_, threshold)| *threshold)
    }

    /// The sent chunk that comes first in the stream: the same one for all workers that lack its result.
    /// It scans the table.
    pub fn earliest(&self) -> Option<usize> {
        let sent = self.records.iter().enumerate().filter(|(_, record)| record.state == ChunkState::Sent);
        sent.min_by_key(|(_, record)| record.seq).map(|(index, _)| index)
    }

    /// The chunk that was sent first, whether confirmed or not: another worker may wait for an unconfirmed
    /// one.
    pub fn oldest(&self) -> Option<usize> {
        let all = self.first_of_levels().chain(self.first_unconfirmed());
        all.min_by_key(|(_, record)| record.packet).map(|(index, _)| index)
    }

    pub fn clear(&mut self) {
        self.queues.clear();
        self.records.iter_mut().for_each(|record| record.state = ChunkState::Idle);
        (self.unanswered, self.lost) = (0, 0);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A contribution that is sent for the first time.
    pub(crate) fn first(now: u64, packet: u64) -> SentPacket {
        SentPacket {
            now: Time(now),
            packet,
            path: 0,
            backoff: 0,
            is_start: true,
            is_query: false,
            is_confirmed: true,
        }
    }

    fn ready(indexes: u64) -> InFlight {
        let mut in_flight = InFlight::new(0..indexes);
        (0..indexes).for_each(|index| in_flight.make_ready(index as usize, 7));
        in_flight
    }

    #[test]
    fn a_position_goes_round() {
        let mut in_flight = InFlight::new(0..4);
        assert_eq!(in_flight.next_to_send(), None);
        in_flight.make_ready(0, 7);
        assert_eq!(in_flight.next_to_send(), Some(0));
        in_flight.on_sent(0, first(5, 1));
        assert_eq!((in_flight.next_to_send(), in_flight.unanswered()), (None, 1));
        assert_eq!(in_flight.first_of_level(0).map(|(index, _)| index), Some(0));
        in_flight.advance(0, 4);
        assert_eq!((in_flight.next_to_send(), in_flight.unanswered()), (None, 0));
        assert_eq!((in_flight.get(0).seq, in_flight.get(0).state), (4, ChunkState::Idle));
    }

    #[test]
    fn a_reopened_chunk_keeps_the_time_of_its_first_packet() {
        let mut in_flight = ready(1);
        in_flight.on_sent(0, first(5, 1));
        in_flight.reopen(0);
        assert_eq!((in_flight.next_to_send(), in_flight.unanswered()), (Some(0), 0));
        in_flight.on_sent(0, SentPacket { is_start: false, ..first(9, 2) });
        let record = in_flight.get(0);
        assert_eq!((record.first_sent, record.sent), (Time(5), Time(9)));
    }

    #[test]
    fn lost_chunks_go_first_and_back_off_only_by_the_timer() {
        let mut in_flight = ready(2);
        in_flight.on_sent(0, first(0, 1));
        in_flight.mark_lost(0, false);
        assert_eq!(in_flight.next_to_send(), Some(0), "before chunk 1, which is ready");
        in_flight.on_sent(0, first(1, 2));
        let record = in_flight.get(0);
        assert_eq!((record.backoff, record.is_resent, in_flight.unanswered()), (0, true, 1));
        for round in 1..20usize {
            in_flight.mark_lost(0, true);
            in_flight.on_sent(0, first(2, 3));
            assert_eq!(usize::from(in_flight.get(0).backoff), round.min(BACKOFF_LEVELS - 1));
        }
        assert_eq!(in_flight.get(0).first_sent, Time(0));
        in_flight.advance(0, 8);
        in_flight.make_ready(0, 7);
        in_flight.on_sent(0, first(3, 4));
        let record = in_flight.get(0);
        assert_eq!((record.backoff, record.is_resent), (0, false), "a new chunk starts without back-off");
    }

    #[test]
    fn unconfirmed_chunks_have_their_own_queue() {
        let mut in_flight = ready(3);
        in_flight.on_sent(0, SentPacket { is_confirmed: false, ..first(1, 1) });
        in_flight.on_sent(1, SentPacket { is_confirmed: false, ..first(2, 2) });
        in_flight.on_sent(2, first(3, 3));
        assert_eq!(in_flight.first_unconfirmed().map(|(index, _)| index), Some(0));
        assert_eq!(in_flight.first_of_level(0).map(|(index, _)| index), Some(2));
        assert_eq!(in_flight.latest_confirmed(), 3);
        in_flight.confirm(0, Some((Time(9), 4)));
        let record = in_flight.get(0);
        assert_eq!((record.sent, record.timer_start), (Time(1), Time(9)));
        assert_eq!((record.packet, record.threshold, in_flight.latest_confirmed()), (1, 4, 4));
        in_flight.confirm(1, None);
        assert_eq!((in_flight.get(1).timer_start, in_flight.first_unconfirmed().is_none()), (Time(2), true));
    }

    #[test]
    fn the_oldest_is_found_over_all_levels() {
        let mut in_flight = ready(3);
        (0..3).for_each(|index| in_flight.on_sent(index, first(0, index as u64 + 1)));
        assert_eq!(in_flight.oldest_confirmed(), Some((0, 1)));
        in_flight.mark_lost(0, true);
        in_flight.on_sent(0, first(1, 4));
        assert_eq!((in_flight.oldest_confirmed(), in_flight.oldest()), (Some((1, 2)), Some(1)));
        in_flight.advance(1, 9);
        in_flight.advance(2, 10);
        assert_eq!(in_flight.oldest_confirmed(), Some((0, 4)));
    }
}
