//! The assignment of fragments to lanes. All workers assign the same fragments in the same order, with the
//! same result.

use serde::{Deserialize, Serialize};
use sumac_job::{OperationId, ResumePoint};
use sumac_transport::has_exponent_chunk;

use crate::fragment::Fragment;

/// Consecutive chunks of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkRange {
    pub(crate) lane: u16,
    pub(crate) first: u32,
    pub(crate) chunks: u32,
}

impl ChunkRange {
    pub(crate) fn contains(&self, lane: u16, seq: u32) -> bool {
        self.lane == lane && seq.wrapping_sub(self.first) < self.chunks
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) chunks: ChunkRange,
    /// Chunks at its front that were summed before this worker replaced another one.
    pub(crate) completed: u32,
    /// The number of those chunks that have values; the others have exponents.
    pub(crate) completed_values: u32,
}

/// A job's lanes: one for each priority class and shard.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lanes {
    /// The next chunk of each lane.
    next: Vec<u32>,
    /// The chunks that each shard was assigned since the job began. A tensor goes to the shard with the
    /// fewest (ATP section 4).
    loads: Vec<u64>,
    completed: CompletedPrefix,
}

impl Lanes {
    /// `resume`: the first chunk of each lane that is not summed, for a worker that replaces another one;
    /// else empty.
    pub(crate) fn new(classes: u16, shards: u16, resume: &[u32]) -> Lanes {
        let shards = usize::from(shards.max(1));
        let next = vec![0; usize::from(classes) * shards];
        Lanes { next, loads: vec![0; shards], completed: CompletedPrefix::new(resume) }
    }

    pub(crate) fn begin_at(&mut self, point: &ResumePoint) {
        if is_valid(point, self.next.len(), self.loads.len()) {
            self.next.clone_from(&point.next);
            self.loads.clone_from(&point.loads);
        }
    }

    pub(crate) fn position(&self, operation: OperationId) -> ResumePoint {
        ResumePoint { operation, next: self.next.clone(), loads: self.loads.clone() }
    }

    /// Assigns each fragment of an operation of this class to a shard of its own, the largest to the shard
    /// with the smallest load; among equals to the first.
    pub(crate) fn assign<'a>(
        &mut self,
        class: u16,
        is_block_scaled: bool,
        fragments: impl IntoIterator<Item = &'a Fragment>,
    ) -> Vec<Assignment> {
        let chunks: Vec<u32> = fragments.into_iter().map(|fragment| fragment.chunks).collect();
        let mut by_size: Vec<usize> = (0..chunks.len()).collect();
        // Both sorts are stable, as all workers need the same result.
        by_size.sort_by_key(|fragment| std::cmp::Reverse(chunks.get(*fragment)));
        let mut by_load: Vec<usize> = (0..self.loads.len()).collect();
        by_load.sort_by_key(|shard| self.loads.get(*shard));
        let mut shards = vec![0; chunks.len()];
        for (fragment, shard) in by_size.into_iter().zip(by_load) {
            shards[fragment] = shard;
        }
        let shards = shards.into_iter().zip(chunks);
        shards.map(|(shard, chunks)| self.append(class, shard, is_block_scaled, chunks)).collect()
    }

    /// Appends `values` chunks of values to a lane, and before them their exponents where the engine sends
    /// them as a chunk.
    fn append(&mut self, class: u16, shard: usize, is_block_scaled: bool, values: u32) -> Assignment {
        let lane = usize::from(class) * self.loads.len() + shard;
        let first = self.next.get(lane).copied().unwrap_or(0);
        let has_exponents = is_block_scaled && has_exponent_chunk(first, values.into());
        let chunks = values.saturating_add(has_exponents.into());
        if let (Some(next), Some(load)) = (self.next.get_mut(lane), self.loads.get_mut(shard)) {
            *next = first.wrapping_add(chunks);
            *load += u64::from(chunks);
        }
        let completed = self.completed.take(lane, first, chunks);
        let completed_values = completed.saturating_sub(has_exponents.into());
        // A job has at most 32 lanes.
        let lane = lane as u16;
        Assignment { chunks: ChunkRange { lane, first, chunks }, completed, completed_values }
    }
}

/// Returns whether a resume point is valid for a job with this many lanes and shards. It comes from another
/// daemon.
#[must_use]
pub fn is_valid(point: &ResumePoint, lanes: usize, shards: usize) -> bool {
    (point.next.len(), point.loads.len()) == (lanes, shards)
        && point.loads.iter().all(|load| u32::try_from(*load).is_ok())
}

