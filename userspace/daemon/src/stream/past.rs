//! What of a job's stream was summed before this worker took another one's place (ATP appendix A.3).
//!
//! A newcomer submits the job's operations from the first on that is not complete. What of these was summed is not sent again,
//! and is not written.

use std::ops::Range;

/// By lane: the first chunk that is not summed, until the stream has come to it.
#[derive(Debug)]
pub(super) struct Past(Vec<Option<u32>>);

impl Past {
    /// Nothing, where `resume` is empty.
    pub(super) fn new(resume: &[u32]) -> Past {
        Past(resume.iter().copied().map(Some).collect())
    }

    /// How many chunks at the front of a stretch were summed before. Stretches of a lane come one after the other.
    pub(super) fn chunks(&mut self, lane: u16, first: u32, chunks: u32) -> u32 {
        let Some(resume) = self.0.get_mut(usize::from(lane)) else { return 0 };
        let Some(unsummed) = *resume else { return 0 };
        let past = summed(first, chunks, unsummed);
        if past < chunks {
            // The stream is there; its numbers come again one day.
            *resume = None;
        }
        past
    }
}

/// How many chunks of a stretch lie before the first that is not summed. Numbers go round; these are close together.
pub(super) fn summed(first: u32, chunks: u32, unsummed: u32) -> u32 {
    let ahead = unsummed.wrapping_sub(first);
    if ahead.cast_signed() > 0 { ahead.min(chunks) } else { 0 }
}

/// Adds a range to others that lie before it.
pub(super) fn add(ranges: &mut Vec<(u64, u64)>, range: Range<u64>) {
    if range.is_empty() {
        return;
    }
    match ranges.last_mut() {
        Some((_, end)) if *end == range.start => *end = range.end,
        _ => ranges.push((range.start, range.end)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_summed_before_is_told_by_lane() {
        let mut past = Past::new(&[7, 0]);
        assert_eq!(past.chunks(0, 0, 5), 5);
        assert_eq!(past.chunks(0, 5, 4), 2, "the one across");
        assert_eq!(past.chunks(0, 9, 4), 0);
        assert_eq!(past.chunks(0, 0, 3), 0, "after the numbers have gone round");
        assert_eq!(past.chunks(1, 0, 3), 0);
        assert_eq!(Past::new(&[]).chunks(0, 0, 3), 0, "nobody's place was taken");
    }

    #[test]
    fn numbers_go_round() {
        let mut past = Past::new(&[3]);
        assert_eq!((past.chunks(0, u32::MAX - 1, 4), past.chunks(0, 2, 4)), (4, 1));
    }

    #[test]
    fn the_last_chunk_before_is_the_end_of_an_operation() {
        let mut past = Past::new(&[5]);
        assert_eq!((past.chunks(0, 0, 5), past.chunks(0, 5, 5)), (5, 0));
    }

    #[test]
    fn ranges_that_meet_are_one() {
        let mut ranges = Vec::new();
        for range in [0..4, 4..4, 4..8, 10..12] {
            add(&mut ranges, range);
        }
        assert_eq!(ranges, [(0, 8), (10, 12)]);
    }
}
