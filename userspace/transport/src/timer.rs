//! The retransmission timer: a queue for each back-off level, in the order of sending.
//!
//! Chunks of one level share a timeout, so the first of each queue expires first, also after the timeout has
//! changed: queues keep times of sending, not deadlines. A packet costs one append and its answer one
//! removal; nothing is scanned.
//!
//! | at the end of a chunk's timeout | the chunk is | consequence |
//! | --- | --- | --- |
//! | a packet sent later was answered | considered lost, unless the [reordering window](crate::loss) ended before | query (static mode) or retransmission (dynamic) |
//! | none was, but results arrived in the meantime | delayed with those before it | none |
//! | no result arrived for a whole timeout | unknown: the [probe timeout](crate::probe_timeout) | two chunks are sent again |
//!
//! Only the first case concerns this chunk alone. In the others a worker may be late.
//!
//! Before its first result, an operation may not have begun on all workers. Its chunks are unconfirmed and
//! wait in a queue of their own, which only the probe timeout serves: results of the operation before say
//! nothing of them. Timeouts of confirmed chunks are closer to the round trip.

use serde::{Deserialize, Serialize};

use crate::{
    in_flight::{BACKOFF_LEVELS, InFlight},
    loss::LossDetector,
    probe_timeout::ProbeTimeout,
    rtt::RttEstimator,
    time::Time,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// The retransmission timer of the chunk at this index.
    Chunk(usize),
    /// The reordering window of the oldest confirmed chunk.
    Reordering,
    Probe,
}

pub(crate) struct Timers<'a> {
    pub in_flight: &'a InFlight,
    pub rtt: &'a RttEstimator,
    pub loss: &'a LossDetector,
    pub probe_timeout: &'a ProbeTimeout,
    pub backoff: Backoff,
    /// Whether each result restarts all timers (RFC 6298, rule 5.3).
    pub restarts: bool,
}

impl Timers<'_> {
    /// The next deadline and its timer; `None` while nothing is in flight.
    pub fn next(&self) -> Option<(Time, Expiry)> {
        let confirmed =
            (0..BACKOFF_LEVELS).filter_map(|level| self.of_level(level)).min_by_key(|(at, _)| *at);
        // The probe timeout of confirmed chunks is the shorter one.
        let timer = confirmed.or_else(|| self.of_unconfirmed());
        self.of_overtaken().into_iter().chain(timer).min_by_key(|(at, _)| *at)
    }

    fn of_overtaken(&self) -> Option<(Time, Expiry)> {
        let (_, threshold) = self.in_flight.oldest_confirmed()?;
        Some((self.loss.deadline(threshold, self.rtt)?, Expiry::Reordering))
    }

    fn of_unconfirmed(&self) -> Option<(Time, Expiry)> {
        let (_, first) = self.in_flight.first_unconfirmed()?;
        let timeout = self.rtt.timeout(usize::from(first.backoff));
        let due = self.probe_timeout.timer_start(first.timer_start).plus(timeout);
        let probe = self.probe_timeout.deadline(self.rtt, self.backoff.level(), false);
        Some((due.max(probe), Expiry::Probe))
    }

    fn of_level(&self, level: usize) -> Option<(Time, Expiry)> {
        let (index, first) = self.in_flight.first_of_level(level)?;
        let timeout = self.rtt.timeout_confirmed(level);
        let due = self.probe_timeout.timer_start(first.timer_start).plus(timeout);
        let probe = due.max(self.probe_timeout.deadline(self.rtt, self.backoff.level(), true));
        Some(match self.loss.has_later(first.threshold) {
            true if self.restarts => (probe, Expiry::Chunk(index)),
            true => (due, Expiry::Chunk(index)),
            false => (probe, Expiry::Probe),
        })
    }
}

/// The back-off of chunks that are sent for the first time: the second half of Karn's algorithm.
///
/// While every chunk has to be sent twice there is no sample of the round trip. So the back-off that one
/// chunk reached holds for later ones until an answer is a sample again.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Backoff {
    level: u8,
}

impl Backoff {
    /// Records an ambiguous answer to a chunk that was sent again at this level.
    pub fn keep(&mut self, level: u8) {
        self.level = self.level.max(level);
    }

    /// Records a sample of the round trip.
    pub fn reset(&mut self) {
        self.level = 0;
    }

    /// The level of the next new chunk.
    pub fn level(self) -> u8 {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        in_flight::{SentPacket, tests::first},
        params::Tuning,
    };

    const MS: u64 = 1_000_000;

    /// Chunks 0, 1, ... that were sent at these milliseconds.
    struct Flight {
        in_flight: InFlight,
        rtt: RttEstimator,
        loss: LossDetector,
        probe_timeout: ProbeTimeout,
        restarts: bool,
    }

