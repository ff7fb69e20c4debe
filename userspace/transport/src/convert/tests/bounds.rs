//! Theorems 1 and 2 of SwitchML's appendix E, on inputs chosen to break them.

use super::*;

/// Values of one chunk that are hard to add up.
fn hard_values(len: usize) -> impl Strategy<Value = Vec<f32>> {
    let sign = || prop::sample::select(vec![1f32, -1.0]);
    let same = move |value: f32| {
        prop::collection::vec(sign(), len).prop_map(move |signs| signs.iter().map(|s| s * value).collect())
    };
    let huge = (0..len, sign(), prop::collection::vec(-1f32..1.0, len)).prop_map(|(at, sign, mut values)| {
        values[at] = sign * 3e38;
        values
    });
    let subnormal = (0..=0x7f_ffffu32, sign()).prop_map(|(bits, sign)| sign * f32::from_bits(bits));
    let power = (sign(), -149..128i32).prop_map(|(sign, m)| sign * (2f64.powi(m) as f32));
    let finite = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite());
    prop_oneof![
        prop::collection::vec(-1f32..1.0, len),
        prop::collection::vec(finite, len),
        prop::collection::vec(subnormal, len),
        prop::collection::vec(power, len),
        huge,
        same(f32::MAX),
        same(1.0),
        same(1.0f32.next_down()),
        same(f32::MIN_POSITIVE),
        same(1e-45),
        same(0.0),
    ]
}

/// The chunks of 1 to 32 workers: each its own kind, or all the same values, which add up to the most.
pub(super) fn workers() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1..=32usize, 1..40usize).prop_flat_map(|(world, len)| {
        prop_oneof![
            prop::collection::vec(hard_values(len), world),
            hard_values(len).prop_map(move |values| vec![values; world]),
        ]
    })
}

/// Theorem 2: no sum of the workers' integers leaves its 32 or 16 bits, on the way or at the end. Returns the
/// words that an aggregator has, and the integers in them.
fn add_up(per_word: usize, wires: &[Vec<u8>]) -> (Vec<i32>, Vec<i64>) {
    let most = if per_word == 2 { i64::from(i16::MAX) } else { i64::from(i32::MAX) };
    let integers = |words: &[i32]| -> Vec<i64> {
        let halves = |word: &i32| <[i32; 2]>::from(pack::halves(*word));
        let all: Vec<i32> =
            if per_word == 2 { words.iter().flat_map(halves).collect() } else { words.to_vec() };
        all.into_iter().map(i64::from).collect()
    };
    let mut sums = vec![0i32; wires[0].len() / WORD];
    let mut exact = vec![0i64; sums.len() * per_word];
    for (number, wire) in (1..).zip(wires) {
        let words = words(wire);
        sums.iter_mut().zip(&words).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        exact.iter_mut().zip(integers(&words)).for_each(|(sum, integer)| *sum += integer);
        assert!(exact.iter().all(|sum| sum.abs() <= most), "the sum of {number} workers overflows");
    }
    assert_eq!(integers(&sums), exact);
    (sums, exact)
}

/// The workers' words; all of their values fit.
fn contributions(codec: &Codec, dtype: DType, exponent: i8, tensors: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let contribution = |tensor: &Vec<u8>| {
        let (wire, encoded) = encode(codec, dtype, Arithmetic::Sum, exponent, tensor);
        assert_eq!(encoded, Encoded::default());
        wire
    };
    tensors.iter().map(contribution).collect()
}

/// Half the distance between neighbours of the dtype around `value`, and what rounding to single precision
/// first adds to it.
fn rounding(dtype: DType, value: f64) -> f64 {
    let (bits, least) = match dtype {
        DType::Float16 => (11, -25),
        DType::Bfloat16 => (8, -134),
        DType::Float32 | DType::Int32 => (24, -150),
    };
    value.abs() * (2f64.powi(-bits) + 2f64.powi(-24)) + 2f64.powi(least)
}

/// The largest finite value.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::Float16 => 65504.0,
        DType::Bfloat16 => f64::from(bf16::MAX),
        DType::Float32 | DType::Int32 => f64::from(f32::MAX),
    }
}

