//! Silence: no result for as long as a timer runs.
//!
//! A result needs the contribution of the slowest worker, and training has stragglers of milliseconds to
//! seconds at every step: a path that has fallen silent mostly waits for one of them. Silence
//! therefore makes a worker ask about [`PROBES`] of the oldest chunks and not about its window, then
//! nothing for a pause that doubles each time. The first result ends it.

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
}

impl Silence {
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
    }

    /// How long the path may be silent before (further) probes; new chunks are backed off by `backoff`. `is_sure`: a
    /// chunk is waited for that all workers have begun.
    pub fn until(&self, rtt: &RttEstimator, backoff: u8, is_sure: bool) -> Time {
        let from = if self.level == 0 { self.heard } else { self.probed };
        let level = usize::from(backoff) + self.level;
        from.plus(if is_sure { rtt.timeout_begun(level) } else { rtt.timeout(level) })
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
