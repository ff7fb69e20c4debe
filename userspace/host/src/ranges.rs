//! Ranges of elements in messages: each from its first to one past its last.

use std::ops::Range;

use sumac_api::Loss;

/// Appends a range to ascending ranges, and merges it with the last one where they meet.
pub(crate) fn append_range(ranges: &mut Vec<(u64, u64)>, range: Range<u64>) {
    if range.is_empty() {
        return;
    }
    match ranges.last_mut() {
        Some((_, end)) if *end == range.start => *end = range.end,
        _ => ranges.push((range.start, range.end)),
    }
}

/// Sorts ranges. Where they are more than a message may have, neighbours become one, with what arrived
/// between them.
pub(crate) fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut gap = 0;
    loop {
        ranges.dedup_by(|next, last| {
            let is_near = next.0 <= last.1.saturating_add(gap);
            if is_near {
                last.1 = last.1.max(next.1);
            }
            is_near
        });
        if ranges.len() <= Loss::RANGES {
            return ranges;
        }
        gap = gap.max(1) * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_are_merged() {
        let mut ranges = Vec::new();
        for range in [0..4, 4..4, 4..8, 10..12] {
            append_range(&mut ranges, range);
        }
        assert_eq!(ranges, [(0, 8), (10, 12)]);
    }

    #[test]
    fn ranges_are_joined_where_they_touch_or_are_too_many() {
        assert_eq!(joined(vec![(10, 20), (0, 5), (5, 7)]), [(0, 7), (10, 20)]);
        let many = joined((0..10_000).map(|at| (at * 10, at * 10 + 5)).collect());
        let last = many.last().copied().unwrap_or_default();
        assert!(many.len() <= Loss::RANGES && many[0].0 == 0 && last.1 == 99_995);
    }
}
