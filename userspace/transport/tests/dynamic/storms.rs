//! Random jobs in random weather: whatever goes wrong on the way, all workers have the same bits in the end, and the right
//! ones.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::{DynamicParams, EngineStats, JobParams, NonFinitePolicy, OpError, Scale, Tuning};

use crate::{
    network::{Network, Weather},
    support,
    tensors::Tensor,
};

const SEEDS: u64 = 400;
/// Operations of a job.
const OPERATIONS: usize = 6;

fn params(rng: &mut ChaCha8Rng) -> (JobParams, Tuning) {
    let slots = [0, 3, 16, 64, 256][rng.random_range(0..5)];
    let window = 1 << rng.random_range(3..=6);
    let dynamic = DynamicParams {
        positions: window >> rng.random_range(0..=2),
        initial_window: rng.random_range(1..=window),
        congestion: rng.random_bool(0.8),
        ..DynamicParams::new(slots).with_window(window)
    };
    let tuning = Tuning { linear_placement: rng.random_bool(0.2), ..Tuning::default() };
    let params = JobParams {
        dynamic: Some(dynamic),
        scaling: if rng.random_bool(0.5) { Scale::Block } else { Scale::Fixed(1e6) },
        not_finite: NonFinitePolicy::Error,
        ..support::job(rng.random_range(1..=6), 1, rng.random_range(1..=16))
    };
    (params, tuning)
}

/// What befalls the aggregator while the job goes on.
fn strike(rng: &mut ChaCha8Rng, net: &mut Network, has_aggregator: bool) {
    match rng.random_range(0..400) {
        0 => net.is_up = false,
        1..4 => net.is_up = has_aggregator,
        4 => net.aggregator.forget(),
        5 => net.aggregator.occupy((net.now / 1_000_000) as u32),
        _ => {}
    }
}

/// Runs a job; gives what all workers counted.
fn run(seed: u64) -> EngineStats {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (params, tuning) = params(&mut rng);
    let world = usize::from(params.world);
    let has_aggregator = params.dynamic.as_ref().is_some_and(|dynamic| dynamic.slots > 0);
    let tensors: Vec<Tensor> = (0..OPERATIONS).map(|_| Tensor::random(&mut rng, &params)).collect();
    let mut net = Network::tuned(&params, &tuning, seed);
    let is_calm = rng.random_bool(0.2);
    if !is_calm {
        net.weather = Weather {
            lost: [0.0, 0.01, 0.1][rng.random_range(0..3)],
            doubled: [0.0, 0.05][rng.random_range(0..2)],
            marked: [0.0, 0.02][rng.random_range(0..2)],
            jitter: [0, 20_000, 200_000][rng.random_range(0..3)],
        };
    }
    // Workers come to their operations whenever they do.
    let mut submitted = vec![0; world];
    let end = net.now + 1_000_000_000_000;
    let is_missing = |net: &Network| net.completions.iter().any(|ended| ended.len() < tensors.len());
    while is_missing(&net) {
        for (rank, submitted) in submitted.iter_mut().enumerate() {
            if *submitted < tensors.len() && rng.random_bool(0.05) {
                net.submit(rank, tensors[*submitted].operation(*submitted as u32, rank));
                *submitted += 1;
            }
        }
        strike(&mut rng, &mut net, has_aggregator);
        if !net.step() {
            net.now += 50_000;
        }
        assert!(net.now < end, "seed {seed} is stuck: {params:?}\n{}", net.summary());
    }
    check(seed, &params, &tensors, &net);
    let mut totals = EngineStats::default();
    net.engines.iter().for_each(|engine| totals.merge(engine.stats()));
    totals
}

fn check(seed: u64, params: &JobParams, tensors: &[Tensor], net: &Network) {
    for (number, tensor) in tensors.iter().enumerate() {
        let what = format!("seed {seed}, operation {number}: {:?} of {:?}", tensor.arithmetic, tensor.dtype);
        let ended = net.completions.iter().map(|completions| &completions[number]);
        if tensor.must_fail() {
            for completion in ended {
                let error = completion.result.as_ref().expect_err(&what);
                assert!(
                    matches!(error, OpError::Saturated { .. } | OpError::SumTooLarge { .. }),
                    "{what}: {error}"
                );
            }
            continue;
        }
        let whole = tensor.count * tensor.dtype.size();
        let outputs: Vec<&[u8]> = ended
            .map(|completion| {
                assert_eq!(completion.result, Ok(()), "{what}");
                completion.buffer.input(0, whole)
            })
            .collect();
        assert!(outputs.iter().all(|output| *output == outputs[0]), "{what}: not the same everywhere");
        for (range, allowed) in tensor.outputs(params) {
            let is_right = allowed.iter().any(|allowed| *allowed == outputs[0][range.clone()]);
            assert!(is_right, "{what}, bytes {range:?} of {params:?}");
        }
    }
}

#[test]
fn every_storm_ends_with_the_right_bits_everywhere() {
    let mut totals = EngineStats::default();
    (0..SEEDS).for_each(|seed| totals.merge(&run(seed)));
    let hardships = [
        ("a loss by order", totals.suspects_fast),
        ("a loss by timer", totals.suspects_timer),
        ("a chunk sent again", totals.resent),
        ("a collision", totals.collisions),
        ("a position that moved", totals.remapped),
        ("floats", totals.raw_chunks),
        ("a mark", totals.marked),
        ("a window that was halved", totals.halvings),
        ("a lane past its aggregator", totals.direct),
        ("an operation that failed", totals.operations_failed),
        ("a frame that was dropped", totals.frames.dropped()),
    ];
    for (what, count) in hardships {
        assert!(count > 0, "no scenario saw {what}");
    }
    println!("{hardships:?} of {} chunks", totals.chunks_sent);
}
