//! The scalar conversion: the reference for vector code.
//!
//! Slices come from [`super::Codec`], which cut them to the same number of values.

use half::{bf16, f16};

use super::{
    conversion::{Decoding, Encoded, Encoding, WORD},
    pack,
    real::{Float, Real, with_float},
    scale::{Dequantizer, Quantizer},
};

pub(super) fn encode(encoding: Encoding, tensor: &[u8], wire: &mut [u8]) -> Encoded {
    // Vector code leaves no remainder of most chunks.
    if wire.is_empty() {
        return Encoded::default();
    }
    match encoding {
        Encoding::Scaled { float, scale, packed } => {
            with_float!(float, R => encode_scaled::<R>(scale, packed, tensor, wire))
        }
        Encoding::Integers(limit) => encode_integers(limit, tensor, wire),
        Encoding::FloatKeys { float, flip, keeps_infinity } => {
            with_float!(float, R => encode_keys::<R>(flip, keeps_infinity, tensor, wire))
        }
        Encoding::IntegerKeys { flip } => {
            map_words(tensor, wire, |word| (i32::from_ne_bytes(word) ^ flip).to_be_bytes());
            Encoded::default()
        }
        Encoding::Bits => copy_bits(tensor, wire),
    }
}

pub(super) fn decode(decoding: Decoding, wire: &[u8], tensor: &mut [u8]) {
    if tensor.is_empty() {
        return;
    }
    match decoding {
        Decoding::Scaled { float, scale, packed } => {
            with_float!(float, R => decode_scaled::<R>(scale, packed, wire, tensor));
        }
        Decoding::Integers(divisor) => decode_integers(divisor, wire, tensor),
        Decoding::FloatKeys { float, flip, .. } => {
            with_float!(float, R => decode_keys::<R>(flip, wire, tensor));
        }
        Decoding::IntegerKeys { flip } => {
            map_words(wire, tensor, |word| (i32::from_be_bytes(word) ^ flip).to_ne_bytes());
        }
        Decoding::Bits => tensor.copy_from_slice(&wire[..tensor.len()]),
    }
}

/// The largest finite magnitude, in bits of a single-precision float.
pub(super) fn magnitude(float: Float, tensor: &[u8]) -> u32 {
    fn largest<R: Real>(tensor: &[u8]) -> u32 {
        let magnitudes = tensor.chunks_exact(R::SIZE).map(|bytes| R::read(bytes).to_f32().abs());
        magnitudes.filter(|magnitude| magnitude.is_finite()).map(f32::to_bits).max().unwrap_or(0)
    }
    with_float!(float, R => largest::<R>(tensor))
}

/// Whether a value other than zero has a smaller magnitude.
#[inline]
pub(super) fn any_below(float: Float, magnitude: f32, tensor: &[u8]) -> bool {
    // Bits without their sign are in the floats' order. Zero becomes the largest.
    macro_rules! any_below {
        ($bits:ty, $float:ty) => {{
            let least = <$float>::of_f32(magnitude).to_bits().saturating_sub(1);
            let bits = tensor.as_chunks().0.iter().map(|value| <$bits>::from_ne_bytes(*value) << 1 >> 1);
            // Without an early end, which vector code cannot have.
            bits.fold(false, |found, bits| found | (bits.wrapping_sub(1) < least))
        }};
    }
    match float {
        Float::F32 => any_below!(u32, f32),
        Float::F16 => any_below!(u16, f16),
        Float::Bf16 => any_below!(u16, bf16),
    }
}

impl Encoded {
    /// Returns the value, or zero when it is not finite, and records its fault.
    fn check(&mut self, index: usize, value: f32, fits: bool) -> f32 {
        if !value.is_finite() {
            self.not_finite.get_or_insert(index);
            return 0.0;
        }
        if !fits {
            self.saturated.get_or_insert(index);
        }
        value
    }
}

