//! Block floating point: the exponents of packets, and floats as 16-bit integers at their packet's own
//! exponent.
//!
//! Two of the latter are in a word of a chunk that slots cannot add, where the job's sums have 16 bits. The
//! parameter host adds them as the floats that they stand for. With an exponent m they are off by half a step
//! of `2^m / 32,766` at most, and stand for NaN and infinity, too.

use sumac_wire::header::exponent::{BIAS, LEAST};

/// Bits of a single-precision float's fraction.
const FRACTION_BITS: u32 = 23;
/// The exponent byte of `f32::MAX`.
const LARGEST: i8 = 126;

/// The exponent byte for this magnitude, in bits of a single-precision float: `max(m, -125) - 2` for the
/// smallest m with `magnitude <= 2^m`. A magnitude is a finite float without its sign; as integers, bits are
/// in the floats' order.
pub fn exponent_of(bits: u32) -> i8 {
    // Carries into the exponent unless the fraction is zero, which is rounding up to a power of two.
    // Subnormals get an m that is too large, but still below the least.
    let m = ((bits + ((1 << FRACTION_BITS) - 1)) >> FRACTION_BITS) as i32 - 127;
    (m + BIAS).max(i32::from(LEAST)) as i8
}

/// The m of an exponent byte. Bytes that no chunk has count as the nearest that one has.
pub fn power(exponent: i8) -> i32 {
    i32::from(exponent.clamp(LEAST, LARGEST)) - BIAS
}

/// 2^m for an m whose power is a normal double.
pub fn power_of_two(m: i32) -> f64 {
    f64::from_bits(((f64::MAX_EXP - 1 + m) as u64) << (f64::MANTISSA_DIGITS - 1))
}

/// The integers of a packet's largest finite values.
const FULL: f64 = 32_766.0;
const INFINITE: i16 = i16::MAX;
const NAN: i16 = i16::MIN;

/// The step of a packet's 16-bit integers.
#[derive(Clone, Copy, Debug)]
pub struct Halves {
    /// `2^m`, the largest finite magnitude.
    power: f64,
}

impl Halves {
    /// The integers of packets with this exponent.
    pub fn at(exponent: i8) -> Halves {
        Halves { power: power_of_two(power(exponent)) }
    }

    /// The integer for a value that is not finite, or at most `2^m`.
    // Without branches compilers make vector instructions of loops over it: 2.5 to 5 ns a value, not 6 to 9.
    #[inline]
    pub fn integer(self, value: f32) -> i16 {
        /// 1.5 x 2^52: the sum with a small number has it, rounded half to even, in its last bits.
        const ROUND: f64 = 6_755_399_441_055_744.0;
        let scaled = (f64::from(value) * (FULL / self.power)).clamp(-FULL, FULL);
        let finite = (scaled + ROUND).to_bits() as i16;
        let infinite = if value > 0.0 { INFINITE } else { -INFINITE };
        let not_finite = if value.is_nan() { NAN } else { infinite };
        if value.is_finite() { finite } else { not_finite }
    }

    /// The value of an integer. Its own exponent, and that of a power of two times it, has it again.
    #[inline]
    pub fn value(self, integer: i16) -> f64 {
        // A float of more than 2^128 is infinite.
        let finite = (f64::from(integer) * self.power / FULL).clamp(f32::MIN.into(), f32::MAX.into());
        let is_code = integer == INFINITE || integer <= -INFINITE;
        let infinite = if integer > 0 { f64::INFINITY } else { f64::NEG_INFINITY };
        let not_finite = if integer == NAN { f64::NAN } else { infinite };
        if is_code { not_finite } else { finite }
    }
}

/// The exponent byte of the largest of these values that is finite.
pub fn own_exponent(values: impl Iterator<Item = f32>) -> i8 {
    let magnitudes = values.map(|value| if value.is_finite() { value.abs().to_bits() } else { 0 });
    exponent_of(magnitudes.fold(0, u32::max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn powers_of_two() {
        for m in -128..=128 {
            assert_eq!(power_of_two(m), 2f64.powi(m), "2^{m}");
        }
    }

    #[test]
    fn what_is_not_finite_is_kept() {
        let halves = Halves::at(-2);
        for value in [f32::INFINITY, f32::NEG_INFINITY, 1.0, -1.0, 0.5, 0.0] {
            assert_eq!(halves.value(halves.integer(value)), f64::from(value), "{value}");
        }
        assert!(halves.value(halves.integer(f32::NAN)).is_nan());
        assert_eq!(own_exponent([f32::NAN, 3.0, f32::NEG_INFINITY].into_iter()), 0, "3 is at most 2^2");
        assert_eq!(own_exponent([f32::NAN].into_iter()), LEAST);
        assert_eq!(own_exponent([f32::MIN].into_iter()), LARGEST);
        let largest = Halves::at(LARGEST);
        assert_eq!(largest.value(largest.integer(f32::MAX)), f64::from(f32::MAX), "it stays finite");
    }

    proptest! {
        #[test]
        fn values_are_off_by_half_a_step(
            values in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 1..40),
            scale in -140..100i32,
        ) {
            let near = |value: f32| (f64::from(value.fract()) * 2f64.powi(scale)) as f32;
            for values in [values.clone(), values.into_iter().map(near).collect()] {
                let halves = Halves::at(own_exponent(values.iter().copied()));
                let finite = || values.iter().copied().filter(|value| value.is_finite());
                let most = finite().fold(0f64, |most, value| most.max(f64::from(value.abs())));
                let m = (-125..=128).find(|m| 2f64.powi(*m) >= most).unwrap();
                let half_a_step = 2f64.powi(m) / 65_532.0;
                for value in finite() {
                    let kept = halves.value(halves.integer(value));
                    let error = (kept - f64::from(value)).abs();
                    prop_assert!(error <= half_a_step * (1.0 + 1e-12), "{value}: {kept}");
                    prop_assert_eq!(halves.integer(kept as f32), halves.integer(value));
                }
                // Replicas rest on this: what was read is read again, at the exponent of what was read.
                let read = |halves: Halves, values: &[f32]| -> Vec<f32> {
                    values.iter().map(|value| halves.value(halves.integer(*value)) as f32).collect()
                };
                let once = read(halves, &values);
                let again = read(Halves::at(own_exponent(once.iter().copied())), &once);
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&once), bits(&again));
            }
        }
    }
}
