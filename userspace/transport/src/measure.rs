//! The path's bandwidth-delay product, from which the number of slots follows (SwitchML appendix C).
//!
//! After the handshake the worker sends a train of probes as long as its longest packet, as fast as they go. The
//! aggregator sends each back. The quickest is the round trip; how close behind each other the later ones arrive is
//! the rate of the slowest link, or host, on the way. The train's second half counts for the rate: a link that
//! is shaped lets a burst through first.

use crate::{
    params::Tuning,
    time::{Time, nanos},
};

/// Probes of a train: 190 KB of the usual frames.
const LENGTH: u32 = 128;
/// The numbers of a train's probes begin here, so that the handshake's late answers are none of them.
const FIRST: u32 = 1 << 31;
/// Trains that are sent when hardly anything comes back.
const TRAINS: u32 = 3;

/// What a worker's own path can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMeasure {
    /// The round trip of a packet of full size on the idle path, in nanoseconds.
    pub rtt_ns: u64,
    /// Bytes of UDP payload per second.
    pub bytes_per_s: u64,
}

/// A train of probes on its way.
#[derive(Debug)]
pub(crate) struct Train {
    /// Bytes of UDP payload of one probe.
    bytes: u64,
    patience: u64,
    number: u32,
    /// When each probe was sent.
    sent: Vec<Time>,
    /// A bit for each probe that came back.
    back: u128,
    /// When the probes came back, in that order.
    arrivals: Vec<Time>,
    quickest: u64,
    /// When something was last sent or came back.
    latest: Time,
}

impl Train {
    /// A train of probes of `bytes` each; the handshake's probe came back after `handshake` nanoseconds.
    pub fn new(tuning: &Tuning, bytes: usize, handshake: Option<u64>, now: Time) -> Train {
        Train {
            bytes: bytes as u64,
            patience: nanos(tuning.initial_rto).max(4 * handshake.unwrap_or(0)),
            number: 0,
            sent: Vec::with_capacity(LENGTH as usize),
            back: 0,
            arrivals: Vec::with_capacity(LENGTH as usize),
            quickest: handshake.unwrap_or(u64::MAX),
            latest: now,
        }
    }

    /// The number of the next probe to send.
    pub fn poll(&mut self, now: Time) -> Option<u32> {
        let at = self.sent.len() as u32;
        (at < LENGTH).then(|| {
            self.sent.push(now);
            self.latest = now;
            FIRST + self.number * LENGTH + at
        })
    }

    /// A probe came back.
    pub fn on_report(&mut self, now: Time, number: u32) -> Option<PathMeasure> {
        let at = number.wrapping_sub(FIRST + self.number * LENGTH);
        let sent = *self.sent.get(usize::try_from(at).ok()?)?;
        if self.back & 1 << at == 0 {
            self.back |= 1 << at;
            self.arrivals.push(now);
            self.latest = now;
            self.quickest = self.quickest.min(now.since(sent));
        }
        (self.arrivals.len() as u32 == LENGTH).then(|| self.result())
    }

    /// When nothing more is to be expected of this train.
    pub fn deadline(&self) -> Time {
        self.latest.plus(self.patience)
    }

    /// Concludes from what came back, or sends another train when that is too little.
    pub fn on_timeout(&mut self, now: Time) -> Option<PathMeasure> {
        if now < self.deadline() {
            return None;
        }
        if self.arrivals.len() as u32 >= LENGTH / 2 || self.number + 1 == TRAINS {
            return Some(self.result());
        }
        self.number += 1;
        self.sent.clear();
        self.arrivals.clear();
        self.back = 0;
        self.latest = now;
        None
    }

