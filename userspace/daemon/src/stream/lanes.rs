//! Where in a job's lanes the parts of its operations go. All workers place the same in the same order, and so come to the
//! same places.

use super::log::Stretch;
use super::parts::Loads;
use super::past::Past;
use super::stand::Stand;

/// A part's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) stretch: Stretch,
    /// Chunks at its front that were summed before this worker took another one's place.
    pub(super) past: u32,
}

/// A job's lanes: for each class of priority one in each shard.
#[derive(Debug)]
pub(super) struct Lanes {
    shards: u16,
    /// By lane: the next chunk's number.
    next: Vec<u32>,
    loads: Loads,
    past: Past,
}

impl Lanes {
    /// `resume`: of a worker that takes another one's place, the first chunk of each lane that is not summed.
    pub(super) fn new(classes: u16, shards: u16, resume: &[u32]) -> Lanes {
        let next = vec![0; usize::from(classes) * usize::from(shards)];
        Lanes { shards, next, loads: Loads::new(shards), past: Past::new(resume) }
    }

    /// Goes on where another worker's are.
    pub(super) fn begin_at(&mut self, stand: &Stand) {
        if stand.fits(self.next.len(), usize::from(self.shards)) {
            self.next.clone_from(&stand.next);
            self.loads = Loads::from(&stand.loads);
        }
    }

    /// Where they are, before the operation with this number.
    pub(super) fn stand(&self, number: u32) -> Stand {
        Stand { number, next: self.next.clone(), loads: self.loads.chunks().to_vec() }
    }

    /// Gives each part of an operation of this class, which has so many chunks, a place in a shard of its own.
    pub(super) fn place(&mut self, class: u16, chunks: &[u32]) -> Vec<Place> {
        let shards = self.loads.assign(chunks.iter().copied());
        let places = shards.into_iter().zip(chunks).map(|(shard, chunks)| {
            let (lane, chunks) = (class * self.shards + shard, *chunks);
            let mut first = 0;
            if let Some(next) = self.next.get_mut(usize::from(lane)) {
                first = *next;
                *next = first.wrapping_add(chunks);
            }
            let past = self.past.chunks(lane, first, chunks);
            Place { stretch: Stretch { lane, first, chunks }, past }
        });
        places.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another_in_the_lanes_of_their_class() {
        let mut lanes = Lanes::new(2, 2, &[]);
        let mut place = |class, chunks: &[u32]| -> Vec<(u16, u32)> {
            lanes.place(class, chunks).iter().map(|place| (place.stretch.lane, place.stretch.first)).collect()
        };
        assert_eq!(place(0, &[3, 4]), [(1, 0), (0, 0)]);
        // Loads of 4 and 3; the urgent lanes have numbers of their own.
        assert_eq!(place(1, &[1]), [(3, 0)]);
        assert_eq!(place(0, &[1]), [(0, 4)]);
        assert_eq!(place(0, &[1]), [(1, 3)]);
    }

    #[test]
    fn a_newcomer_comes_to_the_same_places_as_the_others() {
        let (mut old, mut new) = (Lanes::new(1, 2, &[]), Lanes::new(1, 2, &[4, 2]));
        for chunks in [&[3, 3][..], &[2], &[5, 6]] {
            let (old, new) = (old.place(0, chunks), new.place(0, chunks));
            assert!(old.iter().zip(&new).all(|(old, new)| old.stretch == new.stretch && old.past == 0));
        }
        let mut again = Lanes::new(1, 2, &[4, 2]);
        let past: Vec<Vec<u32>> = [&[3, 3][..], &[2], &[5, 6]]
            .iter()
            .map(|chunks| again.place(0, chunks).iter().map(|place| place.past).collect())
            .collect();
        assert_eq!(past, [vec![3, 2], vec![1], vec![0, 0]]);
    }
}
