//! How an operation is divided among the shards, and which elements a worker gives and takes.
//!
//! All workers compute the same from what must be the same on all of them, so that nothing is agreed on.

use std::ops::Range;

use sumac_api::CollectiveKind;

/// A contiguous range of an operation's tensor, for one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The elements; empty only where the tensor is.
    pub(crate) range: Range<u64>,
    /// Chunks that it takes in its lane's stream.
    pub(crate) chunks: u32,
}

/// Divides `count` elements in chunks of `per_chunk`: into as many parts as there are shards, or into one where there are
/// fewer chunks than that. One without elements is one chunk: it is a barrier.
pub(crate) fn divide(count: u64, per_chunk: u64, shards: u16) -> Vec<Part> {
    let (per_chunk, shards) = (per_chunk.max(1), u64::from(shards.max(1)));
    let chunks = count.div_ceil(per_chunk);
    let number = |chunks: u64| u32::try_from(chunks).unwrap_or(u32::MAX);
    if shards == 1 || chunks < shards {
        return vec![Part { range: 0..count, chunks: number(chunks.max(1)) }];
    }
    let first = |part: u64| part * chunks / shards;
    (0..shards)
        .map(|part| {
            let (start, end) = (first(part), first(part + 1));
            Part { range: start * per_chunk..count.min(end * per_chunk), chunks: number(end - start) }
        })
        .collect()
}

/// How many chunks each shard has been given since the job began: a new tensor goes to the one with the fewest (ATP
/// section 4).
#[derive(Debug)]
pub(crate) struct Loads(Vec<u64>);

impl Loads {
    pub(crate) fn new(shards: u16) -> Loads {
        Loads(vec![0; usize::from(shards.max(1))])
    }

    /// Those that others have come to.
    pub(crate) fn from(chunks: &[u64]) -> Loads {
        Loads(chunks.to_vec())
    }

    /// By shard.
    pub(crate) fn chunks(&self) -> &[u64] {
        &self.0
    }

    /// Gives each part a shard of its own, the largest the one with the least to do; of equals the first.
    pub(crate) fn assign(&mut self, chunks: impl ExactSizeIterator<Item = u32>) -> Vec<u16> {
        let mut parts: Vec<(usize, u32)> = chunks.enumerate().collect();
        // Stable, as all workers have to come to the same.
        parts.sort_by_key(|(_, chunks)| std::cmp::Reverse(*chunks));
        let mut by_load: Vec<usize> = (0..self.0.len()).collect();
        by_load.sort_by_key(|shard| self.0.get(*shard).copied());
        let mut shards = vec![0; parts.len()];
        for ((part, chunks), shard) in parts.into_iter().zip(by_load) {
            if let (Some(load), Some(place)) = (self.0.get_mut(shard), shards.get_mut(part)) {
                *load += u64::from(chunks);
                *place = shard as u16;
            }
        }
        shards
    }
}

/// Which elements of its tensor a worker gives and which it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) gives: Range<u64>,
    pub(crate) takes: Range<u64>,
}

