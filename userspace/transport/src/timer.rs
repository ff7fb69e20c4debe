//! The retransmission timer: a queue per back-off level, in the order of sending.
//!
//! Chunks of one level share one timeout, so the first of each queue expires first, also after
//! the timeout changed: a queue keeps times of sending, not deadlines. A packet costs one append, its
//! result one removal; nothing is scanned, and nothing happens while nothing is lost.
//!
//! | of the chunk, when its timeout is over | it is | and so |
//! | --- | --- | --- |
//! | a packet sent after it was answered | overtaken: lost, it seems | it is asked about |
//! | none was, but there were results during that time | behind those that wait | it waits with them |
//! | none was, and there was no result for a whole timeout | in a [silence](crate::silence) | the oldest chunks are probed |
//!
//! Only the first case says something of this chunk. In the others a worker may be late.
//!
//! As long as no result of an operation came, nobody knows whether all workers have begun it: its chunks wait apart,
//! and only silence has them asked about. Otherwise results of the operation before would overtake them, whenever
//! one worker is an operation ahead of another. Once all are at it, timeouts are closer to the round trip.

use crate::{
    loss::LaterResults,
    rtt::RttEstimator,
    silence::Silence,
    slots::{LEVELS, Slots},
    time::Time,
};

/// What expires next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// This slot's chunk, which was overtaken.
    Chunk(usize),
    /// Everybody's patience: the path is silent.
    Path,
}

/// All that decides when a timer expires.
pub(crate) struct Timers<'a> {
    pub slots: &'a Slots,
    pub rtt: &'a RttEstimator,
    pub later: &'a LaterResults,
    pub silence: &'a Silence,
    pub backoff: Backoff,
    /// Whether each result starts all timers anew (RFC 6298, rule 5.3).
    pub restarts: bool,
}

impl Timers<'_> {
    /// What expires next and when, if anything is in flight.
    pub fn next(&self) -> Option<(Time, Expiry)> {
        let sure = (0..LEVELS).filter_map(|level| self.next_of(level)).min_by_key(|(at, _)| *at);
        // Of a silence, those that all workers are at say first when it has lasted too long.
        sure.or_else(|| self.next_unsure())
    }

    fn next_unsure(&self) -> Option<(Time, Expiry)> {
        let (_, first) = self.slots.first_unsure()?;
        let due = self.silence.timer_start(first.since).plus(self.rtt.timeout(usize::from(first.level)));
        Some((due.max(self.silence.until(self.rtt, self.backoff.level(), false)), Expiry::Path))
    }

    fn next_of(&self, level: usize) -> Option<(Time, Expiry)> {
        let (slot, first) = self.slots.first_sent(level)?;
        let due = self.silence.timer_start(first.since).plus(self.rtt.timeout_begun(level));
        let end_of_silence = due.max(self.silence.until(self.rtt, self.backoff.level(), true));
        Some(match self.later.overtaken(first.threshold) {
            true if self.restarts => (end_of_silence, Expiry::Chunk(slot)),
            true => (due, Expiry::Chunk(slot)),
            false => (end_of_silence, Expiry::Path),
        })
    }
}

/// Of all chunks in flight that all workers are at, the one whose last packet was sent first, with the send index after
/// which an answer is a sign of its loss.
pub(crate) fn oldest(slots: &Slots) -> Option<(usize, u64)> {
    (0..LEVELS)
        .filter_map(|level| slots.first_sent(level).map(|(slot, first)| (slot, first.threshold)))
        .min_by_key(|(_, threshold)| *threshold)
}

/// Of all chunks in flight, the one whose last packet was sent first. Also of those that perhaps not all workers are
/// at: one of them may be what another worker waits for.
pub(crate) fn oldest_of_all(slots: &Slots) -> Option<usize> {
    let sure = (0..LEVELS).filter_map(|level| slots.first_sent(level));
    let all = sure.chain(slots.first_unsure());
    all.min_by_key(|(_, first)| first.index).map(|(slot, _)| slot)
}

/// The back-off that new chunks start with: the second half of Karn's algorithm.
///
/// While everything has to be sent twice (say, because the others are late at every operation) there
/// is no sample to learn a longer timeout from; so what one chunk backed off to holds for
/// the next, until an answer is a sample of the path again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    level: u8,
}

impl Backoff {
    /// A chunk that had been sent again at this level was answered, and nobody knows by which sending.
    pub fn keep(&mut self, level: u8) {
        self.level = self.level.max(level);
    }

    /// The timeout follows the path anew: an answer was a sample of it.
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
    use crate::{params::Tuning, placement::StaticPool, slots::Sent};

