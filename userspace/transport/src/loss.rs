//! Loss detection by time (RACK, RFC 8985): a packet is lost when a packet sent later was answered and the
//! reordering window has passed since.
//!
//! Packets of a tensor take different paths, so results overtake each other without any loss. A count of
//! later results cannot tell the two apart; a time can. The window begins at that answer, not at the packet's
//! own transmission: how long a result takes depends on the slowest worker, and the order of results hardly
//! does.
//!
//! | reordering window | |
//! | --- | --- |
//! | usual | a quarter of the shortest round trip, plus the longest lateness measured |
//! | bound | the smoothed round trip; in the dynamic mode it holds until answers of one round trip were measured |
//! | lateness | from the answer to a later packet until the chunk's own, also of chunks wrongly considered lost |
//! | decay | halved after 16 losses in which no lateness of more than half of it was measured (RFC 8985: 16 recoveries) |
//!
//! An answer that does not identify its packet lets only the timers of earlier packets run.

use serde::{Deserialize, Serialize};

use crate::{rtt::RttEstimator, time::Time};

/// Remembered advances: two reordering windows of them.
const ADVANCES: usize = 8;
/// Advances within this part of a reordering window count as one.
const GRANULARITY: u64 = 4;
/// Losses after which an unused part of the window is given up.
const PERSISTENCE: u8 = 16;

/// The highest answered packet advanced to this number.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Advance {
    packet: u64,
    first: Time,
    last: Time,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct LossDetector {
    /// The last advances, oldest first.
    advances: [Advance; ADVANCES],
    len: usize,
    /// The highest number of a packet that was not the first of its chunk when the answer came.
    ambiguous: u64,
    window: ReorderingWindow,
    /// Whether only timers detect losses.
    timers_only: bool,
    is_cautious: bool,
}

impl LossDetector {
    /// `is_cautious`: a wrong guess is costly, so the window begins with all of a round trip until one was
    /// measured, and answers to other workers' packets count.
    pub fn new(timers_only: bool, is_cautious: bool) -> LossDetector {
        let advances = [Advance::default(); ADVANCES];
        let window = ReorderingWindow { is_measured: !is_cautious, ..ReorderingWindow::default() };
        LossDetector { advances, len: 0, ambiguous: 0, window, timers_only, is_cautious }
    }

    fn advances(&self) -> &[Advance] {
        &self.advances[..self.len]
    }

    /// Records the answer to a packet that was the only one of its chunk; the next packet will have the
    /// number `next`.
    //= atp#3.7 later results indicate a loss
    pub fn on_answer(&mut self, now: Time, packet: u64, next: u64, rtt: &RttEstimator) {
        if packet < self.ambiguous {
            // Packets before it are still being answered: so was the first one of its chunk.
            self.ambiguous = 0;
        }
        self.window.on_answer(packet, next);
        let granule = self.window.length(rtt) / GRANULARITY;
        let (len, full) = (self.len, self.len == ADVANCES);
        match self.advances[..len].last_mut() {
            Some(last) if packet <= last.packet => {}
            Some(last) if now.since(last.first) < granule => (last.packet, last.last) = (packet, now),
            _ => {
                if full {
                    self.advances.copy_within(1.., 0);
                }
                self.len = if full { len } else { len + 1 };
                self.advances[self.len - 1] = Advance { packet, first: now, last: now };
            }
        }
    }

    /// Records the answer to a chunk whose last packet this is: to this packet, or to an earlier one. It
    /// indicates no loss, but lets the timers of earlier packets run.
    pub fn on_ambiguous_answer(&mut self, packet: u64) {
        self.ambiguous = self.ambiguous.max(packet);
    }

    /// Records that a chunk was answered this long after a later packet. Returns whether it was only late.
    ///
    /// An echo of the chunk's first packet (`is_first`) shows that nothing was lost. The answer to another
    /// worker's packet may follow from that worker's retransmission, but not within a round trip. It may also
    /// follow from that worker's order of sending, which differs after losses: where a wrong guess costs
    /// little, it is no measure.
    pub fn on_late(&mut self, lateness: u64, is_first: bool, rtt: &RttEstimator) -> bool {
        let is_late = is_first || self.is_cautious && lateness < rtt.shortest();
        if is_late {
            self.window.on_late(lateness);
        }
        is_late
    }

