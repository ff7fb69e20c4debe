//! What an engine did, in numbers that an operator can read.

use serde::{Serialize, Serializer, ser::SerializeMap};
use sumac_wire::{Reason, reason::COUNTERS};

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
    /// Chunks sent again because three later results arrived.
    pub retransmits_fast: u64,
    /// Chunks sent again because their timer expired, or to probe a silent path.
    pub retransmits_timer: u64,
    /// Chunks that were to be sent again when their result arrived after all.
    pub retransmits_spared: u64,
    /// Chunks whose result was written.
    pub results: u64,
    /// Own chunks with a value that did not fit.
    pub chunks_saturated: u64,
    /// Results with such a value of any worker.
    pub results_saturated: u64,
    /// Elements read from tensors, those of retransmissions included.
    pub elements_sent: u64,
    /// Elements written to tensors.
    pub elements_received: u64,
    /// Bytes of UDP payload handed out.
    pub bytes_sent: u64,
    /// Bytes of UDP payload taken in, also of dropped frames.
    pub bytes_received: u64,
    /// Probes sent.
    pub probes_sent: u64,
    /// Answers to them.
    pub reports: u64,
    /// Chunks in flight now.
    pub in_flight: u64,
    /// The timer's view of the path.
    pub rtt: RttStats,
    /// What became of every frame that arrived; `steered`: taken.
    pub frames: Reasons,
}

impl EngineStats {
    /// Chunks sent again for any cause.
    pub fn retransmits(&self) -> u64 {
        self.retransmits_fast + self.retransmits_timer
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
}