    impl Flight {
        fn new(sent: &[u64]) -> Flight {
            let mut in_flight = InFlight::new(0..8);
            for (index, at) in sent.iter().enumerate() {
                in_flight.make_ready(index, 0);
                in_flight.on_sent(index, first(at * MS, index as u64 + 1));
            }
            let rtt = RttEstimator::new(&Tuning::default());
            let loss = LossDetector::new(true, false);
            Flight { in_flight, rtt, loss, probe_timeout: ProbeTimeout::default(), restarts: false }
        }

        /// Records the answer to a packet at millisecond 16.
        fn answer(&mut self, packet: u64) {
            self.loss.on_answer(Time(16 * MS), packet, packet + 1, &self.rtt);
        }

        /// The timer that expires next, and the millisecond.
        fn next(&self) -> Option<(u64, Expiry)> {
            let Flight { in_flight, rtt, loss, probe_timeout, restarts } = self;
            let (backoff, restarts) = (Backoff::default(), *restarts);
            let timers = Timers { in_flight, rtt, loss, probe_timeout, backoff, restarts };
            timers.next().map(|(at, expiry)| (at.0 / MS, expiry))
        }
    }

    #[test]
    fn the_first_sent_expires_first() {
        let mut flight = Flight::new(&[1, 2, 3]);
        flight.answer(9);
        assert_eq!(flight.next(), Some((21, Expiry::Chunk(0))));
        flight.in_flight.mark_lost(0, true);
        assert_eq!(flight.next(), Some((22, Expiry::Chunk(1))));
        flight.in_flight.on_sent(0, first(21 * MS, 4));
        flight.in_flight.advance(1, 9);
        flight.in_flight.advance(2, 10);
        assert_eq!(flight.next(), Some((61, Expiry::Chunk(0))), "doubled");
        flight.in_flight.advance(0, 8);
        assert_eq!(flight.next(), None, "nothing in flight, no timer");
    }

    #[test]
    fn an_overtaken_chunk_has_a_reordering_window() {
        let mut flight = Flight::new(&[10, 10]);
        flight.loss = LossDetector::new(false, true);
        flight.rtt.sample(4 * MS, 1, 2);
        assert_eq!(flight.next(), Some((22, Expiry::Probe)));
        flight.answer(2);
        assert_eq!(flight.next(), Some((20, Expiry::Reordering)), "no reordering was measured: a round trip");
        flight.answer(9);
        assert_eq!(flight.next(), Some((17, Expiry::Reordering)), "a quarter of it");
    }

    #[test]
    fn without_a_later_answer_the_probe_timeout_decides() {
        let mut flight = Flight::new(&[1, 2, 3]);
        assert_eq!(flight.next(), Some((21, Expiry::Probe)));
        flight.probe_timeout.on_result(Time(15 * MS));
        assert_eq!(flight.next(), Some((35, Expiry::Probe)), "a whole timeout without a result");
        flight.answer(2);
        assert_eq!(flight.next(), Some((21, Expiry::Chunk(0))), "but packet 2 was sent after packet 1");
        flight.in_flight.advance(0, 8);
        assert_eq!(flight.next(), Some((35, Expiry::Probe)));
    }

    #[test]
    fn unconfirmed_chunks_wait_for_the_longer_timeout() {
        let mut flight = Flight::new(&[]);
        flight.in_flight.make_ready(0, 0);
        flight.in_flight.on_sent(0, SentPacket { is_confirmed: false, ..first(MS, 1) });
        flight.answer(9);
        assert_eq!(flight.next(), Some((21, Expiry::Probe)), "answers to others say nothing of it");
    }

    #[test]
    fn a_result_may_restart_the_timers() {
        let mut flight = Flight { restarts: true, ..Flight::new(&[1, 2, 3]) };
        flight.answer(9);
        flight.probe_timeout.on_result(Time(15 * MS));
        assert_eq!(flight.next(), Some((35, Expiry::Chunk(0))));
    }

    #[test]
    fn probes_back_off_and_a_result_restarts_the_timers() {
        let mut flight = Flight::new(&[1, 2, 3]);
        flight.probe_timeout.on_probe(Time(21 * MS));
        assert_eq!(flight.next(), Some((61, Expiry::Probe)));
        flight.probe_timeout.on_result(Time(50 * MS));
        flight.loss.on_ambiguous_answer(9);
        assert_eq!(flight.next(), Some((70, Expiry::Chunk(0))));
    }

    #[test]
    fn queues_stay_in_order_when_the_timeout_shrinks() {
        let mut flight = Flight::new(&[0, 10]);
        flight.rtt.sample(MS, 1, 2);
        assert_eq!(flight.next(), Some((3, Expiry::Probe)));
    }
}
