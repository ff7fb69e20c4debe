//! Exact sums against Shewchuk's algorithm, which adds floats without fixed-point numbers.

use super::{
    bounds::{tensors, workers},
    *,
};
use crate::convert::exact::MOST_LIMBS;

/// The nearest double of the exact sum: Shewchuk's partial sums, each of which is beyond the last bit of the
/// next one.
fn nearest_sum(values: impl Iterator<Item = f64>) -> f64 {
    let mut partials: Vec<f64> = Vec::new();
    for mut value in values {
        let mut kept = Vec::new();
        for partial in partials {
            let (large, small) =
                if value.abs() < partial.abs() { (partial, value) } else { (value, partial) };
            let sum = large + small;
            kept.extend(Some(small - (sum - large)).filter(|error| *error != 0.0));
            value = sum;
        }
        kept.push(value);
        partials = kept;
    }
    let mut sum = partials.pop().unwrap_or(0.0);
    let mut error = 0.0;
    // The partial sum after the one that leaves an error stays.
    while error == 0.0
        && let Some(partial) = partials.pop()
    {
        let before = sum;
        sum += partial;
        error = partial - (sum - before);
    }
    // Half of a step, which what follows makes more than half.
    let follows = partials.last().copied().unwrap_or(0.0);
    let next = sum + 2.0 * error;
    if error * follows > 0.0 && next - sum == 2.0 * error { next } else { sum }
}

fn form(world: usize, dtype: DType) -> ExactSum {
    let codec = Codec::new(world as u16, WireFormat::Int32, Scale::Block);
    codec.exact(dtype, Arithmetic::Sum, 1, MOST_LIMBS).expect("one value fits")
}

/// The words of the sum as an aggregator has them. No addition leaves 32 bits.
fn add_up(form: &ExactSum, values: usize, tensors: &[Vec<u8>]) -> Vec<i32> {
    let mut sums = vec![0i32; values * form.words_per_value()];
    for tensor in tensors {
        let mut wire = vec![0xaa; sums.len() * WORD];
        assert_eq!(form.encode(tensor, &mut wire), Encoded::default());
        for (sum, word) in sums.iter_mut().zip(words(&wire)) {
            *sum = sum.checked_add(word).expect("a sum of 32 bits");
        }
    }
    sums
}

fn assert_exact(dtype: DType, workers: &[Vec<f32>]) {
    let (tensors, _) = tensors(dtype, workers);
    let values = workers[0].len();
    let form = form(workers.len(), dtype);
    let sums = bytes(&add_up(&form, values, &tensors));
    let columns: Vec<Vec<f64>> = tensors.iter().map(|tensor| values_of(dtype, tensor)).collect();
    for divisor in [1, workers.len() as u16] {
        let mut tensor = vec![0xaa; tensors[0].len()];
        form.decode(divisor, &sums, &mut tensor);
        let nearest = (0..values).map(|at| {
            let sum = nearest_sum(columns.iter().map(|values| values[at]));
            (sum / f64::from(divisor)) as f32
        });
        let expected = tensor_of(dtype, &nearest.collect::<Vec<_>>());
        assert_eq!(values_of(dtype, &tensor), values_of(dtype, &expected), "{dtype:?} {workers:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn the_sum_is_that_of_floats(workers in workers(), dtype in prop::sample::select(FLOATS.to_vec())) {
        assert_exact(dtype, &workers);
    }
}

#[test]
fn the_reference_rounds_up_a_tie_that_something_follows() {
    let half = f64::EPSILON / 2.0;
    for (values, expected) in [([1.0, half, 1e-30], 1.0 + f64::EPSILON), ([1.0, half, -1e-30], 1.0)] {
        assert_eq!(nearest_sum(values.into_iter()), expected);
    }
}

#[test]
fn small_values_beside_large_ones_are_kept() {
    let workers = [vec![3e38, 1e30, 65504.0], vec![1e-45, 1.0, 6e-8], vec![-3e38, -1e30, -65504.0]];
    for dtype in FLOATS {
        assert_exact(dtype, &workers);
    }
    let form = form(3, DType::Float32);
    let tensors: Vec<Vec<u8>> = workers.iter().map(|values| tensor_of(DType::Float32, values)).collect();
    let mut tensor = tensors[0].clone();
    form.decode(1, &bytes(&add_up(&form, 3, &tensors)), &mut tensor);
    assert_eq!(values_of(DType::Float32, &tensor), [1e-45f32, 1.0, 6e-8].map(f64::from));
}

/// A sum beyond the type's range is infinite, as in any addition of floats.
#[test]
fn a_thousand_workers() {
    for world in [1, 2, 3, 33, 1000, 1023, 1024] {
        for (dtype, value) in FLOATS.into_iter().flat_map(|dtype| {
            [f32::MAX, 1.0f32.next_down(), f32::MIN_POSITIVE, 1e-45, 0.0].map(|value| (dtype, value))
        }) {
            assert_exact(dtype, &vec![vec![value, -value, value / 3.0]; world]);
        }
    }
}

#[test]
fn ties_go_to_even_and_what_is_below_them_counts() {
    let (one, half) = (1.0, f32::EPSILON / 2.0);
    for workers in [[one, half, 0.0], [one, half, 1e-45], [one, half, -1e-45], [-one, -half, -1e-30]] {
        assert_exact(DType::Float32, &workers.map(|value| vec![value]));
    }
}

#[test]
fn values_that_are_not_finite_are_zero_and_named() {
    let form = form(2, DType::Float32);
    let tensor = tensor_of(DType::Float32, &[1.0, f32::NAN, f32::INFINITY]);
    let mut wire = vec![0xaa; 3 * form.words_per_value() * WORD];
    assert_eq!(form.encode(&tensor, &mut wire), Encoded { not_finite: Some(1), saturated: None });
    assert!(words(&wire)[form.words_per_value()..].iter().all(|word| *word == 0));
}

#[test]
fn sums_of_few_floats_are_exact() {
    let limbs = |world, dtype| form(world, dtype).words_per_value();
    assert_eq!([2, 8, 32, 1024].map(|world| limbs(world, DType::Float32)), [10, 10, 11, 14]);
    assert_eq!([2, 8, 32, 1024].map(|world| limbs(world, DType::Float16)), [2; 4]);
    assert_eq!([2, 8, 32, 1024].map(|world| limbs(world, DType::Bfloat16)), [9, 10, 11, 13]);
    for wire in WIRES {
        let codec = Codec::new(8, wire, Scale::Block);
        for (dtype, most) in [(DType::Float32, 35), (DType::Float16, 176), (DType::Bfloat16, 35)] {
            for arithmetic in [Arithmetic::Sum, Arithmetic::Mean] {
                let is_exact = |count| codec.exact(dtype, arithmetic, count, 352).is_some();
                assert_eq!(
                    (is_exact(1), is_exact(most), is_exact(most + 1)),
                    (true, true, false),
                    "{dtype:?}"
                );
            }
            assert_eq!(codec.exact(dtype, Arithmetic::Sum, usize::MAX, 352), None);
        }
        for (dtype, arithmetic) in [(DType::Int32, Arithmetic::Sum), (DType::Float32, Arithmetic::Max)] {
            assert_eq!(codec.exact(dtype, arithmetic, 1, 352), None);
        }
        let fixed = Codec::new(8, wire, Scale::Fixed(1.0));
        assert_eq!(fixed.exact(DType::Float32, Arithmetic::Sum, 1, 352), None, "the job has a scale");
    }
}
