//! Values that overflow, are not finite or are missing, and operations that differ between workers.

use sumac_transport::{
    Arithmetic, DType, JobError, JobParams, JobState, NonFinitePolicy, OpError, Operation, Scale, WireFormat,
};

use sumac_sim::{events::MILLI, link::Faults};

use crate::{LOSSY, PERFECT, bytes, job, network::Network};

/// Runs one operation with these inputs; returns the results of all workers.
fn run(params: &JobParams, dtype: DType, inputs: &[Vec<u8>]) -> (Network, Vec<Result<(), OpError>>) {
    let mut net = Network::new(params, 1, PERFECT);
    let count = inputs[0].len() / dtype.size();
    for (rank, input) in inputs.iter().enumerate() {
        let buffer = Box::new(input.clone());
        net.submit(rank, Operation::allreduce(5, dtype, Arithmetic::Sum, count, buffer));
    }
    net.run(1, 1);
    let results = (0..inputs.len()).map(|rank| net.completions(rank)[0].result.clone()).collect();
    (net, results)
}

fn output(net: &Network, rank: usize, len: usize) -> Vec<u8> {
    net.completions(rank)[0].buffer.input(0, len).to_vec()
}

//= atp#3.8 overflow is sent again as floats
#[test]
fn a_sum_that_overflows_comes_again_as_floats() {
    let params = JobParams { scaling: Scale::Fixed(1e8), ..job(3, 64) };
    // 21.4 times 1e8 just fits; of element 20, one value does not, and of element 50 only the sum does not.
    let values = |rank: usize| {
        let mut values = vec![0.125f32; 80];
        values[20] = if rank == 1 { 1e20 } else { 3.0 };
        values[50] = 15.25;
        values
    };
    let inputs: Vec<Vec<u8>> = (0..3).map(|rank| bytes(&values(rank))).collect();
    let (net, results) = run(&params, DType::Float32, &inputs);
    let mut sum = vec![0.375f32; 80];
    (sum[20], sum[50]) = ((1e20f32 as f64 + 6.0) as f32, 45.75);
    assert_eq!(results, vec![Ok(()); 3]);
    for rank in 0..3 {
        assert_eq!(output(&net, rank, 320), bytes(&sum), "rank {rank}");
        assert_eq!(net.engine(rank).stats().raw_chunks, 2, "the chunks of 16 to 23 and of 48 to 55");
        assert_eq!(net.engine(rank).stats().halvings, 0, "it is no loss");
    }
    assert_eq!(net.host_stats().asked_raw, 2);
}

/// A tensor of so many chunks of 16 values, in a window of 16.
fn run_block(chunks: usize) -> Network {
    let params = JobParams { scaling: Scale::Block, elements: 16, ..job(2, 64) };
    let values: Vec<f32> = (0..16 * chunks).map(|at| (at % 1000) as f32 * 1e-30).collect();
    let (net, results) = run(&params, DType::Float32, &[bytes(&values), bytes(&values)]);
    assert_eq!(results, vec![Ok(()); 2]);
    let bound = f64::from(999.0 * 1e-30f32) * f64::exp2(-29.0);
    for rank in 0..2 {
        let sums = output(&net, rank, values.len() * 4);
        for (sum, value) in sums.as_chunks().0.iter().map(|sum| f32::from_ne_bytes(*sum)).zip(&values) {
            assert!((f64::from(sum) - 2.0 * f64::from(*value)).abs() <= 4.0 * bound, "{sum} for {value}");
        }
        assert_eq!(sums, output(&net, 0, values.len() * 4), "rank {rank}: the bits of rank 0");
        assert_eq!(net.engine(rank).stats().resent, 0);
    }
    net
}

#[test]
fn a_short_tensor_goes_as_floats_at_once() {
    let net = run_block(7);
    let stats = net.engine(0).stats();
    assert_eq!((stats.raw_chunks, stats.exponent_chunks, stats.chunks_sent), (7, 0, 7));
    assert_eq!(net.host_stats().raw, 7);
}

#[test]
fn a_lone_tensor_is_summed_in_slots() {
    let net = run_block(187);
    let stats = net.engine(0).stats();
    assert_eq!((stats.raw_chunks, stats.exponent_chunks, stats.chunks_sent), (0, 1, 188));
    let host = net.host_stats();
    assert_eq!((host.raw, host.completed), (0, 188));
    // The exponents come from each worker alone, and so do a few chunks whose positions begin with the same
    // slot.
    assert_eq!(2 * host.full_sums + host.contributions, 2 * 188);
    assert!(host.full_sums > 180 && host.contributions >= 2, "{host:?}");
}

