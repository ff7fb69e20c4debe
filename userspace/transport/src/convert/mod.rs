//! Tensor bytes to wire elements and back, in one pass each.
//!
//! A float travels as `round(value * scale)`, half to even, in 32-bit two's complement, network
//! order; a sum comes back as `sum * (1 / scale)`, both rounded to single precision. An integer travels as it is. Every
//! value is kept within `(2^31 - 1) / world`, so that no sum of all workers can overflow; what
//! does not fit is clamped and reported, what is not finite counts as zero and is reported.
//!
//! There are two implementations with the same bits: AVX2, chosen at run time, and a scalar one, which is
//! also the definition.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;

use crate::operation::DType;

/// The numbers that a conversion needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    scale: f32,
    inverse: f32,
    /// Largest magnitude of one worker's element.
    integer: i32,
    /// The largest float that is not above `integer`.
    float: f32,
}

/// Converts between tensor bytes (the machine's byte order) and wire elements (network order).
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    limits: Limits,
    vector: bool,
}

impl Codec {
    /// A codec for a job of `world` workers (at least 1) with this scale, on the best instructions
    /// that the machine has.
    pub fn new(scale: f32, world: u16) -> Codec {
        let integer = i32::MAX / i32::from(world.clamp(1, 1024) as i16);
        let limits = Limits { scale, inverse: 1.0 / scale, integer, float: float_below(integer) };
        Codec { limits, vector: has_avx2() }
    }

    /// The same codec without vector instructions, bit for bit.
    #[must_use]
    pub fn scalar(self) -> Codec {
        Codec { vector: false, ..self }
    }

    /// Whether vector instructions are used.
    pub fn is_vector(&self) -> bool {
        self.vector
    }

    /// Largest magnitude of one worker's element on the wire.
    pub fn limit(&self) -> i32 {
        self.limits.integer
    }

    /// Writes the elements of `tensor` to `wire`, both of whole elements and the same number of
    /// them; the shorter counts. Gives the index of the first value that did not fit.
    pub fn encode(&self, dtype: DType, tensor: &[u8], wire: &mut [u8]) -> Option<usize> {
        let len = tensor.len().min(wire.len());
        let (tensor, wire) = (&tensor[..len], &mut wire[..len]);
        #[cfg(target_arch = "x86_64")]
        if self.vector {
            return avx2::encode(dtype, &self.limits, tensor, wire);
        }
        scalar::encode(dtype, &self.limits, tensor, wire)
    }

    /// Writes the sums in `wire` to `tensor`, both of whole elements and the same number of them;
    /// the shorter counts.
    pub fn decode(&self, dtype: DType, wire: &[u8], tensor: &mut [u8]) {
        let len = tensor.len().min(wire.len());
        let (wire, tensor) = (&wire[..len], &mut tensor[..len]);
        #[cfg(target_arch = "x86_64")]
        if self.vector {
            return avx2::decode(dtype, &self.limits, wire, tensor);
        }
        scalar::decode(dtype, &self.limits, wire, tensor);
    }
}

/// Floats have 24 bits: above 2^24 only every second, fourth, ... integer is one.
fn float_below(integer: i32) -> f32 {
    let nearest = integer as f32;
    if f64::from(nearest) > f64::from(integer) { nearest.next_down() } else { nearest }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(test)]
mod tests;
