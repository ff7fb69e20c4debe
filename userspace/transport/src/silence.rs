//! Silence: no result for as long as a timer runs.
//!
//! A result needs the contribution of the slowest worker, and training has stragglers of milliseconds to
//! seconds at every step: a path that has fallen silent mostly waits for one of them. Silence
//! therefore makes a worker ask about [`PROBES`] of the oldest chunks and not about its window, then
//! nothing for a pause that doubles each time. The first result ends it.
//!
//! Of a dynamic job all workers hear the same results, so that they fall silent at the same time. Were their pauses the same as well, all
//! would always send at once, and where a queue is short the same packets would find it full each time. So each worker makes its
//! pauses longer by parts of its own.

use crate::{rtt::RttEstimator, slots::LEVELS, time::Time};

/// Chunks that are asked about each time a silence has lasted too long: two, so that the loss of
/// one of them does not cost a further pause.
pub(crate) const PROBES: usize = 2;

/// Whether the path is silent, for how long, and until when it was.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    /// When the last result arrived.
    heard: Time,
    /// When the oldest chunks were last probed in this silence.
    probed: Time,
    /// How often they were probed in this silence; 0: the path is not silent.
    level: usize,
    /// When the last silence ended.
    ended: Time,
    /// What the next pause is made longer by is taken from this; 0: by nothing, ever.
    draw: u32,
}

/// A pause is made longer by less than one part in so many.
const LONGER: u64 = 2;

impl Silence {
    /// One whose pauses are not those of others, who have other numbers.
    pub fn apart(number: u32) -> Silence {
        // Neighbours are far from each other from the first pause on (Fibonacci hashing).
        Silence { draw: (number + 1).wrapping_mul(0x9e37_79b9), ..Silence::default() }
    }

    /// A result arrived.
    pub fn end(&mut self, now: Time) {
        self.heard = now;
        if self.level > 0 {
            self.level = 0;
            self.ended = now;
        }
    }

    /// The oldest chunks are probed.
    pub fn deepen(&mut self, now: Time) {
        self.probed = now;
        self.level = (self.level + 1).min(LEVELS);
        // Marsaglia's xorshift: it goes through all numbers but zero.
        self.draw ^= self.draw << 13;
        self.draw ^= self.draw >> 17;
        self.draw ^= self.draw << 5;
    }

    /// How long the path may be silent before (further) probes; new chunks are backed off by `backoff`. `is_sure`: a
    /// chunk is waited for that all workers have begun.
    pub fn until(&self, rtt: &RttEstimator, backoff: u8, is_sure: bool) -> Time {
        let from = if self.level == 0 { self.heard } else { self.probed };
        let level = usize::from(backoff) + self.level;
        let pause = if is_sure { rtt.timeout_begun(level) } else { rtt.timeout(level) };
        let part = if self.level == 0 { 0 } else { u64::from(self.draw >> 16) };
        from.plus(pause + (pause / LONGER) * part / (1 << 16))
    }

    /// When the timer of a packet began that was sent at `sent`: the end of a silence restarts it.
    pub fn timer_start(&self, sent: Time) -> Time {
        sent.max(self.ended)
    }

    /// Whether a packet sent at `sent` waited through a silence: the time until its result says how late
    /// another worker was, and nothing about the path.
    pub fn delayed(&self, sent: Time) -> bool {
        sent < self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Tuning;

    const MS: u64 = 1_000_000;

    #[test]
    fn pauses_double_until_a_result() {
        let rtt = RttEstimator::new(&Tuning::default());
        let mut silence = Silence::default();
        silence.end(Time(5 * MS));
        let mut now = Time(5 * MS);
        let mut pause = || {
            let until = silence.until(&rtt, 0, false);
            let pause = until.since(now) / MS;
            now = until;
            silence.deepen(now);
            pause
        };
        let pauses: Vec<u64> = (0..12).map(|_| pause()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 200, 200, 200, 200, 200, 200, 200, 200]);
        let end = now.plus(MS);
        silence.end(end);
        assert_eq!(silence.until(&rtt, 0, false), end.plus(20 * MS));
        assert_eq!(silence.until(&rtt, 1, false), end.plus(40 * MS), "on top of the back-off of new chunks");
    }

    #[test]
    fn pauses_of_workers_that_fell_silent_together_differ() {
        let rtt = RttEstimator::new(&Tuning::default());
        let pauses = |number| {
            let mut silence = Silence::apart(number);
            let mut now = Time(0);
            let pause = |_| {
                let until = silence.until(&rtt, 0, false);
                let pause = until.since(now);
                now = until;
                silence.deepen(now);
                pause
            };
            (0..40).map(pause).collect::<Vec<u64>>()
        };
        let all: Vec<Vec<u64>> = (0..32).map(pauses).collect();
        assert!(all.iter().all(|pauses| pauses[0] == 20 * MS), "what may be lost is asked about at once");
        assert!(all.iter().flatten().all(|pause| *pause < 300 * MS));
        for round in 1..40 {
            let mut of_round: Vec<u64> = all.iter().map(|pauses| pauses[round] / 10_000).collect();
            of_round.sort_unstable();
            of_round.dedup();
            assert!(of_round.len() > 24, "round {round}");
        }
    }

    #[test]
    fn only_a_silence_delays_packets_and_restarts_their_timers() {
        let mut silence = Silence::default();
        silence.end(Time(5));
        assert_eq!((silence.delayed(Time(3)), silence.timer_start(Time(3))), (false, Time(3)));
        silence.deepen(Time(9));
        silence.end(Time(11));
        silence.end(Time(12));
        assert_eq!((silence.delayed(Time(10)), silence.timer_start(Time(10))), (true, Time(11)));
        assert_eq!((silence.delayed(Time(12)), silence.timer_start(Time(12))), (false, Time(12)));
    }
}
