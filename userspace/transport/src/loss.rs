//! The fast sign of loss: three results of packets that were sent later.
//!
//! Results come back in the order in which contributions were sent, but for reordering on the way.
//! One lost packet therefore shows long before any timer: when three packets sent after it were answered.

/// Remembers the three latest-sent packets that were answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LaterResults {
    /// Send indices, highest first. Indices count from 1; 0: none.
    highest: [u64; 3],
}

impl LaterResults {
    /// The packet with send index `index` was answered.
    pub fn note(&mut self, index: u64) {
        let [first, second, third] = self.highest;
        if index > first {
            self.highest = [index, first, second];
        } else if index > second {
            self.highest = [first, index, second];
        } else if index > third {
            self.highest[2] = index;
        }
    }

    /// Whether three packets that were sent after `index` were answered.
    pub fn outrun(&self, index: u64) -> bool {
        index < self.highest[2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_later_results_outrun() {
        let table: [(&str, &[u64], u64, bool); 6] = [
            ("no results", &[], 1, false),
            ("two later", &[2, 3], 1, false),
            ("three later", &[2, 3, 4], 1, true),
            ("three later, disordered", &[4, 2, 3], 1, true),
            ("one of three is earlier", &[2, 5, 6], 3, false),
            ("many earlier, three later", &[1, 2, 9, 3, 8, 4, 7], 6, true),
        ];
        for (what, results, index, expected) in table {
            let mut later = LaterResults::default();
            results.iter().for_each(|index| later.note(*index));
            assert_eq!(later.outrun(index), expected, "{what}");
        }
    }
}
