//! Raw floats, of 32 bits in network order, which the parameter host adds where integers do not fit (ATP
//! section 3.8). Floats of 16 bits are widened, which is exact, and sums are rounded to 16 bits again.
//!
//! The floats of a chunk with two values a word do not fit its packet. They go as integers of 16 bits at the
//! packet's own exponent ([`sumac_values::block`]).

use sumac_job::DType;
use sumac_values::block::{Halves, own_exponent};

use super::{
    conversion::{Encoded, WORD},
    real::{Float, Real, with_float},
};

/// Bytes of one of two values in a word.
const HALF: usize = WORD / 2;

/// Writes whole values to `wire`, the words of a chunk, two a word, from value `at` on; all others become
/// zero, and so do values that are not finite, unless it `keeps` them. Returns the packet's exponent, too.
pub(crate) fn encode_halves(
    dtype: DType,
    keeps: bool,
    at: usize,
    tensor: &[u8],
    wire: &mut [u8],
) -> (Encoded, i8) {
    fn encode<R: Real>(keeps: bool, at: usize, tensor: &[u8], wire: &mut [u8]) -> (Encoded, i8) {
        let values = || tensor.chunks_exact(R::SIZE).map(|value| R::read(value).to_f32());
        let exponent = own_exponent(values());
        let scale = Halves::at(exponent);
        let kept = values().map(|value| if keeps || value.is_finite() { value } else { 0.0 });
        let integers = std::iter::repeat_n(0, at).chain(kept.map(|value| scale.integer(value)));
        for (half, integer) in
            wire.as_chunks_mut::<HALF>().0.iter_mut().zip(integers.chain(std::iter::repeat(0)))
        {
            *half = integer.to_be_bytes();
        }
        let not_finite = if keeps { None } else { values().position(|value| !value.is_finite()) };
        (Encoded { saturated: None, not_finite }, exponent)
    }
    let float = Float::of(dtype).unwrap_or(Float::F32);
    with_float!(float, R => encode::<R>(keeps, at, tensor, wire))
}

/// As [`decode`], of two values a word with this exponent; `at` counts values.
pub(crate) fn decode_halves(
    dtype: DType,
    exponent: i8,
    (up, down): (f64, f64),
    at: usize,
    wire: &[u8],
    tensor: &mut [u8],
) {
    fn decode<R: Real>(scale: Halves, (up, down): (f64, f64), halves: &[[u8; HALF]], tensor: &mut [u8]) {
        for (value, half) in tensor.chunks_exact_mut(R::SIZE).zip(halves) {
            let sum = scale.value(i16::from_be_bytes(*half));
            R::of_f32((sum * up / down) as f32).write(value);
        }
    }
    let halves = wire.as_chunks().0.get(at..).unwrap_or_default();
    if let Some(float) = Float::of(dtype) {
        with_float!(float, R => decode::<R>(Halves::at(exponent), (up, down), halves, tensor));
    }
}

/// Writes whole values to `wire`, the words of a chunk, from word `at` on; all other words become zero, and
/// so do values that are not finite, unless it `keeps` them. Integers have no floats: nothing is written.
pub(crate) fn encode(dtype: DType, keeps: bool, at: usize, tensor: &[u8], wire: &mut [u8]) -> Encoded {
    let Some((before, words)) = wire.split_at_mut_checked(at * WORD) else { return Encoded::default() };
    before.fill(0);
    Float::of(dtype)
        .map_or(Encoded::default(), |float| with_float!(float, R => encode_as::<R>(keeps, tensor, words)))
}

fn encode_as<R: Real>(keeps: bool, tensor: &[u8], wire: &mut [u8]) -> Encoded {
    let mut words = wire.as_chunks_mut::<WORD>().0.iter_mut();
    let mut all_finite = true;
    for (value, word) in tensor.chunks_exact(R::SIZE).zip(&mut words) {
        let value = R::read(value).to_f32();
        let is_sent = keeps || value.is_finite();
        all_finite &= is_sent;
        *word = if is_sent { value } else { 0.0 }.to_be_bytes();
    }
    words.for_each(|word| *word = [0; WORD]);
    let is_bad = |value: &[u8]| !R::read(value).to_f32().is_finite();
    let not_finite = if all_finite { None } else { tensor.chunks_exact(R::SIZE).position(is_bad) };
    Encoded { saturated: None, not_finite }
}

/// The factor and the divisor of a sum: it is divided by `divisor`, and multiplied by the quotient of `part`,
/// which is all workers, and those in the sum.
pub(crate) fn quotient(divisor: u16, (world, contributors): (u16, u16)) -> (f64, f64) {
    // One division where nobody is missing, as for the mean of all.
    match world == contributors {
        true => (1.0, f64::from(divisor)),
        false => (f64::from(world), f64::from(divisor) * f64::from(contributors)),
    }
}

