//! The exponent byte of a chunk: the smallest power of two that is not below its largest magnitude.
//!
//! A magnitude is the bits of a finite float without its sign: as integers they are in the floats' order.

use sumac_wire::header::exponent::{BIAS, LEAST};

/// Bits of a single-precision float's fraction.
const FRACTION_BITS: u32 = 23;

/// The exponent byte for this magnitude, in bits of a single-precision float: `max(m, -125) - 2` for the
/// smallest m with `magnitude <= 2^m`.
pub(super) fn of_magnitude(bits: u32) -> i8 {
    // Carries into the exponent unless the fraction is zero, which is rounding up to a power of two.
    // Subnormals get an m that is too large, but still below the least.
    let m = ((bits + ((1 << FRACTION_BITS) - 1)) >> FRACTION_BITS) as i32 - 127;
    (m + BIAS).max(i32::from(LEAST)) as i8
}

/// The m of an exponent byte. Bytes that no chunk has count as the nearest that one has.
pub(super) fn power(exponent: i8) -> i32 {
    i32::from(exponent.clamp(LEAST, LARGEST)) - BIAS
}

/// The exponent byte of `f32::MAX`.
const LARGEST: i8 = 126;