/// Sums float32 of three workers; returns the largest error, too, as a multiple of the bound of 16 bits.
fn run_wire(wire: WireFormat, count: usize, faults: Faults) -> (Network, f64) {
    let params = JobParams { scaling: Scale::Block, elements: 16, wire, ..job(3, 64) };
    let values = |rank: usize| -> Vec<f32> { (0..count).map(|at| crate::value(rank, at)).collect() };
    let mut net = Network::new(&params, 7, faults);
    for rank in 0..3 {
        let buffer = Box::new(bytes(&values(rank)));
        net.submit(rank, Operation::allreduce(5, DType::Float32, Arithmetic::Sum, count, buffer));
    }
    net.run(1, 60);
    let sums = output(&net, 0, count * 4);
    for rank in 0..3 {
        assert_eq!(net.completions(rank)[0].result, Ok(()));
        assert_eq!(output(&net, rank, count * 4), sums, "rank {rank}: the bits of rank 0");
    }
    // All values are below 2^3.
    let bound = 9.0 * 8.0 / 32_767.0;
    let error = |(at, sum): (usize, &[u8; 4])| {
        let exact: f64 = (0..3).map(|rank| f64::from(crate::value(rank, at))).sum();
        (f64::from(f32::from_ne_bytes(*sum)) - exact).abs() / bound
    };
    let largest = sums.as_chunks().0.iter().enumerate().map(error).fold(0.0, f64::max);
    (net, largest)
}

#[test]
fn two_values_a_word_take_half_the_chunks() {
    let (words, _) = run_wire(WireFormat::Int32, 16 * 300, PERFECT);
    let (halves, error) = run_wire(WireFormat::Int16, 16 * 300, PERFECT);
    let chunks = |net: &Network| {
        let stats = net.engine(0).stats();
        (stats.chunks_sent - stats.exponent_chunks, stats.raw_chunks)
    };
    assert_eq!((chunks(&words), chunks(&halves)), ((300, 0), (150, 0)));
    assert!(error > 0.01 && error <= 1.0, "{error} of the bound");
    assert_eq!(halves.host_stats().raw, 0, "slots add both values of a word");
    // The exponent of a short tensor is not known in time: the parameter host adds the values.
    let (short, error) = run_wire(WireFormat::Int16, 16 * 14, PERFECT);
    assert_eq!((chunks(&short), short.host_stats().raw), ((7, 7), 7));
    assert!(error > 0.001 && error <= 1.0, "{error} of the bound");
}

#[test]
fn two_values_a_word_survive_loss() {
    let (net, error) = run_wire(WireFormat::Int16, 16 * 2000, LOSSY);
    assert!(net.engine(0).stats().resent > 0 && error <= 1.0, "{error} of the bound: {}", net.summary());
}

#[test]
fn values_of_two_a_word_that_overflow_or_are_no_numbers_come_again() {
    // Of the range of 16 bits each worker has a third: 10,922. Element 20 exceeds it.
    let values = |rank: usize| {
        let mut values = vec![0.5f32; 160];
        values[20] = if rank == 1 { 20_000.0 } else { 3.0 };
        values[70] = if rank == 2 { f32::NEG_INFINITY } else { 1.0 };
        values
    };
    let inputs: Vec<Vec<u8>> = (0..3).map(|rank| bytes(&values(rank))).collect();
    let (scaling, not_finite) = (Scale::Fixed(1.0), NonFinitePolicy::Raw);
    let params = JobParams { scaling, not_finite, wire: WireFormat::Int16, ..job(3, 64) };
    let (net, results) = run(&params, DType::Float32, &inputs);
    assert_eq!(results, vec![Ok(()); 3]);
    assert_eq!(net.host_stats().asked_raw, 2, "the chunks of 16 to 31 and of 64 to 79");
    for rank in 0..3 {
        let sums = output(&net, rank, 640);
        let sums: Vec<f32> = sums.as_chunks().0.iter().map(|sum| f32::from_ne_bytes(*sum)).collect();
        assert!((sums[20] - 20_006.0).abs() <= 2.0 && sums[70] == f32::NEG_INFINITY, "{sums:?}");
        assert!((sums[71] - 1.5).abs() < 1e-3, "beside an infinity, {}", sums[71]);
    }
}