/// Reads whole values from `wire`, the words of a chunk, from word `at` on, times this [`quotient`].
pub(crate) fn decode(dtype: DType, (up, down): (f64, f64), at: usize, wire: &[u8], tensor: &mut [u8]) {
    let words = wire.get(at * WORD..).unwrap_or_default();
    if let Some(float) = Float::of(dtype) {
        with_float!(float, R => decode_as::<R>(up, down, words, tensor));
    }
}

fn decode_as<R: Real>(up: f64, down: f64, wire: &[u8], tensor: &mut [u8]) {
    let values = tensor.chunks_exact_mut(R::SIZE).zip(wire.as_chunks::<WORD>().0);
    if up == down {
        return values.for_each(|(value, word)| R::of_f32(f32::from_be_bytes(*word)).write(value));
    }
    for (value, word) in values {
        let scaled = f64::from(f32::from_be_bytes(*word)) * up / down;
        R::of_f32(scaled as f32).write(value);
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn values_are_unchanged() {
        let values = [1.5e30f32, -0.0, f32::MIN_POSITIVE / 2.0, 3.0];
        let tensor: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let mut wire = [0xff; 6 * WORD];
        assert_eq!(encode(DType::Float32, false, 1, &tensor, &mut wire), Encoded::default());
        assert_eq!((&wire[..WORD], &wire[5 * WORD..]), (&[0; WORD][..], &[0; WORD][..]));
        let mut back = [0; 16];
        decode(DType::Float32, quotient(1, (3, 3)), 1, &wire, &mut back);
        assert_eq!(back[..], tensor[..]);
        decode(DType::Float32, quotient(2, (2, 2)), 1, &wire, &mut back);
        assert_eq!(back[..4], 0.75e30f32.to_ne_bytes());
        for (divisor, expected) in [(1, 4.0f32), (4, 1.0)] {
            decode(DType::Float32, quotient(divisor, (4, 3)), 1, &wire, &mut back);
            assert_eq!(back[12..], expected.to_ne_bytes(), "of three workers, scaled to four");
        }
    }

    #[test]
    fn narrow_floats_are_widened_and_rounded() {
        let tensor: Vec<u8> = [1.0f32, 300.5].iter().flat_map(|v| bf16::from_f32(*v).to_ne_bytes()).collect();
        let mut wire = [0; 2 * WORD];
        encode(DType::Bfloat16, false, 0, &tensor, &mut wire);
        assert_eq!(wire[..WORD], 1.0f32.to_be_bytes());
        let mut back = [0; 4];
        decode(DType::Bfloat16, quotient(1, (2, 2)), 0, &wire, &mut back);
        assert_eq!(back[..], tensor[..]);
        let sum = 70000f32.to_be_bytes();
        decode(DType::Float16, quotient(1, (2, 2)), 0, &sum, &mut back);
        assert_eq!(f16::from_ne_bytes([back[0], back[1]]), f16::INFINITY);
    }

    #[test]
    fn two_values_a_word_have_their_own_exponent() {
        let values = [100.0f32, -0.25, f32::INFINITY, 64.0, f32::NAN];
        let tensor: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let mut wire = [0xff; 4 * WORD];
        let (met, exponent) = encode_halves(DType::Float32, true, 1, &tensor, &mut wire);
        assert_eq!((met, exponent), (Encoded::default(), 5), "at most 2^7");
        assert_eq!((&wire[..HALF], &wire[6 * HALF..]), (&[0; HALF][..], &[0; 2 * HALF][..]));
        let mut back = [0; 20];
        decode_halves(DType::Float32, exponent, (1.0, 2.0), 1, &wire, &mut back);
        let back = back.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value)).collect::<Vec<_>>();
        let step = 128.0 / 32_766.0;
        assert!((back[0] - 50.0).abs() <= step / 4.0 && (back[1] + 0.125).abs() <= step / 4.0, "{back:?}");
        assert!(back[2] == f32::INFINITY && (back[3] - 32.0).abs() < step && back[4].is_nan(), "{back:?}");
        let (met, _) = encode_halves(DType::Float32, false, 0, &tensor, &mut wire);
        assert_eq!(met, Encoded { saturated: None, not_finite: Some(2) });
        assert_eq!((&wire[2 * HALF..3 * HALF], &wire[4 * HALF..5 * HALF]), (&[0; HALF][..], &[0; HALF][..]));
    }

    #[test]
    fn values_that_are_not_finite_are_reported() {
        let values = [1.0, f32::NAN, f32::INFINITY];
        let tensor: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let mut wire = [0xff; 3 * WORD];
        let faults = encode(DType::Float32, false, 0, &tensor, &mut wire);
        assert_eq!(faults, Encoded { saturated: None, not_finite: Some(1) });
        assert_eq!(wire[WORD..], [0; 2 * WORD]);
        assert_eq!(encode(DType::Float32, true, 0, &tensor, &mut wire), Encoded::default());
        assert_eq!(wire[2 * WORD..], f32::INFINITY.to_be_bytes(), "it is kept");
    }
}
