//! The paths of packets with data: the receiver's report of each, and the choice of the next one's path.
//!
//! An acknowledgement has a bit for each of the last packets. The sender remembers the path of each packet
//! until that reports what became of it.
//!
//! | packet | means for its path |
//! | --- | --- |
//! | arrived | an answer |
//! | arrived after a packet that was sent more than a quarter of the shortest round trip later | a late answer |
//! | not there, and a packet has arrived that was sent more than a retransmission timeout later | a loss |
//!
//! The time between the two transmissions counts, as in RACK (RFC 8985): how long after an arrival its
//! acknowledgement follows depends on the next packets. RACK's window would be too short: it ends with a
//! round trip, and a wrong guess takes half of a path's weight. Nothing waits for this one.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use sumac_wire::header::ELEMENT_LEN;

use crate::{params::Tuning, paths::Paths, rtt::RttEstimator, stats::PathStats, time::Time};

/// Most packets that an acknowledgement has bits for.
const MOST: u32 = 2048;
/// Packets in a word of bits.
const WORD: u32 = u32::BITS;
/// Most packets remembered.
const MOST_SENT: usize = 2 * MOST as usize;

/// The packets that have arrived, among the last ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Arrived {
    /// A bit each, the word of a packet's number at that modulo the length, which is a power of two. The last
    /// word has zeros for packets that have not come.
    words: Box<[u32]>,
    highest: u32,
}

impl Arrived {
    /// For a sender with at most `window` packets in flight, in words of at most `elements`. A burst of a
    /// window may come in any order, while the next ones begin: four windows have bits.
    pub fn new(window: u32, elements: u16) -> Arrived {
        let words = (4 * window.min(MOST / 4)).div_ceil(WORD).clamp(1, u32::from(elements).max(1));
        // A power of two divides the range of numbers, which wraps.
        let words = 1 << words.ilog2();
        Arrived { words: vec![0; words].into(), highest: 0 }
    }

    pub fn highest(&self) -> u32 {
        self.highest
    }

    fn word(&mut self, word: u32) -> &mut u32 {
        let at = word as usize % self.words.len();
        &mut self.words[at]
    }

    pub fn insert(&mut self, number: u32) {
        let (last, word) = (self.highest / WORD, number / WORD);
        if self.highest == 0 || sumac_wire::stream::is_later(number, self.highest) {
            let entered = (word.wrapping_sub(last) % (u32::MAX / WORD + 1)).min(self.words.len() as u32);
            (0..entered).for_each(|back| *self.word(word.wrapping_sub(back)) = 0);
            self.highest = number;
        } else if last.wrapping_sub(word) % (u32::MAX / WORD + 1) >= self.words.len() as u32 {
            return;
        }
        *self.word(word) |= 1 << (WORD - 1 - number % WORD);
    }

    /// Writes the bits; returns the number of the packet of the first one, and the words written.
    pub fn write(&self, out: &mut [u8]) -> (u32, u16) {
        let count = self.words.len() as u32;
        let first = (self.highest / WORD).wrapping_sub(count - 1);
        for (word, out) in (0..count).zip(out.chunks_exact_mut(ELEMENT_LEN)) {
            let at = first.wrapping_add(word) as usize % self.words.len();
            out.copy_from_slice(&self.words[at].to_be_bytes());
        }
        (first.wrapping_mul(WORD), count as u16)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    InFlight,
    /// A packet that was sent well after it has arrived before it.
    Late,
    /// It has arrived, or is lost.
    Decided,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct SentPacket {
    path: u16,
    sent: Time,
    state: State,
}

/// The packets with data towards one peer of which it is not known whether they have arrived, and their
/// paths.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outstanding {
    paths: Paths,
    /// In the order of their numbers, which are consecutive.
    sent: VecDeque<SentPacket>,
}

impl Outstanding {
    pub fn new(tuning: &Tuning, seed: u64) -> Outstanding {
        Outstanding { paths: Paths::new(tuning.paths, seed), sent: VecDeque::new() }
    }

