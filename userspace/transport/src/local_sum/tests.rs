use proptest::prelude::*;

use super::*;

fn sum(dtype: DType, arithmetic: Arithmetic, tensors: Vec<Vec<u8>>) -> LocalSum {
    let count = tensors[0].len() / dtype.size();
    let part = |tensor: Vec<u8>| LocalPart { gives: 0..count, takes: 0..count, buffer: Box::new(tensor) };
    let parts = tensors.into_iter().map(part).collect();
    LocalSum { dtype, arithmetic, not_finite: NonFinitePolicy::Raw, count, base: 0, parts }
}

fn bytes<T, const N: usize>(values: &[T], write: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(write).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    bytes(values, |value| value.to_ne_bytes())
}

/// Returns the outputs of all ranks.
fn outputs(mut sum: LocalSum) -> Vec<Vec<u8>> {
    sum.run().unwrap();
    let len = sum.count * sum.dtype.size();
    sum.parts.iter().map(|part| part.buffer.input(0, len).to_vec()).collect()
}

proptest! {
    #[test]
    fn floats_are_added_in_the_order_of_ranks_and_rounded_once(
        values in prop::collection::vec(any::<f32>(), 97..98),
        world in 1..MOST + 3,
        is_mean in any::<bool>(),
    ) {
        let value = |rank, at| values[(7 * rank + at) % values.len()];
        let tensor = |rank| (0..1050).map(|at| value(rank, at)).collect();
        let ranks: Vec<Vec<f32>> = (0..world).map(tensor).collect();
        let divisor = if is_mean { ranks.len() as f64 } else { 1.0 };
        let oracle: Vec<u32> = (0..1050)
            .map(|at| ranks.iter().map(|rank| f64::from(rank[at])).fold(-0.0, |sum, value| sum + value))
            .map(|sum| (sum / divisor) as f32)
            .map(|sum| if sum.is_nan() { f32::NAN.to_bits() } else { sum.to_bits() })
            .collect();
        let arithmetic = if is_mean { Arithmetic::Mean } else { Arithmetic::Sum };
        let tensors = ranks.iter().map(|rank| floats(rank)).collect();
        for output in outputs(sum(DType::Float32, arithmetic, tensors)) {
            let found = output.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().unwrap()));
            let found = found.map(|sum| if sum.is_nan() { f32::NAN } else { sum }.to_bits());
            prop_assert_eq!(found.collect::<Vec<_>>(), oracle.clone());
        }
    }

    #[test]
    fn both_variants_have_the_same_results(values in prop::collection::vec(any::<[f32; 2]>(), 0..600)) {
        let sums: Vec<f64> = values.iter().map(|pair| f64::from(pair[0])).collect();
        let others: Vec<f32> = values.iter().map(|pair| pair[1]).collect();
        for pass in [Pass::Add, Pass::Maximum, Pass::Minimum] {
            let (mut fast, mut plain) = (sums.clone(), sums.clone());
            widest(|| reduce(pass, &mut fast, Values::Floats(&others)));
            reduce(pass, &mut plain, Values::Floats(&others));
            let bits = |sums: &[f64]| {
                sums.iter().map(|sum| if sum.is_nan() { 0 } else { sum.to_bits() }).collect::<Vec<u64>>()
            };
            prop_assert_eq!(bits(&fast), bits(&plain));
        }
    }
}

#[test]
fn extremes_are_exact_and_nan_stays() {
    let tensors = || vec![floats(&[1.0, -0.0, f32::NAN, 3.0]), floats(&[2.0, 0.0, 1.0, f32::NEG_INFINITY])];
    let found = |arithmetic| {
        let output = outputs(sum(DType::Float32, arithmetic, tensors())).remove(1);
        let values = output.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().unwrap()));
        values.map(|value| value.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(found(Arithmetic::Max), ["2", "0", "NaN", "3"]);
    assert_eq!(found(Arithmetic::Min), ["1", "-0", "NaN", "-inf"]);
}