impl Share {
    /// The share of `rank` in an operation on `count` elements; with blocks `count` is a multiple of `world`.
    pub(crate) fn of(kind: CollectiveKind, count: u64, rank: u16, world: u16, root: Option<u16>) -> Share {
        let (all, none) = (0..count, 0..0);
        let size = count / u64::from(world.max(1));
        let block = u64::from(rank) * size..(u64::from(rank) + 1) * size;
        let is_root = root == Some(rank);
        let (gives, takes) = match kind {
            CollectiveKind::Allreduce => (all.clone(), all),
            // The root takes it too: where its output is another range than its input, that has to be filled.
            CollectiveKind::Broadcast => (if is_root { all.clone() } else { none }, all),
            CollectiveKind::Reduce => (all.clone(), if is_root { all } else { none }),
            CollectiveKind::ReduceScatter => (all, block),
            CollectiveKind::Allgather => (block, all),
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
                    let parts = divide(count, per_chunk, shards);
                    let chunks = count.div_ceil(per_chunk);
                    assert_eq!(parts.iter().map(|part| u64::from(part.chunks)).sum::<u64>(), chunks);
                    assert_eq!((parts[0].range.start, parts[parts.len() - 1].range.end), (0, count));
                    for pair in parts.windows(2) {
                        assert_eq!(pair[0].range.end, pair[1].range.start);
                        assert_eq!(pair[1].range.start % per_chunk, 0);
                    }
                    for part in &parts {
                        let length = part.range.end - part.range.start;
                        assert_eq!(length.div_ceil(per_chunk), u64::from(part.chunks), "{part:?}");
                        assert!(part.chunks > 0);
                    }
                    assert_eq!(parts.len(), if chunks < u64::from(shards) { 1 } else { usize::from(shards) });
                }
            }
        }
    }

    #[test]
    fn an_empty_tensor_is_a_chunk() {
        assert_eq!(divide(0, 352, 2), [Part { range: 0..0, chunks: 1 }]);
    }

    #[test]
    fn a_tensor_goes_to_the_shard_with_the_least_to_do() {
        let mut loads = Loads::new(3);
        let mut one = |chunks: u32| loads.assign([chunks].into_iter())[0];
        // Loads of 10, 1, 1; then 10, 3, 1; 10, 3, 4; 10, 8, 4.
        assert_eq!([one(10), one(1), one(1), one(2), one(3), one(5)], [0, 1, 2, 1, 2, 1]);
        // 10, 8, 4: the largest part of one that is spread goes to shard 2.
        assert_eq!(loads.assign([2, 3, 2].into_iter()), [1, 2, 0]);
        assert_eq!(loads.0, [12, 10, 7]);
    }

    #[test]
    fn loads_stay_within_one_small_tensor_of_each_other() {
        // A network's layers: few are large, and those are spread.
        let tensors = [3000, 1, 40, 1, 900, 2, 1, 7, 3, 1, 1, 5, 2, 8, 1, 1, 6, 4, 2, 3];
        let mut loads = Loads::new(8);
        for chunks in tensors.iter().cycle().take(500) {
            let parts = divide(chunks * 352, 352, 8);
            loads.assign(parts.iter().map(|part| part.chunks));
        }
        let (least, most) = (loads.0.iter().min().unwrap(), loads.0.iter().max().unwrap());
        assert!(most - least <= 8, "{:?}", loads.0);
    }

    #[test]
    fn what_is_given_and_taken_is_what_the_kind_says() {
        let share = |kind, rank, root| {
            let Share { gives, takes } = Share::of(kind, 12, rank, 3, root);
            (gives, takes)
        };
        assert_eq!(share(CollectiveKind::Allreduce, 1, None), (0..12, 0..12));
        assert_eq!(share(CollectiveKind::Broadcast, 1, Some(1)), (0..12, 0..12));
        assert_eq!(share(CollectiveKind::Broadcast, 0, Some(1)), (0..0, 0..12));
        assert_eq!(share(CollectiveKind::Reduce, 1, Some(1)), (0..12, 0..12));
        assert_eq!(share(CollectiveKind::Reduce, 0, Some(1)), (0..12, 0..0));
        assert_eq!(share(CollectiveKind::ReduceScatter, 2, None), (0..12, 8..12));
        assert_eq!(share(CollectiveKind::Allgather, 0, None), (0..4, 0..12));
    }

    #[test]
    fn a_share_is_cut_along_with_the_tensor() {
        let share = Share { gives: 4..8, takes: 0..12 };
        assert_eq!(share.within(&(0..6)), Share { gives: 4..6, takes: 0..6 });
        assert_eq!(share.within(&(6..12)), Share { gives: 0..2, takes: 0..6 });
        assert_eq!(share.within(&(8..12)), Share { gives: 0..0, takes: 0..4 });
    }
}
