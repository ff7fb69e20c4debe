//! The path's bandwidth-delay product, from which the number of slots follows (SwitchML appendix C).
//!
//! After the handshake the worker keeps a window of probes as long as its longest packet on their way, as slots do:
//! whenever one comes back another is sent. The window doubles until that no longer makes them come back faster; the
//! smallest that did is what the path holds. All workers do so at about the same time, since all have waited for the
//! last of them to join: what they share, links, hosts, CPUs, is as busy as it will be.

use crate::{
    params::Tuning,
    time::{Time, nanos},
};
use serde::{Deserialize, Serialize};

/// The first window.
const FIRST_WINDOW: u32 = 16;
/// The last. With 512 on their way a busy machine sent a third of its packets again, and took twice as long as with 256.
const LAST_WINDOW: u32 = 256;
/// How long a window is kept up at least, in nanoseconds: several turns of whatever shares a CPU with this worker.
const STAGE: u64 = 10_000_000;
/// Answers that are enough on a path too fast for [`STAGE`].
const ENOUGH: u32 = 4096;
/// A window must be faster than the best by this part of it to be worth its slots: one in `GAIN`.
const GAIN: u64 = 8;
/// This many doublings in a row that gain nothing end it. One may have met somebody else's turn.
const IDLE_STAGES: u32 = 2;
/// Probes of a train at most: all windows filled once and counted for as long as may be.
const PROBES: u32 = 32_768;
/// The numbers of a train's probes begin here, so that the handshake's late answers are none of them.
const FIRST: u32 = 1 << 31;
/// Silences after which no more is expected of a path.
const SILENCES: u32 = 3;

/// What a worker's own path can do while all workers use theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMeasure {
    /// The round trip of a packet of full size when as many are on their way as the path holds, in nanoseconds.
    pub rtt_ns: u64,
    /// Bytes of UDP payload per second.
    pub bytes_per_s: u64,
}

/// A window and what it brought.
#[derive(Clone, Copy, Debug)]
struct Best {
    window: u32,
    bytes_per_s: u64,
}

/// A train of probes, of which as many are on their way as its window, which grows.
#[derive(Debug)]
pub(crate) struct Train {
    /// Bytes of UDP payload of one probe.
    bytes: u64,
    patience: u64,
    handshake: Option<u64>,
    window: u32,
    /// Probes sent so far.
    sent: u32,
    /// Those before this one are not on their way any more: a later one has come back, or they were given up.
    gone: u32,
    /// A bit for each probe that came back.
    back: Vec<u64>,
    /// Answers since the window is what it is. Those of the window before come first and do not count.
    arrived: u32,
    /// When the first answer that counts came.
    since: Time,
    best: Option<Best>,
    /// Doublings without gain.
    idle: u32,
    silences: u32,
    /// When something was last sent or came back.
    latest: Time,
}

impl Train {
    /// A train of probes of `bytes` each; the handshake's probe came back after `handshake` nanoseconds.
    pub fn new(tuning: &Tuning, bytes: usize, handshake: Option<u64>, now: Time) -> Train {
        Train {
            bytes: bytes as u64,
            patience: nanos(tuning.initial_rto).max(4 * handshake.unwrap_or(0)),
            handshake,
            window: FIRST_WINDOW,
            sent: 0,
            gone: 0,
            back: vec![0; PROBES.div_ceil(u64::BITS) as usize],
            arrived: 0,
            since: now,
            best: None,
            idle: 0,
            silences: 0,
            latest: now,
        }
    }

    /// The number of the next probe to send.
    pub fn poll(&mut self, now: Time) -> Option<u32> {
        if self.sent - self.gone >= self.window || self.sent >= PROBES {
            return None;
        }
        let number = FIRST + self.sent;
        self.sent += 1;
        self.latest = now;
        Some(number)
    }

    /// A probe came back.
    pub fn on_report(&mut self, now: Time, number: u32) -> Option<PathMeasure> {
        let at = number.wrapping_sub(FIRST);
        if at >= self.sent {
            return None;
        }
        let (word, bit) = (self.back.get_mut((at / u64::BITS) as usize)?, 1 << (at % u64::BITS));
        if *word & bit != 0 {
            return None;
        }
        *word |= bit;
        self.latest = now;
        // Paths keep the order: what was sent before it and is not back is lost, and another takes its place.
        self.gone = self.gone.max(at + 1);
        self.arrived += 1;
        let Some(counted) = self.arrived.checked_sub(self.window).filter(|counted| *counted > 0) else {
            self.since = now;
            return None;
        };
        let elapsed = now.since(self.since);
        let is_long = elapsed >= STAGE || counted >= ENOUGH;
        (is_long && counted >= 2 * self.window).then(|| self.judge(counted, elapsed))?
    }

    /// A window has been kept up for long enough: goes on to the next, or concludes.
    fn judge(&mut self, counted: u32, elapsed: u64) -> Option<PathMeasure> {
        let bytes = u128::from(self.bytes) * u128::from(counted) * 1_000_000_000;
        let bytes_per_s = u64::try_from(bytes / u128::from(elapsed.max(1))).unwrap_or(u64::MAX);
        let gained = self
            .best
            .is_none_or(|best| bytes_per_s > best.bytes_per_s.saturating_add(best.bytes_per_s / GAIN));
        if gained {
            self.best = Some(Best { window: self.window, bytes_per_s });
            self.idle = 0;
        } else {
            self.idle += 1;
        }
        if self.window >= LAST_WINDOW || self.idle == IDLE_STAGES {
            return Some(self.result());
        }
        self.window *= 2;
        self.arrived = 0;
        None
    }

