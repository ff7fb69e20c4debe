//! Random operations, and what all workers must have in the end: computed chunk by chunk in 64 bits from the scalar codec's
//! words, or as floats in rank order.

use std::ops::Range;

use half::{bf16, f16};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use sumac_transport::{Arithmetic, DType, JobParams, Operation, Scale, convert::Codec};

/// An operation as all workers mean it, and what each has.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub dtype: DType,
    pub arithmetic: Arithmetic,
    pub count: usize,
    /// The one who gives, of a broadcast.
    root: Option<usize>,
    /// Worker and index of a value that does not fit.
    pub poison: Option<(usize, usize)>,
    inputs: Vec<Vec<u8>>,
}

impl Tensor {
    pub fn random(rng: &mut ChaCha8Rng, params: &JobParams) -> Tensor {
        let world = usize::from(params.world);
        let dtype = [DType::Float32, DType::Float32, DType::Float16, DType::Bfloat16, DType::Int32]
            [rng.random_range(0..5)];
        let kinds = [Arithmetic::Sum, Arithmetic::Sum, Arithmetic::Mean, Arithmetic::Max, Arithmetic::Min];
        let kind = rng.random_range(0..6);
        let arithmetic = kinds.get(kind).copied().unwrap_or(Arithmetic::Bits);
        let root = (arithmetic == Arithmetic::Bits).then(|| rng.random_range(0..world));
        let count = rng.random_range(0..300);
        let mut tensor = Tensor { dtype, arithmetic, count, root, poison: None, inputs: Vec::new() };
        if tensor.is_sum() && count > 0 && rng.random_bool(0.2) {
            tensor.poison = Some((rng.random_range(0..world), rng.random_range(0..count)));
        }
        let largest = match (dtype, params.scaling) {
            (DType::Int32, _) => 2e9 / f64::from(params.world),
            (DType::Float16, _) => 60_000.0 / f64::from(params.world),
            (_, Scale::Fixed(scale)) => 2e9 / f64::from(scale) / f64::from(params.world),
            (_, Scale::Block) => 1e30,
        };
        tensor.inputs = (0..world).map(|rank| tensor.fill(rng, rank, largest)).collect();
        tensor
    }

    fn is_sum(&self) -> bool {
        matches!(self.arithmetic, Arithmetic::Sum | Arithmetic::Mean)
    }

    fn fill(&self, rng: &mut ChaCha8Rng, rank: usize, largest: f64) -> Vec<u8> {
        let value = |at| match self.poison {
            Some(poison) if poison == (rank, at) && self.dtype == DType::Int32 => f64::from(i32::MIN),
            Some(poison) if poison == (rank, at) && self.dtype == DType::Float16 => 60_000.0,
            Some(poison) if poison == (rank, at) => largest * 100.0,
            _ => rng.random_range(-largest..=largest),
        };
        (0..self.count).map(value).flat_map(|value| bytes(self.dtype, value)).collect()
    }

    /// This worker's part in the operation.
    pub fn operation(&self, signature: u32, rank: usize) -> Operation {
        let buffer = Box::new(self.inputs[rank].clone());
        let operation = Operation::allreduce(signature, self.dtype, self.arithmetic, self.count, buffer);
        let gives = if self.root.is_some_and(|root| root != rank) { 0..0 } else { 0..self.count };
        Operation { gives, ..operation }
    }

    /// Whether the operation must fail on all workers.
    pub fn must_fail(&self) -> bool {
        self.dtype == DType::Int32 && self.poison.is_some()
    }

    /// What may be in each chunk's place: the sum of integers, if it fits, and that of floats.
    pub fn outputs(&self, params: &JobParams) -> Vec<(Range<usize>, Vec<Vec<u8>>)> {
        let codec = Codec::new(params.world, params.wire, params.scaling).clamped_sums().scalar();
        let chunk = usize::from(params.elements) * codec.values_per_word(self.dtype, self.arithmetic);
        let size = self.dtype.size();
        let spans = (0..self.count).step_by(chunk).map(|first| first..(first + chunk).min(self.count));
        spans
            .map(|span| {
                let range = span.start * size..span.end * size;
                let given: Vec<&[u8]> = match self.root {
                    Some(root) => vec![&self.inputs[root][range.clone()]],
                    None => self.inputs.iter().map(|input| &input[range.clone()]).collect(),
                };
                let mut outputs = Vec::from_iter(self.integers(&codec, &given));
                outputs.extend(self.floats(params.world, &given));
                (range, outputs)
            })
            .collect()
    }

    fn integers(&self, codec: &Codec, given: &[&[u8]]) -> Option<Vec<u8>> {
        let exponent = given.iter().map(|own| codec.exponent(self.dtype, self.arithmetic, own)).max()?;
        let values = given[0].len() / self.dtype.size();
        let words = values.div_ceil(codec.values_per_word(self.dtype, self.arithmetic));
        let is_order = matches!(self.arithmetic, Arithmetic::Max | Arithmetic::Min);
        let mut sums = vec![if is_order { i64::MIN } else { 0 }; words];
        for own in given {
            let mut wire = vec![0; words * 4];
            let met = codec.encode(self.dtype, self.arithmetic, exponent, own, &mut wire);
            if met.saturated.is_some() {
                return None;
            }
            for (sum, word) in sums.iter_mut().zip(wire.as_chunks().0) {
                let word = i64::from(i32::from_be_bytes(*word));
                *sum = if is_order { word.max(*sum) } else { *sum + word };
            }
        }
        let wire: Option<Vec<[u8; 4]>> =
            sums.iter().map(|sum| i32::try_from(*sum).ok().map(i32::to_be_bytes)).collect();
        let mut output = given[0].to_vec();
        codec.decode(self.dtype, self.arithmetic, exponent, wire?.as_flattened(), &mut output);
        Some(output)
    }

    fn floats(&self, world: u16, given: &[&[u8]]) -> Option<Vec<u8>> {
        let is_float = self.is_sum() && self.dtype != DType::Int32;
        let size = self.dtype.size();
        let divisor = if self.arithmetic == Arithmetic::Mean { f64::from(world) } else { 1.0 };
        let sum = |at: usize| {
            let sum = given.iter().fold(0.0, |sum, own| sum + value(self.dtype, &own[at * size..]));
            f64::from(sum as f32) / divisor
        };
        let values = given.first()?.len() / size;
        is_float.then(|| (0..values).flat_map(|at| narrow(self.dtype, sum(at) as f32)).collect())
    }
}

fn bytes(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::Int32 => (value as i32).to_ne_bytes().to_vec(),
        _ => narrow(dtype, value as f32),
    }
}

fn narrow(dtype: DType, value: f32) -> Vec<u8> {
    match dtype {
        DType::Float16 => f16::from_f32(value).to_ne_bytes().to_vec(),
        DType::Bfloat16 => bf16::from_f32(value).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    }
}

fn value(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::Float16 => f16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
        DType::Bfloat16 => bf16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
        _ => f64::from(f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
    }
}