#[test]
fn narrow_floats_are_summed_as_wide_ones() {
    let (a, b) = ([2048.0f32, 1.5, 0.25], [1.0f32, -1.5, 0.5]);
    let halves = |values: &[f32]| bytes(values, |value| f16::from_f32(*value).to_ne_bytes());
    let bfloats = |values: &[f32]| bytes(values, |value| bf16::from_f32(*value).to_ne_bytes());
    let one = [1.0f32; 3];
    let sums = [2050.0f32, 1.0, 1.75];
    let found = outputs(sum(DType::Float16, Arithmetic::Sum, vec![halves(&a), halves(&b), halves(&one)]));
    assert_eq!(found, vec![halves(&sums); 3], "2048 + 1 + 1 in half precision would be 2048");
    let (a, b, one) = ([256.0f32; 3], [1.0f32; 3], [1.0f32; 3]);
    let found = outputs(sum(DType::Bfloat16, Arithmetic::Sum, vec![bfloats(&a), bfloats(&b), bfloats(&one)]));
    assert_eq!(found[0], bfloats(&[258.0; 3]));
}

#[test]
fn integers_are_exact_or_refused() {
    let ints = |values: &[i32]| bytes(values, |value| value.to_ne_bytes());
    let tensors = |last| vec![ints(&[i32::MAX, 7]), ints(&[-1, -2]), ints(&[last, 0])];
    assert_eq!(outputs(sum(DType::Int32, Arithmetic::Sum, tensors(1)))[2], ints(&[i32::MAX, 5]));
    assert_eq!(outputs(sum(DType::Int32, Arithmetic::Max, tensors(1)))[0], ints(&[i32::MAX, 7]));
    assert_eq!(outputs(sum(DType::Int32, Arithmetic::Min, tensors(1)))[0], ints(&[-1, -2]));
    assert_eq!(outputs(sum(DType::Int32, Arithmetic::Mean, tensors(1)))[0], ints(&[715_827_882, 2]));
    let mut large = LocalSum { base: 40, ..sum(DType::Int32, Arithmetic::Sum, tensors(2)) };
    let error = OpError::SumTooLarge { first: 40, last: 40 };
    assert_eq!(large.run(), Err(LocalFault { part: None, error }));
}

#[test]
fn each_rank_gives_and_takes_its_own_values() {
    // An allgather of two ranks, whose tensors are longer than a block.
    let count = 3 * BLOCK;
    let part = |gives: Range<usize>, fill: u8| {
        let mut tensor = vec![0; 4 * count];
        tensor[4 * gives.start..4 * gives.end].fill(fill);
        LocalPart { gives, takes: 0..count, buffer: Box::new(tensor) }
    };
    let parts = vec![part(0..count / 2, 1), part(count / 2..count, 2)];
    let (dtype, not_finite) = (DType::Float32, NonFinitePolicy::Error);
    let sum = LocalSum { dtype, arithmetic: Arithmetic::Bits, not_finite, count, base: 0, parts };
    let expected = [vec![1; 2 * count], vec![2; 2 * count]].concat();
    assert_eq!(outputs(sum), vec![expected; 2]);
}

#[test]
fn what_is_not_allowed_names_its_rank_and_value() {
    let tensors = vec![floats(&[1.0; 2000]), floats(&[[1.0; 1500], [f32::INFINITY; 1500]].concat()[..2000])];
    let strict = LocalSum {
        not_finite: NonFinitePolicy::Error,
        base: 10,
        ..sum(DType::Float32, Arithmetic::Sum, tensors)
    };
    let fault = |mut sum: LocalSum| sum.run().unwrap_err();
    let error = OpError::NotFinite { index: 1510, value: f32::INFINITY };
    assert_eq!(fault(strict), LocalFault { part: Some(1), error });
    let short = sum(DType::Float32, Arithmetic::Sum, vec![floats(&[1.0; 3]), floats(&[1.0; 2])]);
    assert_eq!(fault(short), LocalFault { part: Some(1), error: OpError::ShortBuffer { index: 2 } });
    // No value is infinite, and their sum is.
    let mut large = sum(DType::Float32, Arithmetic::Sum, vec![floats(&[f32::MAX]); 2]);
    large.not_finite = NonFinitePolicy::Error;
    assert_eq!(outputs(large)[0], floats(&[f32::INFINITY]));
}
