//! Exact sums of few floats: each value as a fixed-point number with the whole range of its type (Kulisch's
//! long accumulator), in limbs of which each is a word on the wire.
//!
//! Such a sum has no exponent to agree on, so that it takes one round trip also on an idle stream. A limb has
//! so many bits that `n` workers' limbs add up to at most 2^31 - 1, whatever their signs: no addition carries
//! on the way, and the carries are added up once, where the sum is read.

use super::{
    conversion::{Encoded, WORD},
    real::{Float, Real, with_float},
    scale::power_of_two,
};

/// The exponent of the least single-precision subnormal: 2^-149.
const LEAST_POWER: i32 = -149;
/// Limbs of a value in a job of 1,024 workers.
pub(super) const MOST_LIMBS: usize = 14;
/// More bits than a double has.
const HEAD_BITS: u32 = 64;

/// The form of an operation's values on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactSum {
    float: Float,
    /// Bits of a limb.
    bits: u32,
    /// Limbs of a value, the least significant one first.
    limbs: usize,
}

/// The bits of a type's values from 2^least on.
fn range(float: Float) -> (i32, u32) {
    match float {
        Float::F32 => (LEAST_POWER, 277),
        Float::F16 => (-24, 40),
        Float::Bf16 => (-133, 261),
    }
}

impl ExactSum {
    pub(super) fn new(float: Float, world: u16) -> ExactSum {
        let bits = 31 - u32::from(world).next_power_of_two().trailing_zeros();
        ExactSum { float, bits, limbs: range(float).1.div_ceil(bits) as usize }
    }

    /// Words of a value on the wire.
    pub fn words_per_value(&self) -> usize {
        self.limbs
    }

    /// Writes the values of `tensor` to `wire`, which has room for as many.
    pub fn encode(&self, tensor: &[u8], wire: &mut [u8]) -> Encoded {
        with_float!(self.float, R => self.encode_floats::<R>(tensor, wire))
    }

    fn encode_floats<R: Real>(&self, tensor: &[u8], wire: &mut [u8]) -> Encoded {
        let mut encoded = Encoded::default();
        let limbs = wire.as_chunks_mut::<WORD>().0.chunks_exact_mut(self.limbs);
        for (index, (bytes, limbs)) in tensor.chunks_exact(R::SIZE).zip(limbs).enumerate() {
            let value = R::read(bytes).to_f32();
            limbs.fill([0; WORD]);
            if value.is_finite() {
                self.write(value, limbs);
            } else {
                encoded.not_finite.get_or_insert(index);
            }
        }
        encoded
    }

    /// Writes a finite value of this type to limbs that are zero.
    fn write(&self, value: f32, limbs: &mut [[u8; WORD]]) {
        let exponent = value.to_bits() >> 23 & 0xff;
        let fraction = value.to_bits() & ((1 << 23) - 1);
        let significand = if exponent == 0 { fraction } else { fraction | 1 << 23 };
        // Bits from the type's least on. A narrow type's significand ends with zeros below it.
        let position = exponent.max(1) as i32 - 1 + LEAST_POWER - range(self.float).0;
        let (significand, position) = match u32::try_from(position) {
            Ok(position) => (significand, position),
            Err(_) => (significand.checked_shr(position.unsigned_abs()).unwrap_or(0), 0),
        };
        let mut rest = u64::from(significand) << (position % self.bits);
        for limb in limbs.iter_mut().skip((position / self.bits) as usize) {
            let bits = (rest & self.mask()) as i32;
            *limb = if value.is_sign_negative() { -bits } else { bits }.to_be_bytes();
            rest >>= self.bits;
        }
    }

    fn mask(&self) -> u64 {
        (1 << self.bits) - 1
    }

    /// Reads the sums in `wire`: exact, rounded to double precision, divided, and rounded to the type.
    pub fn decode(&self, divisor: u16, wire: &[u8], tensor: &mut [u8]) {
        with_float!(self.float, R => self.decode_floats::<R>(divisor, wire, tensor));
    }

    fn decode_floats<R: Real>(&self, divisor: u16, wire: &[u8], tensor: &mut [u8]) {
        let limbs = wire.as_chunks::<WORD>().0.chunks_exact(self.limbs);
        for (bytes, limbs) in tensor.chunks_exact_mut(R::SIZE).zip(limbs) {
            let sum = self.read(limbs) / f64::from(divisor);
            R::of_f32(sum as f32).write(bytes);
        }
    }

    /// The sum in these limbs, rounded half to even.
    fn read(&self, limbs: &[[u8; WORD]]) -> f64 {
        let sums = || limbs.iter().map(|limb| i64::from(i32::from_be_bytes(*limb)));
        let is_negative = sums().fold(0, |carry, sum| (carry + sum) >> self.bits) < 0;
        // Of a negative sum all limbs are negated: then the last carry is not negative.
        let sign = if is_negative { -1 } else { 1 };
        let mut digits = [0; MOST_LIMBS + 1];
        let mut carry = 0;
        for (digit, sum) in digits.iter_mut().zip(sums().chain([0])) {
            let sum = carry + sign * sum;
            (*digit, carry) = (sum as u64 & self.mask(), sum >> self.bits);
        }
        // The digits from the first one on. The last bit stands for those that are not needed.
        let (mut head, mut power) = (0, range(self.float).0 + self.bits as i32 * digits.len() as i32);
        let mut digits = digits.iter().rev();
        for digit in digits.by_ref() {
            (head, power) = (head << self.bits | u128::from(*digit), power - self.bits as i32);
            if head >> HEAD_BITS != 0 {
                break;
            }
        }
        head |= u128::from(digits.any(|digit| *digit != 0));
        // The cast rounds half to even, and the product is exact.
        let magnitude = head as f64 * power_of_two(power);
        if is_negative { -magnitude } else { magnitude }
    }
}
