//! The path to the aggregator, as a worker measured it.

use serde::{Deserialize, Serialize};

/// The measured path of a worker, while all workers use theirs. All zero: there was no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMeasure {
    /// The round trip of a packet of full size at the bandwidth-delay product, in nanoseconds.
    pub rtt_ns: u64,
    /// The shortest round trip: of the handshake or a window of probes, in nanoseconds.
    pub shortest_ns: u64,
    /// Bytes of UDP payload per second.
    pub bytes_per_s: u64,
}
