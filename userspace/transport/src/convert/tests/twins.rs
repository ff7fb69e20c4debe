//! Vector and scalar code have the same bits for every input.

use super::*;

/// A codec for every choice, on all vector instructions that there are.
fn any_codec() -> impl Strategy<Value = Codec> {
    let scaling = prop_oneof![
        Just(Scale::Block),
        Just(Scale::Fixed(1.0)),
        Just(Scale::Fixed(65536.0)),
        (1e-6f32..1e9).prop_map(Scale::Fixed),
    ];
    let instructions = prop::sample::select(Instructions::VECTORS);
    let world = prop_oneof![1..=32u16, 33..=1024u16];
    (world, prop::sample::select(WIRES.to_vec()), scaling, instructions)
        .prop_map(|(world, wire, scaling, instructions)| Codec::new(world, wire, scaling).on(instructions))
}

fn any_kind() -> impl Strategy<Value = (DType, Arithmetic)> {
    (prop::sample::select(DTYPES.to_vec()), prop::sample::select(ARITHMETICS.to_vec()))
}

/// Exponents that chunks have, and those that they have not.
fn any_exponent() -> impl Strategy<Value = i8> {
    prop_oneof![any::<i8>(), -40..40i8]
}

/// A tensor's bytes: mostly tame values, so that vector code is not left at once, else any bits at all.
fn any_tensor(dtype: DType) -> impl Strategy<Value = Vec<u8>> {
    let tame = prop_oneof![-1f32..1.0, (-64..64i32).prop_map(|n| n as f32 / 2.0)];
    prop_oneof![
        prop::collection::vec(tame, 0..80).prop_map(move |values| tensor_of(dtype, &values)),
        prop::collection::vec(any_float(), 0..80).prop_map(move |values| tensor_of(dtype, &values)),
        prop::collection::vec(any::<u8>(), 0..300),
    ]
}

/// The bytes at an odd address, as far as allocations are even.
fn unaligned(bytes: &[u8], by: usize) -> (Vec<u8>, std::ops::Range<usize>) {
    let mut moved = vec![0x55; by];
    moved.extend_from_slice(bytes);
    (moved, by..by + bytes.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn encoding(
        codec in any_codec(),
        (dtype, op, tensor) in any_kind().prop_flat_map(|(dtype, op)| (Just(dtype), Just(op),
        any_tensor(dtype))),
        exponent in any_exponent(),
        (from_by, to_by) in (0..5usize, 0..5usize),
    ) {
        let (expected, what) = encode(&codec.scalar(), dtype, op, exponent, &tensor);
        let (moved, place) = unaligned(&tensor, from_by);
        let mut wire = vec![0x55; to_by + expected.len() + 3];
        let at = to_by..to_by + expected.len();
        prop_assert_eq!(codec.encode(dtype, op, exponent, &moved[place], &mut wire[at.clone()]), what);
        prop_assert_eq!(&wire[at.clone()], &expected[..]);
        prop_assert!(wire[..at.start].iter().chain(&wire[at.end..]).all(|byte| *byte == 0x55),
            "wrote outside");
    }

    #[test]
    fn decoding(
        codec in any_codec(),
        (dtype, op) in any_kind(),
        wire in prop_oneof![
            prop::collection::vec(any::<i32>(), 0..80),
            prop::collection::vec(-70000..70000i32, 0..80),
        ],
        is_odd in any::<bool>(),
        exponent in any_exponent(),
        (from_by, to_by) in (0..5usize, 0..5usize),
    ) {
        let mut values = wire.len() * codec.values_per_word(dtype, op);
        values -= usize::from(is_odd && values > 0);
        let mut expected = vec![0xaa; values * dtype.size()];
        codec.scalar().decode(dtype, op, exponent, &bytes(&wire), &mut expected);
        let (moved, place) = unaligned(&bytes(&wire), from_by);
        let mut tensor = vec![0x55; to_by + expected.len() + 3];
        let at = to_by..to_by + expected.len();
        codec.decode(dtype, op, exponent, &moved[place], &mut tensor[at.clone()]);
        prop_assert_eq!(&tensor[at.clone()], &expected[..]);
        prop_assert!(tensor[..at.start].iter().chain(&tensor[at.end..]).all(|byte| *byte == 0x55),
            "wrote outside");
    }

    #[test]
    fn exponents(
        (dtype, tensor) in prop::sample::select(FLOATS.to_vec())
            .prop_flat_map(|dtype| (Just(dtype), any_tensor(dtype))),
        by in 0..5usize,
    ) {
        let codec = Codec::new(4, WireFormat::Int32, Scale::Block);
        let (moved, place) = unaligned(&tensor, by);
        prop_assert_eq!(
            codec.exponent(dtype, Arithmetic::Sum, &moved[place]),
            codec.scalar().exponent(dtype, Arithmetic::Sum, &tensor)
        );
    }
}

/// All halves there are.
#[test]
fn every_half() {
    let tensor: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for &instructions in Instructions::VECTORS {
        for wire in WIRES {
            let codec = Codec::new(3, wire, Scale::Block).on(instructions);
            for op in ARITHMETICS {
                // Pieces, so that those without NaN and infinity stay in vector code.
                for piece in tensor.chunks(1 << 10) {
                    assert_twins(&codec, DType::Float16, op, piece);
                    assert_twins(&codec, DType::Bfloat16, op, piece);
                }
            }
        }
    }
}

/// The way there and back has the same bits as the definition's.
fn assert_twins(codec: &Codec, dtype: DType, op: Arithmetic, tensor: &[u8]) {
    let twin = codec.scalar();
    let exponent = codec.exponent(dtype, op, tensor);
    assert_eq!(exponent, twin.exponent(dtype, op, tensor));
    let (wire, encoded) = encode(codec, dtype, op, exponent, tensor);
    assert_eq!((wire.clone(), encoded), encode(&twin, dtype, op, exponent, tensor), "{dtype:?} {op:?}");
    let (mut one, mut two) = (vec![0; tensor.len()], vec![0; tensor.len()]);
    codec.decode(dtype, op, exponent, &wire, &mut one);
    twin.decode(dtype, op, exponent, &wire, &mut two);
    assert_eq!(one, two, "{dtype:?} {op:?}");
}

#[test]
fn this_machine_has_vectors() {
    let codec = Codec::new(1, WireFormat::Int32, Scale::Block);
    assert_eq!(codec.scalar().instructions(), Instructions::Scalar);
    for &instructions in Instructions::VECTORS {
        if codec.on(instructions).instructions() != instructions {
            println!("SKIP comparisons with {instructions:?}: this machine does not have it");
        }
    }
}
