//! Deadlines from the measured round trip: of the last chunks of the stream, of chunks whose operation has a
//! loss bound, and of exponent chunks.
//!
//! | chunk | deadline | then |
//! | --- | --- | --- |
//! | suspected | [`FLUSH_TIMEOUTS`] retransmission timeouts after its first packet; one where a worker is known to be late | before it a query (static mode) or a retransmission (dynamic), as in a reliable operation; flush after it |
//! | an exponent chunk that others wait for, with nothing older in flight | the timeout of a started operation; with a loss bound [`QUIET_TRIPS`] of the shortest round trip | suspected, once |
//! | not suspected, and the stream has no further chunk | the latest answer's round trip after its packet, and [`QUIET_TRIPS`] of the shortest after the last result; without a loss bound that doubles until the next result | suspected |
//!
//! All workers suspect a lost contribution at about the same time, and only one of them lacks it: in the
//! static mode a flush of each costs more time than the queries and the one retransmission. The result of a
//! flush also leaves a later chunk's exponent unknown. A chunk that these have not completed within the
//! deadline waits for a straggler.
//!
//! A worker is late where no result has come for a whole timeout, or where the latest result was one without
//! some workers: the next window waits for the same one.

use super::Core;
use crate::{
    bounded_loss::{Flush, Ledger},
    in_flight::{ChunkRecord, ChunkState},
    time::Time,
};

/// Retransmission timeouts from a chunk's first packet until it is flushed: one to detect a loss and one to
/// repair it.
const FLUSH_TIMEOUTS: u64 = 2;
/// Shortest round trips without a result after which one of the last chunks is suspected. RFC 8985, section
/// 7.2, has two smoothed ones, which hold the queues of a full window.
const QUIET_TRIPS: u64 = 2;
/// The most doublings of that pause.
const MAX_LEVEL: u32 = 16;

impl Core {
    /// The flush that a suspected chunk is sent again with, once its deadline has passed.
    pub fn flush(&self, record: &ChunkRecord) -> Option<Flush> {
        // Not before all workers have begun the operation: a trainer that is late has lost nothing.
        if record.state != ChunkState::Lost || record.operation >= self.confirmed {
            return None;
        }
        // All workers need all exponents, and state the operation's terms with its first chunk.
        let pending = self.stream.waiting(record.operation, record.seq)?;
        let pending = Some(pending).filter(|pending| pending.start() != record.seq)?;
        let limit = pending.ledger.as_ref()?.limit()?;
        let is_late = self.latest_is_partial || self.probe_timeout.is_idle();
        let timeouts = if is_late { 1 } else { FLUSH_TIMEOUTS };
        let is_due = self.now.since(record.first_sent) >= timeouts * self.rtt.timeout_confirmed(0);
        is_due.then_some(Flush { limit, first_seq: pending.start() })
    }

    /// The tail loss probe (RFC 8985, section 7) and its chunk. `is_at_end`: the stream has no further chunk,
    /// so that no later result shows that one was lost.
    pub fn tail_probe(&self, is_at_end: bool) -> Option<(Time, usize)> {
        self.exponents_probe().or_else(|| self.last_chunk_probe(is_at_end))
    }

    /// The probe of an exponent chunk that others wait for, where nothing older is in flight. It goes once,
    /// whether all workers have begun the operation or not.
    fn exponents_probe(&self) -> Option<(Time, usize)> {
        self.in_flight.first_held()?;
        let index = self.in_flight.oldest()?;
        let record = self.in_flight.get(index);
        let pending = self.stream.get(record.operation)?;
        if record.is_resent || !pending.is_exponents(record.seq) || self.rtt.shortest() == 0 {
            return None;
        }
        let has_bound = pending.ledger.as_ref().is_some_and(|ledger| ledger.limit().is_some());
        let pause = if has_bound { self.quiet() } else { self.rtt.timeout_confirmed(0) };
        Some((record.sent.plus(pause), index))
    }

    /// The time without a result after which one of the last chunks is suspected.
    fn quiet(&self) -> u64 {
        let window = self.loss.reordering_window(&self.rtt);
        window.max(QUIET_TRIPS * self.rtt.shortest()).max(self.rtt.variation() / 2)
    }

    fn last_chunk_probe(&self, is_at_end: bool) -> Option<(Time, usize)> {
        if !is_at_end || self.tuning.timers_only {
            return None;
        }
        let (index, _) = self.in_flight.oldest_confirmed()?;
        let record = self.in_flight.get(index);
        let ledger = self.stream.get(record.operation)?.ledger.as_ref();
        // A flush needs a suspicion of its chunk, however late a worker is.
        let level = if ledger.and_then(Ledger::limit).is_some() { 0 } else { self.tail_probes };
        // Without a sample there is no pause.
        Some(self.rtt.shortest()).filter(|shortest| *shortest > 0)?;
        let window = self.loss.reordering_window(&self.rtt);
        let due = record.timer_start.plus((self.latest_rtt + window) << record.backoff);
        // One chunk in each pause: where a worker is late, all of them wait.
        let latest = self.probe_timeout.last_result().max(self.tail_probed);
        Some((due.max(latest.plus(self.quiet() << level.min(MAX_LEVEL))), index))
    }

    /// Whether one tail loss probe was due since the latest result.
    pub fn has_probed_tail_once(&self) -> bool {
        self.tail_probes == 1
    }

    /// Suspects the oldest chunk when its tail loss probe is due. Returns whether it was.
    pub fn expire_tail_probe(&mut self, is_at_end: bool) -> bool {
        let due = self.tail_probe(is_at_end).filter(|(at, _)| *at <= self.now);
        let Some((_, index)) = due else { return false };
        self.expire_chunk(index);
        self.tail_probed = self.now;
        self.tail_probes += 1;
        self.stats.tail_probes += 1;
        true
    }
}
