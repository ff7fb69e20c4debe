//! Acknowledgement: the consequences of an answer for the path's estimates, and for packets that were sent before the answered
//! one.

use super::Core;
use crate::{
    in_flight::{ChunkRecord, ChunkState},
    rtt::RttSample,
};

impl Core {
    /// Confirms an operation and those before it: all workers have begun it, since a chunk of it was answered.
    fn confirm(&mut self, operation: u64) {
        if operation < self.confirmed {
            return;
        }
        self.confirmed = operation + 1;
        // Packets that were sent later but belong to an operation before say nothing of these: where there are any, only
        // packets sent from now on do.
        let latest = self.threshold.latest().max(self.in_flight.latest_confirmed());
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

    /// Processes the acknowledgement of a chunk. Returns the latest of the chunks that are considered lost by it.
    ///
    /// A result echoes the clock of the packet that completed its slot, or asked for it again. An `echo` of this worker's own
    /// packet means that no other worker was waited for: the time is the path's. Otherwise the result may be as late as the
    /// slowest worker, or as another worker's recovery. Then it is a sample only when it is not later than usual: a loss
    /// anywhere would lengthen all workers' timeouts.
    pub fn acknowledge(&mut self, answered: &ChunkRecord, echo: u32, is_marked: bool) -> Option<u64> {
        let now = self.now;
        self.confirm(answered.operation);
        let was_lost = answered.state == ChunkState::Lost;
        self.stats.suspects_spared += u64::from(was_lost);
        self.probe_timeout.on_result(now);
        self.path_check.restart(now);
        let rtt = now.since(answered.sent);
        let is_own = echo == answered.sent.stamp() && !answered.is_query;
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
        if !is_only && !is_own {
            // Which packet was answered is not known: no indication of order.
            if !is_delayed || self.rtt.is_likely(rtt) {
                self.threshold.on_ambiguous_answer(answered.packet);
            }
            return None;
        }
        self.threshold.on_answer(answered.packet);
        self.detect_loss()
    }

    /// Considers the packets lost that the threshold indicates. Returns the latest chunk among them.
    fn detect_loss(&mut self) -> Option<u64> {
        let mut latest = None;
        while let Some((index, threshold)) = self.in_flight.oldest_confirmed() {
            if !self.threshold.indicates_loss(threshold) {
                break;
            }
            latest = latest.max(Some(self.in_flight.get(index).seq));
            self.in_flight.mark_lost(index, false);
            self.stats.suspects_fast += 1;
        }
        latest
    }
}
