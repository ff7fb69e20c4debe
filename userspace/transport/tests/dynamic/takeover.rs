//! A worker dies in the middle of a job, and another takes its place (ATP appendix A.3): nothing is summed twice, and
//! nothing is left out.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::{Arithmetic, DType, DynamicParams, JobParams, Operation, Scale};

use crate::{
    bytes, job,
    network::{Network, Weather},
    tensors::Tensor,
};

/// The operation that chunk `resume` of the stream is in, and how many of its chunks come before.
fn find(params: &JobParams, tensors: &[Tensor], resume: u32) -> (usize, u64) {
    let mut rest = u64::from(resume);
    for (number, tensor) in tensors.iter().enumerate() {
        let chunks = params.chunks(tensor.dtype, tensor.arithmetic, tensor.count);
        if rest < chunks {
            return (number, rest);
        }
        rest -= chunks;
    }
    (tensors.len(), 0)
}

/// Runs a job; says whether the newcomer came in the middle of an operation.
fn run(seed: u64) -> bool {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let world = rng.random_range(2..=4);
    let scaling = if rng.random_bool(0.5) { Scale::Block } else { Scale::Fixed(1e6) };
    let params = JobParams { scaling, ..job(world, [0, 16, 64][rng.random_range(0..3)]) };
    let tensors: Vec<Tensor> = (0..8).map(|_| Tensor::random(&mut rng, &params)).collect();
    let mut net = Network::new(&params, seed);
    if rng.random_bool(0.5) {
        net.weather = Weather { lost: 0.02, doubled: 0.02, marked: 0.0, jitter: 50_000 };
    }
    for rank in 0..usize::from(world) {
        for (number, tensor) in tensors.iter().enumerate() {
            net.submit(rank, tensor.operation(number as u32, rank));
        }
    }
    for _ in 0..rng.random_range(0..600) {
        net.step();
    }
    let dead = rng.random_range(0..usize::from(world));
    let resume = net.replace(dead);
    let (first, skip) = find(&params, &tensors, resume);
    for (number, tensor) in tensors.iter().enumerate().skip(first) {
        let skip = if number == first { skip } else { 0 };
        net.submit(dead, Operation { skip, ..tensor.operation(number as u32, dead) });
    }
    let end = net.now + 60_000_000_000;
    let expected = |rank: usize| if rank == dead { tensors.len() - first } else { tensors.len() };
    while !net.is_done(expected) {
        assert!(net.step() || net.is_done(expected), "seed {seed} ended early: {}", net.summary());
        assert!(net.now < end, "seed {seed} is stuck: {params:?}\n{}", net.summary());
    }
    for (number, tensor) in tensors.iter().enumerate() {
        for rank in 0..usize::from(world) {
            let Some(at) = number.checked_sub(if rank == dead { first } else { 0 }) else { continue };
            let completion = &net.completions[rank][at];
            let what = format!("seed {seed}, rank {rank} ({dead} died), operation {number} of {tensor:?}");
            if tensor.must_fail() {
                // The newcomer may come when the chunk at fault is done.
                assert!(completion.result.is_err() || rank == dead && at == 0, "{what}");
                continue;
            }
            assert_eq!(completion.result, Ok(()), "{what}");
            let size = tensor.dtype.size();
            for (range, allowed) in tensor.outputs(&params) {
                if range.start / size < completion.from {
                    continue;
                }
                let output = completion.buffer.input(range.start, range.len());
                assert!(allowed.iter().any(|allowed| *allowed == output), "{what}, bytes {range:?}");
            }
        }
    }
    skip > 0
}

#[test]
fn a_worker_that_died_is_replaced() {
    let in_the_middle = (0..300).filter(|seed| run(*seed)).count();
    assert!(in_the_middle > 100, "{in_the_middle} came in the middle of an operation");
}

/// Milliseconds that the rest of a sum takes after a worker was replaced, when each value is as large as this.
fn recovery(value: f32) -> u64 {
    let dynamic = DynamicParams::new(1024);
    let params = JobParams { dynamic: Some(dynamic), scaling: Scale::Fixed(1e8), ..job(3, 64) };
    let mut net = Network::new(&params, 6);
    net.join();
    let count = 8 * 2000;
    let values = bytes(&vec![value; count]);
    let sum = |skip| Operation {
        skip,
        ..Operation::allreduce(5, DType::Float32, Arithmetic::Sum, count, Box::new(values.clone()))
    };
    (0..3).for_each(|rank| net.submit(rank, sum(0)));
    while net.engines[0].stats().results < 1000 {
        net.step();
    }
    let resume = net.replace(1);
    net.idle(300);
    let began = net.now;
    net.submit(1, sum(u64::from(resume)));
    net.run(1, 600);
    (net.now - began) / 1_000_000
}

#[test]
fn a_replacement_takes_no_longer_when_sums_overflow() {
    let (fitting, overflowing) = (recovery(1.0), recovery(30.0));
    assert!(overflowing < 10 * fitting.max(5), "{overflowing} ms where sums overflow, else {fitting} ms");
}
