//! The conversion one element at a time: the definition that vector code is held to.

use super::Limits;
use crate::operation::DType;

/// Tensor to wire; gives the index of the first value that did not fit.
pub(super) fn encode(dtype: DType, limits: &Limits, tensor: &[u8], wire: &mut [u8]) -> Option<usize> {
    let (values, _) = tensor.as_chunks::<4>();
    let (elements, _) = wire.as_chunks_mut::<4>();
    let mut misfit = None;
    for (index, (value, element)) in values.iter().zip(elements).enumerate() {
        let (integer, fits) = match dtype {
            DType::F32 => quantize(limits, f32::from_ne_bytes(*value)),
            DType::I32 => clamp(limits, i32::from_ne_bytes(*value)),
        };
        *element = integer.to_be_bytes();
        if !fits && misfit.is_none() {
            misfit = Some(index);
        }
    }
    misfit
}

/// Wire to tensor.
pub(super) fn decode(dtype: DType, limits: &Limits, wire: &[u8], tensor: &mut [u8]) {
    let (elements, _) = wire.as_chunks::<4>();
    let (values, _) = tensor.as_chunks_mut::<4>();
    for (element, value) in elements.iter().zip(values) {
        let sum = i32::from_be_bytes(*element);
        *value = match dtype {
            DType::F32 => (sum as f32 * limits.inverse).to_ne_bytes(),
            DType::I32 => sum.to_ne_bytes(),
        };
    }
}

/// A float as an integer, and whether it was within the limit.
fn quantize(limits: &Limits, value: f32) -> (i32, bool) {
    let scaled = value * limits.scale;
    if !scaled.is_finite() {
        return (0, false);
    }
    // The limit is an integer, so it makes no difference that clamping comes before rounding.
    let clamped = scaled.clamp(-limits.float, limits.float);
    (clamped.round_ties_even() as i32, scaled.abs() <= limits.float)
}

/// An integer within the limit, and whether it was.
fn clamp(limits: &Limits, value: i32) -> (i32, bool) {
    let clamped = value.clamp(-limits.integer, limits.integer);
    (clamped, clamped == value)
}
