//! Floats as integers in the same order, so that an integer maximum is the floats' maximum, exactly.
//!
//! The bits of positive floats are in the floats' order already; those of negative ones are in the reverse
//! order, so all bits but the sign are complemented. The map is its own inverse.

/// The key of a 32-bit float's bits, or the bits of a key.
pub(super) fn of_32_bits(bits: i32) -> i32 {
    bits ^ ((bits >> 31) & i32::MAX)
}

/// The key of a 16-bit float's bits, whatever the width of its exponent, or the bits of a key.
pub(super) fn of_16_bits(bits: i16) -> i16 {
    bits ^ ((bits >> 15) & i16::MAX)
}
