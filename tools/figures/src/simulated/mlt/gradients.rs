//! Values in the tensors of the engine: chunks of different magnitudes, which all tensors share, and memory
//! for one received chunk.

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::Buffer;

/// Values of a chunk: 360 words, a frame of 1,546 bytes.
pub const ELEMENTS: u16 = 360;
const BYTES: usize = ELEMENTS as usize * 4;
const CHUNKS: usize = 256;

/// The values of all tensors.
#[derive(Debug)]
pub struct Gradients {
    bytes: Vec<u8>,
    /// By chunk, whether its mean magnitude reaches the median.
    is_important: Vec<bool>,
}

impl Gradients {
    pub fn new(seed: u64) -> Gradients {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut values, mut means) = (Vec::new(), Vec::new());
        for _ in 0..CHUNKS {
            let scale = rng.random_range(-3.0f32..3.0).exp2();
            let chunk: Vec<f32> = (0..ELEMENTS).map(|_| scale * rng.random_range(-1.0f32..1.0)).collect();
            means.push(chunk.iter().map(|value| value.abs()).sum::<f32>() / f32::from(ELEMENTS));
            values.extend(chunk);
        }
        let mut magnitudes: Vec<f32> = values.iter().map(|value| value.abs()).collect();
        magnitudes.sort_by(f32::total_cmp);
        let median = magnitudes[magnitudes.len() / 2];
        let is_important = means.iter().map(|mean| *mean >= median).collect();
        // Twice, so that from every chunk on there are enough values to sample.
        let twice = values.iter().chain(&values);
        Gradients { bytes: twice.flat_map(|value| value.to_ne_bytes()).collect(), is_important }
    }

    /// Whether a chunk of a tensor is important.
    pub fn is_important(&self, tensor: u32, chunk: usize) -> bool {
        self.is_important[(tensor as usize + chunk) % CHUNKS]
    }
}

/// A tensor.
pub struct Tensor {
    gradients: Arc<Gradients>,
    /// Tensors begin with different chunks.
    number: u32,
    received: Vec<u8>,
}

impl Tensor {
    pub fn new(gradients: &Arc<Gradients>, number: u32) -> Tensor {
        Tensor { gradients: gradients.clone(), number, received: Vec::new() }
    }
}

impl Buffer for Tensor {
    fn input(&self, offset: usize, len: usize) -> &[u8] {
        let all = &self.gradients.bytes;
        let from = (self.number as usize * BYTES + offset) % (CHUNKS * BYTES);
        &all[from..(from + len).min(all.len())]
    }

    fn output(&mut self, _: usize, len: usize) -> &mut [u8] {
        self.received.resize(BYTES, 0);
        &mut self.received[..len.min(BYTES)]
    }
}
