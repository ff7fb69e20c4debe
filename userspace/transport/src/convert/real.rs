//! The types of floats and their conversions.

use half::{bf16, f16};
use sumac_job::DType;

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

    pub(super) fn size(self) -> usize {
        with_float!(self, R => R::SIZE)
    }
}

/// A float of 32 or 16 bits. The narrow ones are converted to single precision, which is exact, and
/// results are rounded to it first.
pub(super) trait Real: Copy {
    const SIZE: usize;
    /// The bits of infinity, in the type's own width.
    #[cfg(target_arch = "x86_64")]
    const INFINITY_BITS: u32;
    /// Reads the first value of `bytes`, which has one.
    fn read(bytes: &[u8]) -> Self;
    /// Writes the first value of `bytes`, which has room for one.
    fn write(self, bytes: &mut [u8]);
    fn to_f32(self) -> f32;
    /// The nearest, half to even; infinity when it is too large.
    fn of_f32(value: f32) -> Self;
    /// An integer in the floats' order, so that an integer maximum is the floats' maximum, exactly.
    fn key(self) -> i32;
    fn of_key(key: i32) -> Self;
}

impl Real for f32 {
    const SIZE: usize = 4;
    #[cfg(target_arch = "x86_64")]
    const INFINITY_BITS: u32 = f32::INFINITY.to_bits();

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
        key_of_32_bits(self.to_bits() as i32)
    }

    fn of_key(key: i32) -> f32 {
        f32::from_bits(key_of_32_bits(key) as u32)
    }
}

macro_rules! narrow {
    ($float:ty) => {
        impl Real for $float {
            const SIZE: usize = 2;
            #[cfg(target_arch = "x86_64")]
            const INFINITY_BITS: u32 = <$float>::INFINITY.to_bits() as u32;

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
                i32::from(key_of_16_bits(self.to_bits() as i16))
            }

            fn of_key(key: i32) -> $float {
                <$float>::from_bits(key_of_16_bits(key as i16) as u16)
            }
        }
    };
}

narrow!(f16);
narrow!(bf16);

/// The key of a float's bits, or the bits of a key.
///
/// The bits of positive floats are in the floats' order already; those of negative ones are in the reverse
/// order, so all bits but the sign are complemented. The map is its own inverse.
fn key_of_32_bits(bits: i32) -> i32 {
    bits ^ ((bits >> 31) & i32::MAX)
}

/// The same for 16 bits, whatever the width of the exponent.
fn key_of_16_bits(bits: i16) -> i16 {
    bits ^ ((bits >> 15) & i16::MAX)
}