/// Takes a fragment back from a position: `chunks` chunks of a lane, from `first` on.
pub(crate) fn take_back(point: &mut ResumePoint, fragment: ChunkRange) {
    let ChunkRange { lane, first, chunks } = fragment;
    let (lane, shards) = (usize::from(lane), point.loads.len().max(1));
    if let (Some(next), Some(load)) = (point.next.get_mut(lane), point.loads.get_mut(lane % shards)) {
        *next = first;
        *load = load.saturating_sub(chunks.into());
    }
}

pub(crate) fn relative(mut point: ResumePoint) -> ResumePoint {
    let least = point.loads.iter().copied().min().unwrap_or(0);
    point.loads.iter_mut().for_each(|load| *load -= least);
    point
}

/// The chunks of each lane that were summed before this worker replaced another one (ATP appendix A.3). It
/// submits the job's operations from the first incomplete one; their summed chunks are neither sent nor
/// written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct CompletedPrefix {
    /// The first chunk of each lane that is not summed, until the lane has reached it.
    unsummed: Vec<Option<u32>>,
}

impl CompletedPrefix {
    fn new(resume: &[u32]) -> CompletedPrefix {
        CompletedPrefix { unsummed: resume.iter().copied().map(Some).collect() }
    }

    /// Returns the number of summed chunks at the front of a range. The ranges of a lane are passed in order.
    fn take(&mut self, lane: usize, first: u32, chunks: u32) -> u32 {
        let Some(entry) = self.unsummed.get_mut(lane) else { return 0 };
        let Some(unsummed) = *entry else { return 0 };
        let completed = summed(first, chunks, unsummed);
        if completed < chunks {
            // Reached. Chunk numbers wrap, and come to `unsummed` again.
            *entry = None;
        }
        completed
    }
}

