//! The workers' values, and the expected results.
//!
//! A value is a function of seed, iteration, rank and index, so that nobody needs to keep the tensors; what
//! sums are to be is [`ReferenceSum`]' affair.

use std::ops::Range;

use sumac_client::{CollectiveKind, DType};

use super::reference_sum::{Reduced, ReferenceSum, Value};

/// So many neighbours have the same magnitude: some packets lie within one, some do not.
const NEIGHBOURS: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contents {
    /// The seed of this run's values.
    pub seed: u64,
    pub iteration: u32,
}

/// An operation on a block for each worker, of a direct job.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    pub kind: CollectiveKind,
    /// Elements of each block.
    pub size: usize,
    /// By rank, the ranges of elements of which something did not arrive there.
    pub missing: &'a [Vec<(u64, u64)>],
}

impl Blocks<'_> {
    fn is_missing(&self, rank: usize, index: usize) -> bool {
        let ranges = self.missing.get(rank).map_or(&[][..], Vec::as_slice);
        // They ascend, and there may be thousands.
        let next = ranges.partition_point(|(_, end)| *end <= index as u64);
        ranges.get(next).is_some_and(|(first, _)| *first <= index as u64)
    }
}

/// The comparison of a worker's result with the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Elements whose bits are not the reference's.
    pub wrong: u64,
    pub first_wrong: Option<usize>,
    /// Largest distance to the result in double precision without rounding.
    pub max_abs_error: f64,
}

impl Comparison {
    pub fn and(self, other: Comparison) -> Comparison {
        let first = [self.first_wrong, other.first_wrong].into_iter().flatten().min();
        Comparison {
            wrong: self.wrong + other.wrong,
            first_wrong: first,
            max_abs_error: self.max_abs_error.max(other.max_abs_error),
        }
    }
}

impl Contents {
    /// A worker's value: 24 random bits, half of them negative, with a magnitude that changes along the
    /// tensor. Scaled by 2^20 bits are rounded away, and many values lie just between two integers.
    pub fn value<T: Value>(self, rank: u16, index: usize) -> T {
        T::of((self.random(rank, index) >> 32) as i32 >> 8, self.shift(rank, index))
    }

    pub fn fill<T: Value>(self, rank: u16, tensor: &mut [T]) {
        for (block, values) in tensor.chunks_mut(NEIGHBOURS).enumerate() {
            let first = block * NEIGHBOURS;
            let shift = self.shift(rank, first);
            for (index, value) in (first..).zip(values) {
                *value = T::of((self.random(rank, index) >> 32) as i32 >> 8, shift);
            }
        }
    }

    /// Compares some elements of every worker's result with the reference; they begin at the first one of a
    /// packet.
    pub fn compare<T: Value>(
        self,
        reference: ReferenceSum,
        elements: Range<usize>,
        results: &[&[T]],
    ) -> Comparison {
        self.compare_of(results.len() as u16, reference, elements, results)
    }

    /// The same of an operation with a loss bound; `left_out` has by worker the ranges of elements without
    /// it.
    pub fn compare_bounded<T: Value>(
        self,
        reference: ReferenceSum,
        elements: Range<usize>,
        results: &[&[T]],
        left_out: &[&[(u64, u64)]],
    ) -> Comparison {
        let mut comparison = Comparison::default();
        for first in elements.clone().step_by(reference.packet::<T>()) {
            let packet = first..(first + reference.packet::<T>()).min(elements.end);
            let is_in =
                |ranges: &[(u64, u64)]| !ranges.iter().any(|(a, b)| (*a..*b).contains(&(first as u64)));
            let ranks = left_out.iter().enumerate().filter(|(_, ranges)| is_in(ranges));
            let contributors: Vec<usize> = ranks.map(|(rank, _)| rank).collect();
            if contributors.len() == left_out.len() {
                let workers = results.len() as u16;
                comparison = comparison.and(self.compare_packets(workers, reference, false, packet, results));
                continue;
            }
            let values = |rank| packet.clone().map(|index| self.value::<T>(rank, index)).collect();
            let inputs = reference.contributions((0..results.len() as u16).map(values).collect());
            for (at, expected) in reference.reduce_some(&inputs, &contributors).iter().enumerate() {
                let exact = contributors.iter().map(|rank| inputs[*rank][at].exact());
                let exact = reference.exact_some(exact, inputs.len());
                for result in results {
                    comparison.hold(result.get(first + at), *expected, exact, first + at);
                }
            }
        }
        comparison
    }

