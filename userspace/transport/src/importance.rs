//! The importance of chunks by the magnitude of their values (MLT section 4.2.2): routers drop unimportant
//! ones first.
//!
//! A chunk is important when its mean magnitude reaches the median of a sample of the tensor: 5 % of its
//! values, up to a number from which the median is within a percentile or so. The sample is taken once; a
//! chunk's mean is one more pass over its values, only for operations that ask for it.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use sumac_job::{DType, Importance};

use crate::{chunk::number, operation::Operation};

/// Every value of so many is in the sample: 5 %.
const SAMPLE_STEP: usize = 20;
/// Most values of a sample.
const MAX_SAMPLE: usize = 1 << 14;

/// The rule by which an operation's chunks are important.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ImportanceRule {
    /// Chunks are not distinguished.
    None,
    All(bool),
    /// A mean magnitude of at least this.
    Magnitude(f64),
}

impl ImportanceRule {
    pub fn of(operation: &mut Operation) -> ImportanceRule {
        match operation.importance {
            Importance::None => ImportanceRule::None,
            Importance::High => ImportanceRule::All(true),
            Importance::Low => ImportanceRule::All(false),
            Importance::Magnitude => ImportanceRule::Magnitude(median(operation)),
        }
    }

    /// Whether chunks are distinguished.
    pub fn tells_apart(self) -> bool {
        self != ImportanceRule::None
    }

    //= mlt#4.2.2 queues and drops by layer and magnitude
    /// Whether the chunk with these values is important; `None` where chunks are not told apart. They are
    /// read only where they decide.
    pub fn is_important<'a>(self, dtype: DType, values: impl FnOnce() -> &'a [u8]) -> Option<bool> {
        match self {
            ImportanceRule::None => None,
            ImportanceRule::All(is_important) => Some(is_important),
            ImportanceRule::Magnitude(least) => {
                let (mut sum, mut count) = (0.0, 0u32);
                for value in values().chunks_exact(dtype.size()) {
                    sum += magnitude(dtype, value);
                    count += 1;
                }
                // A worker that adds only zeros has nothing that others miss.
                Some(count > 0 && sum / f64::from(count) >= least)
            }
        }
    }

    /// The importance of a packet without elements of such an operation: it is short, and what it asks for is
    /// waited for.
    pub fn of_short(self) -> Option<bool> {
        (self != ImportanceRule::None).then_some(true)
    }
}

/// A value's magnitude; that of NaN counts as 0.
fn magnitude(dtype: DType, value: &[u8]) -> f64 {
    let magnitude = number(dtype, value).abs();
    if magnitude.is_finite() { magnitude } else { 0.0 }
}

/// The median magnitude of a sample of the values that this worker contributes.
fn median(operation: &mut Operation) -> f64 {
    let Operation { gives: Range { start, end }, dtype, .. } = *operation;
    let step = SAMPLE_STEP.max((end - start).div_ceil(MAX_SAMPLE));
    // The middle of each step: also a tensor of less than one has a sample.
    let first = start + (step / 2).min((end - start) / 2);
    let sampled = (first..end).step_by(step).map(|at| {
        let value = at..at + 1;
        operation.prepare(&value);
        magnitude(dtype, operation.input(&value))
    });
    let mut sample: Vec<f64> = sampled.collect();
    let middle = sample.len() / 2;
    if sample.is_empty() {
        return 0.0;
    }
    *sample.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::Arithmetic;

    fn rule(importance: Importance, values: &[f32]) -> ImportanceRule {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let operation =
            Operation::allreduce(1, DType::Float32, Arithmetic::Sum, values.len(), Box::new(bytes));
        ImportanceRule::of(&mut Operation { importance, ..operation })
    }

    fn is_important(rule: ImportanceRule, values: &[f32]) -> Option<bool> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        rule.is_important(DType::Float32, || &bytes)
    }

    #[test]
    fn the_sample_median_divides_the_chunks() {
        // Magnitudes grow along the tensor.
        let values: Vec<f32> =
            (0..100_000).map(|at| at as f32 * if at % 2 == 0 { -1.0 } else { 1.0 }).collect();
        let rule = rule(Importance::Magnitude, &values);
        let ImportanceRule::Magnitude(median) = rule else { panic!("{rule:?}") };
        assert!((49_000.0..51_000.0).contains(&median), "{median}");
        let important = values.chunks(352).filter(|chunk| is_important(rule, chunk) == Some(true)).count();
        assert!((139..=145).contains(&important), "{important} of 285 chunks");
    }

    #[test]
    fn each_importance_has_its_rule() {
        let values = [1.0f32, -3.0, f32::NAN, 2.0];
        for (importance, expected) in
            [(Importance::None, None), (Importance::High, Some(true)), (Importance::Low, Some(false))]
        {
            let rule = rule(importance, &values);
            assert_eq!(is_important(rule, &values), expected, "{importance:?}");
            assert_eq!(rule.of_short(), expected.map(|_| true), "{importance:?}");
        }
        let empty = rule(Importance::Magnitude, &[]);
        assert_eq!((empty, is_important(empty, &[])), (ImportanceRule::Magnitude(0.0), Some(false)));
        let short = rule(Importance::Magnitude, &values);
        assert_eq!((is_important(short, &values), is_important(short, &[9.0])), (Some(true), Some(true)));
    }
}