/// Returns the number of chunks of a range before the first that is not summed. Chunk numbers wrap.
pub(crate) fn summed(first: u32, chunks: u32, unsummed: u32) -> u32 {
    let ahead = unsummed.wrapping_sub(first);
    if ahead.cast_signed() > 0 { ahead.min(chunks) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragment::divide;

    fn fragments(chunks: &[u32]) -> Vec<Fragment> {
        chunks.iter().map(|chunks| Fragment { elements: 0..0, chunks: *chunks }).collect()
    }

    #[test]
    fn fragments_are_consecutive_in_the_lanes_of_their_class() {
        let mut lanes = Lanes::new(2, 2, &[]);
        let mut assign = |class, chunks: &[u32]| -> Vec<(u16, u32)> {
            let assigned = lanes.assign(class, false, &fragments(chunks));
            assigned.iter().map(|each| (each.chunks.lane, each.chunks.first)).collect()
        };
        assert_eq!(assign(0, &[3, 4]), [(1, 0), (0, 0)]);
        // Loads of 4 and 3; the lanes of the urgent class count from 0.
        assert_eq!(assign(1, &[1]), [(3, 0)]);
        assert_eq!(assign(0, &[1]), [(0, 4)]);
        assert_eq!(assign(0, &[1]), [(1, 3)]);
    }

    #[test]
    fn a_replacement_assigns_like_the_other_workers() {
        let (mut old, mut new) = (Lanes::new(1, 2, &[]), Lanes::new(1, 2, &[4, 2]));
        let mut completed = Vec::new();
        for chunks in [&[3, 3][..], &[2], &[5, 6]] {
            let (old, new) =
                (old.assign(0, false, &fragments(chunks)), new.assign(0, false, &fragments(chunks)));
            assert!(old.iter().zip(&new).all(|(old, new)| old.chunks == new.chunks && old.completed == 0));
            completed.push(new.iter().map(|each| each.completed).collect::<Vec<_>>());
        }
        assert_eq!(completed, [vec![3, 2], vec![1], vec![0, 0]]);
    }

    #[test]
    fn exponents_are_a_chunk_before_the_values_that_they_scale() {
        let mut lanes = Lanes::new(1, 2, &[4, 12]);
        let mut assign = |is_block_scaled, chunks: &[u32]| -> Vec<(u16, u32, u32, u32, u32)> {
            let assigned = lanes.assign(0, is_block_scaled, &fragments(chunks));
            let of = |each: &Assignment| {
                let ChunkRange { lane, first, chunks } = each.chunks;
                (lane, first, chunks, each.completed, each.completed_values)
            };
            assigned.iter().map(of).collect()
        };
        assert_eq!(assign(true, &[8, 9]), [(1, 0, 9, 9, 8), (0, 0, 10, 4, 3)]);
        assert_eq!(assign(false, &[8]), [(1, 9, 8, 3, 3)], "integers");
        assert_eq!(assign(true, &[2]), [(0, 10, 2, 0, 0)], "a short one");
        assert_eq!(lanes.loads, [12, 17]);
        // No chunk of values was summed.
        let mut lanes = Lanes::new(1, 1, &[1]);
        let assigned = lanes.assign(0, true, &fragments(&[8]));
        assert_eq!((assigned[0].completed, assigned[0].completed_values), (1, 0));
    }

    #[test]
    fn a_tensor_goes_to_the_shard_with_the_smallest_load() {
        let mut lanes = Lanes::new(1, 3, &[]);
        let mut assign = |chunks: &[u32]| -> Vec<u16> {
            lanes.assign(0, false, &fragments(chunks)).iter().map(|each| each.chunks.lane).collect()
        };
        // Loads of 10, 1, 1; then 10, 3, 1; 10, 3, 4; 10, 8, 4.
        assert_eq!([10, 1, 1, 2, 3, 5].map(|chunks| assign(&[chunks])[0]), [0, 1, 2, 1, 2, 1]);
        // The largest fragment goes to shard 2.
        assert_eq!(assign(&[2, 3, 2]), [1, 2, 0]);
        assert_eq!(lanes.loads, [12, 10, 7]);
    }

    #[test]
    fn loads_differ_by_no_more_than_a_small_tensor() {
        // A network's layers: few are large, and those are divided.
        let tensors = [3000, 1, 40, 1, 900, 2, 1, 7, 3, 1, 1, 5, 2, 8, 1, 1, 6, 4, 2, 3];
        let mut lanes = Lanes::new(1, 8, &[]);
        for chunks in tensors.iter().cycle().take(500) {
            lanes.assign(0, false, &divide(chunks * 352, 352, 8));
        }
        let (least, most) = (lanes.loads.iter().min().unwrap(), lanes.loads.iter().max().unwrap());
        assert!(most - least <= 8, "{:?}", lanes.loads);
    }

    #[test]
    fn a_fragment_can_be_taken_back() {
        let operation = OperationId(3);
        let mut point = ResumePoint { operation, next: vec![7, 9, 2, 0], loads: vec![9, 9] };
        assert!(is_valid(&point, 4, 2) && !is_valid(&point, 2, 2));
        for (lane, first, chunks) in [(1, 4, 5), (2, u32::MAX, 3), (9, 0, 1)] {
            take_back(&mut point, ChunkRange { lane, first, chunks });
        }
        assert_eq!((&point.next[..], &point.loads[..]), (&[7, 4, u32::MAX, 0][..], &[6, 4][..]));
        assert_eq!(relative(point).loads, [2, 0]);
    }

    #[test]
    fn excessive_loads_are_invalid() {
        let point = |load| ResumePoint { operation: OperationId(1), next: vec![0, 0], loads: vec![load] };
        assert!(is_valid(&point(u64::from(u32::MAX)), 2, 1));
        assert!(!is_valid(&point(u64::from(u32::MAX) + 1), 2, 1) && !is_valid(&point(u64::MAX), 2, 1));
    }

    #[test]
    fn completed_chunks_are_counted_by_lane() {
        let mut completed = CompletedPrefix::new(&[7, 0]);
        assert_eq!(completed.take(0, 0, 5), 5);
        assert_eq!(completed.take(0, 5, 4), 2, "the first incomplete one");
        assert_eq!(completed.take(0, 9, 4), 0);
        assert_eq!(completed.take(0, 0, 3), 0, "after the numbers wrapped");
        assert_eq!(completed.take(1, 0, 3), 0);
        assert_eq!(CompletedPrefix::new(&[]).take(0, 0, 3), 0, "no worker was replaced");
    }

    #[test]
    fn chunk_numbers_wrap() {
        let mut completed = CompletedPrefix::new(&[3]);
        assert_eq!((completed.take(0, u32::MAX - 1, 4), completed.take(0, 2, 4)), (4, 1));
    }

    #[test]
    fn the_last_completed_chunk_may_end_an_operation() {
        let mut completed = CompletedPrefix::new(&[5]);
        assert_eq!((completed.take(0, 0, 5), completed.take(0, 5, 5)), (5, 0));
    }
}
