//! The conversion eight words at a time, with AVX2 and F16C. What is left at the end, and every slice with
//! a value that is not finite or does not fit, is the scalar twin's.
//!
//! | module | its one concern |
//! | --- | --- |
//! | `block` | vectors from and to bytes |
//! | `floats` | eight floats of each type as single precision, and back |
//! | `scaled` | sums and means of floats |
//! | `integers` | sums and means of int32 |
//! | `keys` | maxima and minima |
//! | `magnitude` | the largest magnitude, for the exponent |
//!
//! All of it is called only after [`super::Codec`] found both features at run time.
#![allow(unsafe_code, reason = "vector loads and stores, and calls into code for AVX2")]

mod block;
mod floats;
mod integers;
mod keys;
mod magnitude;
mod scaled;

use half::{bf16, f16};

use super::{Decoding, Encoded, Encoding, WORD, real::Float, scalar};
use block::BLOCK;
use floats::{Bf16, F16, F32};

/// Tensor to wire.
pub(super) fn encode(encoding: Encoding, tensor: &[u8], wire: &mut [u8]) -> Encoded {
    debug_assert!(super::has_vectors());
    let Some(run) = Run::of(encoding.shape(), tensor.len(), wire.len()) else {
        return scalar::encode(encoding, tensor, wire);
    };
    let (from, to) = (&tensor[..run.tensor], &mut wire[..run.wire]);
    // SAFETY: callers found AVX2 and F16C.
    let is_clean = unsafe {
        match encoding {
            Encoding::Scaled { float, quantizer, packed } => match float {
                Float::F32 => scaled::encode::<F32>(quantizer, packed, from, to),
                Float::F16 => scaled::encode::<F16>(quantizer, packed, from, to),
                Float::Bf16 => scaled::encode::<Bf16>(quantizer, packed, from, to),
            },
            Encoding::Integers { limit } => integers::encode(limit, from, to),
            Encoding::FloatKeys { float, flip } => match float {
                Float::F32 => keys::encode_f32(flip, from, to),
                Float::F16 => keys::encode_16_bits::<F16>(flip, from, to),
                Float::Bf16 => keys::encode_16_bits::<Bf16>(flip, from, to),
            },
            Encoding::IntegerKeys { flip } => keys::encode_i32(flip, from, to),
            Encoding::Bits => false,
        }
    };
    if !is_clean {
        // Rare: let the definition find the value.
        return scalar::encode(encoding, tensor, wire);
    }
    let tail = scalar::encode(encoding, &tensor[run.tensor..], &mut wire[run.wire..]);
    let index = |at: Option<usize>| at.map(|at| run.values + at);
    Encoded { saturated: index(tail.saturated), not_finite: index(tail.not_finite) }
}

/// Wire to tensor.
pub(super) fn decode(decoding: Decoding, wire: &[u8], tensor: &mut [u8]) {
    debug_assert!(super::has_vectors());
    let Some(run) = Run::of(decoding.shape(), tensor.len(), wire.len()) else {
        return scalar::decode(decoding, wire, tensor);
    };
    let (from, to) = (&wire[..run.wire], &mut tensor[..run.tensor]);
    // SAFETY: callers found AVX2 and F16C.
    unsafe {
        match decoding {
            Decoding::Scaled { float, dequantizer, packed } => match float {
                Float::F32 => scaled::decode::<F32>(dequantizer, packed, from, to),
                Float::F16 => scaled::decode::<F16>(dequantizer, packed, from, to),
                Float::Bf16 => scaled::decode::<Bf16>(dequantizer, packed, from, to),
            },
            Decoding::Integers { divisor } => integers::decode(divisor, from, to),
            Decoding::FloatKeys { float, flip } => match float {
                Float::F32 => keys::decode_f32(flip, from, to),
                Float::F16 | Float::Bf16 => keys::decode_16_bits(flip, from, to),
            },
            Decoding::IntegerKeys { flip } => keys::decode_i32(flip, from, to),
            Decoding::Bits => {}
        }
    }
    scalar::decode(decoding, &wire[run.wire..], &mut tensor[run.tensor..]);
}

/// The largest finite magnitude, in bits of a single-precision float.
pub(super) fn magnitude(float: Float, tensor: &[u8]) -> u32 {
    debug_assert!(super::has_vectors());
    let (blocks, tail) = tensor.as_chunks::<BLOCK>();
    // SAFETY: callers found AVX2 and F16C.
    let largest = unsafe {
        match float {
            Float::F32 => magnitude::of_f32(blocks),
            Float::F16 => {
                magnitude::of_16_bits::<F16>(blocks).map(|bits| f16::from_bits(bits).to_f32().to_bits())
            }
            Float::Bf16 => {
                magnitude::of_16_bits::<Bf16>(blocks).map(|bits| bf16::from_bits(bits).to_f32().to_bits())
            }
        }
    };
    match largest {
        Some(largest) => largest.max(scalar::magnitude(float, tail)),
        None => scalar::magnitude(float, tensor),
    }
}

/// Bytes of one value and values of one word; `None`: a plain copy.
type Shape = Option<(usize, usize)>;

impl Encoding {
    fn shape(&self) -> Shape {
        match *self {
            Encoding::Scaled { float, packed, .. } => Some((float.size(), if packed { 2 } else { 1 })),
            Encoding::FloatKeys { float, .. } => Some((float.size(), 1)),
            Encoding::Integers { .. } | Encoding::IntegerKeys { .. } => Some((WORD, 1)),
            Encoding::Bits => None,
        }
    }
}

impl Decoding {
    fn shape(&self) -> Shape {
        match *self {
            Decoding::Scaled { float, packed, .. } => Some((float.size(), if packed { 2 } else { 1 })),
            Decoding::FloatKeys { float, .. } => Some((float.size(), 1)),
            Decoding::Integers { .. } | Decoding::IntegerKeys { .. } => Some((WORD, 1)),
            Decoding::Bits => None,
        }
    }
}

/// The part at the front that is whole blocks of words, each with all its values.
struct Run {
    values: usize,
    tensor: usize,
    wire: usize,
}

impl Run {
    /// `None` when there is no such part.
    fn of(shape: Shape, tensor: usize, wire: usize) -> Option<Run> {
        let (size, per_word) = shape?;
        let blocks = (wire / BLOCK).min(tensor / size / per_word / (BLOCK / WORD));
        let words = blocks * (BLOCK / WORD);
        let values = words * per_word;
        (blocks > 0).then_some(Run { values, tensor: values * size, wire: words * WORD })
    }
}
