//! The definition on known values; the vector code has to agree on each.

use super::*;

const FINE: Encoded = Encoded { saturated: None, not_finite: None };

/// One worker's words, from both implementations.
fn words_of(codec: &Codec, dtype: DType, op: Arithmetic, exponent: i8, tensor: &[u8]) -> (Vec<i32>, Encoded) {
    let (wire, encoded) = encode(codec, dtype, op, exponent, tensor);
    assert_eq!(encode(&codec.scalar(), dtype, op, exponent, tensor), (wire.clone(), encoded));
    (words(&wire), encoded)
}

/// Returns the values of a result, from both implementations.
fn back(codec: &Codec, dtype: DType, op: Arithmetic, exponent: i8, wire: &[i32], count: usize) -> Vec<u8> {
    let (mut one, mut two) = (vec![0; count * dtype.size()], vec![0; count * dtype.size()]);
    codec.decode(dtype, op, exponent, &bytes(wire), &mut one);
    codec.scalar().decode(dtype, op, exponent, &bytes(wire), &mut two);
    assert_eq!(one, two);
    one
}

fn fixed(scale: f32, world: u16) -> Codec {
    Codec::new(world, WireFormat::Int32, Scale::Fixed(scale))
}

fn block(wire: WireFormat, world: u16) -> Codec {
    Codec::new(world, wire, Scale::Block)
}

/// With a fixed scale.
fn integers(codec: &Codec, values: &[f32]) -> (Vec<i32>, Encoded) {
    words_of(codec, DType::Float32, Arithmetic::Sum, NONE, &tensor_of(DType::Float32, values))
}

#[test]
fn rounds_half_to_even() {
    let values = [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 0.50000006, -2.5000002, 1e-45];
    assert_eq!(integers(&fixed(1.0, 4), &values), (vec![0, 2, 2, 0, -2, 0, 1, -3, 0], FINE));
    assert_eq!(integers(&fixed(2.0, 4), &[0.25, 0.75, 1.25, -1.25]), (vec![0, 2, 2, -2], FINE));
}

