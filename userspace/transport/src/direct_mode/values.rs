//! Values between the tensor and packets of a direct job: bits in network order, or floats in 16 bits, which
//! the receiver adds to its own.

use half::{bf16, f16};
use sumac_job::DType;
use sumac_wire::header::{Format, exponent};

use crate::{
    convert::{Arithmetic, Codec, raw},
    operation::Operation,
    words::Words,
};

/// The form of an operation's values in packets.
#[derive(Clone, Copy, Debug)]
pub(super) enum WireForm {
    /// The type's bits in network order.
    Bits(Words),
    /// Float32 as integers of 16 bits at the packet's own exponent ([`sumac_values::block`]): sums and means
    /// of a job with `wire` int16.
    Halves,
}

impl WireForm {
    pub fn of(codec: Codec, operation: &Operation) -> WireForm {
        let Operation { dtype, arithmetic, .. } = *operation;
        if dtype == DType::Float32 && codec.values_per_word(dtype, arithmetic) == 2 {
            return WireForm::Halves;
        }
        let arithmetic = Arithmetic::Bits;
        WireForm::Bits(Words { codec, dtype, arithmetic, exponent: exponent::NONE, exact: None })
    }

    pub fn format(self) -> Format {
        match self {
            WireForm::Bits(_) => Format::Raw,
            WireForm::Halves => Format::Int16,
        }
    }

    pub fn values_per_word(self) -> usize {
        match self {
            WireForm::Bits(words) => words.codec.values_per_word(words.dtype, words.arithmetic),
            WireForm::Halves => 2,
        }
    }

    /// Writes the words of a chunk, and returns the packet's exponent.
    pub fn encode(self, values: &[u8], wire: &mut [u8]) -> i8 {
        match self {
            WireForm::Bits(words) => {
                words.encode(0, values, wire);
                exponent::NONE
            }
            WireForm::Halves => raw::encode_halves(DType::Float32, true, 0, values, wire).1,
        }
    }

    /// Reads the words of a chunk.
    pub fn decode(self, exponent: i8, wire: &[u8], values: &mut [u8]) {
        match self {
            WireForm::Bits(words) => words.decode(0, wire, values),
            WireForm::Halves => {
                raw::decode_halves(DType::Float32, exponent, (1.0, 1.0), 0, wire, values);
            }
        }
    }
}

/// The reduction of received values into those that are here, and its last step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reducer {
    pub dtype: DType,
    pub arithmetic: Arithmetic,
}

/// The index of the first value that is NaN or infinite.
pub(crate) fn first_not_finite(dtype: DType, values: &[u8]) -> Option<usize> {
    match dtype {
        DType::Float32 => floats(values).position(|value| !value.is_finite()),
        DType::Float16 => halves(values).position(|bits| !f16::from_bits(bits).is_finite()),
        DType::Bfloat16 => halves(values).position(|bits| !bf16::from_bits(bits).is_finite()),
        DType::Int32 => None,
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).filter_map(|word| word.first_chunk().copied()).map(f32::from_ne_bytes)
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.chunks_exact(2).filter_map(|half| half.first_chunk().copied()).map(u16::from_ne_bytes)
}

impl Reducer {
    /// Reduces `others` into `own`, values of the same number. Returns the index of the first sum of integers
    /// that does not fit.
    pub fn add(self, own: &mut [u8], others: &[u8]) -> Option<usize> {
        let is_sum = matches!(self.arithmetic, Arithmetic::Sum | Arithmetic::Mean | Arithmetic::Bits);
        match (self.dtype, self.arithmetic) {
            (DType::Int32, _) if is_sum => return add_integers(own, others),
            (DType::Int32, Arithmetic::Max) => {
                each(own, others, i32::from_ne_bytes, i32::to_ne_bytes, i32::max);
            }
            (DType::Int32, _) => each(own, others, i32::from_ne_bytes, i32::to_ne_bytes, i32::min),
            (DType::Float32, Arithmetic::Max) => {
                each(own, others, f32::from_ne_bytes, f32::to_ne_bytes, f32::max);
            }
            (DType::Float32, Arithmetic::Min) => {
                each(own, others, f32::from_ne_bytes, f32::to_ne_bytes, f32::min);
            }
            (DType::Float32, _) => each(own, others, f32::from_ne_bytes, f32::to_ne_bytes, |a, b| a + b),
            (DType::Float16, _) => {
                let reduce = self.float();
                each(own, others, f16::from_ne_bytes, f16::to_ne_bytes, |a, b| {
                    f16::from_f32(reduce(a.to_f32(), b.to_f32()))
                });
            }
            (DType::Bfloat16, _) => {
                let reduce = self.float();
                each(own, others, bf16::from_ne_bytes, bf16::to_ne_bytes, |a, b| {
                    bf16::from_f32(reduce(a.to_f32(), b.to_f32()))
                });
            }
        }
        None
    }