    /// Records that a chunk considered lost was lost.
    pub fn on_recovery(&mut self) {
        self.window.on_recovery();
    }

    /// The highest number of an answered packet; 0 when there is none.
    pub fn latest(&self) -> u64 {
        self.advances().last().map_or(0, |last| last.packet).max(self.ambiguous)
    }

    /// The time at which a packet sent after this one was answered.
    pub fn overtaken(&self, packet: u64) -> Option<Time> {
        self.advances().iter().find(|advance| packet < advance.packet).map(|advance| advance.last)
    }

    /// The time from which this packet is considered lost.
    pub fn deadline(&self, packet: u64, rtt: &RttEstimator) -> Option<Time> {
        let overtaken = self.overtaken(packet).filter(|_| !self.timers_only)?;
        Some(overtaken.plus(self.window.length(rtt)))
    }

    /// Whether a packet after this one was answered, possibly by an ambiguous answer.
    pub fn has_later(&self, packet: u64) -> bool {
        packet < self.latest()
    }

    /// The length of the reordering window in nanoseconds.
    pub fn reordering_window(&self, rtt: &RttEstimator) -> u64 {
        self.window.length(rtt)
    }
}

/// RACK's reordering window, from measured lateness.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct ReorderingWindow {
    /// The longest lateness measured.
    extent: u64,
    /// Losses since more than half of the extent was measured.
    losses: u8,
    /// The answer to this packet, or a later one, ends the first measured round trip; 0: it has not begun.
    round_end: u64,
    is_measured: bool,
}

impl ReorderingWindow {
    fn on_answer(&mut self, packet: u64, next: u64) {
        if self.round_end == 0 {
            self.round_end = next;
        }
        self.is_measured |= packet >= self.round_end;
    }

    fn on_late(&mut self, lateness: u64) {
        if lateness > self.extent / 2 {
            self.losses = 0;
        }
        self.extent = self.extent.max(lateness);
    }

    fn on_recovery(&mut self) {
        self.losses += 1;
        if self.losses == PERSISTENCE {
            self.losses = 0;
            self.extent /= 2;
        }
    }

    fn length(&self, rtt: &RttEstimator) -> u64 {
        match rtt.smoothed() {
            0 => rtt.timeout_confirmed(0),
            smoothed if !self.is_measured => smoothed,
            smoothed => (rtt.shortest() / 4).saturating_add(self.extent).min(smoothed),
        }
    }
}

/// The consequences of an answer for loss detection.
pub(crate) struct Acknowledged {
    pub lost: Option<Lost>,
    /// Whether the answered chunk had been considered lost and was only late.
    pub is_spurious: bool,
    /// Whether a packet of the answered chunk, or its answer, was lost.
    pub is_repaired: bool,
}