#[test]
fn what_does_not_fit_is_clamped_and_its_index_given() {
    let quarter = i32::MAX / 4;
    let codec = fixed(1.0, 4);
    assert_eq!(codec.limit(DType::Float32, Arithmetic::Sum), quarter);
    let above = (quarter + 1) as f32;
    let saturated = |at| Encoded { saturated: Some(at), ..FINE };
    let not_finite = |at| Encoded { not_finite: Some(at), ..FINE };
    type Case = (&'static str, f32, i32, fn(usize) -> Encoded);
    let table: [Case; 8] = [
        ("the largest", above.next_down(), above.next_down() as i32, |_| FINE),
        ("the smallest", -above.next_down(), -(above.next_down() as i32), |_| FINE),
        ("above", above, quarter, saturated),
        ("below", -above, -quarter, saturated),
        ("far above", 1e30, quarter, saturated),
        ("NaN", f32::NAN, 0, not_finite),
        ("infinity", f32::INFINITY, 0, not_finite),
        ("-infinity", f32::NEG_INFINITY, 0, not_finite),
    ];
    for (what, value, integer, expected) in table {
        for at in 0..19 {
            let (mut values, mut sent) = ([1.0; 19], vec![1; 19]);
            (values[at], sent[at]) = (value, integer);
            assert_eq!(integers(&codec, &values), (sent, expected(at)), "{what} at {at}");
        }
    }
    let both = Encoded { saturated: Some(2), not_finite: Some(1) };
    assert_eq!(integers(&codec, &[0.0, f32::NAN, 1e30, f32::NAN, -1e30]).1, both);
}

#[test]
fn less_than_one_above_the_limit_is_clamped_without_notice() {
    // A single worker's limit is i32::MAX: 2^31 - 0.5 fits, and would round to 2^31.
    let largest = 2f32.powi(31).next_down();
    for (scale, values) in [(1.003_906_2f32, vec![largest / 1.003_906_2; 16]), (1.0, vec![largest; 16])] {
        let (sent, encoded) = integers(&fixed(scale, 1), &values);
        let exact = f64::from(values[0]) * f64::from(scale);
        let expected = (exact.round_ties_even() as i64).min(i64::from(i32::MAX)) as i32;
        assert_eq!((sent, encoded), (vec![expected; 16], FINE), "{exact}");
    }
    // (2^31 - 1) / 2 ends in a half and rounds up to even, one above the limit.
    let ones = tensor_of(DType::Float32, &[1.0; 16]);
    let codec = block(WireFormat::Int32, 2);
    let exponent = codec.exponent(DType::Float32, Arithmetic::Sum, &ones);
    let sent = words_of(&codec, DType::Float32, Arithmetic::Sum, exponent, &ones);
    assert_eq!(sent, (vec![i32::MAX / 2; 16], FINE));
}

#[test]
fn integers_keep_their_bits_within_the_limit() {
    let codec = fixed(1024.0, 2);
    let half = i32::MAX / 2;
    let values = [0, 1, -1, half, -half, i32::MAX, i32::MIN, 7, 8];
    let tensor: Vec<u8> = values.iter().flat_map(|value: &i32| value.to_ne_bytes()).collect();
    let (sent, encoded) = words_of(&codec, DType::Int32, Arithmetic::Sum, NONE, &tensor);
    assert_eq!(sent, [0, 1, -1, half, -half, half, -half, 7, 8]);
    assert_eq!(encoded, Encoded { saturated: Some(5), not_finite: None });
    let sums = [6, -6, 5, 7, -5, 0, i32::MAX, i32::MIN, 3];
    let mean = back(&codec, DType::Int32, Arithmetic::Mean, NONE, &sums, 9);
    let expected = [3.0, -3.0, 2.0, 4.0, -2.0, 0.0, 1_073_741_824.0, -1_073_741_824.0, 2.0];
    assert_eq!(values_of(DType::Int32, &mean), expected, "half to even");
}

#[test]
fn a_mean_is_the_sum_divided_once() {
    let codec = fixed(1.0, 4);
    let sums = [4, -4, 6, 0, 1, 2, 3, 1 << 20, 9];
    let mean = back(&codec, DType::Float32, Arithmetic::Mean, NONE, &sums, 9);
    assert_eq!(values_of(DType::Float32, &mean), [1.0, -1.0, 1.5, 0.0, 0.25, 0.5, 0.75, 262_144.0, 2.25]);
}

#[test]
fn maxima_and_minima_are_exact() {
    let above_one = 1.0f32.next_up();
    let ordered =
        [-3e38, -65504.0, -1.0, -6e-8, -1e-45, -0.0, 0.0, 1e-45, 6e-8, 1.0, above_one, 65504.0, 3e38];
    for dtype in DTYPES {
        let codec = block(WireFormat::Int16, 32);
        // Of narrow types some of these are the same value; of halves the outermost are infinite.
        let fit = if dtype == DType::Float16 { &ordered[1..12] } else { &ordered[..] };
        let tensor = tensor_of(dtype, fit);
        for (op, largest) in [(Arithmetic::Max, fit.len() - 1), (Arithmetic::Min, 0)] {
            let (keys, encoded) = words_of(&codec, dtype, op, NONE, &tensor);
            assert_eq!(encoded, FINE);
            let rises = |a: &i32, b: &i32| if op == Arithmetic::Max { a <= b } else { a >= b };
            assert!(keys.is_sorted_by(rises), "{dtype:?} {op:?}");
            assert_eq!(back(&codec, dtype, op, NONE, &keys, fit.len()), tensor, "{dtype:?} {op:?}");
            assert_eq!(keys.iter().max(), Some(&keys[largest]));
        }
    }
}

#[test]
fn bits_are_bits() {
    for dtype in DTYPES {
        let codec = block(WireFormat::Int16, 32);
        let tensor: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        let tensor = &tensor[..tensor.len() - dtype.size()];
        let (wire, encoded) = encode(&codec, dtype, Arithmetic::Bits, NONE, tensor);
        assert_eq!((wire.len() % WORD, encoded), (0, FINE));
        let count = tensor.len() / dtype.size();
        assert_eq!(back(&codec, dtype, Arithmetic::Bits, NONE, &words(&wire), count), tensor, "{dtype:?}");
        assert!(wire[tensor.len()..].iter().all(|padding| *padding == 0));
    }
}

#[test]
fn two_values_share_a_word() {
    let codec = Codec::new(4, WireFormat::Int16, Scale::Fixed(2.0));
    assert_eq!(codec.limit(DType::Float32, Arithmetic::Sum), 32767 / 4);
    for dtype in FLOATS {
        let tensor = tensor_of(dtype, &[1.0, -1.0, -3.0, 0.5, 7.0]);
        let (sent, encoded) = words_of(&codec, dtype, Arithmetic::Sum, NONE, &tensor);
        assert_eq!((&sent[..], encoded), (&[0x1_fffe, (-6 << 16) + 1, 14 << 16][..], FINE));
        assert_eq!(back(&codec, dtype, Arithmetic::Sum, NONE, &sent, 5), tensor);
    }
    let long: Vec<f32> = (0..37).map(|i| (i - 18) as f32).collect();
    let tensor = tensor_of(DType::Float32, &long);
    let (sent, _) = words_of(&codec, DType::Float32, Arithmetic::Sum, NONE, &tensor);
    assert_eq!((sent.len(), back(&codec, DType::Float32, Arithmetic::Sum, NONE, &sent, 37)), (19, tensor));
    let (sent, encoded) = integers(&codec, &[5000.0, -5000.0]);
    assert_eq!((sent[0], encoded.saturated), ((8191 << 16) - 8191, Some(0)));
}

#[test]
fn words_hold_two_values_where_that_is_exact() {
    for (wire, dtype, op, expected) in [
        (WireFormat::Int32, DType::Float16, Arithmetic::Sum, 1),
        (WireFormat::Int16, DType::Float32, Arithmetic::Sum, 2),
        (WireFormat::Int16, DType::Bfloat16, Arithmetic::Mean, 2),
        (WireFormat::Int16, DType::Int32, Arithmetic::Sum, 1),
        (WireFormat::Int16, DType::Float16, Arithmetic::Max, 1),
        (WireFormat::Int32, DType::Float16, Arithmetic::Bits, 2),
        (WireFormat::Int16, DType::Float32, Arithmetic::Bits, 1),
    ] {
        assert_eq!(block(wire, 2).values_per_word(dtype, op), expected, "{wire:?} {dtype:?} {op:?}");
    }
}

#[test]
fn lengths_that_differ_touch_the_shorter_only() {
    let mut wire = [0xaa; 8];
    fixed(1.0, 1).encode(DType::Float32, Arithmetic::Sum, NONE, &[0; 4], &mut wire);
    assert_eq!(wire, [0, 0, 0, 0, 0xaa, 0xaa, 0xaa, 0xaa]);
    let mut tensor = [0xaa; 12];
    block(WireFormat::Int16, 1).decode(DType::Float16, Arithmetic::Sum, 0, &[0; 5], &mut tensor);
    assert_eq!(tensor[..4], [0; 4]);
    assert_eq!(tensor[4..], [0xaa; 8]);
}

#[test]
fn carried_faults_become_nan() {
    for dtype in FLOATS {
        let mut tensor = tensor_of(dtype, &[1.0; 7]);
        fill_nan(dtype, &mut tensor);
        assert!(values_of(dtype, &tensor).iter().all(|value| value.is_nan()), "{dtype:?}");
    }
}

#[test]
fn infinity_and_nan_are_maxima_and_minima_where_they_are_kept() {
    let values = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, 3.0];
    for dtype in FLOATS {
        for &instructions in [Instructions::Scalar].iter().chain(Instructions::VECTORS) {
            let codec = Codec::new(2, WireFormat::Int32, Scale::Block).on(instructions).keeping_infinity();
            for (arithmetic, others) in [(Arithmetic::Max, 5.0), (Arithmetic::Min, -5.0)] {
                let words = |values: &[f32]| {
                    let mut wire = vec![0; values.len() * 4];
                    let tensor = tensor_of(dtype, values);
                    assert_eq!(codec.encode(dtype, arithmetic, NONE, &tensor, &mut wire), FINE);
                    wire
                };
                // As an aggregator does.
                let larger =
                    |(a, b): (&[u8; 4], &[u8; 4])| i32::from_be_bytes(*a).max(i32::from_be_bytes(*b));
                let [own, other] = [values.repeat(8), vec![others; 40]].map(|values| words(&values));
                let pairs = own.as_chunks().0.iter().zip(other.as_chunks().0);
                let wire: Vec<u8> = pairs.flat_map(|pair| larger(pair).to_be_bytes()).collect();
                let mut tensor = vec![0; 40 * dtype.size()];
                codec.decode(dtype, arithmetic, NONE, &wire, &mut tensor);
                let found = values_of(dtype, &tensor);
                let [high, low] = if others > 0.0 { [f64::INFINITY, 5.0] } else { [-5.0, f64::NEG_INFINITY] };
                for group in found.chunks(5) {
                    assert_eq!((group[0], group[1]), (high, low), "{dtype:?} {arithmetic:?}");
                    assert!(group[2].is_nan() && group[3].is_nan(), "{dtype:?} {arithmetic:?}: {group:?}");
                    assert_eq!(group[4], f64::from(others), "{dtype:?}");
                }
            }
        }
    }
}
