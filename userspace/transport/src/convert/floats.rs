//! Floats of each type as vectors of single precision, and back.
#![allow(unsafe_code, reason = "vector loads and stores")]

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

use super::real::Real;

/// A type of float, as many at a time as a `Vector` holds.
pub(super) trait Floats<Vector>: Real {
    /// # Safety
    /// A vector's values are readable at `from`; the processor has the vector's features.
    unsafe fn load(from: *const u8) -> Vector;

    /// Rounds to the nearest, half to even; infinity when it is too large. No value is NaN.
    ///
    /// # Safety
    /// A vector's values are writable at `to`; the processor has the vector's features.
    unsafe fn store(to: *mut u8, values: Vector);
}

/// Implements [`Floats`] for a type and a vector.
macro_rules! floats {
    ($features:tt, $vector:ty, $float:ty, |$from:ident| $load:expr, |$to:ident,
    $values:ident| $store:expr) => {
        impl Floats<$vector> for $float {
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn load($from: *const u8) -> $vector {
                // SAFETY: the caller's; the load needs no alignment.
                unsafe { $load }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn store($to: *mut u8, $values: $vector) {
                // SAFETY: the caller's; the store needs no alignment.
                unsafe { $store }
            }
        }
    };
}
use floats;
