//! The fast sign of loss: two results of packets that were sent later.
//!
//! Results come back in the order in which contributions were sent, but for reordering on the way.
//! One lost packet therefore shows long before any timer: when two packets sent after it were answered. What follows is
//! a question, which is cheap: two are enough, and the last packets of an operation have no more behind them.
//! One such packet is enough to let the lost one's timer run; without any, it may just be early.

/// Remembers the two latest-sent packets that were answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LaterResults {
    /// Send indices, highest first. Indices count from 1; 0: none.
    highest: [u64; 2],
    /// The highest send index of a chunk that was sent again and then answered.
    again: u64,
}

impl LaterResults {
    /// The packet with send index `index` was answered, and no other of its chunk.
    pub fn note(&mut self, index: u64) {
        let [first, second] = self.highest;
        if index > first {
            self.highest = [index, first];
        } else if index > second {
            self.highest[1] = index;
        }
        if index < self.again {
            // Packets are still being answered that were sent before it: it was its first
            // transmission that was answered.
            self.again = 0;
        }
    }

    /// A chunk was answered that was last sent, or asked about, with send index `index`: perhaps that packet, perhaps
    /// an earlier one. No sign of loss, but reason enough for the timers of packets before it.
    pub fn note_again(&mut self, index: u64) {
        self.again = self.again.max(index);
    }

    /// The highest send index of a packet that was answered; 0: none was.
    pub fn latest(&self) -> u64 {
        self.highest[0].max(self.again)
    }

    /// Whether two packets that were sent after `index` were answered.
    pub fn outrun(&self, index: u64) -> bool {
        index < self.highest[1]
    }

    /// Whether a packet that was sent after `index` was answered, as far as one can tell.
    pub fn overtaken(&self, index: u64) -> bool {
        index < self.latest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_later_results_outrun() {
        let table: [(&str, &[u64], u64, bool); 6] = [
            ("no results", &[], 1, false),
            ("one later", &[2], 1, false),
            ("two later", &[2, 3], 1, true),
            ("two later, disordered", &[4, 2], 1, true),
            ("one of two is earlier", &[2, 5], 3, false),
            ("many earlier, two later", &[1, 2, 9, 3, 8, 4], 7, true),
        ];
        for (what, results, index, expected) in table {
            let mut later = LaterResults::default();
            results.iter().for_each(|index| later.note(*index));
            assert_eq!(later.outrun(index), expected, "{what}");
        }
    }

    #[test]
    fn one_later_result_overtakes() {
        let mut later = LaterResults::default();
        assert!(!later.overtaken(1));
        later.note(2);
        assert!(later.overtaken(1) && !later.overtaken(2));
        later.note_again(9);
        assert!(later.overtaken(8) && !later.outrun(1), "a sign for the timer only");
        later.note(3);
        assert!(!later.overtaken(3), "it was the first transmission of packet 9's chunk after all");
    }
}