/// Chunks that are considered lost now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The chunk number of the latest.
    pub latest: u64,
    pub chunks: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Tuning;

    const RTT: u64 = 100_000;
    const QUARTER: u64 = RTT / 4;

    fn path() -> RttEstimator {
        let mut rtt = RttEstimator::new(&Tuning::default());
        rtt.sample(RTT, 1, 2);
        rtt
    }

    /// A detector that has measured a round trip without reordering.
    fn measured() -> LossDetector {
        let mut loss = LossDetector::new(false, true);
        loss.on_answer(Time(0), 1, 2, &path());
        loss.on_answer(Time(0), 2, 3, &path());
        loss
    }

    //= atp#3.7 later results indicate a loss
    #[test]
    fn a_later_answer_and_a_reordering_window_indicate_a_loss() {
        let rtt = path();
        // Answers as (time, packet); packet 10 is to be judged.
        type Case = (&'static str, &'static [(u64, u64)], Option<u64>);
        let table: [Case; 7] = [
            ("no later answer", &[(1_000, 9)], None),
            ("one later answer", &[(1_000, 11)], Some(1_000 + QUARTER)),
            ("three at once", &[(1_000, 11), (1_000, 12), (1_000, 13)], Some(1_000 + QUARTER)),
            ("the first one counts", &[(1_000, 11), (90_000, 12)], Some(1_000 + QUARTER)),
            ("in any order", &[(1_000, 13), (2_000, 11), (90_000, 14)], Some(1_000 + QUARTER)),
            ("close ones count as one", &[(1_000, 11), (3_000, 12)], Some(3_000 + QUARTER)),
            ("after an earlier one", &[(1_000, 9), (50_000, 11)], Some(50_000 + QUARTER)),
        ];
        for (case, answers, expected) in table {
            let mut loss = measured();
            // The first round trip's answers are long past.
            answers.iter().for_each(|(at, packet)| loss.on_answer(Time(RTT + at), *packet, 99, &rtt));
            assert_eq!(loss.deadline(10, &rtt), expected.map(|at| Time(RTT + at)), "{case}");
            loss.timers_only = true;
            assert_eq!(loss.deadline(10, &rtt), None, "{case}: timers only");
        }
    }

    #[test]
    fn many_advances_delay_no_detection_by_more_than_a_window() {
        let (mut loss, rtt) = (measured(), path());
        (0..1_000).for_each(|at| loss.on_answer(Time(RTT + at * 1_000), 11 + at, 2_000, &rtt));
        assert!(loss.deadline(10, &rtt).is_some_and(|due| due < Time(RTT + 1_000_000)), "long due");
        let due = loss.deadline(1_000, &rtt).map(|due| due.0 - RTT - 990_000);
        assert!(due.is_some_and(|due| (QUARTER..=QUARTER + QUARTER / 4).contains(&due)), "{due:?}");
    }

    #[test]
    fn the_window_follows_the_measured_lateness() {
        let rtt = path();
        let mut loss = LossDetector::new(false, true);
        let length = |loss: &LossDetector| loss.reordering_window(&rtt);
        loss.on_answer(Time(0), 1, 9, &rtt);
        assert_eq!(length(&loss), RTT, "nothing was measured yet");
        loss.on_answer(Time(0), 9, 20, &rtt);
        assert_eq!(length(&loss), QUARTER);
        assert!(loss.on_late(10_000, true, &rtt) && loss.on_late(2_000, false, &rtt));
        assert_eq!(length(&loss), QUARTER + 10_000);
        assert!(!loss.on_late(RTT, false, &rtt), "as long as another worker's recovery");
        loss.is_cautious = false;
        assert!(!loss.on_late(20_000, false, &rtt));
        assert_eq!(length(&loss), QUARTER + 10_000);
        assert!(loss.on_late(9 * RTT, true, &rtt));
        assert_eq!(length(&loss), RTT, "at most the smoothed round trip");
        let mut loss = LossDetector { window: ReorderingWindow { extent: 0, ..loss.window }, ..loss };
        loss.on_late(16_000, true, &rtt);
        (0..15).for_each(|_| loss.on_recovery());
        loss.on_late(9_000, true, &rtt);
        (0..15).for_each(|_| loss.on_recovery());
        assert_eq!(length(&loss), QUARTER + 16_000, "more than half of it was needed meanwhile");
        loss.on_recovery();
        assert_eq!(length(&loss), QUARTER + 8_000);
    }

    #[test]
    fn one_later_answer_starts_the_timer() {
        let (mut loss, rtt) = (LossDetector::new(true, false), path());
        assert!(!loss.has_later(1));
        loss.on_answer(Time(0), 2, 3, &rtt);
        assert!(loss.has_later(1) && !loss.has_later(2));
        loss.on_ambiguous_answer(9);
        assert!(loss.has_later(8) && loss.overtaken(2).is_none(), "for the timer only");
        loss.on_answer(Time(0), 3, 4, &rtt);
        assert!(!loss.has_later(3), "the answer was to the first packet of packet 9's chunk");
    }
}
