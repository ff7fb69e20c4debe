//! Tensors from seeds, and the exact results of operations on them, by the lab's own arithmetic.

use sumac_lab::run::contents::Contents;
pub use sumac_lab::run::reference_sum::{ReferenceSum, Value};

/// The results of one operation, by rank, with the job's arithmetic.
#[derive(Clone, Debug)]
pub struct Results<T> {
    /// The job's arithmetic.
    pub numbers: ReferenceSum,
    pub by_rank: Vec<Vec<T>>,
}

/// The value of worker `rank` at `index`.
pub fn value<T: Value>(seed: u64, rank: u16, index: usize) -> T {
    contents(seed).value(rank, index)
}

/// Asserts that every worker has the exact results of the values of a seed, to the bit.
pub fn assert_sums<T: Value>(what: &str, seed: u64, results: &Results<T>) {
    let tensors: Vec<&[T]> = results.by_rank.iter().map(Vec::as_slice).collect();
    let count = tensors.iter().map(|tensor| tensor.len()).max().unwrap_or(0);
    let compared = contents(seed).compare(results.numbers, 0..count, &tensors);
    if let Some(index) = compared.first_wrong {
        let got: Vec<_> = tensors.iter().map(|tensor| tensor.get(index)).collect();
        panic!("{what}: {} elements of {count} are wrong, the first is {index}: {got:?}", compared.wrong);
    }
}

/// Asserts that no element is further from its exact result than the documentation promises for block
/// floating point: `n / f` and the rounding to the type of the result, of values whose magnitude is at most
/// 1.
pub fn assert_within_bound<T: Value>(what: &str, seed: u64, results: &Results<T>) {
    let tensors: Vec<&[T]> = results.by_rank.iter().map(Vec::as_slice).collect();
    let count = tensors.first().map_or(0, |tensor| tensor.len());
    let error = contents(seed).compare(results.numbers, 0..count, &tensors).max_abs_error;
    let workers = tensors.len() as f64;
    // f = (2^31 - 1) / n at magnitude 1, and half a unit in the last place of a sum of up to n.
    let last_place = tensors.len().next_power_of_two() as f64 * T::HALF_STEP;
    let bound = workers * workers / f64::from(i32::MAX) + last_place;
    println!("{what}: largest error {error:.2e}, bound {bound:.2e}");
    assert!(error <= bound, "{what}: {error:e} is more than {bound:e}");
}

fn contents(seed: u64) -> Contents {
    Contents { seed, iteration: 0 }
}