fn encode_scaled<R: Real>(quantizer: Quantizer, packed: bool, tensor: &[u8], wire: &mut [u8]) -> Encoded {
    let mut encoded = Encoded::default();
    let mut integers = tensor.chunks_exact(R::SIZE).enumerate().map(|(index, bytes)| {
        let value = R::read(bytes).to_f32();
        quantizer.integer(encoded.check(index, value, quantizer.fits(value)))
    });
    for word in wire.as_chunks_mut::<WORD>().0 {
        let first = integers.next().unwrap_or(0);
        let integer = if packed { pack::word(first, integers.next().unwrap_or(0)) } else { first };
        *word = integer.to_be_bytes();
    }
    encoded
}

fn decode_scaled<R: Real>(dequantizer: Dequantizer, packed: bool, wire: &[u8], tensor: &mut [u8]) {
    let mut values = tensor.chunks_exact_mut(R::SIZE);
    let mut put = |sum| {
        if let Some(bytes) = values.next() {
            R::of_f32(dequantizer.value(sum)).write(bytes);
        }
    };
    for word in wire.as_chunks::<WORD>().0 {
        let sum = i32::from_be_bytes(*word);
        if packed {
            let (high, low) = pack::halves(sum);
            put(high);
            put(low);
        } else {
            put(sum);
        }
    }
}

fn encode_keys<R: Real>(flip: i32, keeps_infinity: bool, tensor: &[u8], wire: &mut [u8]) -> Encoded {
    // The largest key of a maximum, and of a minimum's complements.
    let nan = R::of_f32(if flip == 0 { f32::NAN.copysign(1.0) } else { f32::NAN.copysign(-1.0) });
    let mut encoded = Encoded::default();
    let words = wire.as_chunks_mut::<WORD>().0.iter_mut();
    for (index, (bytes, word)) in tensor.chunks_exact(R::SIZE).zip(words).enumerate() {
        let value = R::read(bytes);
        let key = match value.to_f32() {
            number if number.is_nan() && keeps_infinity => nan.key(),
            number if number.is_finite() || keeps_infinity => value.key(),
            number => {
                encoded.check(index, number, true);
                0
            }
        };
        *word = (key ^ flip).to_be_bytes();
    }
    encoded
}

fn decode_keys<R: Real>(flip: i32, wire: &[u8], tensor: &mut [u8]) {
    for (word, bytes) in wire.as_chunks::<WORD>().0.iter().zip(tensor.chunks_exact_mut(R::SIZE)) {
        R::of_key(i32::from_be_bytes(*word) ^ flip).write(bytes);
    }
}

fn encode_integers(limit: i32, tensor: &[u8], wire: &mut [u8]) -> Encoded {
    let mut encoded = Encoded::default();
    let mut index = 0;
    map_words(tensor, wire, |word| {
        let value = i32::from_ne_bytes(word);
        let clamped = value.clamp(-limit, limit);
        if clamped != value {
            encoded.saturated.get_or_insert(index);
        }
        index += 1;
        clamped.to_be_bytes()
    });
    encoded
}

fn decode_integers(divisor: u16, wire: &[u8], tensor: &mut [u8]) {
    map_words(wire, tensor, |word| {
        // A quotient of 31 bits by 10 that is halfway between integers is exact in a double.
        let quotient = f64::from(i32::from_be_bytes(word)) / f64::from(divisor);
        (quotient.round_ties_even() as i32).to_ne_bytes()
    });
}

/// The tensor's bytes as they are; the rest of the last word is zero.
fn copy_bits(tensor: &[u8], wire: &mut [u8]) -> Encoded {
    let (values, padding) = wire.split_at_mut(tensor.len());
    values.copy_from_slice(tensor);
    padding.fill(0);
    Encoded::default()
}

fn map_words(from: &[u8], to: &mut [u8], mut f: impl FnMut([u8; WORD]) -> [u8; WORD]) {
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        *to = f(*from);
    }
}
