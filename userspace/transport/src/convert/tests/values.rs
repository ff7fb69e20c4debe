//! The definition on known values; the vector code has to agree on each.

use super::*;
use sumac_wire::header::exponent::NONE;

/// One worker's integers with a fixed scale, from both implementations.
fn integers(codec: &Codec, values: &[f32]) -> (Vec<i32>, Encoded) {
    let tensor = tensor_of(DType::F32, values);
    let (wire, encoded) = encode(codec, DType::F32, Arithmetic::Sum, NONE, &tensor);
    assert_eq!(encode(&codec.scalar(), DType::F32, Arithmetic::Sum, NONE, &tensor), (wire.clone(), encoded));
    (words(&wire), encoded)
}

fn fixed(scale: f32, world: u16) -> Codec {
    Codec::new(world, WireFormat::Int32, Scaling::Fixed(scale))
}

#[test]
fn rounds_half_to_even() {
    let fine = Encoded::default();
    let values = [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 0.50000006, -2.5000002, 1e-45];
    assert_eq!(integers(&fixed(1.0, 4), &values), (vec![0, 2, 2, 0, -2, 0, 1, -3, 0], fine));
    assert_eq!(integers(&fixed(2.0, 4), &[0.25, 0.75, 1.25, -1.25]), (vec![0, 2, 2, -2], fine));
}