    fn float(self) -> fn(f32, f32) -> f32 {
        match self.arithmetic {
            Arithmetic::Max => f32::max,
            Arithmetic::Min => f32::min,
            Arithmetic::Sum | Arithmetic::Mean | Arithmetic::Bits => |a, b| a + b,
        }
    }

    /// Sets values to the one that leaves any other one as it is.
    pub fn clear(self, values: &mut [u8]) {
        let float = match self.arithmetic {
            Arithmetic::Min => f32::INFINITY,
            Arithmetic::Max => f32::NEG_INFINITY,
            Arithmetic::Sum | Arithmetic::Mean | Arithmetic::Bits => return values.fill(0),
        };
        let integer = if self.arithmetic == Arithmetic::Min { i32::MAX } else { i32::MIN };
        match self.dtype {
            DType::Int32 => each(values, &[], i32::from_ne_bytes, i32::to_ne_bytes, |_, _| integer),
            DType::Float32 => each(values, &[], f32::from_ne_bytes, f32::to_ne_bytes, |_, _| float),
            DType::Float16 => {
                each(values, &[], f16::from_ne_bytes, f16::to_ne_bytes, |_, _| f16::from_f32(float));
            }
            DType::Bfloat16 => {
                each(values, &[], bf16::from_ne_bytes, bf16::to_ne_bytes, |_, _| bf16::from_f32(float));
            }
        }
    }

    /// Multiplies floats by `factor`; integers are divided by its inverse, rounded to the nearest.
    pub fn scale(self, values: &mut [u8], factor: f64) {
        match self.dtype {
            DType::Int32 => each(values, &[], i32::from_ne_bytes, i32::to_ne_bytes, |a, _| {
                (f64::from(a) * factor).round() as i32
            }),
            DType::Float32 => {
                each(values, &[], f32::from_ne_bytes, f32::to_ne_bytes, |a, _| {
                    (f64::from(a) * factor) as f32
                });
            }
            DType::Float16 => {
                each(values, &[], f16::from_ne_bytes, f16::to_ne_bytes, |a, _| {
                    f16::from_f64(a.to_f64() * factor)
                });
            }
            DType::Bfloat16 => {
                each(values, &[], bf16::from_ne_bytes, bf16::to_ne_bytes, |a, _| {
                    bf16::from_f64(a.to_f64() * factor)
                });
            }
        }
    }
}

/// Replaces each value of `own` by `reduce` of it and the one of `others` at its place; without others by
/// that of itself.
fn each<T: Copy, const N: usize>(
    own: &mut [u8],
    others: &[u8],
    read: fn([u8; N]) -> T,
    write: fn(T) -> [u8; N],
    reduce: impl Fn(T, T) -> T,
) {
    let (own, _) = own.as_chunks_mut::<N>();
    let (others, _) = others.as_chunks::<N>();
    if others.is_empty() {
        own.iter_mut().for_each(|value| *value = write(reduce(read(*value), read(*value))));
    } else {
        own.iter_mut()
            .zip(others)
            .for_each(|(value, other)| *value = write(reduce(read(*value), read(*other))));
    }
}

