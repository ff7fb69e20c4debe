//! The probe timeout (after RFC 9002): no result for one retransmission timeout.
//!
//! A result needs the contribution of the slowest worker, and training has stragglers of milliseconds to
//! seconds at every step. So a path without results mostly waits for one of them. After the timeout a worker
//! therefore sends again, or asks about, [`PROBE_CHUNKS`] of its chunks and not its window. Then it waits for
//! a pause that doubles each time. The first result ends this.
//!
//! One of them is the earliest in the stream, the same one of all workers that lack its result. Where each
//! sent another one, a chunk that needs packets of several workers again would get them far apart.
//!
//! All workers of a dynamic job get the same results, so that their timeouts would end together and each time
//! fill a short queue with the same packets. So each worker lengthens its pauses by a random part of its own.

use serde::{Deserialize, Serialize};

use crate::{in_flight::BACKOFF_LEVELS, rtt::RttEstimator, time::Time};

/// Chunks that a probe consists of: two, so that the loss of one of them does not cost a further pause.
pub(crate) const PROBE_CHUNKS: usize = 2;
/// A pause is lengthened by less than one part in so many.
const JITTER: u64 = 2;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProbeTimeout {
    last_result: Time,
    /// The time of the last probe since the last result.
    last_probe: Time,
    /// Probes since the last result.
    level: usize,
    /// The time of the last result that came after a probe.
    ended: Time,
    /// The state of the generator of jitter; 0: there is none.
    random: u32,
}

impl ProbeTimeout {
    /// A timeout with jitter that differs from that of other seeds.
    pub fn with_jitter(seed: u32) -> ProbeTimeout {
        // Neighbouring seeds are far from each other from the first pause on (Fibonacci hashing).
        ProbeTimeout { random: (seed + 1).wrapping_mul(0x9e37_79b9), ..ProbeTimeout::default() }
    }

    pub fn on_result(&mut self, now: Time) {
        self.last_result = now;
        if self.level > 0 {
            self.level = 0;
            self.ended = now;
        }
    }

    /// Whether there was a probe since the last result.
    pub fn is_idle(&self) -> bool {
        self.level > 0
    }

    /// The time of the last result.
    pub fn last_result(&self) -> Time {
        self.last_result
    }

    pub fn on_probe(&mut self, now: Time) {
        self.last_probe = now;
        self.level = (self.level + 1).min(BACKOFF_LEVELS);
        // Marsaglia's xorshift: its period covers all numbers but zero.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
    }

    /// The time of the next probe, unless a result comes first. `backoff` is that of new chunks;
    /// `is_confirmed`: a chunk is in flight whose operation all workers have begun.
    pub fn deadline(&self, rtt: &RttEstimator, backoff: u8, is_confirmed: bool) -> Time {
        let from = if self.level == 0 { self.last_result } else { self.last_probe };
        let level = usize::from(backoff) + self.level;
        let pause = if is_confirmed { rtt.timeout_confirmed(level) } else { rtt.timeout(level) };
        let part = if self.level == 0 { 0 } else { u64::from(self.random >> 16) };
        from.plus(pause + (pause / JITTER) * part / (1 << 16))
    }

    /// The start of the timer of a packet: the result that ended the last probes restarts it.
    pub fn timer_start(&self, sent: Time) -> Time {
        sent.max(self.ended)
    }

    /// Whether a packet was in flight during probes: its answer is a measure of another worker's delay, not
    /// of the path.
    pub fn has_delayed(&self, sent: Time) -> bool {
        sent < self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Tuning;

    const MS: u64 = 1_000_000;

    /// The pauses between probes from `now` on, as nanoseconds.
    fn pauses(probe_timeout: &mut ProbeTimeout, mut now: Time, count: usize) -> Vec<u64> {
        let rtt = RttEstimator::new(&Tuning::default());
        let pause = |_| {
            let due = probe_timeout.deadline(&rtt, 0, false);
            let pause = due.since(now);
            now = due;
            probe_timeout.on_probe(now);
            pause
        };
        (0..count).map(pause).collect()
    }

    #[test]
    fn pauses_double_until_a_result() {
        let rtt = RttEstimator::new(&Tuning::default());
        let mut probe_timeout = ProbeTimeout::default();
        probe_timeout.on_result(Time(5 * MS));
        let pauses = pauses(&mut probe_timeout, Time(5 * MS), 12).into_iter().map(|pause| pause / MS);
        assert_eq!(pauses.collect::<Vec<_>>(), [20, 40, 80, 160, 200, 200, 200, 200, 200, 200, 200, 200]);
        let end = Time(9_000 * MS);
        probe_timeout.on_result(end);
        assert_eq!(probe_timeout.deadline(&rtt, 0, false), end.plus(20 * MS));
        assert_eq!(
            probe_timeout.deadline(&rtt, 1, false),
            end.plus(40 * MS),
            "the back-off of new chunks counts"
        );
    }

    #[test]
    fn pauses_of_workers_without_results_differ() {
        let all: Vec<Vec<u64>> =
            (0..32).map(|seed| pauses(&mut ProbeTimeout::with_jitter(seed), Time(0), 40)).collect();
        assert!(all.iter().all(|pauses| pauses[0] == 20 * MS), "the first probe has no jitter");
        assert!(all.iter().flatten().all(|pause| *pause < 300 * MS));
        for round in 1..40 {
            let mut of_round: Vec<u64> = all.iter().map(|pauses| pauses[round] / 10_000).collect();
            of_round.sort_unstable();
            of_round.dedup();
            assert!(of_round.len() > 24, "round {round}");
        }
    }

    #[test]
    fn only_probes_delay_packets_and_restart_their_timers() {
        let mut probe_timeout = ProbeTimeout::default();
        let of = |probe_timeout: &ProbeTimeout, sent| {
            (probe_timeout.has_delayed(Time(sent)), probe_timeout.timer_start(Time(sent)))
        };
        probe_timeout.on_result(Time(5));
        assert_eq!(of(&probe_timeout, 3), (false, Time(3)));
        probe_timeout.on_probe(Time(9));
        probe_timeout.on_result(Time(11));
        probe_timeout.on_result(Time(12));
        assert_eq!(of(&probe_timeout, 10), (true, Time(11)));
        assert_eq!(of(&probe_timeout, 12), (false, Time(12)));
    }
}
