//! Exponent bytes on known values, and what they promise.

use sumac_wire::header::exponent::{BIAS, LEAST};

use super::*;

/// The exponent byte of a chunk, from both implementations.
fn exponent_of(dtype: DType, values: &[f32]) -> i8 {
    let codec = Codec::new(4, WireFormat::Int32, Scale::Block);
    let tensor = tensor_of(dtype, values);
    let byte = codec.exponent(dtype, Arithmetic::Mean, &tensor);
    assert_eq!(codec.scalar().exponent(dtype, Arithmetic::Mean, &tensor), byte);
    byte
}

#[test]
fn rounds_up_to_a_power_of_two() {
    let least = 2f32.powi(-125);
    for (value, m) in [
        (0.0, -125),
        (1e-45, -125),
        (f32::MIN_POSITIVE, -125),
        (least, -125),
        (least.next_up(), -124),
        (0.5, -1),
        (1.0, 0),
        (1.0f32.next_up(), 1),
        (1.5, 1),
        (2.0, 1),
        (2f32.powi(127), 127),
        (2f32.powi(127).next_up(), 128),
        (f32::MAX, 128),
    ] {
        for at in 0..19 {
            let mut values = [0.0; 19];
            values[at] = value;
            assert_eq!(i32::from(exponent_of(DType::Float32, &values)), m + BIAS, "{value} at {at}");
            values[at] = -value;
            assert_eq!(i32::from(exponent_of(DType::Float32, &values)), m + BIAS, "-{value} at {at}");
        }
    }
    assert_eq!(exponent_of(DType::Float16, &[65504.0, 1.0]), 16 - 2);
    assert_eq!(exponent_of(DType::Float16, &[6e-8]), -24 - 2, "the smallest half");
    assert_eq!(exponent_of(DType::Bfloat16, &[3.3e38]), 126);
    assert_eq!(exponent_of(DType::Bfloat16, &[1e-40]), LEAST);
}

#[test]
fn what_is_not_finite_is_left_out() {
    for dtype in FLOATS {
        for fault in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(exponent_of(dtype, &[fault; 40]), LEAST, "{dtype:?}");
            let mut values = [fault; 40];
            values[7] = -3.0;
            assert_eq!(exponent_of(dtype, &values), 0, "{dtype:?}");
        }
    }
}

#[test]
fn values_of_few_steps_are_found_wherever_they_are() {
    for dtype in FLOATS {
        for codec in [
            Codec::new(2, WireFormat::Int32, Scale::Block),
            Codec::new(2, WireFormat::Int32, Scale::Block).scalar(),
        ] {
            let loses =
                |values: &[f32]| codec.loses(dtype, Arithmetic::Sum, BIAS as i8, &tensor_of(dtype, values));
            let least = f32::exp2(-26.0);
            let small = if dtype == DType::Float16 { 0.0 } else { least * 0.9 };
            for len in [1, 7, 8, 9, 33, 352] {
                for at in [0, len / 2, len - 1] {
                    let mut values = vec![1.0; len];
                    values[at] = -small;
                    assert_eq!(loses(&values), small != 0.0, "{dtype:?} {len} {at}");
                    values[at] = least * 1.1;
                    assert!(!loses(&values), "{dtype:?} {len} {at}");
                    values[at] = 0.0;
                    assert!(!loses(&values), "{dtype:?} {len} {at}");
                }
            }
            assert!(!loses(&[]));
        }
    }
}

#[test]
fn nothing_to_agree_on() {
    let tensor = tensor_of(DType::Float32, &[1.0; 8]);
    let block = Codec::new(4, WireFormat::Int16, Scale::Block);
    let fixed = Codec::new(4, WireFormat::Int16, Scale::Fixed(1.0));
    for dtype in DTYPES {
        for op in ARITHMETICS {
            let needed = dtype != DType::Int32 && matches!(op, Arithmetic::Sum | Arithmetic::Mean);
            assert_eq!(block.needs_exponent(dtype, op), needed, "{dtype:?} {op:?}");
            assert_eq!(block.exponent(dtype, op, &tensor) != NONE, needed, "{dtype:?} {op:?}");
            assert_eq!(block.exponent(dtype, op, &[]), NONE, "no float in the chunk");
            assert!(!fixed.needs_exponent(dtype, op));
            assert_eq!(fixed.exponent(dtype, op, &tensor), NONE);
        }
    }
}

proptest! {
    #[test]
    fn no_smaller_power_holds_the_chunk(values in prop::collection::vec(any_float(), 1..40)) {
        let largest = values.iter().filter(|value| value.is_finite()).fold(0f64, |h, v| h.max(f64::from(v.abs())));
        let m = i32::from(exponent_of(DType::Float32, &values)) - BIAS;
        prop_assert!(largest <= 2f64.powi(m));
        prop_assert!(m == -125 || largest > 2f64.powi(m - 1), "{largest} and {m}");
    }
}
