//! The values of a scenario's tensors, and what every worker must have in the end: computed chunk by chunk in 64 bits
//! from the scalar codec's words, whatever the number of levels, lanes and slots.

use std::ops::Range;

use half::{bf16, f16};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::{
    Arithmetic, DType, NonFinitePolicy, Scale,
    convert::{Codec, fill_nan},
};

use crate::scenario::{Scenario, Tensor};

/// What one worker has in each tensor before, as bytes in memory.
pub fn inputs(scenario: &Scenario, rank: u16) -> Vec<Vec<u8>> {
    let seed = scenario.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let fill = |tensor: &Tensor| {
        // One magnitude for every sixteen values or so, from huge to subnormal.
        let mut magnitude = 1.0;
        let value = |index: usize| {
            if index.is_multiple_of(16) {
                magnitude = self::magnitude(scenario, tensor, &mut rng);
            }
            bytes(tensor.dtype, rng.random_range(-magnitude..=magnitude))
        };
        (0..tensor.count).flat_map(value).collect::<Vec<u8>>()
    };
    let mut tensors: Vec<Vec<u8>> = scenario.tensors.iter().map(fill).collect();
    for (bytes, tensor) in tensors.iter_mut().zip(&scenario.tensors) {
        if let Some((_, index)) = tensor.poison.filter(|(culprit, _)| *culprit == rank) {
            let size = tensor.dtype.size();
            let poison = if tensor.dtype == DType::Int32 { f64::from(i32::MIN) } else { f64::NAN };
            bytes[index * size..][..size].copy_from_slice(&self::bytes(tensor.dtype, poison));
        }
    }
    tensors
}

/// A magnitude that every worker's value may have without being at fault.
fn magnitude(scenario: &Scenario, tensor: &Tensor, rng: &mut ChaCha8Rng) -> f64 {
    let codec = codec(scenario);
    let limit = f64::from(codec.limit(tensor.dtype, tensor.arithmetic()));
    match (tensor.dtype, scenario.params.scaling) {
        (DType::Int32, _) => limit,
        (_, Scale::Fixed(scale)) => {
            let most = limit / f64::from(scale) * 0.99;
            // float16 ends at 65,504.
            [most.min(65_000.0), 1.5 / f64::from(scale)][rng.random_range(0..2)]
        }
        (DType::Float16, _) => f64::exp2(f64::from(rng.random_range(-26..12))),
        (_, Scale::Block) => f64::exp2(f64::from(rng.random_range(-148..120))),
    }
}

fn bytes(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::Float32 => (value as f32).to_ne_bytes().to_vec(),
        DType::Float16 => f16::from_f64(value).to_ne_bytes().to_vec(),
        DType::Bfloat16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
        _ => (value as i32).to_ne_bytes().to_vec(),
    }
}

fn codec(scenario: &Scenario) -> Codec {
    let params = &scenario.params;
    Codec::new(params.world, params.wire, params.scaling).scalar()
}

/// What every worker must have in one tensor; `None` when the operation must fail.
pub fn outputs(scenario: &Scenario, number: usize, inputs: &[Vec<Vec<u8>>]) -> Option<Vec<Vec<u8>>> {
    let tensor = &scenario.tensors[number];
    let carries = scenario.params.not_finite == NonFinitePolicy::Carry && tensor.dtype != DType::Int32;
    if tensor.poison.is_some() && !carries {
        return None;
    }
    let world = scenario.params.world;
    let per_word = codec(scenario).values_per_word(tensor.dtype, tensor.arithmetic());
    let chunk = usize::from(scenario.params.elements) * per_word;
    let mut outputs: Vec<Vec<u8>> = inputs.iter().map(|worker| worker[number].clone()).collect();
    let size = tensor.dtype.size();
    for first in (0..tensor.count).step_by(chunk) {
        let span = first..(first + chunk).min(tensor.count);
        let mut result = result(scenario, number, inputs, span.clone());
        if tensor.poison.is_some_and(|(_, at)| span.contains(&at)) {
            fill_nan(tensor.dtype, &mut result);
        }
        for (rank, output) in (0..world).zip(&mut outputs) {
            let taken = overlap(&tensor.parts(rank, world).1, &span);
            let from = (taken.start - first) * size..(taken.end - first) * size;
            output[taken.start * size..taken.end * size].copy_from_slice(&result[from]);
        }
    }
    Some(outputs)
}

fn overlap(range: &Range<usize>, span: &Range<usize>) -> Range<usize> {
    let start = range.start.clamp(span.start, span.end);
    start..range.end.clamp(start, span.end)
}

/// The result of one chunk, before anybody takes his part.
fn result(scenario: &Scenario, number: usize, inputs: &[Vec<Vec<u8>>], span: Range<usize>) -> Vec<u8> {
    let tensor = &scenario.tensors[number];
    let (dtype, arithmetic, size) = (tensor.dtype, tensor.arithmetic(), tensor.dtype.size());
    let codec = codec(scenario);
    let given = |rank: u16| {
        let range = overlap(&tensor.parts(rank, scenario.params.world).0, &span);
        let mut bytes = vec![0; span.len() * size];
        let own = &inputs[usize::from(rank)][number][range.start * size..range.end * size];
        bytes[(range.start - span.start) * size..][..own.len()].copy_from_slice(own);
        (codec.exponent(dtype, arithmetic, own), bytes)
    };
    let given: Vec<_> = (0..scenario.params.world).map(given).collect();
    let exponent = given.iter().map(|(exponent, _)| *exponent).max().unwrap();
    let words = span.len().div_ceil(codec.values_per_word(dtype, arithmetic));
    let mut sums: Option<Vec<i64>> = None;
    for (_, bytes) in given {
        let mut wire = vec![0; words * 4];
        codec.encode(dtype, arithmetic, exponent, &bytes, &mut wire);
        let own = wire.as_chunks().0.iter().map(|word| i64::from(i32::from_be_bytes(*word)));
        let is_order = matches!(arithmetic, Arithmetic::Max | Arithmetic::Min);
        let merge = |(sum, new): (&i64, i64)| if is_order { new.max(*sum) } else { sum + new };
        sums = Some(match sums {
            None => own.collect(),
            Some(sums) => sums.iter().zip(own).map(merge).collect(),
        });
    }
    let sums = sums.unwrap();
    if codec.values_per_word(dtype, arithmetic) == 1 {
        assert!(sums.iter().all(|sum| i32::try_from(*sum).is_ok()), "an overflow");
    }
    let wire: Vec<u8> = sums.iter().flat_map(|sum| (*sum as i32).to_be_bytes()).collect();
    let mut bytes = vec![0; span.len() * size];
    codec.decode(dtype, arithmetic, exponent, &wire, &mut bytes);
    bytes
}
