//! The definition on known values, and the vector code against the definition.

use proptest::prelude::*;

use super::*;

fn bytes_of<const N: usize, T>(values: &[T], bytes: fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(bytes).collect()
}

fn encode_floats(codec: &Codec, values: &[f32]) -> (Vec<i32>, Option<usize>) {
    let mut wire = vec![0; values.len() * 4];
    let misfit = codec.encode(DType::F32, &bytes_of(values, |v| v.to_ne_bytes()), &mut wire);
    (wire.as_chunks().0.iter().map(|element| i32::from_be_bytes(*element)).collect(), misfit)
}

#[test]
fn rounds_half_to_even() {
    let codec = Codec::new(1.0, 4);
    let values = [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 0.50000006, -2.5000002, 1e-45];
    assert_eq!(encode_floats(&codec, &values), (vec![0, 2, 2, 0, -2, 0, 1, -3, 0], None));
    let codec = Codec::new(2.0, 4);
    assert_eq!(encode_floats(&codec, &[0.25, 0.75, 1.25, -1.25]), (vec![0, 2, 2, -2], None));
}

#[test]
fn what_does_not_fit_is_clamped_and_its_index_given() {
    let quarter = i32::MAX / 4;
    let codec = Codec::new(1.0, 4);
    assert_eq!(codec.limit(), quarter);
    let largest = float_below(quarter);
    assert!(largest as i32 <= quarter && largest.next_up() as i32 > quarter);
    type Case = (&'static str, f32, i32, bool);
    let table: [Case; 9] = [
        ("the largest", largest, largest as i32, true),
        ("the smallest", -largest, -(largest as i32), true),
        ("just above", largest.next_up(), largest as i32, false),
        ("just below", -largest.next_up(), -(largest as i32), false),
        ("far above", 1e30, largest as i32, false),
        ("NaN", f32::NAN, 0, false),
        ("-NaN", -f32::NAN, 0, false),
        ("infinity", f32::INFINITY, 0, false),
        ("-infinity", f32::NEG_INFINITY, 0, false),
    ];
    for (what, value, integer, fits) in table {
        for at in 0..19 {
            let mut values = [1.0; 19];
            values[at] = value;
            let mut expected = vec![1; 19];
            expected[at] = integer;
            let misfit = (!fits).then_some(at);
            assert_eq!(encode_floats(&codec, &values), (expected.clone(), misfit), "{what} at {at}");
            assert_eq!(encode_floats(&codec.scalar(), &values), (expected, misfit), "{what} at {at}");
        }
    }
}

#[test]
fn all_workers_at_the_limit_do_not_overflow() {
    for world in 1..=32u16 {
        let codec = Codec::new(1.0, world);
        let (floats, _) = encode_floats(&codec, &[f32::MAX, f32::MIN]);
        for value in [codec.limit(), -codec.limit(), floats[0], floats[1]] {
            assert!(i32::try_from(i64::from(value) * i64::from(world)).is_ok(), "{value} x {world}");
        }
    }
}

#[test]
fn integers_keep_their_bits_within_the_limit() {
    let codec = Codec::new(1024.0, 2);
    let values = [0, 1, -1, i32::MAX / 2, -(i32::MAX / 2), i32::MAX, i32::MIN, 7, 8];
    let tensor = bytes_of(&values, |v| v.to_ne_bytes());
    let mut wire = vec![0; tensor.len()];
    assert_eq!(codec.encode(DType::I32, &tensor, &mut wire), Some(5));
    let mut back = vec![0; tensor.len()];
    codec.decode(DType::I32, &wire, &mut back);
    let back: Vec<i32> = back.as_chunks().0.iter().map(|v| i32::from_ne_bytes(*v)).collect();
    let half = i32::MAX / 2;
    assert_eq!(back, [0, 1, -1, half, -half, half, -half, 7, 8]);
}

#[test]
fn lengths_that_differ_touch_the_shorter_only() {
    let codec = Codec::new(1.0, 1);
    let mut wire = [0xaa; 8];
    assert_eq!(codec.encode(DType::F32, &[0; 4], &mut wire), None);
    assert_eq!(wire, [0, 0, 0, 0, 0xaa, 0xaa, 0xaa, 0xaa]);
}

/// Floats of every kind: all bit patterns, and many near the limits.
fn any_float() -> impl Strategy<Value = f32> {
    prop_oneof![
        3 => any::<u32>().prop_map(f32::from_bits),
        2 => -1e4f32..1e4,
        1 => (-20i32..20, 0..4i32).prop_map(|(n, quarter)| n as f32 + quarter as f32 / 4.0),
        1 => (1..=32i32, -3..=3i32)
            .prop_map(|(n, ulps)| f32::from_bits((((i32::MAX / n) as f32).to_bits() as i32 + ulps) as u32)),
    ]
}

proptest! {
    #[test]
    fn vector_and_scalar_agree_on_floats(
        values in proptest::collection::vec(any_float(), 0..70),
        scale in prop_oneof![Just(1.0f32), Just(65536.0), Just(1e8), 1e-6f32..1e9],
        world in 1..=32u16,
    ) {
        let codec = Codec::new(scale, world);
        prop_assert_eq!(encode_floats(&codec, &values), encode_floats(&codec.scalar(), &values));
    }

    #[test]
    fn vector_and_scalar_agree_on_integers(
        values in proptest::collection::vec(any::<i32>(), 0..70),
        scale in 1e-6f32..1e9,
        world in 1..=32u16,
    ) {
        let (codec, twin) = (Codec::new(scale, world), Codec::new(scale, world).scalar());
        let bytes = bytes_of(&values, |v| v.to_ne_bytes());
        let (mut one, mut two) = (vec![0; bytes.len()], vec![0; bytes.len()]);
        prop_assert_eq!(
            codec.encode(DType::I32, &bytes, &mut one),
            twin.encode(DType::I32, &bytes, &mut two)
        );
        prop_assert_eq!(&one, &two);
        for dtype in [DType::F32, DType::I32] {
            codec.decode(dtype, &bytes, &mut one);
            twin.decode(dtype, &bytes, &mut two);
            prop_assert_eq!(&one, &two);
        }
    }

    #[test]
    fn small_values_survive_the_way_there_and_back(value in -30000.0f32..30000.0) {
        let codec = Codec::new(65536.0, 1);
        let mut wire = [0; 4];
        prop_assert_eq!(codec.encode(DType::F32, &value.to_ne_bytes(), &mut wire), None);
        let mut back = [0; 4];
        codec.decode(DType::F32, &wire, &mut back);
        prop_assert!((f32::from_ne_bytes(back) - value).abs() <= 1.0 / 65536.0);
    }
}