    /// Chooses the path of the next packet with data.
    pub fn send(&mut self, now: Time, stats: &mut PathStats) -> u16 {
        let oldest = if self.sent.len() == MOST_SENT { self.sent.pop_front() } else { None };
        if let Some(packet) = oldest.filter(|packet| packet.state == State::Late) {
            self.paths.on_loss(now, packet.path, stats);
        }
        let path = self.paths.choose(now, stats);
        self.sent.push_back(SentPacket { path, sent: now, state: State::InFlight });
        path
    }

    /// Chooses the path of a packet that is not acknowledged.
    pub fn control_path(&mut self, stats: &mut PathStats) -> u16 {
        self.paths.choose_without_probes(stats)
    }

    pub fn weights(&self) -> impl Iterator<Item = u64> {
        self.paths.weights()
    }

    /// Processes an acknowledgement: a bit for each packet from `first` on, set if it has arrived, up to
    /// `highest`; `next` is the number of the next packet. Returns whether any weight has changed.
    pub fn on_acknowledged(
        &mut self,
        now: Time,
        [first, highest, next]: [u32; 3],
        bits: &[u8],
        rtt: &RttEstimator,
        stats: &mut PathStats,
    ) -> bool {
        let back = next.wrapping_sub(highest) as usize;
        let Some(newest) = self.sent.len().checked_sub(back).filter(|_| back > 0) else { return false };
        let oldest = highest.wrapping_sub(newest as u32);
        let last = self.sent[newest].sent;
        let mut has_changed = false;
        for (number, packet) in (0..=newest as u32).zip(&mut self.sent) {
            let at = oldest.wrapping_add(number).wrapping_sub(first) as usize;
            let has_arrived = bits.get(at / 8).is_some_and(|byte| byte & 0x80 >> (at % 8) != 0);
            let behind = last.since(packet.sent);
            match packet.state {
                State::Decided => {}
                state if has_arrived => {
                    packet.state = State::Decided;
                    has_changed |= self.paths.on_answer(packet.path, state == State::Late, stats);
                }
                _ if behind > rtt.timeout_confirmed(0) => {
                    packet.state = State::Decided;
                    has_changed |= self.paths.on_loss(now, packet.path, stats);
                }
                _ if behind > rtt.shortest() / 4 => packet.state = State::Late,
                _ => {}
            }
        }
        while self.sent.front().is_some_and(|packet| packet.state == State::Decided) {
            self.sent.pop_front();
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    /// A round trip of 100 us.
    fn rtt() -> RttEstimator {
        let mut rtt = RttEstimator::new(&Tuning::default());
        rtt.sample(100 * US, 1, 2);
        rtt
    }

    /// The numbers in an acknowledgement.
    fn numbers(arrived: &Arrived) -> Vec<u32> {
        let mut bytes = [0; MOST as usize / 8];
        let (first, words) = arrived.write(&mut bytes);
        let is_set = |at: &u32| bytes[*at as usize / 8] & 0x80 >> (at % 8) != 0;
        (0..u32::from(words) * WORD).filter(is_set).map(|at| first.wrapping_add(at)).collect()
    }

    #[test]
    fn the_last_packets_have_a_bit_each() {
        // The size in words, the packets that arrive, and those that an acknowledgement names.
        type Case = (&'static str, usize, Vec<u32>, Vec<u32>);
        let table: [Case; 7] = [
            ("none", 1, vec![], vec![]),
            ("in order", 2, vec![1, 2, 3], vec![1, 2, 3]),
            ("in any order, and twice", 2, vec![7, 2, 40, 2, 5], vec![2, 5, 7, 40]),
            ("older words are given up", 2, vec![1, 31, 32, 64], vec![32, 64]),
            ("one from a word that is gone", 2, vec![64, 31, 33], vec![33, 64]),
            ("far ahead", 4, vec![1, 2, 1 << 30], vec![1 << 30]),
            (
                "numbers wrap",
                2,
                vec![1 << 31, u32::MAX - 1, u32::MAX, 0, 3],
                vec![u32::MAX - 1, u32::MAX, 0, 3],
            ),
        ];
        for (case, words, arriving, expected) in table {
            let mut arrived = Arrived::new(words as u32 * WORD / 4, 352);
            assert_eq!(arrived.words.len(), words, "{case}");
            arriving.into_iter().for_each(|number| arrived.insert(number));
            assert_eq!(numbers(&arrived), expected, "{case}");
        }
        let len = |window, elements| Arrived::new(window, elements).words.len();
        assert_eq!([len(16, 352), len(100, 352), len(4096, 352), len(4096, 9)], [2, 8, 64, 8]);
    }

    /// Packets of one path, one each 10 us; all but `missing` are acknowledged after `sent` of them, and all
    /// but `lost` after twice as many. Returns the counters.
    fn feedback(sent: u32, missing: &[u32], lost: &[u32]) -> PathStats {
        let mut outstanding = Outstanding::new(&Tuning { paths: 1, ..Tuning::default() }, 7);
        let mut stats = outstanding.paths.stats();
        let mut arrived = Arrived::new(1024, 352);
        for number in 1..=2 * sent {
            let now = Time(u64::from(number) * 10 * US);
            outstanding.send(now, &mut stats);
            let absent = if number <= sent { missing } else { &[] };
            (!absent.contains(&number)).then(|| arrived.insert(number));
            if number == 2 * sent {
                missing
                    .iter()
                    .filter(|number| !lost.contains(number))
                    .for_each(|number| arrived.insert(*number));
            }
            if number % sent == 0 {
                let mut bits = [0; MOST as usize / 8];
                let (first, _) = arrived.write(&mut bits);
                let range = [first, arrived.highest(), number + 1];
                outstanding.on_acknowledged(now, range, &bits, &rtt(), &mut stats);
            }
        }
        stats
    }

    #[test]
    fn the_time_between_transmissions_tells_late_from_lost() {
        // Packets until the first acknowledgement, those missing in it, those lost; late answers and losses
        // counted.
        type Case = (&'static str, u32, &'static [u32], &'static [u32], [u64; 2]);
        let table: [Case; 5] = [
            ("all arrive", 8, &[], &[], [0, 0]),
            ("reordered within a quarter of a round trip", 8, &[6], &[], [0, 0]),
            ("later than that", 8, &[5], &[], [1, 0]),
            ("not at all", 40, &[5], &[5], [0, 1]),
            ("later than a timeout", 80, &[5, 65], &[], [1, 1]),
        ];
        for (case, sent, missing, lost, expected) in table {
            let stats = feedback(sent, missing, lost);
            assert_eq!([stats.late[0], stats.lost[0]], expected, "{case}");
        }
    }

    #[test]
    fn acknowledgements_of_other_packets_change_nothing() {
        let mut outstanding = Outstanding::new(&Tuning::default(), 7);
        let mut stats = outstanding.paths.stats();
        (0..3).for_each(|_| {
            outstanding.send(Time(0), &mut stats);
        });
        let before = stats.clone();
        for highest in [0, 4, 5000, u32::MAX] {
            let range = [0, highest, 4];
            assert!(!outstanding.on_acknowledged(Time(1), range, &[0xff; 128], &rtt(), &mut stats));
        }
        assert!(!outstanding.on_acknowledged(Time(1), [0, 3, 4], &[], &rtt(), &mut stats), "without bits");
        assert_eq!((&stats, outstanding.sent.len()), (&before, 3));
        // A loss is also counted where packets follow each other too fast to remember all for a timeout.
        outstanding.send(Time(US * 100), &mut stats);
        assert!(!outstanding.on_acknowledged(Time(US * 200), [0, 4, 5], &[0x08], &rtt(), &mut stats));
        (0..MOST_SENT).for_each(|_| {
            outstanding.send(Time(US * 200), &mut stats);
        });
        assert_eq!(stats.lost.iter().sum::<u64>(), 3);
        // A peer that answers nothing is not remembered for ever.
        (0..10_000).for_each(|_| {
            outstanding.send(Time(0), &mut stats);
        });
        assert_eq!((outstanding.sent.len(), stats.lost.iter().sum::<u64>()), (MOST_SENT, 3));
    }
}
