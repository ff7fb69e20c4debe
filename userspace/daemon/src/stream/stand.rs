//! Where a job's stream goes on for a worker that takes another one's place (ATP appendix A.3): the others know it from what
//! they have submitted, and tell.

use serde::{Deserialize, Serialize};

/// The first operation that is not summed, and what its place depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stand {
    /// The operation's number: all before it are complete.
    pub(crate) number: u32,
    /// By lane: the chunk that comes next before that operation is placed.
    pub(crate) next: Vec<u32>,
    /// By shard: chunks that it has been given before that, beyond the one with the fewest.
    pub(crate) loads: Vec<u64>,
}

impl Stand {
    /// Whether it is about a job of so many lanes and shards, and can be: it comes from another daemon, and what is loaded
    /// on a shard is counted on from there.
    pub(crate) fn fits(&self, lanes: usize, shards: usize) -> bool {
        (self.next.len(), self.loads.len()) == (lanes, shards)
            && self.loads.iter().all(|load| *load <= u64::from(u32::MAX))
    }

    /// Takes an operation back that went `chunks` long into a lane at `first`.
    pub(super) fn take_back(&mut self, lane: u16, first: u32, chunks: u32) {
        let (lane, shards) = (usize::from(lane), self.loads.len().max(1));
        if let (Some(next), Some(load)) = (self.next.get_mut(lane), self.loads.get_mut(lane % shards)) {
            *next = first;
            *load = load.saturating_sub(chunks.into());
        }
    }

    /// Leaves of the loads what makes a difference.
    pub(super) fn relative(mut self) -> Stand {
        let least = self.loads.iter().copied().min().unwrap_or(0);
        self.loads.iter_mut().for_each(|load| *load -= least);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_back_was_never_placed() {
        let mut stand = Stand { number: 3, next: vec![7, 9, 2, 0], loads: vec![9, 9] };
        assert!(stand.fits(4, 2) && !stand.fits(2, 2));
        stand.take_back(1, 4, 5);
        stand.take_back(2, u32::MAX, 3);
        stand.take_back(9, 0, 1);
        assert_eq!((&stand.next[..], &stand.loads[..]), (&[7, 4, u32::MAX, 0][..], &[6, 4][..]));
        assert_eq!(stand.relative().loads, [2, 0]);
    }

    #[test]
    fn loads_that_no_job_comes_to_do_not_fit() {
        let stand = |load| Stand { number: 1, next: vec![0, 0], loads: vec![load] };
        assert!(stand(u64::from(u32::MAX)).fits(2, 1));
        assert!(!stand(u64::from(u32::MAX) + 1).fits(2, 1) && !stand(u64::MAX).fits(2, 1));
    }
}
