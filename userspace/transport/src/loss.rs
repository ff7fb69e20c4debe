//! The fast sign of loss: some results of packets that were sent later.
//!
//! Results come back in the order in which contributions were sent, but for reordering on the way.
//! One lost packet therefore shows long before any timer: when two or three packets sent after it were answered. In the
//! static mode a question follows, which is cheap: two are enough, and the last packets of an operation have no more behind
//! them. In the dynamic mode the packet itself follows, past the slots: three, as ATP has it.
//! One such packet is enough to let the lost one's timer run; without any, it may just be early.

/// Most later results that can be waited for.
pub(crate) const MAX_LATER_RESULTS: usize = 8;

/// Remembers the latest-sent packets that were answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaterResults {
    /// Send indices, highest first. Indices count from 1; 0: none.
    highest: [u64; MAX_LATER_RESULTS],
    /// How many make a loss; 0: none do.
    enough: usize,
    /// The highest send index of a chunk that was sent again and then answered.
    again: u64,
}

impl LaterResults {
    /// So many later results, [`MAX_LATER_RESULTS`] at most, are a sign of loss; 0: none are.
    pub fn new(enough: u32) -> LaterResults {
        let enough = (enough as usize).min(MAX_LATER_RESULTS);
        LaterResults { highest: [0; MAX_LATER_RESULTS], enough, again: 0 }
    }

    /// The packet with send index `index` was answered, and no other of its chunk.
    pub fn note(&mut self, index: u64) {
        let at = self.highest.partition_point(|higher| *higher >= index);
        if at < MAX_LATER_RESULTS {
            self.highest.copy_within(at..MAX_LATER_RESULTS - 1, at + 1);
            self.highest[at] = index;
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

    /// Whether enough packets that were sent after `index` were answered.
    pub fn outrun(&self, index: u64) -> bool {
        self.enough.checked_sub(1).is_some_and(|last| index < self.highest[last])
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
    fn enough_later_results_outrun() {
        let table: [(&str, u32, &[u64], u64, bool); 11] = [
            ("no results", 2, &[], 1, false),
            ("one later", 2, &[2], 1, false),
            ("two later", 2, &[2, 3], 1, true),
            ("two later, disordered", 2, &[4, 2], 1, true),
            ("one of two is earlier", 2, &[2, 5], 3, false),
            ("many earlier, two later", 2, &[1, 2, 9, 3, 8, 4], 7, true),
            ("two of three", 3, &[2, 3], 1, false),
            ("three", 3, &[4, 2, 3], 1, true),
            ("eight", 8, &[9, 3, 4, 8, 5, 6, 7, 2], 1, true),
            ("seven of eight", 8, &[9, 3, 4, 8, 5, 6, 7], 2, false),
            ("none are a sign", 0, &[2, 3, 4, 5], 1, false),
        ];
        for (what, enough, results, index, expected) in table {
            let mut later = LaterResults::new(enough);
            results.iter().for_each(|index| later.note(*index));
            assert_eq!(later.outrun(index), expected, "{what}");
        }
    }

    #[test]
    fn one_later_result_overtakes() {
        let mut later = LaterResults::new(2);
        assert!(!later.overtaken(1));
        later.note(2);
        assert!(later.overtaken(1) && !later.overtaken(2));
        later.note_again(9);
        assert!(later.overtaken(8) && !later.outrun(1), "a sign for the timer only");
        later.note(3);
        assert!(!later.overtaken(3), "it was the first transmission of packet 9's chunk after all");
    }
}
