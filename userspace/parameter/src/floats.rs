//! The sum of a chunk that does not fit integers (ATP section 3.8): of the workers' floats, in rank order, so
//! that it does not depend on who comes first.

use sumac_wire::header::ELEMENT_LEN;

/// Room for the floats of chunks, one of each worker: used again, and never more than it was made for.
#[derive(Debug)]
pub(crate) struct FloatStock {
    world: usize,
    elements: usize,
    left: usize,
    free: Vec<Floats>,
    sums: Vec<f64>,
}

/// One chunk's floats: as many elements of each worker as a chunk can have, by rank.
#[derive(Debug)]
pub(crate) struct Floats(Box<[f32]>);

impl FloatStock {
    pub(crate) fn new(world: u16, elements: u16, chunks: usize) -> FloatStock {
        let (world, elements) = (usize::from(world), usize::from(elements));
        FloatStock { world, elements, left: chunks, free: Vec::new(), sums: Vec::new() }
    }

    pub(crate) fn chunk_bytes(world: usize, elements: u16) -> u64 {
        (world * usize::from(elements) * size_of::<f32>()) as u64
    }

    /// Returns room for one chunk; `None`: all is in use.
    pub(crate) fn take(&mut self) -> Option<Floats> {
        if let Some(floats) = self.free.pop() {
            return Some(floats);
        }
        self.left = self.left.checked_sub(1)?;
        self.sums.resize(self.elements, 0.0);
        Some(Floats(vec![0.0; self.world * self.elements].into()))
    }

    pub(crate) fn give(&mut self, floats: Floats) {
        self.free.push(floats);
    }

    /// Keeps the elements of `payload` as the worker's.
    pub(crate) fn put(&self, floats: &mut Floats, rank: u16, payload: &[u8]) {
        let (elements, _) = payload.as_chunks::<ELEMENT_LEN>();
        let row = floats.0.chunks_exact_mut(self.elements).nth(rank.into()).unwrap_or_default();
        for (value, element) in row.iter_mut().zip(elements) {
            *value = f32::from_bits(u32::from_be_bytes(*element));
        }
    }

    /// Sums the floats of all workers but those in `left_out`, a bit for each rank, in 64 bits, rounds once,
    /// and gives the bits of the first ones.
    pub(crate) fn sum(&mut self, floats: &Floats, left_out: u32, values: &mut [i32]) {
        let is_in = |rank| left_out.checked_shr(rank).unwrap_or(0) & 1 == 0;
        let rows = (0..).zip(floats.0.chunks_exact(self.elements)).filter(|(rank, _)| is_in(*rank));
        let mut rows = rows.map(|(_, row)| row);
        if let Some(first) = rows.next() {
            self.sums.iter_mut().zip(first).for_each(|(sum, value)| *sum = f64::from(*value));
        }
        for row in rows {
            self.sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        for (value, sum) in values.iter_mut().zip(&self.sums) {
            *value = (*sum as f32).to_bits() as i32;
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
    fn sums_are_in_rank_order_and_rounded_once() {
        let mut stock = FloatStock::new(3, 4, 1);
        let mut floats = stock.take().unwrap();
        assert!(stock.take().is_none());
        let rows = [[3e38, 1.0, -0.0, f32::NAN], [3e38, 1e-8, -0.0, 1.0], [-3e38, 1e-8, -0.0, 1.0]];
        for rank in [2, 0, 1u16] {
            stock.put(&mut floats, rank, &bytes(&rows[usize::from(rank)]));
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