/// Theorem 1: the sum's error is at most `n / f`, and what the dtype itself rounds off; a mean's is `1 / f`.
fn assert_close(dtype: DType, divisor: f64, bound: f64, exact: &[f64], tensor: &[u8]) {
    for (value, sum) in values_of(dtype, tensor).into_iter().zip(exact) {
        let exact = sum / divisor;
        if value.is_infinite() {
            assert!(exact.abs() + bound >= largest(dtype), "{exact} became infinite");
            assert_eq!(value.is_sign_positive(), exact.is_sign_positive());
        } else {
            let error = (value - exact).abs();
            assert!(
                error <= bound + rounding(dtype, value),
                "{exact} became {value}, {error} off, {bound} allowed"
            );
        }
    }
}

/// The chunks' tensors, without what the dtype has no finite value for, and the exact sum of each element.
pub(super) fn tensors(dtype: DType, workers: &[Vec<f32>]) -> (Vec<Vec<u8>>, Vec<f64>) {
    let most = largest(dtype) as f32;
    let chunk = |values: &Vec<f32>| {
        tensor_of(dtype, &values.iter().map(|value| value.clamp(-most, most)).collect::<Vec<_>>())
    };
    let tensors: Vec<Vec<u8>> = workers.iter().map(chunk).collect();
    let mut sums = vec![0.0; workers[0].len()];
    for tensor in &tensors {
        sums.iter_mut().zip(values_of(dtype, tensor)).for_each(|(sum, value)| *sum += value);
    }
    (tensors, sums)
}

/// The smallest m, at least -125, with `2^m` not below any value: found by trying.
fn power_above(dtype: DType, tensors: &[Vec<u8>]) -> i32 {
    let largest = tensors.iter().flat_map(|t| values_of(dtype, t)).fold(0f64, |h, v| h.max(v.abs()));
    (-125..=128).find(|m| 2f64.powi(*m) >= largest).expect("a finite value")
}

/// Both theorems for a chunk of these workers, by block floating point.
fn assert_bounds(dtype: DType, wire: WireFormat, workers: &[Vec<f32>]) {
    let codec = Codec::new(workers.len() as u16, wire, Scale::Block);
    let (tensors, exact) = tensors(dtype, workers);
    let exponents = tensors.iter().map(|tensor| codec.exponent(dtype, Arithmetic::Sum, tensor));
    let agreed = exponents.max().unwrap();
    let wires = contributions(&codec, dtype, agreed, &tensors);
    let (sums, integers) = add_up(codec.values_per_word(dtype, Arithmetic::Sum), &wires);

    let n = workers.len() as f64;
    let full = if codec.values_per_word(dtype, Arithmetic::Sum) == 2 { 32767.0 } else { 2_147_483_647.0 };
    let f = full / (n * 2f64.powi(power_above(dtype, &tensors)));
    for (integer, exact) in integers.iter().zip(&exact) {
        let error = (*integer as f64 / f - exact).abs();
        assert!(error <= n / f, "{exact} is off by {error}, allowed is {}", n / f);
    }
    let mut tensor = tensors[0].clone();
    codec.decode(dtype, Arithmetic::Sum, agreed, &bytes(&sums), &mut tensor);
    assert_close(dtype, 1.0, n / f, &exact, &tensor);
    codec.decode(dtype, Arithmetic::Mean, agreed, &bytes(&sums), &mut tensor);
    assert_close(dtype, n, 1.0 / f, &exact, &tensor);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn block_floating_point(
        workers in workers(),
        dtype in prop::sample::select(FLOATS.to_vec()),
        wire in prop::sample::select(WIRES.to_vec()),
    ) {
        assert_bounds(dtype, wire, &workers);
    }

    #[test]
    fn fixed_scale(
        workers in workers(),
        dtype in prop::sample::select(FLOATS.to_vec()),
        wire in prop::sample::select(WIRES.to_vec()),
        scale in 1e-3f32..1e6,
    ) {
        let codec = Codec::new(workers.len() as u16, wire, Scale::Fixed(scale));
        let most = 0.99 * codec.limit(dtype, Arithmetic::Sum) as f32 / scale;
        let fitting: Vec<Vec<f32>> = workers.iter().map(|w| w.iter().map(|v| v.clamp(-most, most)).collect()).collect();
        let (tensors, exact) = tensors(dtype, &fitting);
        let wires = contributions(&codec, dtype, NONE, &tensors);
        let (sums, _) = add_up(codec.values_per_word(dtype, Arithmetic::Sum), &wires);
        let (n, f) = (workers.len() as f64, f64::from(scale));
        let mut tensor = tensors[0].clone();
        codec.decode(dtype, Arithmetic::Sum, NONE, &bytes(&sums), &mut tensor);
        assert_close(dtype, 1.0, n / f, &exact, &tensor);
    }

    /// Whatever is sent with whatever exponent: sums hold.
    #[test]
    fn nothing_overflows(
        workers in prop_oneof![
            workers(),
            (1..=32usize, any_float()).prop_map(|(world, value)| vec![vec![value; 20]; world]),
        ],
        (dtype, wire) in (prop::sample::select(DTYPES.to_vec()), prop::sample::select(WIRES.to_vec())),
        exponent in any::<i8>(),
        scaling in prop_oneof![Just(Scale::Block), (1e-6f32..1e30).prop_map(Scale::Fixed)],
    ) {
        let codec = Codec::new(workers.len() as u16, wire, scaling);
        let contribution = |values: &Vec<f32>| {
            encode(&codec, dtype, Arithmetic::Sum, exponent, &tensor_of(dtype, values)).0
        };
        let wires: Vec<Vec<u8>> = workers.iter().map(contribution).collect();
        add_up(codec.values_per_word(dtype, Arithmetic::Sum), &wires);
    }
}

