//! Fragments: the division of an operation among the shards, and the elements that each worker contributes
//! and receives.
//!
//! All workers compute the same division from the operation's descriptor, so that nothing has to be agreed
//! on.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use sumac_job::{
    CollectiveKind, Importance, JobTerms, OperationDescriptor, OperationId, Reduction, Topology,
};
use sumac_transport::{Arithmetic, Exchange, Operation, Pattern};

/// The elements of its tensor that a worker contributes and receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ElementRanges {
    pub(crate) input: Range<u64>,
    pub(crate) output: Range<u64>,
}

impl ElementRanges {
    /// Returns the ranges of `rank` in an operation on `count` elements; with blocks `count` is a multiple of
    /// `world`.
    pub(crate) fn of(
        kind: CollectiveKind,
        count: u64,
        rank: u16,
        world: u16,
        root: Option<u16>,
    ) -> ElementRanges {
        let (all, none) = (0..count, 0..0);
        let size = count / u64::from(world.max(1));
        let block = u64::from(rank) * size..(u64::from(rank) + 1) * size;
        let is_root = root == Some(rank);
        let (input, output) = match kind {
            CollectiveKind::Allreduce => (all.clone(), all),
            // The root receives it too: its output may be another range than its input.
            CollectiveKind::Broadcast => (if is_root { all.clone() } else { none }, all),
            CollectiveKind::Reduce => (all.clone(), if is_root { all } else { none }),
            CollectiveKind::ReduceScatter => (all, block),
            CollectiveKind::Allgather => (block, all),
        };
        ElementRanges { input, output }
    }

    /// As [`ElementRanges::of`] in a job whose first `servers` ranks contribute nothing. They own the blocks,
    /// one each, and of an allreduce parts of each fragment.
    pub(crate) fn with_servers(
        kind: CollectiveKind,
        count: u64,
        rank: u16,
        servers: u16,
        root: Option<u16>,
    ) -> ElementRanges {
        let ElementRanges { input, output } = ElementRanges::of(kind, count, rank, servers, root);
        let is_server = rank < servers;
        let gives = match kind {
            CollectiveKind::Broadcast => true,
            CollectiveKind::Allgather => is_server,
            CollectiveKind::Allreduce | CollectiveKind::Reduce | CollectiveKind::ReduceScatter => !is_server,
        };
        let takes = match kind {
            CollectiveKind::ReduceScatter => is_server,
            CollectiveKind::Allgather => !is_server,
            CollectiveKind::Allreduce | CollectiveKind::Broadcast | CollectiveKind::Reduce => true,
        };
        let if_so = |is_so: bool, range| if is_so { range } else { 0..0 };
        ElementRanges { input: if_so(gives, input), output: if_so(takes, output) }
    }

    /// Returns the ranges within `fragment`, counted from its start.
    pub(crate) fn within(&self, fragment: &Range<u64>) -> ElementRanges {
        ElementRanges { input: cut(&self.input, fragment), output: cut(&self.output, fragment) }
    }
}

/// Returns the part of `range` within `fragment`, counted from the fragment's start.
fn cut(range: &Range<u64>, fragment: &Range<u64>) -> Range<u64> {
    let start = range.start.clamp(fragment.start, fragment.end);
    let end = range.end.clamp(start, fragment.end);
    if start == end { 0..0 } else { start - fragment.start..end - fragment.start }
}

/// A contiguous range of an operation's tensor, for one shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fragment {
    /// The elements; empty only where the tensor is.
    pub(crate) elements: Range<u64>,
    /// Chunks of values in its lane's stream.
    pub(crate) chunks: u32,
}

/// Divides `count` elements, in chunks of `per_chunk`, into a fragment for each shard, or into one where
/// there are fewer chunks than shards. A tensor without elements is one chunk: a barrier.
pub(crate) fn divide(count: u64, per_chunk: u64, shards: u16) -> Vec<Fragment> {
    let (per_chunk, shards) = (per_chunk.max(1), u64::from(shards.max(1)));
    let chunks = count.div_ceil(per_chunk);
    let number = |chunks: u64| u32::try_from(chunks).unwrap_or(u32::MAX);
    if shards == 1 || chunks < shards {
        return vec![Fragment { elements: 0..count, chunks: number(chunks.max(1)) }];
    }
    let first = |fragment: u64| fragment * chunks / shards;
    (0..shards)
        .map(|fragment| {
            let (start, end) = (first(fragment), first(fragment + 1));
            let elements = start * per_chunk..count.min(end * per_chunk);
            Fragment { elements, chunks: number(end - start) }
        })
        .collect()
}

