//! How long recovery takes, on the simulated clock: the same on every machine.

use sumac_transport::{Arithmetic, DType, JobParams, Scaling};

use crate::{
    run::run_timed,
    scenario::{Faults, Kind, Scenario, Tensor},
    support,
};

const MICRO: u64 = 1_000;
/// When the tensor is submitted: after the handshake, however often that was lost.
const START: u64 = 2_000_000_000;

/// Four workers, 64 slots, a round trip of about 50 µs, and loss alone.
fn lossy(seed: u64, loss: f64, chunks: usize) -> Scenario {
    let kind = Kind::AllReduce(Arithmetic::Sum);
    let tensor = |count, at| Tensor { kind, dtype: DType::I32, count, lane: 0, at, poison: None };
    let params = support::job(4, 64, 2);
    Scenario {
        seed,
        lanes: 1,
        racks: 1,
        stealing: true,
        first_seq: 0,
        // The empty one begins the handshake.
        tensors: vec![tensor(0, 0), tensor(chunks * 2, START)],
        faults: Faults {
            loss,
            duplication: 0.0,
            reordering: 0.0,
            held_back: MICRO,
            delay: 20 * MICRO,
            spacing: 500,
        },
        ring: 128,
        lateness: vec![0; usize::from(params.world)],
        pause: None,
        outage: None,
        restart: None,
        params,
    }
}

/// What many runs took.
struct Times {
    /// Of the times from submission to the last worker's last result, in microseconds.
    median: u64,
    mean: u64,
}

fn times(seeds: u64, loss: f64, chunks: usize) -> Times {
    let finished = |seed| (run_timed(&lossy(seed, loss, chunks)).1 - START) / MICRO;
    let mut times: Vec<u64> = (0..seeds).map(finished).collect();
    times.sort_unstable();
    Times { median: times[times.len() / 2], mean: times.iter().sum::<u64>() / seeds }
}

/// The bounds are what the engine takes, rounded up by a fifth: a rule that detects loss later than by a round
/// trip or, at a tensor's end, by one or two timeouts of 2 ms does not keep them.
#[test]
fn recovery_is_fast() {
    // Chunks, loss of each frame on each cable; most microseconds in the median and in the mean.
    let table = [
        (64, 0.0, 75, 75),
        (64, 0.001, 90, 150),
        (64, 0.01, 140, 900),
        (64, 0.05, 2_600, 4_600),
        (4000, 0.0, 2_700, 2_700),
        (4000, 0.001, 3_200, 3_300),
        (4000, 0.01, 3_700, 4_300),
        (4000, 0.05, 12_200, 13_400),
    ];
    for (chunks, loss, median, mean) in table {
        let seeds = if chunks == 64 { 200 } else { 40 };
        let took = times(seeds, loss, chunks);
        println!("{chunks} chunks, loss {loss}: median {} us, mean {} us", took.median, took.mean);
        assert!(took.median <= median && took.mean <= mean, "{chunks} chunks, loss {loss}");
    }
}

/// Twenty tensors of a window each, and one worker that is 6 ms late with each of them, more than a hundred
/// round trips. The others probe once during the first and once during the second; then they know how late
/// it is.
#[test]
fn stragglers_cost_a_few_probes() {
    let mut scenario = lossy(0, 0.0, 64);
    let tensor = scenario.tensors[1];
    let step = |step: u64| Tensor { at: START + step * 20_000 * MICRO, ..tensor };
    scenario.tensors = (0..20).map(step).collect();
    scenario.lateness[3] = 6_000 * MICRO;
    let totals = run_timed(&scenario).0;
    println!("{} of {} chunks sent again", totals.needless, 20 * 64 * 4);
    assert_eq!(totals.engines.retransmits_fast, 0);
    assert!((1..=3 * 2 * 2).contains(&totals.needless), "{}", totals.needless);
}

/// A tensor over links that carry a frame in 12 µs (1,500 bytes at 1 Gbit/s), in a window of ten times the path.
fn link_bound(seed: u64, loss: f64) -> Scenario {
    let mut scenario = lossy(seed, loss, 10_000);
    scenario.faults.spacing = 12 * MICRO;
    scenario
}

/// Losing 0.01, 0.1 and 1 % of all frames in each direction of each of four workers costs less than 1, 3 and 10 %
/// of the time: the retransmissions are more frames, and the pipe stays full.
#[test]
fn loss_costs_little_more_than_its_frames() {
    let mean = |loss| {
        let seeds = 4;
        (0..seeds).map(|seed| run_timed(&link_bound(seed, loss)).1 - START).sum::<u64>() / seeds
    };
    let perfect = mean(0.0);
    for (loss, most) in [(0.0001, 1.01), (0.001, 1.03), (0.01, 1.10)] {
        let factor = mean(loss) as f64 / perfect as f64;
        println!("loss {loss}: {factor:.4} times {perfect} ns");
        assert!(factor < most, "loss {loss}: {factor}");
    }
}

/// 256 KB by four workers over a fast path, at 1 % loss: the 99th of 100 is no slow one.
#[test]
fn short_operations_have_no_long_tail() {
    let finished = |seed| (run_timed(&short(seed)).1 - START) / MICRO;
    let mut times: Vec<u64> = (0..1000).map(finished).collect();
    times.sort_unstable();
    let at = |fraction: f64| times[(times.len() as f64 * fraction) as usize];
    println!("256 KB at 1 % loss: p50 {}, p90 {}, p99 {}, p999 {} us", at(0.5), at(0.9), at(0.99), at(0.999));
    assert!(at(0.99) < 10_000);
}

fn short(seed: u64) -> Scenario {
    let mut scenario = lossy(seed, 0.01, 187);
    scenario.params = JobParams { scaling: Scaling::Block, slots: 128, ..scenario.params };
    scenario.tensors[1].dtype = DType::F32;
    scenario.faults.spacing = 2 * MICRO;
    scenario
}
