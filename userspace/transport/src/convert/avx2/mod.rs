//! The conversion of eight words at a time, with AVX2 and F16C. The scalar reference converts the remainder,
//! and every slice with a value that is not finite or does not fit.
//!
//! | module | contents |
//! | --- | --- |
//! | `bits` | copies |
//! | `block` | vectors from and to bytes |
//! | `scaled` | sums and means of floats |
//! | `integers` | sums and means of int32 |
//! | `keys` | maxima and minima |
//! | `magnitude` | the largest magnitude, for the exponent; whether one is too small |
//!
//! It is called only after [`super::Codec`] has found both features at run time.
#![allow(unsafe_code, reason = "vector loads and stores, and calls into code for AVX2")]

mod bits;
mod block;
mod integers;
mod keys;
mod magnitude;
mod scaled;

use half::{bf16, f16};

use super::{
    conversion::{Decoding, Encoded, Encoding},
    real::{Float, with_float},
    run::Run,
    scalar,
};
use block::BLOCK;

pub(super) fn encode(encoding: Encoding, tensor: &[u8], wire: &mut [u8]) -> Encoded {
    let Some(run) = Run::of::<BLOCK>(encoding.shape(), tensor.len(), wire.len()) else {
        return scalar::encode(encoding, tensor, wire);
    };
    let (from, to) = (&tensor[..run.tensor], &mut wire[..run.wire]);
    // SAFETY: callers have found AVX2 and F16C.
    let is_clean = unsafe {
        match encoding {
            Encoding::Scaled { float, scale, packed } => {
                with_float!(float, R => scaled::encode::<R>(scale, packed, from, to))
            }
            Encoding::Integers(limit) => integers::encode(limit, from, to),
            Encoding::FloatKeys { float, flip, .. } => match float {
                Float::F32 => keys::encode_f32(flip, from, to),
                Float::F16 => keys::encode_16_bits::<f16>(flip, from, to),
                Float::Bf16 => keys::encode_16_bits::<bf16>(flip, from, to),
            },
            Encoding::IntegerKeys { flip } => keys::encode_i32(flip, from, to),
            Encoding::Bits => bits::encode(from, to),
        }
    };
    if !is_clean {
        // Rare: the reference finds the value.
        return scalar::encode(encoding, tensor, wire);
    }
    run.then(scalar::encode(encoding, &tensor[run.tensor..], &mut wire[run.wire..]))
}

pub(super) fn decode(decoding: Decoding, wire: &[u8], tensor: &mut [u8]) {
    let Some(run) = Run::of::<BLOCK>(decoding.shape(), tensor.len(), wire.len()) else {
        return scalar::decode(decoding, wire, tensor);
    };
    let (from, to) = (&wire[..run.wire], &mut tensor[..run.tensor]);
    // SAFETY: callers have found AVX2 and F16C.
    unsafe {
        match decoding {
            Decoding::Scaled { float, scale, packed } => {
                with_float!(float, R => scaled::decode::<R>(scale, packed, from, to));
            }
            Decoding::Integers(divisor) => integers::decode(divisor, from, to),
            Decoding::FloatKeys { float, flip, .. } => match float {
                Float::F32 => keys::decode_f32(flip, from, to),
                Float::F16 | Float::Bf16 => keys::decode_16_bits(flip, from, to),
            },
            Decoding::IntegerKeys { flip } => keys::decode_i32(flip, from, to),
            Decoding::Bits => bits::decode(from, to),
        }
    }
    scalar::decode(decoding, &wire[run.wire..], &mut tensor[run.tensor..]);
}

pub(super) fn magnitude(float: Float, tensor: &[u8]) -> u32 {
    let (blocks, tail) = tensor.as_chunks::<BLOCK>();
    // SAFETY: callers have found AVX2 and F16C.
    let largest = unsafe {
        match float {
            Float::F32 => magnitude::of_f32(blocks),
            Float::F16 => {
                magnitude::of_16_bits::<f16>(blocks).map(|bits| f16::from_bits(bits).to_f32().to_bits())
            }
            Float::Bf16 => {
                magnitude::of_16_bits::<bf16>(blocks).map(|bits| bf16::from_bits(bits).to_f32().to_bits())
            }
        }
    };
    match largest {
        Some(largest) if tail.is_empty() => largest,
        Some(largest) => largest.max(scalar::magnitude(float, tail)),
        None => scalar::magnitude(float, tensor),
    }
}

pub(super) fn any_below(float: Float, least: f32, tensor: &[u8]) -> bool {
    // SAFETY: callers have found AVX2.
    unsafe { magnitude::any_below(float, least, tensor) }
}