    fn result(&self) -> PathMeasure {
        let rtt_ns = if self.quickest == u64::MAX { self.patience } else { self.quickest.max(1) };
        let rate = |packets: usize, from: Option<&Time>| {
            let nanos = self.arrivals.last()?.since(*from?);
            let bytes = u128::from(self.bytes) * packets as u128 * 1_000_000_000;
            (nanos > 0 && packets > 0).then(|| u64::try_from(bytes / u128::from(nanos)).unwrap_or(u64::MAX))
        };
        let half = self.arrivals.len() / 2;
        let second = rate(self.arrivals.len().saturating_sub(half + 1), self.arrivals.get(half));
        let whole = rate(self.arrivals.len(), self.sent.first());
        // Whoever looks at a queue of arrivals sees many at once: the second half may seem to take no time. The whole train
        // takes the round trip longer than it should, but is never more than twice too slow when its halves are alike.
        let bytes_per_s = match (second, whole) {
            (Some(second), Some(whole)) => second.min(whole.saturating_mul(2)),
            (None, Some(whole)) => whole,
            // One packet a round trip is certain of a path that brings nothing back.
            _ => self.bytes * 1_000_000_000 / rtt_ns,
        };
        PathMeasure { rtt_ns, bytes_per_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1_000;

    fn train(handshake: Option<u64>) -> Train {
        Train::new(&Tuning::default(), 1000, handshake, Time(0))
    }

    /// All probes that can be sent now, a nanosecond apart.
    fn send(train: &mut Train, now: u64) -> Vec<u32> {
        (now..).map_while(|now| train.poll(Time(now))).collect()
    }

    #[test]
    fn the_second_half_gives_the_rate_and_the_quickest_the_round_trip() {
        let mut train = train(Some(500 * MICRO));
        let numbers = send(&mut train, 0);
        assert_eq!(numbers.len(), 128);
        // A burst of 40 passes at once, the rest at 1000 bytes per 10 µs.
        let arrival =
            |at: u64| 50 * MICRO + if at < 40 { at * MICRO } else { 40 * MICRO + (at - 40) * 10 * MICRO };
        let results: Vec<_> =
            numbers.iter().zip(0..).map(|(number, at)| train.on_report(Time(arrival(at)), *number)).collect();
        assert!(results[..127].iter().all(Option::is_none));
        assert_eq!(results[127], Some(PathMeasure { rtt_ns: 50 * MICRO, bytes_per_s: 100_000_000 }));
    }

    #[test]
    fn half_a_train_is_enough_after_a_while() {
        let mut train = train(None);
        for (number, at) in send(&mut train, 0).into_iter().zip(1u64..).filter(|(_, at)| at % 2 == 0) {
            train.on_report(Time(at * 10 * MICRO), number);
            train.on_report(Time(at * 10 * MICRO), number);
        }
        let due = train.deadline();
        assert_eq!((due, train.on_timeout(Time(due.0 - 1))), (Time(21_280 * MICRO), None));
        let measure = train.on_timeout(due);
        assert_eq!(
            measure.map(|m| m.bytes_per_s),
            Some(50_000_000),
            "1000 bytes per 20 µs, duplicates aside"
        );
    }

    #[test]
    fn a_path_that_brings_nothing_back_ends_the_measure_too() {
        let mut train = train(Some(100 * MICRO));
        let mut last = None;
        for round in 0..TRAINS {
            let first = send(&mut train, u64::from(round)).first().copied();
            assert_ne!(first, last);
            last = first;
            assert!(train.on_report(Time(0), 7).is_none(), "the handshake's");
            let due = train.deadline();
            let measure = train.on_timeout(due);
            assert_eq!(measure.is_some(), round + 1 == TRAINS);
            if let Some(measure) = measure {
                assert_eq!(measure, PathMeasure { rtt_ns: 100 * MICRO, bytes_per_s: 10_000_000 });
            }
        }
    }

    #[test]
    fn a_train_that_arrives_at_once_was_as_slow_as_its_way() {
        let mut train = train(None);
        let numbers = send(&mut train, 0);
        let results: Vec<_> =
            numbers.iter().filter_map(|number| train.on_report(Time(128 * MICRO), *number)).collect();
        assert_eq!(results.first().map(|m| m.bytes_per_s), Some(1_000_000_000));
    }
}
