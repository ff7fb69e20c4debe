//! Acknowledgement: the consequences of an answer for the path's estimates, and for packets that were sent
//! before the answered one.

use sumac_wire::{Header, header::flag};

use super::Core;
use crate::{
    budget::CongestionEvent,
    in_flight::{ChunkRecord, ChunkState},
    loss::{Acknowledged, Lost},
    packet::Packet,
    rtt::RttSample,
};

/// The comparison of an answer with those to packets sent later.
#[derive(Clone, Copy, Default)]
struct Lateness {
    /// Whether the chunk's own path was slower than that of later packets.
    is_late: bool,
    /// Whether it had been considered lost and was only late.
    is_spurious: bool,
}

impl Core {
    /// Confirms an operation and those before it: all workers have begun it, since a chunk of it was
    /// answered.
    fn confirm(&mut self, operation: u64) {
        if operation < self.confirmed {
            return;
        }
        self.confirmed = operation + 1;
        // Packets that were sent later but belong to an operation before say nothing of these: where there
        // are any, only packets sent from now on do.
        let latest = self.loss.latest().max(self.in_flight.latest_confirmed());
        let is_first = |first: &ChunkRecord| first.packet > latest;
        let restarts = !self.in_flight.first_unconfirmed().is_some_and(|(_, first)| is_first(first));
        let restart = restarts.then_some((self.now, self.next_packet - 1));
        // The whole queue: probes have moved chunks behind those of later operations.
        let mut next = self.in_flight.first_unconfirmed().map(|(index, first)| (index, first.operation));
        while let Some((index, its)) = next {
            next = self.in_flight.next_in_queue(index).map(|(index, record)| (index, record.operation));
            if its <= operation {
                self.in_flight.confirm(index, restart);
            }
        }
    }

    /// Notes that a result of this operation has come, whether this worker sent the chunk or not.
    pub fn note_result(&mut self, operation: u64) {
        self.confirm(operation);
        self.tail_probes = 0;
        self.probe_timeout.on_result(self.now);
        self.path_check.restart(self.now);
    }

    /// Processes the acknowledgement of a chunk. Returns the chunks that are considered lost by it.
    ///
    /// A result echoes the clock of the packet that completed its slot, or asked for it again. An `echo` of
    /// this worker's own packet means that no other worker was waited for: the time is the path's. Otherwise
    /// the result may be as late as the slowest worker, or as another worker's recovery. Then it is a sample
    /// only when it is not later than usual: a loss anywhere would lengthen all workers' timeouts.
    ///
    /// A result without this worker's values, but for the answer to its own packet, is no evidence of its
    /// packets: it may come at once after one.
    pub fn acknowledge(&mut self, answered: &ChunkRecord, header: &Header, is_marked: bool) -> Acknowledged {
        let (now, echo) = (self.now, header.timestamp);
        self.note_result(answered.operation);
        let was_lost = answered.state == ChunkState::Lost;
        self.stats.suspects_spared += u64::from(was_lost);
        let rtt = now.since(answered.sent);
        let is_own = echo == answered.sent.stamp() && !answered.is_query;
        let is_left_out = header.has(flag::PARTIAL) && header.bitmap_0 >> self.params.rank & 1 == 0;
        if is_left_out && !is_own {
            return Acknowledged { lost: None, is_spurious: false, is_repaired: false };
        }
        let is_only = !answered.is_resent && !was_lost;
        let is_delayed = self.probe_timeout.has_delayed(answered.sent);
        if is_only {
            self.stats.round_trips.record(rtt);
        }
        if is_only || is_own {
            self.budget.on_sample(RttSample { sent: answered.sent, acknowledged: now, is_marked });
        }
        if is_own || is_only && !is_delayed && self.rtt.is_usual(rtt) {
            self.rtt.sample(rtt, answered.packet, self.next_packet);
            self.backoff.reset();
        } else if !is_only {
            self.backoff.keep(answered.backoff);
        }
        let Lateness { is_late, is_spurious } = self.measure_lateness(answered, echo, is_only);
        if is_only || is_own {
            self.paths.on_answer(answered.path, is_late, &mut self.stats.paths);
        }
        let is_repaired = answered.overtaken.is_some() && !is_spurious || is_own && answered.is_resent;
        if !is_only && !is_own {
            // Which packet was answered is not known: no indication of order.
            if !is_delayed || self.rtt.is_likely(rtt) {
                self.loss.on_ambiguous_answer(answered.packet);
            }
            return Acknowledged { lost: None, is_spurious, is_repaired };
        }
        self.latest_rtt = rtt;
        self.loss.on_answer(now, answered.packet, self.next_packet, &self.rtt);
        Acknowledged { lost: self.detect_loss(), is_spurious, is_repaired }
    }

    /// Takes the marks of an answer, which acknowledges chunk `event.seq`. A mark on its last hop, which only
    /// this worker knows, goes out with its next packet; marks that all know count, for all alike. Returns
    /// whether all knew one.
    pub fn take_marks(&mut self, packet: &Packet<'_>, event: CongestionEvent) -> bool {
        let is_echoed = packet.header.has(flag::ECN_ECHO);
        self.echoes_mark |= packet.is_marked && self.budget.reacts_to_marks();
        self.stats.marked += u64::from(packet.is_marked || is_echoed);
        if is_echoed {
            // All workers have halved their windows, which answers this worker's own marks as well.
            self.echoes_mark &= !self.on_congestion(event);
        }
        is_echoed
    }

    /// Records that this worker's packet of chunk `seq`, or its copy of the result, was lost: its next packet
    /// tells all workers, as of a mark.
    pub fn echo_loss(&mut self, seq: u64) {
        self.echoes_mark |= self.budget.is_new_sign(seq);
    }

    /// Measures how long after a later packet's answer a chunk was answered.
    fn measure_lateness(&mut self, answered: &ChunkRecord, echo: u32, is_only: bool) -> Lateness {
        let was_overtaken = answered.overtaken.is_some();
        let overtaken = match answered.overtaken {
            None if is_only => self.loss.overtaken(answered.threshold),
            overtaken => overtaken,
        };
        let Some(overtaken) = overtaken else { return Lateness::default() };
        let lateness = self.now.since(overtaken);
        let is_first = echo == answered.first_sent.stamp();
        if self.loss.on_late(lateness, is_first, &self.rtt) {
            self.stats.suspects_spurious += u64::from(was_overtaken);
            let is_late = is_first && lateness > self.rtt.shortest() / 4;
            return Lateness { is_late, is_spurious: was_overtaken };
        }
        if was_overtaken {
            self.loss.on_recovery();
        }
        Lateness::default()
    }

    /// Considers those packets lost whose reordering window has passed.
    pub fn detect_loss(&mut self) -> Option<Lost> {
        let mut lost: Option<Lost> = None;
        while let Some((index, threshold)) = self.in_flight.oldest_confirmed() {
            let due = self.loss.deadline(threshold, &self.rtt).filter(|due| *due <= self.now);
            let Some(at) = due.and_then(|_| self.loss.overtaken(threshold)) else { break };
            let Lost { latest, chunks } = lost.unwrap_or(Lost { latest: 0, chunks: 0 });
            lost = Some(Lost { latest: latest.max(self.in_flight.get(index).seq), chunks: chunks + 1 });
            self.in_flight.mark_overtaken(index, at);
            self.stats.suspects_fast += 1;
        }
        if lost.is_some() {
            self.suspect_result_paths();
        }
        lost
    }
}
