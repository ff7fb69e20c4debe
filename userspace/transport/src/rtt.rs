//! The round-trip time: RFC 6298's estimator, updated once per round trip.
//!
//! A window of hundreds of chunks yields hundreds of samples in a round trip. One by one they would erase the
//! estimator's history within a round. It gets the longest sample of each round instead, so that the timeout
//! covers the slowest chunk of a window. Single samples go to the [sending budget](crate::budget).

use serde::{Deserialize, Serialize};

use crate::{
    params::Tuning,
    stats::RttStats,
    time::{Time, nanos},
};

/// The least margins of the timeouts over the smoothed round trip, and the longest timeout.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Bounds {
    margin: u64,
    margin_confirmed: u64,
    longest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RttSample {
    pub sent: Time,
    pub acknowledged: Time,
    /// Whether the network marked the packet or its answer (ECN).
    pub is_marked: bool,
}

/// The smoothed round trip, its variation, and the timeouts that follow, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RttEstimator {
    smoothed: Option<u64>,
    variation: u64,
    shortest: u64,
    /// The timeout of unconfirmed operations, and that of confirmed ones.
    timeout: u64,
    timeout_confirmed: u64,
    bounds: Bounds,
    /// The longest sample of this round; 0: none yet.
    longest: u64,
    /// The round ends with the answer to this packet or a later one.
    round_end: u64,
}

impl RttEstimator {
    pub fn new(tuning: &Tuning) -> RttEstimator {
        RttEstimator {
            smoothed: None,
            variation: 0,
            shortest: u64::MAX,
            timeout: nanos(tuning.initial_rto),
            timeout_confirmed: nanos(tuning.initial_rto),
            bounds: Bounds {
                margin: nanos(tuning.min_rto),
                margin_confirmed: nanos(tuning.min_rto_confirmed),
                longest: nanos(tuning.max_rto),
            },
            longest: 0,
            round_end: 0,
        }
    }

    /// Records that this packet was answered after `rtt`; the engine's next packet has the number
    /// `next_packet`.
    pub fn sample(&mut self, rtt: u64, packet: u64, next_packet: u64) {
        self.longest = self.longest.max(rtt.max(1));
        self.shortest = self.shortest.min(rtt);
        if packet >= self.round_end {
            self.update(self.longest);
            self.longest = 0;
            self.round_end = next_packet;
        }
    }

    /// Updates the estimate (RFC 6298, section 2). In place of the clock's granularity stands a margin for a
    /// host's scheduling delays.
    fn update(&mut self, rtt: u64) {
        let smoothed = match self.smoothed {
            None => {
                self.variation = rtt / 2;
                rtt
            }
            Some(smoothed) => {
                self.variation = (3 * self.variation + smoothed.abs_diff(rtt)) / 4;
                (7 * smoothed + rtt) / 8
            }
        };
        self.smoothed = Some(smoothed);
        let variation = 4 * self.variation;
        let above = |margin: u64| (smoothed + margin.max(variation)).min(self.bounds.longest);
        self.timeout = above(self.bounds.margin);
        self.timeout_confirmed = above(self.bounds.margin_confirmed);
    }

    /// The timeout of an unconfirmed chunk after `level` back-offs.
    pub fn timeout(&self, level: usize) -> u64 {
        self.timeout.saturating_mul(1 << level.min(32)).min(self.bounds.longest)
    }

    /// The timeout of a confirmed chunk after `level` back-offs.
    pub fn timeout_confirmed(&self, level: usize) -> u64 {
        self.timeout_confirmed.saturating_mul(1 << level.min(32)).min(self.bounds.longest)
    }

    /// Whether an answer this long after a packet is likely to be to that packet: not faster than all
    /// samples, and not slower than nearly all.
    pub fn is_likely(&self, rtt: u64) -> bool {
        rtt >= self.shortest && self.is_usual(rtt)
    }

    /// Whether a round trip is not slower than nearly all samples; before the first, any is.
    pub fn is_usual(&self, rtt: u64) -> bool {
        self.smoothed.is_none_or(|smoothed| rtt <= smoothed + 4 * self.variation)
    }

    /// The statistics, with timeouts after `level` back-offs; the reordering window is not the estimator's.
    pub fn stats(&self, level: usize) -> RttStats {
        RttStats {
            smoothed_ns: self.smoothed(),
            variation_ns: self.variation,
            shortest_ns: self.shortest(),
            timeout_ns: self.timeout(level),
            timeout_begun_ns: self.timeout_confirmed(level),
            reordering_ns: 0,
        }
    }

    pub fn smoothed(&self) -> u64 {
        self.smoothed.unwrap_or(0)
    }

    pub fn variation(&self) -> u64 {
        self.variation
    }

    /// The shortest sample; zero before the first.
    pub fn shortest(&self) -> u64 {
        if self.shortest == u64::MAX { 0 } else { self.shortest }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn estimator() -> RttEstimator {
        let ms = Duration::from_millis;
        RttEstimator::new(&Tuning {
            initial_rto: ms(20),
            min_rto: ms(1),
            min_rto_confirmed: ms(1) / 2,
            max_rto: ms(100),
            ..Tuning::default()
        })
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn first_sample_sets_both_as_in_the_rfc() {
        let mut rtt = estimator();
        assert_eq!(rtt.timeout(0), 20 * MS, "before any sample");
        rtt.sample(8 * MS, 1, 2);
        assert_eq!(rtt.smoothed(), 8 * MS);
        assert_eq!(rtt.variation(), 4 * MS);
        assert_eq!(rtt.timeout(0), 24 * MS);
    }

    #[test]
    fn the_timeout_follows_the_path_within_its_bounds() {
        let mut rtt = estimator();
        for packet in 1..100 {
            rtt.sample(MS / 10, packet, packet + 1);
        }
        assert_eq!(rtt.timeout(0), MS + MS / 10, "a fast and steady path: the lower bound above it");
        assert_eq!(rtt.timeout_confirmed(0), MS / 2 + MS / 10, "half of it for confirmed chunks");
        for packet in 100..200 {
            rtt.sample(30 * MS, packet, packet + 1);
        }
        assert!((30 * MS..35 * MS).contains(&rtt.timeout(0)), "{}", rtt.timeout(0));
        rtt.sample(5000 * MS, 200, 201);
        assert_eq!(rtt.timeout(0), 100 * MS, "the upper bound");
        assert_eq!(rtt.shortest(), MS / 10);
    }

    #[test]
    fn a_round_counts_once_by_its_longest() {
        let mut rtt = estimator();
        rtt.sample(4 * MS, 1, 9);
        rtt.sample(90 * MS, 2, 10);
        rtt.sample(4 * MS, 8, 16);
        assert_eq!(rtt.smoothed(), 4 * MS, "packets 2 to 8 belong to one round");
        rtt.sample(4 * MS, 9, 17);
        assert_eq!(rtt.smoothed(), (7 * 4 * MS + 90 * MS) / 8);
    }

    #[test]
    fn round_trips_like_the_samples_are_likely() {
        let mut rtt = estimator();
        rtt.sample(4 * MS, 1, 2);
        rtt.sample(3 * MS, 3, 4);
        let (longest, seen) = (rtt.smoothed() + 4 * rtt.variation(), [3 * MS, 4 * MS]);
        assert!(seen.iter().all(|seen| rtt.is_likely(*seen)) && rtt.is_likely(longest));
        assert!(!rtt.is_likely(3 * MS - 1) && !rtt.is_likely(longest + 1));
    }
}
