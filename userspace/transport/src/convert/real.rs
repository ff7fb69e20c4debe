//! The types of floats and their conversions.

use half::{bf16, f16};
use sumac_job::DType;

use super::keys;

/// The types of [`DType`] that are floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    F32,
    F16,
    Bf16,
}

/// Evaluates an expression with the type of a [`Float`].
macro_rules! with_float {
    ($float:expr, $type:ident => $value:expr) => {
        match $float {
            $crate::convert::real::Float::F32 => {
                type $type = f32;
                $value
            }
            $crate::convert::real::Float::F16 => {
                type $type = half::f16;
                $value
            }
            $crate::convert::real::Float::Bf16 => {
                type $type = half::bf16;
                $value
            }
        }
    };
}
pub(super) use with_float;

impl Float {
    pub(super) fn of(dtype: DType) -> Option<Float> {
        match dtype {
            DType::Float32 => Some(Float::F32),
            DType::Float16 => Some(Float::F16),
            DType::Bfloat16 => Some(Float::Bf16),
            DType::Int32 => None,
        }
    }

    /// Bytes of one value.
    pub(super) fn size(self) -> usize {
        with_float!(self, R => R::SIZE)
    }
}

/// A float of 32 or 16 bits. The narrow ones are converted to single precision, which is exact, and
/// results are rounded to it first.
pub(super) trait Real: Copy {
    /// Bytes of one value.
    const SIZE: usize;
    /// Reads the first value of `bytes`, which has one.
    fn read(bytes: &[u8]) -> Self;
    /// Writes the first value of `bytes`, which has room for one.
    fn write(self, bytes: &mut [u8]);
    fn to_f32(self) -> f32;
    /// The nearest, half to even; infinity when it is too large.
    fn of_f32(value: f32) -> Self;
    /// An integer in the floats' order.
    fn key(self) -> i32;
    /// The float of a key.
    fn of_key(key: i32) -> Self;
}

impl Real for f32 {
    const SIZE: usize = 4;

    fn read(bytes: &[u8]) -> f32 {
        f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn write(self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&self.to_ne_bytes());
    }

    fn to_f32(self) -> f32 {
        self
    }

    fn of_f32(value: f32) -> f32 {
        value
    }

    fn key(self) -> i32 {
        keys::of_32_bits(self.to_bits() as i32)
    }

    fn of_key(key: i32) -> f32 {
        f32::from_bits(keys::of_32_bits(key) as u32)
    }
}

/// Implements [`Real`] for a type of 16 bits.
macro_rules! narrow {
    ($float:ty) => {
        impl Real for $float {
            const SIZE: usize = 2;

            fn read(bytes: &[u8]) -> $float {
                <$float>::from_ne_bytes([bytes[0], bytes[1]])
            }

            fn write(self, bytes: &mut [u8]) {
                bytes[..2].copy_from_slice(&self.to_ne_bytes());
            }

            fn to_f32(self) -> f32 {
                <$float>::to_f32(self)
            }

            fn of_f32(value: f32) -> $float {
                <$float>::from_f32(value)
            }

            fn key(self) -> i32 {
                i32::from(keys::of_16_bits(self.to_bits() as i16))
            }

            fn of_key(key: i32) -> $float {
                <$float>::from_bits(keys::of_16_bits(key as i16) as u16)
            }
        }
    };
}

narrow!(f16);
narrow!(bf16);
