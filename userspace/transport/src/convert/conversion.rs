//! The conversions of a slice: the rows of the table in [`super`], as vector and scalar code get them.

use super::{
    real::Float,
    scale::{Dequantizer, Quantizer},
};

pub(super) const WORD: usize = sumac_wire::header::ELEMENT_LEN;

/// Faults in a slice that [`Codec::encode`](super::Codec::encode) converted, by index within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The first value that was too large for the wire; the nearest that fits was sent.
    pub saturated: Option<usize>,
    /// The first value that is NaN or infinite; zero was sent.
    pub not_finite: Option<usize>,
}

/// The conversion of a slice: a row of the table, with what it needs for scaled floats and for integers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Conversion<S, I> {
    Scaled { float: Float, scale: S, packed: bool },
    Integers(I),
    FloatKeys { float: Float, flip: i32, keeps_infinity: bool },
    IntegerKeys { flip: i32 },
    Bits,
}

/// Tensor to wire; integers have a limit.
pub(super) type Encoding = Conversion<Quantizer, i32>;
/// Wire to tensor; integers have a divisor.
pub(super) type Decoding = Conversion<Dequantizer, u16>;

/// Bytes of one value and values of one word. Copied bits count as whole words.
pub(super) type Shape = (usize, usize);

impl<S, I> Conversion<S, I> {
    pub(super) fn shape(&self) -> Shape {
        match self {
            Conversion::Scaled { float, packed, .. } => (float.size(), if *packed { 2 } else { 1 }),
            Conversion::FloatKeys { float, .. } => (float.size(), 1),
            Conversion::Integers(_) | Conversion::IntegerKeys { .. } | Conversion::Bits => (WORD, 1),
        }
    }
}
