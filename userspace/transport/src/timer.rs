//! The retransmission timer: a queue per back-off level, in the order of sending.
//!
//! Chunks of one level share one timeout, so the first of each queue expires first, also after
//! the timeout changed: a queue keeps times of sending, not deadlines. A packet costs one append, its
//! result one removal; nothing is scanned, and nothing happens while nothing is lost.

use crate::{
    rtt::RttEstimator,
    slots::{LEVELS, Slots},
    time::Time,
};

/// When the next chunk expires, if any is in flight.
pub(crate) fn next_deadline(slots: &Slots, rtt: &RttEstimator) -> Option<Time> {
    (0..LEVELS)
        .filter_map(|level| slots.first_sent(level).map(|(_, slot)| slot.sent.plus(rtt.timeout(level))))
        .min()
}

/// A slot whose chunk has expired at `now`.
pub(crate) fn expired(slots: &Slots, rtt: &RttEstimator, now: Time) -> Option<usize> {
    (0..LEVELS).find_map(|level| {
        let (slot, first) = slots.first_sent(level)?;
        (first.sent.plus(rtt.timeout(level)) <= now).then_some(slot)
    })
}

/// Of all chunks in flight, the one whose last packet was sent first, with that packet's index.
pub(crate) fn oldest(slots: &Slots) -> Option<(usize, u64)> {
    (0..LEVELS)
        .filter_map(|level| slots.first_sent(level).map(|(slot, first)| (slot, first.index)))
        .min_by_key(|(_, index)| *index)
}

/// The back-off that new chunks start with: the second half of Karn's algorithm.
///
/// While everything has to be sent twice (say, because the others are late at every operation) there
/// is no sample to learn a longer timeout from; so what one chunk backed off to holds for
/// the next, until a chunk is answered that was sent once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    level: u8,
}

impl Backoff {
    /// A chunk was answered that had been sent again, at this level.
    pub fn keep(&mut self, level: u8) {
        self.level = self.level.max(level);
    }

    /// The timeout follows the path anew: a chunk was answered that had been sent once.
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
    use crate::{params::Tuning, placement::StaticPool};

    const MS: u64 = 1_000_000;

    fn flying(sent: &[u64]) -> (Slots, RttEstimator) {
        let mut slots = Slots::new(StaticPool::new(8), 0);
        for (slot, at) in sent.iter().enumerate() {
            slots.wake(slot, slot as u64, 0);
            slots.launch(slot, Time(at * MS), slot as u64 + 1, 0);
        }
        (slots, RttEstimator::new(&Tuning::default()))
    }

    #[test]
    fn the_first_sent_expires_first() {
        let (mut slots, rtt) = flying(&[1, 2, 3]);
        assert_eq!(next_deadline(&slots, &rtt), Some(Time(21 * MS)));
        assert_eq!(expired(&slots, &rtt, Time(21 * MS - 1)), None);
        assert_eq!(expired(&slots, &rtt, Time(21 * MS)), Some(0));
        slots.lose(0, true);
        assert_eq!(expired(&slots, &rtt, Time(21 * MS)), None);
        slots.launch(0, Time(21 * MS), 4, 0);
        assert_eq!(next_deadline(&slots, &rtt), Some(Time(22 * MS)), "slot 1, at level 0");
        slots.advance(1, 9, None);
        slots.advance(2, 10, None);
        assert_eq!(next_deadline(&slots, &rtt), Some(Time(61 * MS)), "slot 0, doubled");
        slots.advance(0, 8, None);
        assert_eq!(next_deadline(&slots, &rtt), None, "nothing in flight, no timer");
    }

    #[test]
    fn queues_stay_in_order_when_the_timeout_shrinks() {
        let (slots, mut rtt) = flying(&[0, 10]);
        rtt.sample(MS, 1, 2);
        assert_eq!(next_deadline(&slots, &rtt), Some(Time(3 * MS)));
    }

    #[test]
    fn the_oldest_is_found_over_all_levels() {
        let (mut slots, _) = flying(&[0, 0, 0]);
        assert_eq!(oldest(&slots), Some((0, 1)));
        slots.lose(0, true);
        slots.launch(0, Time(MS), 4, 0);
        assert_eq!(oldest(&slots), Some((1, 2)));
        slots.advance(1, 9, None);
        slots.advance(2, 10, None);
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