    /// When nothing more is to be expected of what is on its way.
    pub fn deadline(&self) -> Time {
        self.latest.plus(self.patience)
    }

    /// Fills the window anew, or concludes from what there is when that does not help.
    pub fn on_timeout(&mut self, now: Time) -> Option<PathMeasure> {
        if now < self.deadline() {
            return None;
        }
        self.silences += 1;
        if self.silences == SILENCES {
            return Some(self.result());
        }
        self.gone = self.sent;
        self.arrived = 0;
        self.latest = now;
        None
    }

    fn result(&self) -> PathMeasure {
        let Some(Best { window, bytes_per_s }) = self.best else {
            // One packet a round trip is certain of a path that brings nothing back.
            let rtt_ns = self.handshake.unwrap_or(self.patience).max(1);
            return PathMeasure { rtt_ns, bytes_per_s: self.bytes.saturating_mul(1_000_000_000) / rtt_ns };
        };
        // What is on its way is the rate times how long it is on its way (Little).
        let bytes = u128::from(window) * u128::from(self.bytes) * 1_000_000_000;
        let rtt_ns = u64::try_from(bytes / u128::from(bytes_per_s.max(1))).unwrap_or(u64::MAX).max(1);
        PathMeasure { rtt_ns, bytes_per_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const MICRO: u64 = 1_000;

    fn train(handshake: Option<u64>) -> Train {
        Train::new(&Tuning::default(), 1000, handshake, Time(0))
    }

    /// The measure over a link with a queue: `burst` probes pass at once, the others `gap` apart, all after `delay`; `lost`
    /// says which numbers never come back. Returns with it the time that it took.
    fn over(
        mut train: Train,
        delay: u64,
        gap: impl Fn(u64) -> u64,
        lost: impl Fn(u32) -> bool,
    ) -> (PathMeasure, u64) {
        let (mut now, mut free, mut passed) = (0, 0, 0);
        let mut way = VecDeque::new();
        loop {
            while let Some(number) = train.poll(Time(now)) {
                passed += 1;
                free = now.max(free) + gap(passed);
                if !lost(number) {
                    way.push_back((free + delay, number));
                }
            }
            let due = train.deadline().0;
            let measure = match way.pop_front() {
                Some((at, number)) if at < due => {
                    now = at;
                    train.on_report(Time(now), number)
                }
                answer => {
                    if let Some(answer) = answer {
                        way.push_front(answer);
                    }
                    now = due;
                    train.on_timeout(Time(now))
                }
            };
            if let Some(measure) = measure {
                return (measure, now);
            }
        }
    }

    /// Probes that the measured path holds.
    fn packets(measure: PathMeasure) -> u64 {
        (measure.rtt_ns * measure.bytes_per_s / 1_000_000_000).div_ceil(1000)
    }

    #[test]
    fn the_window_grows_until_the_rate_does_not() {
        // 1000 bytes per 10 µs, and 990 µs: 100 packets fill the path, and 128 bring 1.56 times what 64 do.
        let (measure, took) = over(train(None), 990 * MICRO, |_| 10 * MICRO, |_| false);
        assert_eq!(packets(measure), 128);
        assert!((99_000_000..=101_000_000).contains(&measure.bytes_per_s), "{measure:?}");
        assert!(took < 100_000 * MICRO, "six windows: {took} ns");
    }

    #[test]
    fn a_short_path_takes_the_first_window() {
        let (measure, took) = over(train(Some(100 * MICRO)), 100 * MICRO, |_| 120 * MICRO, |_| false);
        assert_eq!(packets(measure), 16);
        assert!(took < 60_000 * MICRO, "three windows at 100 Mbit/s: {took} ns");
    }

    #[test]
    fn a_path_that_is_never_full_takes_the_last_window() {
        let (measure, _) = over(train(None), 5000 * MICRO, |_| 0, |_| false);
        assert_eq!(packets(measure), 256);
    }

    #[test]
    fn a_burst_that_a_shaped_link_lets_through_hides_nothing() {
        let gap = |passed| if passed < 16 { 0 } else { 10 * MICRO };
        let (measure, _) = over(train(None), 990 * MICRO, gap, |_| false);
        assert_eq!(packets(measure), 128);
    }

    #[test]
    fn lost_probes_are_replaced_after_a_silence() {
        let (measure, _) = over(train(None), 990 * MICRO, |_| 10 * MICRO, |number| number % 100 == 50);
        assert!((64..=256).contains(&packets(measure)), "{measure:?}");
        let (measure, _) = over(train(None), 990 * MICRO, |_| 10 * MICRO, |number| number < FIRST + 16);
        assert_eq!(packets(measure), 128, "the first window is lost");
    }

    #[test]
    fn a_path_that_brings_nothing_back_ends_the_measure_too() {
        let (measure, took) = over(train(Some(100 * MICRO)), 0, |_| 0, |_| true);
        assert_eq!(measure, PathMeasure { rtt_ns: 100 * MICRO, bytes_per_s: 10_000_000 });
        assert!(took <= 3 * nanos(Tuning::default().initial_rto), "{took}");
    }

    #[test]
    fn only_probes_that_were_sent_count_and_only_once() {
        let mut train = train(None);
        let first = train.poll(Time(0)).unwrap_or_default();
        assert!(train.on_report(Time(1), 7).is_none(), "the handshake's");
        assert!(train.on_report(Time(1), first + 1).is_none(), "not sent yet");
        for _ in 0..3 {
            train.on_report(Time(1), first);
        }
        assert_eq!((train.arrived, train.gone), (1, 1));
    }
}
