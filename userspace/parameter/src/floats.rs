//! The sum of a chunk that does not fit integers (ATP section 3.8): of the workers' floats, in rank order, so
//! that it does not depend on who comes first.
//!
//! With two values a word, a worker's floats are integers of 16 bits at its packet's exponent, and so is
//! their sum ([`sumac_values::block`]).

use sumac_values::block::{Halves, own_exponent};
use sumac_wire::header::{ELEMENT_LEN, exponent};

/// Room for the floats of chunks, one of each worker: used again, and never more than it was made for.
#[derive(Debug)]
pub(crate) struct FloatStock {
    world: usize,
    elements: usize,
    left: usize,
    free: Vec<Floats>,
    sums: Vec<f64>,
}

/// One chunk's floats by rank: as many words of each worker as a chunk can have, and their exponents.
#[derive(Debug)]
pub(crate) struct Floats {
    words: Box<[u32]>,
    exponents: Box<[i8]>,
}

impl FloatStock {
    pub(crate) fn new(world: u16, elements: u16, chunks: usize) -> FloatStock {
        let (world, elements) = (usize::from(world), usize::from(elements));
        FloatStock { world, elements, left: chunks, free: Vec::new(), sums: Vec::new() }
    }

    pub(crate) fn chunk_bytes(world: usize, elements: u16) -> u64 {
        (world * (usize::from(elements) * size_of::<u32>() + 1)) as u64
    }

    /// Returns room for one chunk; `None`: all is in use.
    pub(crate) fn take(&mut self) -> Option<Floats> {
        if let Some(floats) = self.free.pop() {
            return Some(floats);
        }
        self.left = self.left.checked_sub(1)?;
        self.sums.resize(2 * self.elements, 0.0);
        Some(Floats {
            words: vec![0; self.world * self.elements].into(),
            exponents: vec![exponent::NONE; self.world].into(),
        })
    }

    pub(crate) fn give(&mut self, floats: Floats) {
        self.free.push(floats);
    }

    /// Keeps the elements of `payload`, which have this exponent, as the worker's.
    pub(crate) fn put(&self, floats: &mut Floats, rank: u16, exponent: i8, payload: &[u8]) {
        let (elements, _) = payload.as_chunks::<ELEMENT_LEN>();
        let row = floats.words.chunks_exact_mut(self.elements).nth(rank.into()).unwrap_or_default();
        for (word, element) in row.iter_mut().zip(elements) {
            *word = u32::from_be_bytes(*element);
        }
        floats.exponents.iter_mut().skip(rank.into()).take(1).for_each(|own| *own = exponent);
    }

    /// Sums the floats of all workers but those in `left_out`, a bit for each rank, in 64 bits, rounds once,
    /// and writes the bits of the first ones.
    pub(crate) fn sum(&mut self, floats: &Floats, left_out: u32, values: &mut [i32]) {
        self.add_up(floats, left_out, |sums, _, row| {
            sums.zip(row).for_each(|(sum, word)| *sum += f64::from(f32::from_bits(*word)));
        });
        for (value, sum) in values.iter_mut().zip(&self.sums) {
            *value = (*sum as f32).to_bits() as i32;
        }
    }

    /// As [`FloatStock::sum`], of two values in each of `words`, the number of words that the chunk has.
    /// Returns the exponent of the sum's integers.
    pub(crate) fn sum_halves(&mut self, floats: &Floats, left_out: u32, words: &mut [i32]) -> i8 {
        self.add_up(floats, left_out, |sums, exponent, row| {
            let scale = Halves::at(exponent);
            let halves = row.iter().flat_map(|word| [(*word >> 16) as i16, *word as i16]);
            sums.zip(halves).for_each(|(sum, integer)| *sum += scale.value(integer));
        });
        let rounded = self.sums.iter().map(|sum| *sum as f32).take(2 * words.len());
        let exponent = own_exponent(rounded);
        let scale = Halves::at(exponent);
        let integer = |sum: f64| u32::from(scale.integer(sum as f32) as u16);
        for (word, pair) in words.iter_mut().zip(self.sums.as_chunks::<2>().0) {
            *word = (integer(pair[0]) << 16 | integer(pair[1])) as i32;
        }
        exponent
    }

    /// Adds the workers' rows to sums that begin as negative zeros, which change no float.
    fn add_up(
        &mut self,
        floats: &Floats,
        left_out: u32,
        add: impl Fn(std::slice::IterMut<'_, f64>, i8, &[u32]),
    ) {
        self.sums.fill(-0.0);
        let is_in = |rank| left_out.checked_shr(rank).unwrap_or(0) & 1 == 0;
        let rows = floats.exponents.iter().zip(floats.words.chunks_exact(self.elements));
        for (_, (exponent, row)) in (0..).zip(rows).filter(|(rank, _)| is_in(*rank)) {
            add(self.sums.iter_mut(), *exponent, row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_bits().to_be_bytes()).collect()
    }

    #[test]
    fn halves_are_added_as_what_they_stand_for() {
        let mut stock = FloatStock::new(3, 4, 1);
        let mut floats = stock.take().unwrap();
        // Exponent bytes are m - 2: the first worker's values are multiples of 1 / 32,766.
        let pair = |high: i16, low: i16| [high.to_be_bytes(), low.to_be_bytes()].concat();
        let rows = [(-2, pair(32_766, 16_383)), (0, pair(-32_766, 0)), (-1, pair(i16::MAX, i16::MIN))];
        for rank in [2, 0, 1u16] {
            let (exponent, payload) = &rows[usize::from(rank)];
            stock.put(&mut floats, rank, *exponent, payload);
        }
        let mut words = [0; 1];
        assert_eq!(stock.sum_halves(&floats, 0, &mut words), exponent::LEAST);
        assert_eq!(words, [i32::from_be_bytes([0x7f, 0xff, 0x80, 0])], "infinity and NaN");
        // 1 - 4 and 1/2, of which the largest is at most 2^2.
        assert_eq!(stock.sum_halves(&floats, 0b100, &mut words), 0);
        let [high, low] = [(words[0] >> 16) as i16, words[0] as i16];
        assert_eq!(
            [high, low],
            [
                (-3.0f64 / 4.0 * 32_766.0).round_ties_even() as i16,
                (0.5f64 / 4.0 * 32_766.0).round_ties_even() as i16
            ]
        );
    }

    #[test]
    fn sums_are_in_rank_order_and_rounded_once() {
        let mut stock = FloatStock::new(3, 4, 1);
        let mut floats = stock.take().unwrap();
        assert!(stock.take().is_none());
        let rows = [[3e38, 1.0, -0.0, f32::NAN], [3e38, 1e-8, -0.0, 1.0], [-3e38, 1e-8, -0.0, 1.0]];
        for rank in [2, 0, 1u16] {
            stock.put(&mut floats, rank, exponent::NONE, &bytes(&rows[usize::from(rank)]));
        }
        let mut values = [0; 4];
        stock.sum(&floats, 0, &mut values);
        let got = values.map(|bits| f32::from_bits(bits as u32));
        assert_eq!(got[..2], [3e38, 1.0 + 2e-8]);
        assert!(got[2] == 0.0 && got[2].is_sign_negative() && got[3].is_nan());
        stock.sum(&floats, 0b001, &mut values);
        assert_eq!(
            values.map(|bits| f32::from_bits(bits as u32)),
            [0.0, 2e-8, -0.0, 2.0],
            "without worker 0"
        );
        stock.give(floats);
        assert!(stock.take().is_some());
    }
}
