//! Counters of an engine.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};
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
    pub(crate) fn count(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }

    fn merge(&mut self, other: &Reasons) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

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

/// From the map; reasons of other releases do not count.
impl<'de> Deserialize<'de> for Reasons {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Reasons, D::Error> {
        let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let mut reasons = Reasons::default();
        for reason in Reason::ALL.iter().copied() {
            reasons.0[reason as usize] = counts.get(reason.name()).copied().unwrap_or(0);
        }
        Ok(reasons)
    }
}

/// The round trip as the retransmission timer estimates it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RttStats {
    /// The smoothed round trip in nanoseconds; 0 before the first sample.
    pub smoothed_ns: u64,
    pub variation_ns: u64,
    /// The shortest sample in nanoseconds.
    pub shortest_ns: u64,
    /// The timeout of a chunk of an operation that may not have begun on all workers, in nanoseconds.
    pub timeout_ns: u64,
    /// The timeout of a chunk of an operation that all workers have begun, in nanoseconds.
    pub timeout_begun_ns: u64,
    /// The reordering window: an answer to a later packet this long ago makes a packet lost, in nanoseconds.
    pub reordering_ns: u64,
}

/// Packets and losses by path, and the paths' weights; one entry for each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStats {
    pub sent: Vec<u64>,
    /// Packets that were lost, or whose answers were.
    pub lost: Vec<u64>,
    /// Answers later than those to packets sent later on other paths.
    pub late: Vec<u64>,
    /// Of 1,024, in the choice of a packet's path; 0: suspended.
    pub weight: Vec<u64>,
}

impl PathStats {
    /// Adds another lane's counters. Of two weights the smaller one stays.
    fn merge(&mut self, other: &PathStats) {
        let add = |to: &mut Vec<u64>, from: &[u64]| {
            to.resize(to.len().max(from.len()), 0);
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        };
        add(&mut self.sent, &other.sent);
        add(&mut self.lost, &other.lost);
        add(&mut self.late, &other.late);
        self.weight.iter_mut().zip(&other.weight).for_each(|(least, weight)| *least = *weight.min(least));
        self.weight.extend(other.weight.iter().skip(self.weight.len()));
    }
}

/// Defines the statistics: counters and gauges that add up over lanes, and the other fields.
macro_rules! engine_stats {
    ($($(#[$doc:meta])* $counter:ident,)*) => {
        /// Counters since the engine was made.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct EngineStats {
            $($(#[$doc])* pub $counter: u64,)*
            pub rtt: RttStats,
            pub paths: PathStats,
            /// From a packet to its answer, of chunks that were sent once: the path and the slowest worker.
            pub round_trips: Histogram,
            /// From a chunk's first packet to its result.
            pub completions: Histogram,
            /// Received packets by reason; `steered` counts those that were processed.
            pub frames: Reasons,
        }

        impl EngineStats {
            /// Adds another lane's statistics. Of the two estimates of the round trip the slower one stays.
            pub fn merge(&mut self, other: &EngineStats) {
                $(self.$counter += other.$counter;)*
                if other.rtt.smoothed_ns > self.rtt.smoothed_ns {
                    self.rtt = other.rtt;
                }
                self.paths.merge(&other.paths);
                self.round_trips.merge(&other.round_trips);
                self.completions.merge(&other.completions);
                self.frames.merge(&other.frames);
            }
        }
    };
}

engine_stats! {
    operations_submitted,
    operations_completed,
    operations_failed,
    /// Chunks sent for the first time.
    chunks_sent,
    /// Chunks considered lost because later ones were answered: the reordering window has passed.
    suspects_fast,
    /// Chunks considered lost by their timer or the probe timeout.
    suspects_timer,
    /// Of these, the last chunks of the stream that the tail loss probe considered lost.
    tail_probes,
    /// Chunks considered lost whose result arrived before a packet was sent.
    suspects_spared,
    /// Chunks considered lost that were only late: reordering was longer than its window.
    suspects_spurious,
    /// Packets without values for such chunks: queries, and repeated exponent rounds and exponent chunks (static jobs).
    questions,
    /// Flushes: contributions of operations with a loss bound, sent for chunks considered lost.
    flushes,
    /// Results that lack the values of some workers.
    partial,
    /// Answers to queries that ask for the elements.
    missing,
    /// Chunks whose elements were retransmitted.
    resent,
    results,
    /// Exponent chunks sent for the first time; they count as chunks, too.
    exponent_chunks,
    /// Chunks with an exponent round: their exponent was not known from an earlier chunk.
    exponent_rounds,
    /// Reassigned chunks: results that named another chunk than the one two rounds of all slots later, since some slot was
    /// delayed.
    steals,
    mismatches,
    /// Reports of the aggregator that it does not have the job.
    unknown_job,
    /// The window of the sending budget, in chunks (dynamic jobs).
    cwnd,
    /// The number of times it was halved, for marks or losses.
    halvings,
    /// Halvings for losses that were taken back, as all the chunks were only late or had found their slot busy.
    halvings_undone,
    /// Results with a mark of congestion, on their own path or a contribution's.
    marked,
    /// Results of chunks whose slot was busy.
    collisions,
    /// The number of times a position moved to another slot after collisions.
    remapped,
    /// Chunks that were sent as raw floats.
    raw_chunks,
    /// Lanes that send straight to the parameter host now.
    direct,
    /// The rates towards all peers together, in bits per second (direct jobs).
    rate_bps,
    /// Chunks that did not arrive and were not waited for (loss bound).
    chunks_lost,
    /// Own chunks with a value that does not fit or is not finite.
    chunks_faulty,
    /// Results with such a value of any worker.
    results_faulty,
    /// Values read from tensors into packets, also for retransmissions.
    elements_sent,
    /// Values read from tensors only for their exponents.
    elements_scanned,
    elements_received,
    /// Bytes of UDP payload sent.
    bytes_sent,
    /// Bytes of UDP payload received, also of dropped packets.
    bytes_received,
    probes_sent,
    reports,
    /// Chunks in flight now.
    in_flight,
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
