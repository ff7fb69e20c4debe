//! Deadlines of chunks whose operation has a loss bound, from the measured round trip.
//!
//! | chunk | deadline | then |
//! | --- | --- | --- |
//! | suspected | [`FLUSH_TIMEOUTS`] retransmission timeouts after its first packet | query before it, as in a reliable operation; flush after it |
//! | not suspected, and the stream has no further chunk | the latest answer's round trip after its packet, and [`QUIET_TRIPS`] of the shortest after the last result | suspected |
//!
//! All workers suspect a lost contribution at about the same time, and only one of them lacks it: a flush of each costs more
//! time than the queries and the one retransmission. The result of a flush also leaves the next chunk's exponent unknown. A
//! chunk that queries have not completed within the deadline waits for a straggler.

use super::StaticMode;
use crate::{engine_core::Core, in_flight::ChunkRecord, time::Time};

/// Retransmission timeouts from a chunk's first packet until it is flushed: one to detect a loss and one to repair it.
const FLUSH_TIMEOUTS: u64 = 2;
/// Shortest round trips without a result after which one of the last chunks is suspected. RFC 8985, section 7.2, has two
/// smoothed ones, which hold the queues of a full window.
const QUIET_TRIPS: u64 = 2;

impl StaticMode {
    /// Whether a suspected chunk is flushed by now.
    pub(super) fn is_overdue(core: &Core, record: &ChunkRecord) -> bool {
        core.now.since(record.first_sent) >= FLUSH_TIMEOUTS * core.rtt.timeout_confirmed(0)
    }

    /// The tail loss probe (RFC 8985, section 7) and its slot: where the stream has no further chunk, no later result shows
    /// that one was lost.
    pub(super) fn tail_probe(&self, core: &Core) -> Option<(Time, usize)> {
        self.slots.next_idle()?;
        let (slot, _) = core.in_flight.oldest_confirmed()?;
        let record = core.in_flight.get(slot);
        core.stream.get(record.operation)?.ledger.as_ref()?.limit()?;
        let window = core.loss.reordering_window(&core.rtt);
        let due = record.timer_start.plus((core.latest_rtt + window) << record.backoff);
        // One chunk in each pause: where a worker is late, all of them wait.
        let pause = window.max(QUIET_TRIPS * core.rtt.shortest()).max(core.rtt.variation() / 2);
        let latest = core.probe_timeout.last_result().max(self.tail_probed);
        Some((due.max(latest.plus(pause)), slot))
    }

    /// Suspects the oldest chunk when its tail loss probe is due.
    pub(super) fn expire_tail_probe(&mut self, core: &mut Core) {
        let due = self.tail_probe(core).filter(|(at, _)| *at <= core.now);
        if let Some((_, slot)) = due {
            core.expire_chunk(slot);
            self.tail_probed = core.now;
        }
    }
}
