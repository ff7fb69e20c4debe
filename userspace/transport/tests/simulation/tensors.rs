//! The values of a scenario's tensors, and their exact sums by a way of its own.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::DType;

use crate::scenario::Scenario;

/// What one worker contributes to each tensor, as bytes in memory.
pub fn inputs(scenario: &Scenario, rank: u16) -> Vec<Vec<u8>> {
    let seed = scenario.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let limit = i32::MAX / i32::from(scenario.params.world);
    let mut value = |dtype| match dtype {
        DType::I32 => rng.random_range(-limit..=limit).to_ne_bytes(),
        _ => {
            let largest = limit as f32 / scenario.params.scale * 0.999;
            // Large, small, and many exact halves.
            let value = match rng.random_range(0..3) {
                0 => rng.random_range(-largest..largest),
                1 => rng.random_range(-1.0f32..1.0) / scenario.params.scale,
                _ => (rng.random_range(-99..99) as f32 + 0.5) / scenario.params.scale,
            };
            value.to_ne_bytes()
        }
    };
    let mut tensors: Vec<Vec<u8>> =
        scenario.tensors.iter().map(|t| (0..t.count).flat_map(|_| value(t.dtype)).collect()).collect();
    for (bytes, tensor) in tensors.iter_mut().zip(&scenario.tensors) {
        if let Some((culprit, index)) = tensor.poison.filter(|(culprit, _)| *culprit == rank) {
            let poison = match tensor.dtype {
                DType::I32 => i32::MIN.to_ne_bytes(),
                _ if (index + usize::from(culprit)) % 2 == 0 => f32::NAN.to_ne_bytes(),
                _ => f32::MAX.to_ne_bytes(),
            };
            bytes[index * 4..index * 4 + 4].copy_from_slice(&poison);
        }
    }
    tensors
}

/// The sum of one tensor over all workers' bytes: integers in 64 bits, rounded in double precision.
pub fn sum(dtype: DType, scale: f32, inputs: &[&[u8]]) -> Vec<u8> {
    (0..inputs[0].len() / 4)
        .flat_map(|index| {
            let word = |bytes: &&[u8]| <[u8; 4]>::try_from(&bytes[index * 4..index * 4 + 4]).unwrap();
            match dtype {
                DType::I32 => {
                    let sum: i64 = inputs.iter().map(|i| i64::from(i32::from_ne_bytes(word(i)))).sum();
                    i32::try_from(sum).unwrap().to_ne_bytes()
                }
                _ => {
                    let wire = |value: f32| (f64::from(value) * f64::from(scale)).round_ties_even() as i64;
                    let sum: i64 = inputs.iter().map(|i| wire(f32::from_ne_bytes(word(i)))).sum();
                    ((f64::from(i32::try_from(sum).unwrap()) * (1.0 / f64::from(scale))) as f32).to_ne_bytes()
                }
            }
        })
        .collect()
}
