//! Loss detection by the packet threshold (RFC 9002, section 6.1.1): some packets that were sent later have been answered.
//!
//! Results come back in the order in which contributions were sent, but for reordering on the path. So one lost packet shows
//! long before any timer, when two or three packets sent after it were answered. In the static mode a query follows, which
//! is cheap: two are enough, and few packets of an operation have less than two behind them. In the dynamic mode a
//! retransmission follows, past the slots: three, as in ATP. One later answer is enough to let the timer run.

use crate::limits::MAX_PACKET_THRESHOLD;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketThreshold {
    /// Packet numbers, highest first; they count from 1, and 0 is none.
    highest: [u64; MAX_PACKET_THRESHOLD],
    /// The number of later answers that indicates a loss; 0: none does.
    threshold: usize,
    /// The highest number of a packet that was not the first of its chunk when the answer came.
    ambiguous: u64,
}

impl PacketThreshold {
    /// A threshold of so many answers, at most [`MAX_PACKET_THRESHOLD`]; 0: only timers detect loss.
    pub fn new(threshold: u32) -> PacketThreshold {
        let threshold = (threshold as usize).min(MAX_PACKET_THRESHOLD);
        PacketThreshold { highest: [0; MAX_PACKET_THRESHOLD], threshold, ambiguous: 0 }
    }

    /// Records the answer to a packet that was the only one of its chunk.
    pub fn on_answer(&mut self, packet: u64) {
        let at = self.highest.partition_point(|higher| *higher >= packet);
        if at < MAX_PACKET_THRESHOLD {
            self.highest.copy_within(at..MAX_PACKET_THRESHOLD - 1, at + 1);
            self.highest[at] = packet;
        }
        if packet < self.ambiguous {
            // Packets before it are still being answered: so was the first one of its chunk.
            self.ambiguous = 0;
        }
    }

    /// Records the answer to a chunk whose last packet this is: to this packet, or to an earlier one. It indicates no loss,
    /// but lets the timers of earlier packets run.
    pub fn on_ambiguous_answer(&mut self, packet: u64) {
        self.ambiguous = self.ambiguous.max(packet);
    }

    /// The highest number of an answered packet; 0 when there is none.
    pub fn latest(&self) -> u64 {
        self.highest[0].max(self.ambiguous)
    }

    /// Whether enough packets after this one were answered to consider it lost.
    pub fn indicates_loss(&self, packet: u64) -> bool {
        self.threshold.checked_sub(1).is_some_and(|last| packet < self.highest[last])
    }

    /// Whether a packet after this one was answered, possibly by an ambiguous answer.
    pub fn has_later(&self, packet: u64) -> bool {
        packet < self.latest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_later_answers_indicate_a_loss() {
        let table: [(&str, u32, &[u64], u64, bool); 11] = [
            ("no answers", 2, &[], 1, false),
            ("one later", 2, &[2], 1, false),
            ("two later", 2, &[2, 3], 1, true),
            ("two later, reordered", 2, &[4, 2], 1, true),
            ("one of two is earlier", 2, &[2, 5], 3, false),
            ("many earlier, two later", 2, &[1, 2, 9, 3, 8, 4], 7, true),
            ("two of three", 3, &[2, 3], 1, false),
            ("three", 3, &[4, 2, 3], 1, true),
            ("eight", 8, &[9, 3, 4, 8, 5, 6, 7, 2], 1, true),
            ("seven of eight", 8, &[9, 3, 4, 8, 5, 6, 7], 2, false),
            ("no threshold", 0, &[2, 3, 4, 5], 1, false),
        ];
        for (case, threshold, answers, packet, expected) in table {
            let mut loss = PacketThreshold::new(threshold);
            answers.iter().for_each(|packet| loss.on_answer(*packet));
            assert_eq!(loss.indicates_loss(packet), expected, "{case}");
        }
    }

    #[test]
    fn one_later_answer_starts_the_timer() {
        let mut loss = PacketThreshold::new(2);
        assert!(!loss.has_later(1));
        loss.on_answer(2);
        assert!(loss.has_later(1) && !loss.has_later(2));
        loss.on_ambiguous_answer(9);
        assert!(loss.has_later(8) && !loss.indicates_loss(1), "for the timer only");
        loss.on_answer(3);
        assert!(!loss.has_later(3), "the answer was to the first packet of packet 9's chunk");
    }
}
