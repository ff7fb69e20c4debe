//! What an engine did, in numbers that an operator can read.

use serde::{Serialize, Serializer, ser::SerializeMap};
use sumac_wire::{Reason, reason::COUNTERS};

use crate::histogram::Histogram;

/// How many frames ended in each [`Reason`]. Serialises as a map of those that are not zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasons([u64; COUNTERS]);

impl Default for Reasons {
    fn default() -> Reasons {
        Reasons([0; COUNTERS])
    }
}

impl Reasons {
    /// Counts one frame.
    pub(crate) fn count(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }

    /// Adds what another one counted.
    fn merge(&mut self, other: &Reasons) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// Frames that ended in `reason`.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// All frames.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Frames that were not taken, for whatever reason.
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

/// Round trips, as the retransmission timer sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RttStats {
    /// Smoothed round trip in nanoseconds; 0: none measured yet.
    pub smoothed_ns: u64,
    /// Its variation in nanoseconds.
    pub variation_ns: u64,
    /// The shortest in nanoseconds.
    pub shortest_ns: u64,
    /// The timeout of a chunk that is sent now, in nanoseconds.
    pub timeout_ns: u64,
    /// The same of an operation that all workers have begun.
    pub timeout_begun_ns: u64,
}

/// Counters since the engine was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineStats {
    /// Operations taken.
    pub operations_submitted: u64,
    /// Operations whose output holds the sum.
    pub operations_completed: u64,
    /// Operations that ended in an error.
    pub operations_failed: u64,
    /// Chunks sent for the first time.
    pub chunks_sent: u64,
    /// Chunks taken for lost because results of later ones arrived.
    pub suspects_fast: u64,
    /// Chunks taken for lost because their timer expired, or to probe a silent path.
    pub suspects_timer: u64,
    /// Chunks taken for lost whose result arrived before anything was sent.
    pub suspects_spared: u64,
    /// Packets without elements that asked about such a chunk: questions, and exponent rounds once more.
    pub questions: u64,
    /// Answers that the elements are wanted: they, or the result, were lost.
    pub missing: u64,
    /// Chunks whose elements were sent again.
    pub resent: u64,
    /// Chunks whose result came.
    pub results: u64,
    /// Exponent rounds: chunks whose exponent had to be asked for before they could be sent.
    pub exponent_rounds: u64,
    /// Results that named another chunk than the regular one, two rounds of all slots later: since some slot was held
    /// up, or had been.
    pub steals: u64,
    /// Chunks that another worker takes for another operation's.
    pub mismatches: u64,
    /// Chunks that may be in flight now (dynamic jobs).
    pub cwnd: u64,
    /// How often that was halved, for marks or losses.
    pub halvings: u64,
    /// Results that told of congestion on their way, or on a contribution's.
    pub marked: u64,
    /// Results of chunks that found a slot busy.
    pub collisions: u64,
    /// How often a place in the window was given another slot for that.
    pub remapped: u64,
    /// Chunks whose floats were sent as they are.
    pub raw_chunks: u64,
    /// Lanes that pass the aggregator by now, since it does not answer or there is none.
    pub direct: u64,
    /// Own chunks with a value that did not fit or was not finite.
    pub chunks_faulty: u64,
    /// Results with such a value of any worker.
    pub results_faulty: u64,
    /// Values read from tensors into packets, those of retransmissions included.
    pub elements_sent: u64,
    /// Values read from tensors for their exponents alone.
    pub elements_scanned: u64,
    /// Values written to tensors.
    pub elements_received: u64,
    /// Bytes of UDP payload handed out.
    pub bytes_sent: u64,
    /// Bytes of UDP payload taken in, also of dropped frames.
    pub bytes_received: u64,
    /// Probes sent.
    pub probes_sent: u64,
    /// Answers to them.
    pub reports: u64,
    /// Packets in flight now.
    pub in_flight: u64,
    /// The timer's view of the path.
    pub rtt: RttStats,
    /// From a packet to its answer, of packets that were sent once: the path, and the slowest worker.
    pub round_trips: Histogram,
    /// From a chunk's first packet to its result, whatever happened on the way.
    pub completions: Histogram,
    /// What became of every frame that arrived; `steered`: taken.
    pub frames: Reasons,
}

impl EngineStats {
    /// Adds another lane's: counters and histograms add up, and the slower path of the two stays.
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