    /// The same with the results of only some of so many workers.
    pub fn compare_of<T: Value>(
        self,
        workers: u16,
        reference: ReferenceSum,
        elements: Range<usize>,
        results: &[&[T]],
    ) -> Comparison {
        let tensor = results.iter().map(|result| result.len()).max().unwrap_or(0);
        let is_exact = reference.is_exact::<T>(usize::from(workers), tensor);
        self.compare_packets(workers, reference, is_exact, elements, results)
    }

    fn compare_packets<T: Value>(
        self,
        workers: u16,
        reference: ReferenceSum,
        is_exact: bool,
        elements: Range<usize>,
        results: &[&[T]],
    ) -> Comparison {
        let mut comparison = Comparison::default();
        for first in elements.clone().step_by(reference.packet::<T>()) {
            let packet = first..(first + reference.packet::<T>()).min(elements.end);
            let values = |rank| packet.clone().map(|index| self.value(rank, index)).collect();
            let inputs: Vec<Vec<T>> = (0..workers).map(values).collect();
            if reference.direct.is_some() {
                comparison.hold_direct(reference, first, &inputs, results);
                continue;
            }
            let contributions = reference.contributions(inputs.clone());
            let Reduced { values, or_floats } = match is_exact {
                true => reference.reduce_exactly(&contributions),
                false => reference.reduce(&contributions),
            };
            // Where both are right, all workers must have the same: that which the first has.
            let is_first = |floats: &Vec<T>| {
                let got = results.first().and_then(|first| first.get(packet.clone()));
                got.is_some_and(|got| got.iter().zip(floats).all(|(got, float)| got.same(*float)))
            };
            let expected = or_floats.filter(is_first).unwrap_or(values);
            for (at, expected) in expected.iter().enumerate() {
                let exact = reference.exact(inputs.iter().map(|values| values[at].exact()));
                for result in results {
                    comparison.hold(result.get(first + at), *expected, exact, first + at);
                }
            }
        }
        comparison
    }

    /// The same of an allgather or a reduce-scatter of a direct job, in place. What is missing stays as it
    /// was, or is a sum of some workers.
    pub fn compare_blocks<T: Value>(
        self,
        reference: ReferenceSum,
        elements: Range<usize>,
        results: &[&[T]],
        blocks: &Blocks<'_>,
    ) -> Comparison {
        let mut comparison = Comparison::default();
        for index in elements {
            let inputs: Vec<T> = (0..results.len() as u16).map(|rank| self.value(rank, index)).collect();
            let owner = index / blocks.size.max(1);
            for (rank, result) in results.iter().enumerate() {
                let (got, own) = (result.get(index), inputs[rank]);
                let is_missing = blocks.is_missing(rank, index);
                if blocks.kind == CollectiveKind::ReduceScatter && owner == rank {
                    comparison.hold_sum(reference, (got, is_missing), &inputs, rank, index);
                    continue;
                }
                let is_gathered = blocks.kind == CollectiveKind::Allgather && !is_missing;
                let expected = if is_gathered { inputs.get(owner).copied().unwrap_or(own) } else { own };
                comparison.hold(got, expected, expected.exact(), index);
            }
        }
        comparison
    }

    fn stream(self, rank: u16) -> u64 {
        self.seed ^ (u64::from(self.iteration) << 40) ^ (u64::from(rank) << 56)
    }

