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

sumac_job::statistics! {
    /// Counters since the engine was made.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct EngineStats {
        pub rtt: RttStats,
        pub paths: PathStats,
        /// From a packet to its answer, of chunks that were sent once: the path and the slowest worker.
        pub round_trips: Histogram,
        /// From a chunk's first packet to its result.
        pub completions: Histogram,
        /// Received packets by reason; `steered` counts those that were processed.
        pub frames: Reasons,
    }
    /// Parts of operations, one for each lane, that were submitted.
    operations_submitted: Counter "sumac_job_fragments_submitted",
    /// Parts of operations, one for each lane, that completed.
    operations_completed: Counter "sumac_job_fragments_completed",
    /// Parts of operations, one for each lane, that ended with an error.
    operations_failed: Counter "sumac_job_fragments_failed",
    /// Chunks sent for the first time.
    chunks_sent: Counter "sumac_job_chunks_sent",
    /// Chunks first sent without their values, which are zeros; they count as sent, too.
    chunks_empty: Counter "sumac_job_chunks_empty",
    /// Of these, chunks whose zeros the aggregator wanted: it had no other packet for the result.
    empty_wanted: Counter "sumac_job_chunks_empty_wanted",
    /// Chunks considered lost since later ones were answered: the reordering window has passed.
    suspects_fast: Counter "sumac_job_losses_by_order",
    /// Chunks considered lost by their timer or the probe timeout.
    suspects_timer: Counter "sumac_job_losses_by_timeout",
    /// Last chunks of a stream that the tail loss probe considered lost.
    tail_probes: Counter "sumac_job_losses_by_tail_probe",
    /// Chunks considered lost whose result arrived before a packet was sent.
    suspects_spared: Counter "sumac_job_losses_answered",
    /// Chunks considered lost that were only late: reordering was longer than its window.
    suspects_spurious: Counter "sumac_job_losses_spurious",
    /// Packets without elements for chunks considered lost: queries, and repeated exponents.
    questions: Counter "sumac_job_queries",
    /// Flushes: contributions that complete a chunk without the missing ones.
    flushes: Counter "sumac_job_flushes",
    /// Results that lack the values of some workers.
    partial: Counter "sumac_job_results_partial",
    /// Answers to queries that ask for the elements.
    missing: Counter "sumac_job_chunks_missing",
    /// Chunks whose elements were sent again.
    resent: Counter "sumac_job_chunks_resent",
    /// Results received.
    results: Counter "sumac_job_results",
    /// Exponent chunks sent for the first time; they count as chunks, too.
    exponent_chunks: Counter "sumac_job_exponent_chunks",
    /// Chunks with an exponent round: their exponent was not known from an earlier chunk.
    exponent_rounds: Counter "sumac_job_exponent_rounds",
    /// Chunks that took another slot than their regular one, since some slot was delayed.
    steals: Counter "sumac_job_slots_reassigned",
    /// Chunks that workers use for different operations.
    mismatches: Counter "sumac_job_mismatches",
    /// Reports of the aggregator that it does not have the job.
    unknown_job: Counter "sumac_job_unknown",
    /// The congestion window of all lanes, in chunks, of a direct job towards all peers together; 0 without
    /// one.
    cwnd: Gauge "sumac_job_window_chunks",
    /// Halvings of the congestion window, for marks or losses.
    halvings: Counter "sumac_job_window_halvings",
    /// Halvings for losses that were taken back: all the chunks were only late, or their slot was busy.
    halvings_undone: Counter "sumac_job_window_halvings_undone",
    /// Results with a mark of congestion, on their own path or a contribution's.
    marked: Counter "sumac_job_results_marked",
    /// Results of chunks whose slot was busy.
    collisions: Counter "sumac_job_collisions",
    /// Positions of the window that moved to another slot after collisions.
    remapped: Counter "sumac_job_slots_remapped",
    /// Chunks that were sent as raw floats.
    raw_chunks: Counter "sumac_job_chunks_raw",
    /// Lanes that send past the slots to the parameter host.
    direct: Gauge "sumac_job_direct_lanes",
    /// The rates towards all peers of a direct job together, in bits per second.
    rate_bps: Gauge "sumac_job_direct_rate",
    /// Chunks that did not arrive and were not waited for.
    chunks_lost: Counter "sumac_job_chunks_given_up",
    /// Own chunks with a value that does not fit or is not finite.
    chunks_faulty: Counter "sumac_job_chunks_faulty",
    /// Results with a value of any worker that does not fit or is not finite.
    results_faulty: Counter "sumac_job_results_faulty",
    /// Values read from tensors into packets, also for retransmissions.
    elements_sent: Counter "sumac_job_elements_sent",
    /// Values read from tensors only for their exponents.
    elements_scanned: Counter "sumac_job_elements_scanned",
    /// Values written from results into tensors.
    elements_received: Counter "sumac_job_elements_received",
    /// UDP payload sent.
    bytes_sent: Bytes "sumac_job_sent",
    /// UDP payload received, also of dropped packets.
    bytes_received: Bytes "sumac_job_received",
    /// Probes of the path sent.
    probes_sent: Counter "sumac_job_probes_sent",
    /// Answers without a sum: to probes, and acknowledgements of a direct job.
    reports: Counter "sumac_job_reports",
    /// Chunks in flight; of a direct job those that its peers have not acknowledged.
    in_flight: Gauge "sumac_job_chunks_in_flight",
}

impl EngineStats {
    /// Adds another lane's statistics. Of the two estimates of the round trip the slower one stays.
    pub fn merge(&mut self, other: &EngineStats) {
        self.add(other);
        if other.rtt.smoothed_ns > self.rtt.smoothed_ns {
            self.rtt = other.rtt;
        }
        self.paths.merge(&other.paths);
        self.round_trips.merge(&other.round_trips);
        self.completions.merge(&other.completions);
        self.frames.merge(&other.frames);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
    fn every_statistic_is_declared_once() {
        let names: BTreeSet<_> = EngineStats::DECLARED.iter().map(|declared| declared.metric).collect();
        assert_eq!(names.len(), EngineStats::DECLARED.len());
        for declared in EngineStats::DECLARED {
            let (metric, help) = (declared.metric, declared.help);
            assert!(metric.starts_with("sumac_job_"), "{metric}");
            assert!(!help.starts_with(' ') && !help.ends_with('.') && help.len() > 10, "{metric}: {help:?}");
        }
        let stats = EngineStats { resent: 7, ..EngineStats::default() };
        let counted = EngineStats::DECLARED.iter().filter(|declared| (declared.read)(&stats) == 7);
        assert_eq!(counted.map(|declared| declared.metric).collect::<Vec<_>>(), ["sumac_job_chunks_resent"]);
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