/// A fragment as the engine sums it.
pub(crate) struct Part<'a> {
    pub(crate) terms: &'a JobTerms,
    pub(crate) descriptor: &'a OperationDescriptor,
    pub(crate) id: OperationId,
    pub(crate) priority: u8,
    pub(crate) importance: Importance,
    /// The elements of the operation's tensor.
    pub(crate) elements: Range<u64>,
    /// Counted from the fragment's start.
    pub(crate) ranges: ElementRanges,
    /// The number of chunks at its front that were summed before.
    pub(crate) skip: u32,
}

impl Part<'_> {
    /// Returns the engine's operation, with a placeholder for its buffer.
    pub(crate) fn operation(self) -> Operation {
        let Part { terms, descriptor, id, priority, importance, elements, ranges, skip } = self;
        let exchange = terms.is_direct().then(|| Box::new(exchange(terms, descriptor, id, &elements)));
        // A barrier is a chunk of one element, to which every worker contributes zero.
        let count = if descriptor.count == 0 { 1 } else { elements.end - elements.start };
        let size = |elements: u64| usize::try_from(elements).unwrap_or(usize::MAX);
        Operation {
            signature: descriptor.signature(id),
            dtype: descriptor.dtype,
            arithmetic: arithmetic(descriptor),
            count: size(count),
            // A tensor has at most 2^32 - 1 elements.
            base: u32::try_from(elements.start).unwrap_or(u32::MAX),
            gives: size(ranges.input.start)..size(ranges.input.end),
            takes: size(ranges.output.start)..size(ranges.output.end),
            skip: u64::from(skip),
            priority,
            importance,
            // A barrier has no values that could be left out.
            loss_bound: if descriptor.count == 0 { 0.0 } else { descriptor.loss_bound.fraction() },
            exchange,
            buffer: Box::new(Vec::new()),
        }
    }
}

/// Returns the way of a fragment's values in a direct job.
fn exchange(
    terms: &JobTerms,
    descriptor: &OperationDescriptor,
    id: OperationId,
    elements: &Range<u64>,
) -> Exchange {
    let (kind, world) = (descriptor.kind, u64::from(terms.world.max(1)));
    // A barrier is one element.
    let count = if descriptor.count == 0 { 1 } else { elements.end - elements.start };
    let holders = if terms.servers > 0 { u64::from(terms.servers) } else { world };
    let (block, owners) = (descriptor.count / holders, u64::from(terms.owners.max(1)));
    let size = |elements: u64| usize::try_from(elements).unwrap_or(usize::MAX);
    let owned = (0..world).map(|rank| {
        let owned = match descriptor.root {
            Some(root) if u64::from(terms.worker_of(root)) == rank => 0..count,
            Some(_) => 0..0,
            None if kind.has_blocks() => cut(&(rank * block..(rank + 1) * block), elements),
            None if rank < owners => rank * count / owners..(rank + 1) * count / owners,
            None => 0..0,
        };
        size(owned.start)..size(owned.end)
    });
    // Servers take part in what has no contributions.
    let is_of_all = descriptor.count == 0 || kind == CollectiveKind::Broadcast;
    let pattern = Pattern::Collective {
        reduces: kind.reduces(),
        distributes: !matches!(kind, CollectiveKind::Reduce | CollectiveKind::ReduceScatter),
        owned: owned.collect(),
        contributors: if is_of_all { 0..terms.world } else { terms.contributors() },
        ring: terms.topology == Topology::Ring
            && matches!(kind, CollectiveKind::Allreduce | CollectiveKind::Allgather),
    };
    Exchange { number: id.0, pattern }
}