    const MS: u64 = 1_000_000;

    /// Chunks in slots 0, 1, ... that were sent at these milliseconds.
    struct Flight {
        slots: Slots,
        rtt: RttEstimator,
        later: LaterResults,
        silence: Silence,
        restarts: bool,
    }

    impl Flight {
        fn new(sent: &[u64]) -> Flight {
            let mut slots = Slots::new(StaticPool::new(8, 0), 0);
            for (slot, at) in sent.iter().enumerate() {
                slots.wake(0);
                slots.launch(slot, Time(at * MS), slot as u64 + 1, 0, Sent::Elements, true);
            }
            let rtt = RttEstimator::new(&Tuning::default());
            Flight { slots, rtt, later: LaterResults::new(2), silence: Silence::default(), restarts: false }
        }

        /// What expires next, and in which millisecond.
        fn next(&self) -> Option<(u64, Expiry)> {
            let Flight { slots, rtt, later, silence, .. } = self;
            let timers =
                Timers { slots, rtt, later, silence, backoff: Backoff::default(), restarts: self.restarts };
            timers.next().map(|(at, expiry)| (at.0 / MS, expiry))
        }
    }

    #[test]
    fn the_first_sent_expires_first() {
        let mut flight = Flight::new(&[1, 2, 3]);
        flight.later.note(9);
        assert_eq!(flight.next(), Some((21, Expiry::Chunk(0))));
        flight.slots.lose(0, true);
        assert_eq!(flight.next(), Some((22, Expiry::Chunk(1))));
        flight.slots.launch(0, Time(21 * MS), 4, 0, Sent::Elements, true);
        flight.slots.advance(1, 9, 0, None);
        flight.slots.advance(2, 10, 0, None);
        assert_eq!(flight.next(), Some((61, Expiry::Chunk(0))), "doubled");
        flight.slots.advance(0, 8, 0, None);
        assert_eq!(flight.next(), None, "nothing in flight, no timer");
    }

    #[test]
    fn what_was_not_overtaken_waits_for_silence() {
        let mut flight = Flight::new(&[1, 2, 3]);
        assert_eq!(flight.next(), Some((21, Expiry::Path)));
        flight.silence.end(Time(15 * MS));
        assert_eq!(flight.next(), Some((35, Expiry::Path)), "a whole timeout without a result");
        flight.later.note(2);
        assert_eq!(flight.next(), Some((21, Expiry::Chunk(0))), "but slot 0 is overtaken");
        flight.slots.advance(0, 8, 0, None);
        assert_eq!(flight.next(), Some((35, Expiry::Path)));
    }

    #[test]
    fn a_result_may_start_the_timers_anew() {
        let mut flight = Flight { restarts: true, ..Flight::new(&[1, 2, 3]) };
        flight.later.note(9);
        flight.silence.end(Time(15 * MS));
        assert_eq!(flight.next(), Some((35, Expiry::Chunk(0))), "overtaken, but results come");
    }

    #[test]
    fn a_silence_backs_off_and_its_end_restarts_the_timers() {
        let mut flight = Flight::new(&[1, 2, 3]);
        flight.silence.deepen(Time(21 * MS));
        assert_eq!(flight.next(), Some((61, Expiry::Path)));
        flight.silence.end(Time(50 * MS));
        flight.later.note_again(9);
        assert_eq!(flight.next(), Some((70, Expiry::Chunk(0))), "overtaken, but with time to catch up");
    }

    #[test]
    fn queues_stay_in_order_when_the_timeout_shrinks() {
        let mut flight = Flight::new(&[0, 10]);
        flight.rtt.sample(MS, 1, 2);
        assert_eq!(flight.next(), Some((3, Expiry::Path)));
    }

    #[test]
    fn the_oldest_is_found_over_all_levels() {
        let mut slots = Flight::new(&[0, 0, 0]).slots;
        assert_eq!(oldest(&slots), Some((0, 1)));
        slots.lose(0, true);
        slots.launch(0, Time(MS), 4, 0, Sent::Elements, true);
        assert_eq!(oldest(&slots), Some((1, 2)));
        slots.advance(1, 9, 0, None);
        slots.advance(2, 10, 0, None);
        assert_eq!(oldest(&slots), Some((0, 4)));
    }

    #[test]
    fn back_off_holds_until_a_clean_answer() {
        let mut backoff = Backoff::default();
        backoff.keep(3);
        backoff.keep(1);
        assert_eq!(backoff.level(), 3);
        backoff.reset();
        assert_eq!(backoff.level(), 0);
    }
}
