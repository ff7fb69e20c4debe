//! The path's bandwidth-delay product, from which the number of slots follows (SwitchML appendix C).
//!
//! After the handshake the worker keeps a window of probes of full size in flight, as slots do: each report
//! lets another probe go. The window doubles until the rate no longer grows; the smallest window with that
//! rate is the path's. All workers measure at about the same time, since all have waited for the last of them
//! to join. So the links, hosts and CPUs that they share have their usual load.

use serde::{Deserialize, Serialize};
use sumac_job::PathMeasure;

use crate::{
    params::Tuning,
    time::{Time, nanos},
};

const FIRST_WINDOW: u32 = 16;
/// The last window. With 512 probes in flight a busy machine resent a third of its packets, and took twice as
/// long as with 256.
const LAST_WINDOW: u32 = 256;
/// The least duration of a window, in nanoseconds: several time slices of processes that share a CPU with
/// this worker.
const STAGE: u64 = 10_000_000;
/// Reports that end a window before [`STAGE`].
const MAX_REPORTS: u32 = 4096;
/// A window is an improvement when its rate exceeds the best by one part in `GAIN`.
const GAIN: u64 = 8;
/// Consecutive windows without improvement that end the measurement. One may be another process's time slice.
const IDLE_STAGES: u32 = 2;
/// Most probes of a train: all windows filled once, with [`MAX_REPORTS`] each.
const PROBES: u32 = 32_768;
/// The number of a train's first probe: late reports of the handshake have lower ones.
const FIRST: u32 = 1 << 31;
const MAX_TIMEOUTS: u32 = 3;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Best {
    window: u32,
    bytes_per_s: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProbeTrain {
    /// Bytes of UDP payload of one probe.
    bytes: u64,
    timeout: u64,
    /// The shortest round trip so far, in nanoseconds: first the handshake's.
    shortest: Option<u64>,
    window: u32,
    sent: u32,
    /// Probes before this one are not in flight: a later one was answered, or they timed out.
    gone: u32,
    /// A bit for each answered probe.
    answered: Vec<u64>,
    /// Reports since the window last grew. The first are those of the window before and do not count.
    reports: u32,
    /// The time of the first report that counts.
    since: Time,
    best: Option<Best>,
    /// Consecutive windows without improvement.
    idle: u32,
    timeouts: u32,
    /// The time of the last probe or report.
    latest: Time,
}

impl ProbeTrain {
    /// A train of probes of `bytes` each; the handshake's round trip was `handshake` nanoseconds.
    pub fn new(tuning: &Tuning, bytes: usize, handshake: Option<u64>, now: Time) -> ProbeTrain {
        ProbeTrain {
            bytes: bytes as u64,
            timeout: nanos(tuning.initial_rto).max(4 * handshake.unwrap_or(0)),
            shortest: handshake,
            window: FIRST_WINDOW,
            sent: 0,
            gone: 0,
            answered: vec![0; PROBES.div_ceil(u64::BITS) as usize],
            reports: 0,
            since: now,
            best: None,
            idle: 0,
            timeouts: 0,
            latest: now,
        }
    }

    pub fn poll(&mut self, now: Time) -> Option<u32> {
        if self.sent - self.gone >= self.window || self.sent >= PROBES {
            return None;
        }
        let number = FIRST + self.sent;
        self.sent += 1;
        self.latest = now;
        Some(number)
    }

    /// Records a report. Returns the result when the measurement ends.
    pub fn on_report(&mut self, now: Time, number: u32) -> Option<PathMeasure> {
        let at = number.wrapping_sub(FIRST);
        if at >= self.sent {
            return None;
        }
        let (word, bit) = (self.answered.get_mut((at / u64::BITS) as usize)?, 1 << (at % u64::BITS));
        if *word & bit != 0 {
            return None;
        }
        *word |= bit;
        self.latest = now;
        // Paths keep the order: earlier probes without a report are lost, and others take their place.
        self.gone = self.gone.max(at + 1);
        self.reports += 1;
        let Some(counted) = self.reports.checked_sub(self.window).filter(|counted| *counted > 0) else {
            self.since = now;
            return None;
        };
        let elapsed = now.since(self.since);
        let is_long = elapsed >= STAGE || counted >= MAX_REPORTS;
        (is_long && counted >= 2 * self.window).then(|| self.end_window(counted, elapsed))?
    }

    /// Compares a window's rate with the best, and doubles the window or ends the measurement.
    fn end_window(&mut self, counted: u32, elapsed: u64) -> Option<PathMeasure> {
        let bytes = u128::from(self.bytes) * u128::from(counted) * 1_000_000_000;
        let bytes_per_s = u64::try_from(bytes / u128::from(elapsed.max(1))).unwrap_or(u64::MAX);
        let rtt_ns = self.round_trip(self.window, bytes_per_s);
        self.shortest = Some(self.shortest.map_or(rtt_ns, |shortest| shortest.min(rtt_ns)));
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
        self.reports = 0;
        None
    }

    /// The time at which the probes in flight count as lost.
    pub fn deadline(&self) -> Time {
        self.latest.plus(self.timeout)
    }

    /// Fills the window again, or ends the measurement after several timeouts.
    pub fn on_timeout(&mut self, now: Time) -> Option<PathMeasure> {
        if now < self.deadline() {
            return None;
        }
        self.timeouts += 1;
        if self.timeouts == MAX_TIMEOUTS {
            return Some(self.result());
        }
        self.gone = self.sent;
        self.reports = 0;
        self.latest = now;
        None
    }

    fn result(&self) -> PathMeasure {
        let Some(Best { window, bytes_per_s }) = self.best else {
            // A path without reports carries at least one packet per round trip.
            let rtt_ns = self.shortest.unwrap_or(self.timeout).max(1);
            let bytes_per_s = self.bytes.saturating_mul(1_000_000_000) / rtt_ns;
            return PathMeasure { rtt_ns, shortest_ns: rtt_ns, bytes_per_s };
        };
        let rtt_ns = self.round_trip(window, bytes_per_s);
        PathMeasure { rtt_ns, shortest_ns: self.shortest.unwrap_or(rtt_ns), bytes_per_s }
    }

    /// Nanoseconds of a round trip: the window is the rate times the round trip (Little's law).
    fn round_trip(&self, window: u32, bytes_per_s: u64) -> u64 {
        let bytes = u128::from(window) * u128::from(self.bytes) * 1_000_000_000;
        u64::try_from(bytes / u128::from(bytes_per_s.max(1))).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const MICRO: u64 = 1_000;

    fn train(handshake: Option<u64>) -> ProbeTrain {
        ProbeTrain::new(&Tuning::default(), 1000, handshake, Time(0))
    }

    /// Returns the measure over a link with a queue, and the time that it took. Probes pass `gap` apart, all
    /// after `delay`; those that `lost` selects have no report.
    fn over(
        mut train: ProbeTrain,
        delay: u64,
        gap: impl Fn(u64) -> u64,
        lost: impl Fn(u32) -> bool,
    ) -> (PathMeasure, u64) {
        let (mut now, mut free, mut passed) = (0, 0, 0);
        let mut path = VecDeque::new();
        loop {
            while let Some(number) = train.poll(Time(now)) {
                passed += 1;
                free = now.max(free) + gap(passed);
                if !lost(number) {
                    path.push_back((free + delay, number));
                }
            }
            let due = train.deadline().0;
            let measure = match path.pop_front() {
                Some((at, number)) if at < due => {
                    now = at;
                    train.on_report(Time(now), number)
                }
                answer => {
                    if let Some(answer) = answer {
                        path.push_front(answer);
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
        assert_eq!((packets(measure), measure.shortest_ns), (128, 1000 * MICRO));
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
    fn a_burst_through_a_shaped_link_does_not_mislead() {
        let gap = |passed| if passed < 16 { 0 } else { 10 * MICRO };
        let (measure, _) = over(train(None), 990 * MICRO, gap, |_| false);
        assert_eq!(packets(measure), 128);
    }

    #[test]
    fn lost_probes_are_replaced_after_a_timeout() {
        let (measure, _) = over(train(None), 990 * MICRO, |_| 10 * MICRO, |number| number % 100 == 50);
        assert!((64..=256).contains(&packets(measure)), "{measure:?}");
        let (measure, _) = over(train(None), 990 * MICRO, |_| 10 * MICRO, |number| number < FIRST + 16);
        assert_eq!(packets(measure), 128, "the first window is lost");
    }

    #[test]
    fn a_path_without_reports_ends_the_measurement() {
        let (measure, took) = over(train(Some(100 * MICRO)), 0, |_| 0, |_| true);
        let rtt_ns = 100 * MICRO;
        assert_eq!(measure, PathMeasure { rtt_ns, shortest_ns: rtt_ns, bytes_per_s: 10_000_000 });
        assert!(took <= 3 * nanos(Tuning::default().initial_rto), "{took}");
    }

    #[test]
    fn only_probes_that_were_sent_count_once() {
        let mut train = train(None);
        let first = train.poll(Time(0)).unwrap_or_default();
        assert!(train.on_report(Time(1), 7).is_none(), "the handshake's");
        assert!(train.on_report(Time(1), first + 1).is_none(), "not sent yet");
        for _ in 0..3 {
            train.on_report(Time(1), first);
        }
        assert_eq!((train.reports, train.gone), (1, 1));
    }
}