/// With `auto` the bound is half a unit in the last place of the largest value, and with a worker more it
/// would not be. The least unit is that of a value just above `2^(m - 1)`.
#[test]
fn auto_has_16_bits_where_the_types_precision_is_kept() {
    for (dtype, bits, most) in [(DType::Bfloat16, 8, 7), (DType::Float16, 11, 2)] {
        let half_a_unit = 2f64.powi(-1 - bits);
        let bound = |n: u16| f64::from(n).powi(2) / 32767.0;
        assert!(bound(most) <= half_a_unit && bound(most + 1) > half_a_unit, "{dtype:?}");
        for world in 1..=40 {
            let codec = Codec::new(world, WireFormat::Auto, Scale::Block);
            let of = |arithmetic| codec.values_per_word(dtype, arithmetic);
            let expected = if world <= most { 2 } else { 1 };
            assert_eq!(
                (of(Arithmetic::Sum), of(Arithmetic::Mean)),
                (expected, expected),
                "{dtype:?}, {world}"
            );
            assert_eq!(of(Arithmetic::Max), 1);
            let fixed = Codec::new(world, WireFormat::Auto, Scale::Fixed(1000.0));
            assert_eq!(fixed.values_per_word(dtype, Arithmetic::Sum), 1, "no bound in units of the type");
        }
    }
    let others = Codec::new(2, WireFormat::Auto, Scale::Block);
    assert_eq!(
        [DType::Float32, DType::Int32].map(|dtype| others.values_per_word(dtype, Arithmetic::Sum)),
        [1, 1]
    );
}

/// Below two levels of aggregators there are up to 1,024 workers; the most that they add up to is when all
/// have the same.
#[test]
fn a_thousand_workers() {
    let values = [1.0, -1.0, 1.0f32.next_down(), 0.75, -f32::MAX, 3e38, 1e-45, 0.0, 0.5f32.next_up()];
    for (world, dtype) in
        [33u16, 100, 1000, 1023, 1024].into_iter().flat_map(|n| FLOATS.map(|dtype| (n, dtype)))
    {
        for (wire, value) in WIRES.into_iter().flat_map(|wire| values.map(|value| (wire, value))) {
            assert_bounds(dtype, wire, &vec![vec![value, -value, value / 3.0]; usize::from(world)]);
        }
    }
}
