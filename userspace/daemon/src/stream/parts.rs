//! How an operation is divided among the lanes, and which elements a worker gives and takes.
//!
//! All workers compute the same from what must be the same on all of them, so that nothing is agreed on.

use std::ops::Range;

use sumac_api::Kind;

/// A contiguous range of an operation's tensor, on one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) shard: u16,
    /// The elements; empty only where the tensor is.
    pub(crate) range: Range<u64>,
    /// Chunks that it takes in its lane's stream.
    pub(crate) chunks: u32,
}

/// Divides `count` elements in chunks of `per_chunk`. A tensor of fewer chunks than shards goes whole to the shard
/// `turn % shards`; so does one without elements, as one chunk: it is a barrier.
pub(crate) fn divide(count: u64, per_chunk: u64, shards: u16, turn: u32) -> Vec<Part> {
    let (per_chunk, shards) = (per_chunk.max(1), shards.max(1));
    let chunks = count.div_ceil(per_chunk);
    let number = |chunks: u64| u32::try_from(chunks).unwrap_or(u32::MAX);
    if shards == 1 || chunks < u64::from(shards) {
        let shard = u16::try_from(turn % u32::from(shards)).unwrap_or(0);
        return vec![Part { shard, range: 0..count, chunks: number(chunks.max(1)) }];
    }
    let first = |shard: u16| u64::from(shard) * chunks / u64::from(shards);
    (0..shards)
        .map(|shard| {
            let (start, end) = (first(shard), first(shard + 1));
            let range = start * per_chunk..count.min(end * per_chunk);
            Part { shard, range, chunks: number(end - start) }
        })
        .collect()
}

/// Which elements of its tensor a worker gives and which it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) gives: Range<u64>,
    pub(crate) takes: Range<u64>,
}

impl Share {
    /// The share of `rank` in an operation on `count` elements; with blocks `count` is a multiple of `world`.
    pub(crate) fn of(kind: Kind, count: u64, rank: u16, world: u16, root: Option<u16>) -> Share {
        let (all, none) = (0..count, 0..0);
        let size = count / u64::from(world.max(1));
        let block = u64::from(rank) * size..(u64::from(rank) + 1) * size;
        let is_root = root == Some(rank);
        let (gives, takes) = match kind {
            Kind::Allreduce => (all.clone(), all),
            // The root takes it too: where its output is another range than its input, that has to be filled.
            Kind::Broadcast => (if is_root { all.clone() } else { none }, all),
            Kind::Reduce => (all.clone(), if is_root { all } else { none }),
            Kind::ReduceScatter => (all, block),
            Kind::Allgather => (block, all),
        };
        Share { gives, takes }
    }

    /// The share in a part of the tensor, counted from the part's start.
    pub(crate) fn within(&self, part: &Range<u64>) -> Share {
        Share { gives: cut(&self.gives, part), takes: cut(&self.takes, part) }
    }
}

/// What of `range` lies in `part`, counted from the part's start.
fn cut(range: &Range<u64>, part: &Range<u64>) -> Range<u64> {
    let start = range.start.clamp(part.start, part.end);
    let end = range.end.clamp(start, part.end);
    if start == end { 0..0 } else { start - part.start..end - part.start }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_tensor_in_whole_chunks() {
        for shards in 1..=8 {
            for per_chunk in [1, 2, 352] {
                for count in [1, 2, 7, 351, 352, 353, 4000, 100_003] {
                    let parts = divide(count, per_chunk, shards, 5);
                    let chunks = count.div_ceil(per_chunk);
                    assert_eq!(parts.iter().map(|part| u64::from(part.chunks)).sum::<u64>(), chunks);
                    assert_eq!((parts[0].range.start, parts[parts.len() - 1].range.end), (0, count));
                    for pair in parts.windows(2) {
                        assert_eq!(pair[0].range.end, pair[1].range.start);
                        assert_eq!(pair[1].range.start % per_chunk, 0);
                        assert!(pair[0].shard < pair[1].shard);
                    }
                    for part in &parts {
                        let length = part.range.end - part.range.start;
                        assert_eq!(length.div_ceil(per_chunk), u64::from(part.chunks), "{part:?}");
                        assert!(part.shard < shards && part.chunks > 0);
                    }
                    assert_eq!(parts.len(), if chunks < u64::from(shards) { 1 } else { usize::from(shards) });
                }
            }
        }
    }

    #[test]
    fn small_tensors_take_turns_and_empty_ones_are_a_chunk() {
        let shards: Vec<u16> = (0..4).map(|turn| divide(10, 352, 3, turn)[0].shard).collect();
        assert_eq!(shards, [0, 1, 2, 0]);
        assert_eq!(divide(0, 352, 2, 1), [Part { shard: 1, range: 0..0, chunks: 1 }]);
    }

    #[test]
    fn what_is_given_and_taken_is_what_the_kind_says() {
        let share = |kind, rank, root| {
            let Share { gives, takes } = Share::of(kind, 12, rank, 3, root);
            (gives, takes)
        };
        assert_eq!(share(Kind::Allreduce, 1, None), (0..12, 0..12));
        assert_eq!(share(Kind::Broadcast, 1, Some(1)), (0..12, 0..12));
        assert_eq!(share(Kind::Broadcast, 0, Some(1)), (0..0, 0..12));
        assert_eq!(share(Kind::Reduce, 1, Some(1)), (0..12, 0..12));
        assert_eq!(share(Kind::Reduce, 0, Some(1)), (0..12, 0..0));
        assert_eq!(share(Kind::ReduceScatter, 2, None), (0..12, 8..12));
        assert_eq!(share(Kind::Allgather, 0, None), (0..4, 0..12));
    }

    #[test]
    fn a_share_is_cut_along_with_the_tensor() {
        let share = Share { gives: 4..8, takes: 0..12 };
        assert_eq!(share.within(&(0..6)), Share { gives: 4..6, takes: 0..6 });
        assert_eq!(share.within(&(6..12)), Share { gives: 0..2, takes: 0..6 });
        assert_eq!(share.within(&(8..12)), Share { gives: 0..0, takes: 0..4 });
    }
}
