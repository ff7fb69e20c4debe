//! Counters of an engine.

use serde::{Serialize, Serializer, ser::SerializeMap};
use sumac_wire::{Reason, reason::COUNTERS};

use crate::histogram::Histogram;

/// Packets by the [`Reason`] with which they ended. Serialises as a map of the counts that are not zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasons([u64; COUNTERS]);

impl Default for Reasons {
    fn default() -> Reasons {
        Reasons([0; COUNTERS])
    }
}

impl Reasons {
    /// Counts one packet.
    pub(crate) fn count(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }

    /// Adds another counter's counts.
    fn merge(&mut self, other: &Reasons) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// Packets that ended with `reason`.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// All packets.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Packets that were dropped.
    pub fn dropped(&self) -> u64 {
        self.total() - self.get(Reason::Steered)
    }
}

impl Serialize for Reasons {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for reason in Reason::ALL.iter().filter(|reason| self.get(**reason) > 0) {
            map.serialize_entry(reason.name(), &self.get(*reason))?;
        }
        map.end()
    }
}

/// The round trip as the retransmission timer estimates it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RttStats {
    /// The smoothed round trip in nanoseconds; 0 before the first sample.
    pub smoothed_ns: u64,
    /// Its variation in nanoseconds.
    pub variation_ns: u64,
    /// The shortest sample in nanoseconds.
    pub shortest_ns: u64,
    /// The timeout of a chunk of an operation that may not have begun on all workers, in nanoseconds.
    pub timeout_ns: u64,
    /// The timeout of a chunk of an operation that all workers have begun, in nanoseconds.
    pub timeout_begun_ns: u64,
}

/// Counters since the engine was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineStats {
    /// Operations submitted.
    pub operations_submitted: u64,
    /// Operations that ended with a result.
    pub operations_completed: u64,
    /// Operations that ended in an error.
    pub operations_failed: u64,
    /// Chunks sent for the first time.
    pub chunks_sent: u64,
    /// Chunks considered lost by the packet threshold.
    pub suspects_fast: u64,
    /// Chunks considered lost by their timer or the probe timeout.
    pub suspects_timer: u64,
    /// Chunks considered lost whose result arrived before a packet was sent.
    pub suspects_spared: u64,
    /// Packets without elements for such chunks: queries, and repeated exponent rounds.
    pub questions: u64,
    /// Answers to queries that ask for the elements.
    pub missing: u64,
    /// Chunks whose elements were retransmitted.
    pub resent: u64,
    /// Chunks whose result arrived.
    pub results: u64,
    /// Chunks with an exponent round: their exponent was not known from an earlier chunk.
    pub exponent_rounds: u64,
    /// Reassigned chunks: results that named another chunk than the one two rounds of all slots later, since some slot was
    /// delayed.
    pub steals: u64,
    /// Chunks in which another worker has another operation.
    pub mismatches: u64,
    /// The window of the sending budget, in chunks (dynamic jobs).
    pub cwnd: u64,
    /// How often it was halved, for marks or losses.
    pub halvings: u64,
    /// Results with a mark of congestion, on their own path or a contribution's.
    pub marked: u64,
    /// Results of chunks whose slot was busy.
    pub collisions: u64,
    /// How often a position moved to another slot after collisions.
    pub remapped: u64,
    /// Chunks that were sent as raw floats.
    pub raw_chunks: u64,
    /// Lanes that send straight to the parameter host now.
    pub direct: u64,
    /// Own chunks with a value that does not fit or is not finite.
    pub chunks_faulty: u64,
    /// Results with such a value of any worker.
    pub results_faulty: u64,
    /// Values read from tensors into packets, also for retransmissions.
    pub elements_sent: u64,
    /// Values read from tensors only for their exponents.
    pub elements_scanned: u64,
    /// Values written to tensors.
    pub elements_received: u64,
    /// Bytes of UDP payload sent.
    pub bytes_sent: u64,
    /// Bytes of UDP payload received, also of dropped packets.
    pub bytes_received: u64,
    /// Probes sent.
    pub probes_sent: u64,
    /// Reports received.
    pub reports: u64,
    /// Chunks in flight now.
    pub in_flight: u64,
    /// The estimate of the round trip.
    pub rtt: RttStats,
    /// From a packet to its answer, of chunks that were sent once: the path and the slowest worker.
    pub round_trips: Histogram,
    /// From a chunk's first packet to its result.
    pub completions: Histogram,
    /// Received packets by reason; `steered` counts those that were processed.
    pub frames: Reasons,
}

impl EngineStats {
    /// Adds another lane's statistics: counters and histograms add up, and the slower path of the two stays.
    pub fn merge(&mut self, other: &EngineStats) {
        self.operations_submitted += other.operations_submitted;
        self.operations_completed += other.operations_completed;
        self.operations_failed += other.operations_failed;
        self.chunks_sent += other.chunks_sent;
        self.suspects_fast += other.suspects_fast;
        self.suspects_timer += other.suspects_timer;
        self.suspects_spared += other.suspects_spared;
        self.questions += other.questions;
        self.missing += other.missing;
        self.resent += other.resent;
        self.results += other.results;
        self.exponent_rounds += other.exponent_rounds;
        self.steals += other.steals;
        self.mismatches += other.mismatches;
        self.cwnd += other.cwnd;
        self.halvings += other.halvings;
        self.marked += other.marked;
        self.collisions += other.collisions;
        self.remapped += other.remapped;
        self.raw_chunks += other.raw_chunks;
        self.direct += other.direct;
        self.chunks_faulty += other.chunks_faulty;
        self.results_faulty += other.results_faulty;
        self.elements_sent += other.elements_sent;
        self.elements_scanned += other.elements_scanned;
        self.elements_received += other.elements_received;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.probes_sent += other.probes_sent;
        self.reports += other.reports;
        self.in_flight += other.in_flight;
        if other.rtt.smoothed_ns > self.rtt.smoothed_ns {
            self.rtt = other.rtt;
        }
        self.round_trips.merge(&other.round_trips);
        self.completions.merge(&other.completions);
        self.frames.merge(&other.frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_serialise_by_name() {
        let mut stats = EngineStats::default();
        stats.frames.count(Reason::Stale);
        stats.frames.count(Reason::Steered);
        let json = serde_json::to_value(&stats).map(|json| json["frames"].to_string());
        assert_eq!(json.ok().as_deref(), Some(r#"{"stale":1,"steered":1}"#));
        assert_eq!((stats.frames.total(), stats.frames.dropped()), (2, 1));
    }

    #[test]
    fn lanes_add_up() {
        let mut stats = EngineStats { results: 3, ..EngineStats::default() };
        stats.completions.record(70);
        stats.frames.count(Reason::Steered);
        let mut sum = stats.clone();
        sum.merge(&stats);
        assert_eq!((sum.results, sum.completions.count(), sum.frames.total()), (6, 2, 2));
    }
}
