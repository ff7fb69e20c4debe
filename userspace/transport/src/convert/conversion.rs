//! The conversions of a slice: the rows of the table in [`super`], as vector and scalar code get them.

use super::{
    real::Float,
    scale::{Dequantizer, Quantizer},
};

/// Bytes of a word on the wire.
pub(super) const WORD: usize = sumac_wire::header::ELEMENT_LEN;

/// Faults in a slice that [`Codec::encode`](super::Codec::encode) converted, by index within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The first value that was too large for the wire; the nearest that fits was sent.
    pub saturated: Option<usize>,
    /// The first value that is NaN or infinite; zero was sent.
    pub not_finite: Option<usize>,
}

/// The encoding of a slice: a row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) enum Encoding {
    Scaled { float: Float, quantizer: Quantizer, packed: bool },
    Integers { limit: i32 },
    FloatKeys { float: Float, flip: i32 },
    IntegerKeys { flip: i32 },
    Bits,
}

/// The decoding of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) enum Decoding {
    Scaled { float: Float, dequantizer: Dequantizer, packed: bool },
    Integers { divisor: u16 },
    FloatKeys { float: Float, flip: i32 },
    IntegerKeys { flip: i32 },
    Bits,
}

/// Bytes of one value and values of one word. Copied bits count as whole words.
pub(super) type Shape = (usize, usize);

impl Encoding {
    pub(super) fn shape(&self) -> Shape {
        match *self {
            Encoding::Scaled { float, packed, .. } => (float.size(), if packed { 2 } else { 1 }),
            Encoding::FloatKeys { float, .. } => (float.size(), 1),
            Encoding::Integers { .. } | Encoding::IntegerKeys { .. } | Encoding::Bits => (WORD, 1),
        }
    }
}

impl Decoding {
    pub(super) fn shape(&self) -> Shape {
        match *self {
            Decoding::Scaled { float, packed, .. } => (float.size(), if packed { 2 } else { 1 }),
            Decoding::FloatKeys { float, .. } => (float.size(), 1),
            Decoding::Integers { .. } | Decoding::IntegerKeys { .. } | Decoding::Bits => (WORD, 1),
        }
    }
}
