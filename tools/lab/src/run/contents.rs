//! What the workers add up, and what must come out.
//!
//! A value is a function of seed, iteration, rank and index, so that nobody needs to keep the tensors. The reference knows
//! the rounding rule and nothing else of Sumac: each value is multiplied with the scale in single precision and rounded
//! half to even, the integers are added in 64 bits, and the sum is multiplied with the reciprocal of the scale.

use std::ops::Range;

/// One round of an allreduce.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contents {
    /// What makes this run's values.
    pub seed: u64,
    /// Which round of it.
    pub iteration: u32,
    /// What floats are multiplied with.
    pub scale: f32,
}

/// How a worker's result compares with the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Elements whose bits are not the reference's.
    pub wrong: u64,
    /// The first of them.
    pub first_wrong: Option<usize>,
    /// Largest distance to the sum in double precision without rounding.
    pub max_abs_error: f64,
}

impl Comparison {
    /// Both together.
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
    /// A worker's value: 24 random bits between -1 and 1, so that scaled by 2^20 three bits are rounded away, and every
    /// eighth value lies just between two integers.
    pub fn value(self, rank: u16, index: usize) -> f32 {
        let stream = self.seed ^ (u64::from(self.iteration) << 40) ^ (u64::from(rank) << 56);
        let bits = mix(stream.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        ((bits >> 32) as i32 >> 8) as f32 * (1.0 / 8_388_608.0)
    }

    /// Fills a worker's tensor, or a part of it that begins at `first`.
    pub fn fill(self, rank: u16, first: usize, tensor: &mut [f32]) {
        for (index, element) in (first..).zip(tensor) {
            *element = self.value(rank, index);
        }
    }

    /// Compares some elements of every worker's result with the reference.
    pub fn compare(self, elements: Range<usize>, results: &[&[f32]]) -> Comparison {
        let workers = results.len() as u16;
        let mut comparison = Comparison::default();
        for index in elements {
            let (expected, exact) = self.reference(workers, index);
            for result in results {
                // A result that is too short is as wrong as a wrong value.
                let got = result.get(index).copied().unwrap_or(f32::NAN);
                if got.to_bits() != expected.to_bits() {
                    comparison.wrong += 1;
                    comparison.first_wrong.get_or_insert(index);
                }
                let error = (f64::from(got) - exact).abs();
                // NaN is an error without bound, which f64::max would hide.
                let error = if error.is_nan() { f64::INFINITY } else { error };
                comparison.max_abs_error = comparison.max_abs_error.max(error);
            }
        }
        comparison
    }

    /// The sum over all workers as Sumac defines it, and without rounding.
    fn reference(self, workers: u16, index: usize) -> (f32, f64) {
        let (mut sum, mut exact) = (0i64, 0f64);
        for rank in 0..workers {
            let value = self.value(rank, index);
            sum += (value * self.scale).round_ties_even() as i64;
            exact += f64::from(value);
        }
        (sum as f32 * (1.0 / self.scale), exact)
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
    use super::*;

    const CONTENTS: Contents = Contents { seed: 7, iteration: 1, scale: 1_048_576.0 };

    #[test]
    fn values_differ_by_rank_index_and_iteration_and_repeat_by_seed() {
        let value = CONTENTS.value(1, 5);
        assert_eq!(value, CONTENTS.value(1, 5));
        assert!(value.abs() <= 1.0);
        let others =
            [CONTENTS.value(2, 5), CONTENTS.value(1, 6), Contents { iteration: 2, ..CONTENTS }.value(1, 5)];
        assert!(others.iter().all(|other| *other != value));
    }

    #[test]
    fn ties_are_among_the_values() {
        let scaled = (0..1000).map(|index| CONTENTS.value(0, index) * CONTENTS.scale);
        assert!(scaled.filter(|x| x.fract().abs() == 0.5).count() > 50);
    }

    #[test]
    fn one_wrong_bit_is_found() {
        let right: Vec<f32> = (0..100).map(|index| CONTENTS.reference(2, index).0).collect();
        let mut wrong = right.clone();
        wrong[53] = f32::from_bits(wrong[53].to_bits() ^ 1);
        assert_eq!(CONTENTS.compare(0..100, &[&right, &right]).wrong, 0);
        let found = CONTENTS.compare(50..60, &[&right, &wrong]);
        assert_eq!((found.wrong, found.first_wrong), (1, Some(53)));
        assert_eq!(CONTENTS.compare(0..100, &[&right, &right[..99]]).first_wrong, Some(99));
        assert!(found.max_abs_error < 2e-6);
    }
}
