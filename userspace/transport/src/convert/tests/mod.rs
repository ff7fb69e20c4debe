//! The definition on known values, its error bounds, and the vector code against the definition.

mod bounds;
mod exact;
mod exponents;
mod twins;
mod values;

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;

const FLOATS: [DType; 3] = [DType::Float32, DType::Float16, DType::Bfloat16];
const DTYPES: [DType; 4] = [DType::Float32, DType::Float16, DType::Bfloat16, DType::Int32];
const ARITHMETICS: [Arithmetic; 5] =
    [Arithmetic::Sum, Arithmetic::Mean, Arithmetic::Max, Arithmetic::Min, Arithmetic::Bits];
const WIRES: [WireFormat; 3] = WireFormat::ALL;

/// The bytes of a tensor with these values, rounded to the dtype where it is narrower.
fn tensor_of(dtype: DType, values: &[f32]) -> Vec<u8> {
    let bytes = |value: &f32| match dtype {
        DType::Float32 => value.to_ne_bytes().to_vec(),
        DType::Float16 => f16::from_f32(*value).to_ne_bytes().to_vec(),
        DType::Bfloat16 => bf16::from_f32(*value).to_ne_bytes().to_vec(),
        DType::Int32 => (*value as i32).to_ne_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

/// The values of a tensor; those of floats are exact.
fn values_of(dtype: DType, tensor: &[u8]) -> Vec<f64> {
    let value = |bytes: &[u8]| match dtype {
        DType::Float32 => f64::from(f32::from_ne_bytes(bytes.try_into().unwrap())),
        DType::Float16 => f64::from(f16::from_ne_bytes(bytes.try_into().unwrap())),
        DType::Bfloat16 => f64::from(bf16::from_ne_bytes(bytes.try_into().unwrap())),
        DType::Int32 => f64::from(i32::from_ne_bytes(bytes.try_into().unwrap())),
    };
    tensor.chunks_exact(dtype.size()).map(value).collect()
}

fn wire_len(codec: &Codec, dtype: DType, arithmetic: Arithmetic, tensor: &[u8]) -> usize {
    (tensor.len() / dtype.size()).div_ceil(codec.values_per_word(dtype, arithmetic)) * WORD
}

/// A worker's contribution.
fn encode(codec: &Codec, dtype: DType, op: Arithmetic, exponent: i8, tensor: &[u8]) -> (Vec<u8>, Encoded) {
    let mut wire = vec![0xaa; wire_len(codec, dtype, op, tensor)];
    let encoded = codec.encode(dtype, op, exponent, tensor, &mut wire);
    (wire, encoded)
}

fn words(wire: &[u8]) -> Vec<i32> {
    wire.as_chunks().0.iter().map(|word| i32::from_be_bytes(*word)).collect()
}

fn bytes(words: &[i32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Bit patterns of floats of every kind and every dtype, as single precision.
fn any_float() -> impl Strategy<Value = f32> {
    prop_oneof![
        3 => any::<u32>().prop_map(f32::from_bits),
        2 => -1e4f32..1e4,
        1 => prop::sample::select(vec![
            0.0, -0.0, 1.0, -1.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, -1e-45, f32::INFINITY,
            f32::NEG_INFINITY, f32::NAN, -f32::NAN, 65504.0, 6e-8, 3.4e38,
        ]),
        1 => (-20i32..20, 0..4i32).prop_map(|(n, quarter)| n as f32 + quarter as f32 / 4.0),
        1 => (-126..128i32).prop_map(|m| 2f32.powi(m)),
    ]
}