#[test]
fn integers_that_overflow_fail_on_all_workers() {
    let inputs = [[1i32 << 30; 24], [1 << 30; 24]].map(|mut values| {
        values[3..].fill(7);
        values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>()
    });
    let (mut net, results) = run(&job(2, 64), DType::Int32, &inputs);
    assert_eq!(results, vec![Err(OpError::SumTooLarge { first: 0, last: 7 }); 2]);
    let good: Vec<u8> = [-5i32; 24].iter().flat_map(|value| value.to_ne_bytes()).collect();
    for rank in 0..2 {
        let buffer = Box::new(good.clone());
        net.submit(rank, Operation::allreduce(6, DType::Int32, Arithmetic::Sum, 24, buffer));
    }
    net.run(2, 1);
    for rank in 0..2 {
        let completions = net.completions(rank);
        assert_eq!(completions[1].result, Ok(()), "the job goes on");
        assert_eq!(completions[1].buffer.input(0, 4), (-10i32).to_ne_bytes());
    }
}

#[test]
fn what_is_not_finite_fails_or_is_carried() {
    let mut bad = vec![1.0f32; 24];
    bad[9] = f32::NEG_INFINITY;
    let inputs = [bytes(&[1.0; 24]), bytes(&bad)];
    for scaling in [Scale::Fixed(1e6), Scale::Block] {
        let params = JobParams { scaling, ..job(2, 64) };
        let (_, results) = run(&params, DType::Float32, &inputs);
        assert_eq!(results[0], Err(OpError::Peer { first: 8, last: 15 }), "{scaling:?}");
        assert!(matches!(results[1], Err(OpError::NotFinite { index: 9, .. })), "{scaling:?}");
        let params = JobParams { not_finite: NonFinitePolicy::Carry, ..params };
        let (net, results) = run(&params, DType::Float32, &inputs);
        assert_eq!(results, vec![Ok(()); 2]);
        let mut sum = [2.0f32; 24];
        sum[8..16].fill(f32::NAN);
        assert_eq!(output(&net, 0, 96), bytes(&sum), "{scaling:?}");
        assert_eq!(output(&net, 1, 96), bytes(&sum), "{scaling:?}");
    }
}

#[test]
fn a_buffer_that_is_too_short_fails_everywhere() {
    for arithmetic in [Arithmetic::Sum, Arithmetic::Max, Arithmetic::Bits] {
        let mut net = Network::new(&job(2, 64), 1, PERFECT);
        for (rank, len) in [24, 13].into_iter().enumerate() {
            let buffer = Box::new(bytes(&vec![1.0; len]));
            net.submit(rank, Operation::allreduce(5, DType::Float32, arithmetic, 24, buffer));
        }
        net.run(1, 1);
        let result = |rank: usize| net.completions(rank)[0].result.clone();
        assert_eq!(result(0), Err(OpError::Peer { first: 8, last: 15 }), "{arithmetic:?}");
        assert_eq!(result(1), Err(OpError::ShortBuffer { index: 13 }), "{arithmetic:?}");
    }
}

#[test]
fn different_operations_end_the_job() {
    let mut net = Network::new(&job(3, 64), 1, PERFECT);
    for (rank, signature) in [5, 5, 6].into_iter().enumerate() {
        let buffer = Box::new(bytes(&[1.0; 24]));
        net.submit(rank, Operation::allreduce(signature, DType::Float32, Arithmetic::Sum, 24, buffer));
    }
    net.idle(500);
    let why: Vec<_> = net.engines().map(|engine| engine.state()).collect();
    let is_told = |state: &JobState<'_>| {
        matches!(state, JobState::Failed(JobError::Mismatch { lane: 0, seq: 0, base: 0, .. }))
    };
    assert!(why.iter().any(is_told), "{why:?}");
}

#[test]
fn sums_that_all_overflow_flow_as_others_do() {
    let params = JobParams { scaling: Scale::Fixed(1e8), ..job(3, 64) };
    let mut net = Network::new(&params, 6, PERFECT);
    net.join();
    let values = bytes(&vec![30.0f32; 4000]);
    let sum = || Operation::allreduce(5, DType::Float32, Arithmetic::Sum, 4000, Box::new(values.clone()));
    net.submit(0, sum());
    net.submit(1, sum());
    net.idle(30);
    let began = net.world.now();
    net.submit(2, sum());
    net.run(1, 30);
    assert_eq!(output(&net, 2, 16_000), bytes(&vec![90.0f32; 4000]));
    let took = (net.world.now() - began) / MILLI;
    assert!(took < 20, "500 chunks took {took} ms: {}", net.summary());
}