fn add_integers(own: &mut [u8], others: &[u8]) -> Option<usize> {
    let mut overflown = None;
    let (own, _) = own.as_chunks_mut::<4>();
    let (others, _) = others.as_chunks::<4>();
    for (index, (value, other)) in own.iter_mut().zip(others).enumerate() {
        let (sum, does_overflow) = i32::from_ne_bytes(*value).overflowing_add(i32::from_ne_bytes(*other));
        *value = sum.to_ne_bytes();
        if does_overflow && overflown.is_none() {
            overflown = Some(index);
        }
    }
    overflown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<T, const N: usize>(values: &[T], write: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(write).collect()
    }

    #[test]
    fn values_of_each_type_are_reduced() {
        let table = [
            (Arithmetic::Sum, [4.0f32, -1.0, 2.5]),
            (Arithmetic::Max, [3.0, 1.0, 2.0]),
            (Arithmetic::Min, [1.0, -2.0, 0.5]),
        ];
        let (a, b) = ([1.0f32, 1.0, 2.0], [3.0f32, -2.0, 0.5]);
        for (arithmetic, expected) in table {
            let reducer = |dtype| Reducer { dtype, arithmetic };
            let mut own = bytes(&a, |value| value.to_ne_bytes());
            reducer(DType::Float32).add(&mut own, &bytes(&b, |value| value.to_ne_bytes()));
            assert_eq!(own, bytes(&expected, |value| value.to_ne_bytes()), "{arithmetic:?}");
            let mut own = bytes(&a, |value| bf16::from_f32(*value).to_ne_bytes());
            let others = bytes(&b, |value| bf16::from_f32(*value).to_ne_bytes());
            reducer(DType::Bfloat16).add(&mut own, &others);
            assert_eq!(own, bytes(&expected, |value| bf16::from_f32(*value).to_ne_bytes()), "{arithmetic:?}");
            let mut own = bytes(&a, |value| f16::from_f32(*value).to_ne_bytes());
            reducer(DType::Float16).add(&mut own, &bytes(&b, |value| f16::from_f32(*value).to_ne_bytes()));
            assert_eq!(own, bytes(&expected, |value| f16::from_f32(*value).to_ne_bytes()), "{arithmetic:?}");
        }
    }

    #[test]
    fn the_reduction_of_nothing_changes_no_value() {
        for arithmetic in [Arithmetic::Sum, Arithmetic::Mean, Arithmetic::Min, Arithmetic::Max] {
            let tensors = [
                (DType::Float32, bytes(&[f32::MIN, -1.5, 0.0, f32::MAX], |value| value.to_ne_bytes())),
                (DType::Int32, bytes(&[i32::MIN, -1, 0, i32::MAX], |value| value.to_ne_bytes())),
                (DType::Float16, bytes(&[f16::MIN, f16::MAX], |value| value.to_ne_bytes())),
                (DType::Bfloat16, bytes(&[bf16::MIN, bf16::MAX], |value| value.to_ne_bytes())),
            ];
            for (dtype, others) in tensors {
                let reducer = Reducer { dtype, arithmetic };
                let mut own = vec![0x11; others.len()];
                reducer.clear(&mut own);
                assert_eq!(reducer.add(&mut own, &others), None);
                assert_eq!(own, others, "{dtype:?} {arithmetic:?}");
            }
        }
    }

    #[test]
    fn integers_that_do_not_fit_are_named() {
        let reducer = Reducer { dtype: DType::Int32, arithmetic: Arithmetic::Sum };
        let mut own = bytes(&[1, i32::MAX, 3], |value: &i32| value.to_ne_bytes());
        let others = bytes(&[1, 1, 1], |value: &i32| value.to_ne_bytes());
        assert_eq!(reducer.add(&mut own, &others), Some(1));
        let mut values = bytes(&[10, -10], |value: &i32| value.to_ne_bytes());
        reducer.scale(&mut values, 0.25);
        assert_eq!(values, bytes(&[3, -3], |value: &i32| value.to_ne_bytes()));
    }

    #[test]
    fn values_that_are_not_finite_are_found() {
        let values = bytes(&[1.0, f32::NAN, f32::INFINITY], |value| value.to_ne_bytes());
        assert_eq!(first_not_finite(DType::Float32, &values), Some(1));
        assert_eq!(first_not_finite(DType::Float32, &values[..4]), None);
        assert_eq!(first_not_finite(DType::Int32, &values), None);
    }
}