/// Returns the engine's arithmetic. Values that are only moved travel as bits, to which all other workers add
/// zeros.
pub(crate) fn arithmetic(descriptor: &OperationDescriptor) -> Arithmetic {
    match descriptor.reduction {
        _ if !descriptor.kind.reduces() || descriptor.count == 0 => Arithmetic::Bits,
        Reduction::Sum => Arithmetic::Sum,
        Reduction::Mean => Arithmetic::Mean,
        Reduction::Min => Arithmetic::Min,
        Reduction::Max => Arithmetic::Max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_whole_chunks_of_the_tensor() {
        for shards in 1..=8 {
            for per_chunk in [1, 2, 352] {
                for count in [1, 2, 7, 351, 352, 353, 4000, 100_003] {
                    let fragments = divide(count, per_chunk, shards);
                    let chunks = count.div_ceil(per_chunk);
                    assert_eq!(fragments.iter().map(|each| u64::from(each.chunks)).sum::<u64>(), chunks);
                    let (first, last) = (&fragments[0], &fragments[fragments.len() - 1]);
                    assert_eq!((first.elements.start, last.elements.end), (0, count));
                    for pair in fragments.windows(2) {
                        assert_eq!(pair[0].elements.end, pair[1].elements.start);
                        assert_eq!(pair[1].elements.start % per_chunk, 0);
                    }
                    for fragment in &fragments {
                        let length = fragment.elements.end - fragment.elements.start;
                        assert_eq!(length.div_ceil(per_chunk), u64::from(fragment.chunks), "{fragment:?}");
                        assert!(fragment.chunks > 0);
                    }
                    let expected = if chunks < u64::from(shards) { 1 } else { usize::from(shards) };
                    assert_eq!(fragments.len(), expected);
                }
            }
        }
    }

    #[test]
    fn an_empty_tensor_is_one_chunk() {
        assert_eq!(divide(0, 352, 2), [Fragment { elements: 0..0, chunks: 1 }]);
    }

    #[test]
    fn each_kind_has_its_ranges() {
        let ranges = |kind, rank, root| {
            let ElementRanges { input, output } = ElementRanges::of(kind, 12, rank, 3, root);
            (input, output)
        };
        assert_eq!(ranges(CollectiveKind::Allreduce, 1, None), (0..12, 0..12));
        assert_eq!(ranges(CollectiveKind::Broadcast, 1, Some(1)), (0..12, 0..12));
        assert_eq!(ranges(CollectiveKind::Broadcast, 0, Some(1)), (0..0, 0..12));
        assert_eq!(ranges(CollectiveKind::Reduce, 1, Some(1)), (0..12, 0..12));
        assert_eq!(ranges(CollectiveKind::Reduce, 0, Some(1)), (0..12, 0..0));
        assert_eq!(ranges(CollectiveKind::ReduceScatter, 2, None), (0..12, 8..12));
        assert_eq!(ranges(CollectiveKind::Allgather, 0, None), (0..4, 0..12));
    }

    #[test]
    fn servers_have_blocks_and_give_nothing_to_reductions() {
        let ranges = |kind, rank, root| {
            let ElementRanges { input, output } = ElementRanges::with_servers(kind, 12, rank, 2, root);
            (input, output)
        };
        use CollectiveKind::{Allgather, Allreduce, Broadcast, Reduce, ReduceScatter};
        assert_eq!([0, 2].map(|rank| ranges(Allreduce, rank, None)), [(0..0, 0..12), (0..12, 0..12)]);
        assert_eq!([0, 1].map(|rank| ranges(ReduceScatter, rank, None)), [(0..0, 0..6), (0..0, 6..12)]);
        assert_eq!(ranges(ReduceScatter, 4, None), (0..12, 0..0));
        assert_eq!([1, 3].map(|rank| ranges(Allgather, rank, None)), [(6..12, 0..0), (0..0, 0..12)]);
        assert_eq!([0, 1].map(|rank| ranges(Reduce, rank, Some(0))), [(0..0, 0..12), (0..0, 0..0)]);
        assert_eq!([0, 3].map(|rank| ranges(Reduce, rank, Some(3))), [(0..0, 0..0), (0..12, 0..12)]);
        assert_eq!([1, 3].map(|rank| ranges(Broadcast, rank, Some(3))), [(0..0, 0..12), (0..12, 0..12)]);
    }

    #[test]
    fn ranges_are_cut_along_with_the_tensor() {
        let ranges = |input, output| ElementRanges { input, output };
        let all = ranges(4..8, 0..12);
        assert_eq!(all.within(&(0..6)), ranges(4..6, 0..6));
        assert_eq!(all.within(&(6..12)), ranges(0..2, 0..6));
        assert_eq!(all.within(&(8..12)), ranges(0..0, 0..4));
    }
}