    fn random(self, rank: u16, index: usize) -> u64 {
        mix(self.stream(rank).wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    fn shift(self, rank: u16, index: usize) -> u32 {
        (mix(!self.stream(rank) ^ (index / NEIGHBOURS) as u64) % 8) as u32
    }
}

/// Half a unit in the last place of a direct job's numbers of up to 1. In 16 bits `4 n^2` of it, which
/// [`ReferenceSum::is_near`] allows, are the documented bound.
fn half_step<T: Value>(reference: ReferenceSum) -> f64 {
    let is_short = T::DTYPE == DType::Float32 && reference.values_per_word(T::DTYPE) == 2;
    if is_short { 0.25 / f64::from(i16::MAX) } else { T::HALF_STEP }
}

impl Comparison {
    /// Takes a packet of a direct job in: without a loss bound all workers have the same bits.
    fn hold_direct<T: Value>(
        &mut self,
        reference: ReferenceSum,
        first: usize,
        inputs: &[Vec<T>],
        results: &[&[T]],
    ) {
        let is_alike = reference.direct == Some(0.0);
        for at in 0..inputs.first().map_or(0, Vec::len) {
            let values: Vec<f64> = inputs.iter().map(|values| values[at].exact()).collect();
            let exact = reference.exact(values.iter().copied());
            let shared = results.first().and_then(|result| result.get(first + at)).copied();
            for (rank, result) in results.iter().enumerate() {
                let got = result.get(first + at).copied();
                let own = values.get(rank).copied().unwrap_or(f64::NAN);
                let is_right = got.is_some_and(|got| {
                    let is_shared = !is_alike || shared.is_some_and(|shared| shared.same(got));
                    is_shared && reference.is_near(got.exact(), &values, own, half_step::<T>(reference))
                });
                if !is_right {
                    self.wrong += 1;
                    self.first_wrong.get_or_insert(first + at);
                }
                if is_alike {
                    let error = got.map_or(f64::INFINITY, |got| (got.exact() - exact).abs());
                    self.max_abs_error = self.max_abs_error.max(error);
                }
            }
        }
    }

    /// Takes an element of a reduce-scatter in: the sum of all workers' values, or of some where that is
    /// allowed.
    fn hold_sum<T: Value>(
        &mut self,
        reference: ReferenceSum,
        (got, is_missing): (Option<&T>, bool),
        inputs: &[T],
        rank: usize,
        index: usize,
    ) {
        let values: Vec<f64> = inputs.iter().map(|value| value.exact()).collect();
        let reference = if is_missing { reference } else { ReferenceSum { direct: Some(0.0), ..reference } };
        let got = got.map_or(f64::NAN, |got| got.exact());
        if !reference.is_near(got, &values, values[rank], half_step::<T>(reference)) {
            self.wrong += 1;
            self.first_wrong.get_or_insert(index);
        }
        if !is_missing {
            let error = (got - reference.exact(values.iter().copied())).abs();
            self.max_abs_error = self.max_abs_error.max(if error.is_nan() { f64::INFINITY } else { error });
        }
    }

    /// Takes one element of one worker in. A result that is too short is as wrong as a wrong value.
    fn hold<T: Value>(&mut self, got: Option<&T>, expected: T, exact: f64, index: usize) {
        if !got.is_some_and(|got| got.same(expected)) {
            self.wrong += 1;
            self.first_wrong.get_or_insert(index);
        }
        let error = (got.map_or(f64::NAN, |got| got.exact()) - exact).abs();
        // NaN is an error without bound, which f64::max would hide.
        let error = if error.is_nan() { f64::INFINITY } else { error };
        self.max_abs_error = self.max_abs_error.max(error);
    }
}

/// The finalizer of splitmix64: every bit of the result depends on every bit of the input.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use sumac_client::{Reduction, WireFormat};

    use super::*;

    const CONTENTS: Contents = Contents { seed: 7, iteration: 1 };
    const BASE: ReferenceSum = ReferenceSum {
        ranks_per_host: 1,
        scale: Some(1_048_576.0),
        wire: WireFormat::Int32,
        words: 10,
        reduction: Reduction::Sum,
        direct: None,
        has_servers: false,
        dynamic: false,
    };

    #[test]
    fn values_differ_by_rank_index_and_iteration_and_repeat_by_seed() {
        let value = |contents: Contents, rank, index| contents.value::<f32>(rank, index);
        let first = value(CONTENTS, 1, 5);
        assert_eq!(first, value(CONTENTS, 1, 5));
        assert!(first.abs() <= 1.0);
        let later = Contents { iteration: 2, ..CONTENTS };
        let others = [value(CONTENTS, 2, 5), value(CONTENTS, 1, 6), value(later, 1, 5)];
        assert!(others.iter().all(|other| *other != first));
        let mut tensor = [0f32; 2500];
        CONTENTS.fill(1, &mut tensor);
        assert!(tensor.iter().enumerate().all(|(index, filled)| *filled == value(CONTENTS, 1, index)));
    }

    #[test]
    fn ties_and_several_magnitudes_are_among_the_values() {
        let scaled = (0..20_000).map(|index| CONTENTS.value::<f32>(0, index) * 1_048_576.0);
        assert!(scaled.filter(|x| x.fract().abs() == 0.5).count() > 300);
        let shifts: std::collections::BTreeSet<_> =
            (0..20_000).map(|index| CONTENTS.shift(0, index)).collect();
        assert!(shifts.len() > 4, "{shifts:?}");
    }

    #[test]
    fn floats_of_direct_jobs_have_16_bits_on_request() {
        let halves = ReferenceSum { wire: WireFormat::Int16, direct: Some(0.0), ..BASE };
        assert_eq!((half_step::<f32>(halves), half_step::<f32>(BASE)), (1.0 / 131_068.0, f32::HALF_STEP));
        let max = ReferenceSum { reduction: Reduction::Max, ..halves };
        assert_eq!((half_step::<i32>(halves), half_step::<f32>(max)), (0.0, f32::HALF_STEP));
    }

    #[test]
    fn both_forms_of_a_sum_are_right_but_not_for_different_workers() {
        let reference = ReferenceSum { scale: Some(2e9), dynamic: true, ..BASE };
        let found = (0..1000).find_map(|seed| {
            let contents = Contents { seed, iteration: 0 };
            let values = |rank| (0..10).map(|index| contents.value::<f32>(rank, index)).collect::<Vec<_>>();
            let Reduced { values, or_floats } = reference.reduce(&[0, 1, 2].map(values));
            or_floats.filter(|floats| *floats != values).map(|floats| (contents, values, floats))
        });
        let (contents, integers, floats) = found.unwrap();
        let wrong = |results: [&[f32]; 3]| contents.compare(reference, 0..10, &results).wrong;
        assert_eq!((wrong([&integers; 3]), wrong([&floats; 3])), (0, 0));
        assert!(wrong([&integers, &floats, &floats]) > 0 && wrong([&floats, &floats, &integers]) > 0);
    }

    #[test]
    fn blocks_are_gathered_and_sums_scattered_but_for_what_is_missing() {
        let direct = ReferenceSum { direct: Some(0.1), ..BASE };
        let own = |rank: u16| (0..20).map(|index| CONTENTS.value(rank, index)).collect::<Vec<f32>>();
        let inputs = [own(0), own(1)];
        let gathered = [&inputs[0][..10], &inputs[1][10..]].concat();
        let missing = [vec![], vec![(0, 5)]];
        let blocks = |kind| Blocks { kind, size: 10, missing: &missing };
        let wrong = |kind, results: [&[f32]; 2]| {
            CONTENTS.compare_blocks(direct, 0..20, &results, &blocks(kind)).wrong
        };
        let mut kept = gathered.clone();
        kept[..5].copy_from_slice(&inputs[1][..5]);
        assert_eq!(wrong(CollectiveKind::Allgather, [&gathered, &kept]), 0);
        assert_eq!(wrong(CollectiveKind::Allgather, [&gathered, &gathered]), 5, "nothing may be made up");
        assert_eq!(wrong(CollectiveKind::Allgather, [&kept, &kept]), 5, "nothing is missing there");
        let missing = [vec![(0, 5)], vec![]];
        let blocks = Blocks { kind: CollectiveKind::ReduceScatter, size: 10, missing: &missing };
        let sums: Vec<f32> = inputs[0].iter().zip(&inputs[1]).map(|(one, other)| one + other).collect();
        let mut scattered = inputs.clone();
        scattered[0][5..10].copy_from_slice(&sums[5..10]);
        scattered[1][10..].copy_from_slice(&sums[10..]);
        let wrong = |scattered: &[Vec<f32>; 2]| {
            let results = [&scattered[0][..], &scattered[1][..]];
            CONTENTS.compare_blocks(direct, 0..20, &results, &blocks).wrong
        };
        assert_eq!(wrong(&scattered), 0, "a worker's own values stand for a sum that is missing");
        scattered[0][6] = inputs[0][6];
        assert_eq!(wrong(&scattered), 1);
    }

    #[test]
    fn one_wrong_bit_is_found() {
        for reference in [BASE, ReferenceSum { scale: None, ..BASE }] {
            let values = |rank| (0..100).map(|index| CONTENTS.value::<f32>(rank, index)).collect::<Vec<_>>();
            let workers = [values(0), values(1)];
            let packets = (0..100).step_by(10).map(|first| {
                reference.reduce(&workers.clone().map(|values| values[first..first + 10].to_vec())).values
            });
            let right: Vec<f32> = packets.flatten().collect();
            let mut wrong = right.clone();
            wrong[53] = f32::from_bits(wrong[53].to_bits() ^ 1);
            assert_eq!(CONTENTS.compare(reference, 0..100, &[&right, &right]).wrong, 0);
            let found = CONTENTS.compare(reference, 50..60, &[&right, &wrong]);
            assert_eq!((found.wrong, found.first_wrong), (1, Some(53)));
            assert_eq!(CONTENTS.compare(reference, 0..100, &[&right, &right[..99]]).first_wrong, Some(99));
            assert!(found.max_abs_error < 2e-6);
        }
    }
}
