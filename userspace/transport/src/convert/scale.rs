//! The factor between values and the integers on the wire (SwitchML section 4.6 and appendix E).
//!
//! With `n` workers, `|value| <= 2^m` and `f = (2^31 - 1) / (n 2^m)`, a scaled value is at most
//! `(2^31 - 1) / n`, and its integer is kept within the floor of that: `n` of them add up to at most
//! 2^31 - 1 (Theorem 2). Rounding is off by at most a half and clamping by less than one, so the sum is off
//! by less than `n` in units of `1 / f` (Theorem 1). With 16 bits, 2^15 - 1 stands for 2^31 - 1.

use sumac_values::block::power;
pub(super) use sumac_values::block::{exponent_of, power_of_two};

/// One chunk's factor, and the range of its integers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor {
    factor: f64,
    inverse: f64,
    limit: i32,
}

impl Factor {
    /// A fixed factor; `sharing` workers share an integer's range.
    pub(super) fn fixed(scale: f32, sharing: u16, full_range: i32) -> Factor {
        let factor = f64::from(scale);
        Factor { factor, inverse: 1.0 / factor, limit: full_range / i32::from(sharing) }
    }

    /// Block floating point: the largest factor with which `world` values of up to `2^m` fit.
    pub(super) fn block(exponent: i8, world: u16, full_range: i32) -> Factor {
        let m = power(exponent);
        let (full, workers) = (f64::from(full_range), f64::from(world));
        // Products with powers of two are exact: each number is rounded once, in its quotient.
        Factor {
            factor: full / workers * power_of_two(-m),
            inverse: workers / full * power_of_two(m),
            limit: full_range / i32::from(world),
        }
    }

    /// The magnitude of a value of so many integers.
    pub(super) fn magnitude_of(self, integers: i32) -> f32 {
        (f64::from(integers) * self.inverse) as f32
    }

    pub(super) fn quantizer(self) -> Quantizer {
        Quantizer { factor: self.factor, limit: self.limit }
    }

    /// `divisor`: 1 for a sum, the number of workers for a mean. A sum of some workers' values is scaled to
    /// that of all.
    pub(super) fn dequantizer(self, divisor: u16, (world, contributors): (u16, u16)) -> Dequantizer {
        let inverse = self.inverse / f64::from(divisor);
        if contributors == world {
            return Dequantizer { inverse };
        }
        Dequantizer { inverse: inverse * f64::from(world) / f64::from(contributors) }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Quantizer {
    pub(super) factor: f64,
    pub(super) limit: i32,
}

impl Quantizer {
    pub(super) fn integer(&self, value: f32) -> i32 {
        let limit = f64::from(self.limit);
        // The limit is an integer, so it makes no difference that clamping comes before rounding.
        let clamped = (f64::from(value) * self.factor).clamp(-limit, limit);
        clamped.round_ties_even() as i32
    }

    /// Whether a finite value of this magnitude is off by less than one integer. Values between the limit and
    /// the next integer are clamped without a report: Theorem 1 allows it, and by block floating point the
    /// largest values are there.
    pub(super) fn fits(&self, magnitude: f32) -> bool {
        f64::from(magnitude.abs()) * self.factor < f64::from(self.limit) + 1.0
    }
}

/// For vector code, which converts first and checks the largest magnitude afterwards.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Quantizer {
    /// Whether vector code has the reference's integers for all values up to this magnitude, in bits of a
    /// float: it is finite, fits, and does not round to 2^31, as a single worker's may.
    pub(super) fn all_fit(&self, largest: u32) -> bool {
        let magnitude = f32::from_bits(largest);
        let rounds_into_range = f64::from(magnitude) * self.factor < f64::from(i32::MAX) + 0.5;
        magnitude.is_finite() && self.fits(magnitude) && rounds_into_range
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Dequantizer {
    pub(super) inverse: f64,
}

impl Dequantizer {
    pub(super) fn value(self, sum: i32) -> f32 {
        (f64::from(sum) * self.inverse) as f32
    }
}
