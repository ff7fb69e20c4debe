//! Runs of values that begin or end within a word that two values share. The other half is another worker's,
//! and is zero in this worker's packet.

use sumac_job::DType;
use sumac_wire::header::ELEMENT_LEN;

use crate::convert::{Arithmetic, Codec, Encoded, ExactSum};

/// Bytes of two values that share a word, at most.
const PAIR: usize = 2 * 4;

/// Converts the values of one chunk to words and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub codec: Codec,
    pub dtype: DType,
    pub arithmetic: Arithmetic,
    pub exponent: i8,
    /// Of a sum that has no exponent.
    pub exact: Option<ExactSum>,
}

/// The start of a run of values in its chunk: its first word, and whether it begins in the word's middle.
struct Run {
    word: usize,
    in_the_middle: bool,
}

impl Words {
    /// Writes whole values to `wire`, the words of a chunk, from value `at` on; all other words become zero.
    /// Faults are counted from the first of these values.
    pub fn encode(&self, at: usize, tensor: &[u8], wire: &mut [u8]) -> Encoded {
        let Run { word, in_the_middle } = self.run(at);
        let (before, mut wire) = wire.split_at_mut(word * ELEMENT_LEN);
        before.fill(0);
        if let Some(exact) = self.exact {
            let words = tensor.len() / self.dtype.size() * exact.words_per_value();
            let (own, behind) = wire.split_at_mut(words * ELEMENT_LEN);
            behind.fill(0);
            return exact.encode(tensor, own);
        }
        let mut rest = tensor;
        let mut first = Encoded::default();
        if let Some((value, others)) = tensor.split_at_checked(self.dtype.size()).filter(|_| in_the_middle) {
            let (shared, behind) = wire.split_at_mut(ELEMENT_LEN);
            first = self.encode_second(value, shared);
            (rest, wire) = (others, behind);
        }
        let values = rest.len() / self.dtype.size();
        let words = values.div_ceil(self.codec.values_per_word(self.dtype, self.arithmetic));
        let (own, behind) = wire.split_at_mut(words * ELEMENT_LEN);
        let met = self.codec.encode(self.dtype, self.arithmetic, self.exponent, rest, own);
        behind.fill(0);
        let skipped = usize::from(in_the_middle);
        Encoded {
            saturated: first.saturated.or(met.saturated.map(|at| at + skipped)),
            not_finite: first.not_finite.or(met.not_finite.map(|at| at + skipped)),
        }
    }

    /// Writes one value as the second of a word.
    fn encode_second(&self, value: &[u8], word: &mut [u8]) -> Encoded {
        let mut pair = [0; PAIR];
        let size = value.len();
        pair[size..2 * size].copy_from_slice(value);
        let met = self.codec.encode(self.dtype, self.arithmetic, self.exponent, &pair[..2 * size], word);
        let is_it = |at: usize| at.checked_sub(1);
        Encoded { saturated: met.saturated.and_then(is_it), not_finite: met.not_finite.and_then(is_it) }
    }

    /// Reads whole values from `wire`, the words of a chunk, from value `at` on.
    pub fn decode(&self, at: usize, wire: &[u8], tensor: &mut [u8]) {
        let Run { word, in_the_middle } = self.run(at);
        let Words { codec, dtype, arithmetic, exponent, exact } = *self;
        let (mut wire, mut rest) = (&wire[word * ELEMENT_LEN..], tensor);
        if let Some(exact) = exact {
            return exact.decode(codec.divisor(arithmetic), wire, rest);
        }
        let size = dtype.size();
        if in_the_middle && rest.len() >= size {
            let (shared, behind) = wire.split_at(ELEMENT_LEN);
            let (value, others) = rest.split_at_mut(size);
            let mut pair = [0; PAIR];
            codec.decode(dtype, arithmetic, exponent, shared, &mut pair[..2 * size]);
            value.copy_from_slice(&pair[size..2 * size]);
            (wire, rest) = (behind, others);
        }
        codec.decode(dtype, arithmetic, exponent, wire, rest);
    }

    fn run(&self, at: usize) -> Run {
        if let Some(exact) = self.exact {
            return Run { word: at * exact.words_per_value(), in_the_middle: false };
        }
        let per_word = self.codec.values_per_word(self.dtype, self.arithmetic);
        Run { word: at / per_word, in_the_middle: !at.is_multiple_of(per_word) }
    }
}

#[cfg(test)]
mod tests {
    use sumac_job::{Scale, WireFormat};

    use super::*;

    fn words(dtype: DType, arithmetic: Arithmetic, wire: WireFormat) -> Words {
        let codec = Codec::new(2, wire, Scale::Fixed(4.0));
        Words { codec, dtype, arithmetic, exponent: 0, exact: None }
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    /// Adds words, as an aggregator does.
    fn add(a: &[u8], b: &[u8]) -> Vec<u8> {
        let word = |word: &[u8; 4]| u32::from_be_bytes(*word);
        let words = a.as_chunks().0.iter().zip(b.as_chunks().0);
        words.flat_map(|(a, b)| word(a).wrapping_add(word(b)).to_be_bytes()).collect()
    }

    #[test]
    fn two_workers_share_a_word_wherever_they_meet() {
        let values = [1.0, -2.0, 3.5, -4.25, 5.0, -6.0, 7.0];
        let all = floats(&values);
        for wire in [WireFormat::Int32, WireFormat::Int16] {
            let words = words(DType::Float32, Arithmetic::Sum, wire);
            let len = values.len().div_ceil(words.codec.values_per_word(DType::Float32, Arithmetic::Sum)) * 4;
            for meet in 0..=values.len() {
                let (mut front, mut back) = (vec![0xff; len], vec![0xff; len]);
                words.encode(0, &all[..meet * 4], &mut front);
                words.encode(meet, &all[meet * 4..], &mut back);
                let sum = add(&front, &back);
                for from in 0..=values.len() {
                    let mut out = vec![0; (values.len() - from) * 4];
                    words.decode(from, &sum, &mut out);
                    assert_eq!(out, all[from * 4..], "{wire:?}: meet at {meet}, read from {from}");
                }
            }
        }
    }

    #[test]
    fn bytes_of_short_types_too() {
        let words = words(DType::Bfloat16, Arithmetic::Bits, WireFormat::Int32);
        let all: Vec<u8> = (1..=10).collect();
        let (mut front, mut back) = (vec![0; 12], vec![0; 12]);
        words.encode(0, &all[..6], &mut front);
        words.encode(3, &all[6..], &mut back);
        let mut out = vec![0; 10];
        words.decode(0, &add(&front, &back), &mut out);
        assert_eq!(out, all);
    }

    #[test]
    fn faults_count_from_the_first_value() {
        let words = words(DType::Float32, Arithmetic::Sum, WireFormat::Int16);
        let mut wire = [0; 12];
        for (at, values, saturated, not_finite) in [
            (1, [f32::NAN, 1e9, 1.0, 1.0], Some(1), Some(0)),
            (1, [1e9, 1.0, 1.0, f32::INFINITY], Some(0), Some(3)),
            (0, [1.0, 1.0, f32::NAN, 1e9], Some(3), Some(2)),
            (1, [1.0; 4], None, None),
        ] {
            let met = words.encode(at, &floats(&values), &mut wire);
            assert_eq!(met, Encoded { saturated, not_finite }, "{values:?} at {at}");
        }
    }
}
