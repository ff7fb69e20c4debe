//! How long recovery takes, on the simulated clock: the same on every machine.

use crate::{
    plain::{MICRO, START, link_bound, lossy, short},
    run::{run, run_traced},
    scenario::{Scenario, Tensor},
};

/// When the last tensor's last result was at the last worker, in nanoseconds from its submission.
fn took(scenario: &Scenario) -> u64 {
    run_traced(scenario).ends.last().map_or(0, |end| end - START)
}

/// What many runs took.
struct Times {
    /// Of the times from submission to the last worker's last result, in microseconds.
    median: u64,
    mean: u64,
}

fn times(seeds: u64, loss: f64, chunks: usize) -> Times {
    let finished = |seed| took(&lossy(seed, loss, chunks)) / MICRO;
    let mut times: Vec<u64> = (0..seeds).map(finished).collect();
    times.sort_unstable();
    Times { median: times[times.len() / 2], mean: times.iter().sum::<u64>() / seeds }
}

/// The bounds are what the engine takes, rounded up by a fifth: a rule that detects loss later than by a round
/// trip or, at a tensor's end, by one or two timeouts of 0.5 ms does not keep them.
#[test]
fn recovery_is_fast() {
    // Chunks, loss of each frame on each cable; most microseconds in the median and in the mean.
    let table = [
        (64, 0.0, 75, 75),
        (64, 0.001, 90, 110),
        (64, 0.01, 190, 350),
        (64, 0.05, 950, 1_200),
        (4000, 0.0, 2_700, 2_700),
        (4000, 0.001, 3_200, 3_200),
        (4000, 0.01, 3_800, 3_900),
        (4000, 0.05, 6_500, 6_600),
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
    let totals = run(&scenario);
    println!("{} of {} chunks asked for", totals.needless, 20 * 64 * 4);
    assert_eq!((totals.engines.suspects_fast, totals.engines.resent), (0, 0));
    assert!((1..=3 * 2 * 2).contains(&totals.needless), "{}", totals.needless);
}

/// Losing 0.01, 0.1 and 1 % of all frames in each direction of each of four workers costs less than 1, 2 and 6 %
/// of the time: the retransmissions are more frames, and the pipe stays full.
#[test]
fn loss_costs_little_more_than_its_frames() {
    let mean = |loss| {
        let seeds = 4;
        (0..seeds).map(|seed| took(&link_bound(seed, loss, 10_000))).sum::<u64>() / seeds
    };
    let perfect = mean(0.0);
    for (loss, most) in [(0.0001, 1.01), (0.001, 1.02), (0.01, 1.06)] {
        let factor = mean(loss) as f64 / perfect as f64;
        println!("loss {loss}: {factor:.4} times {perfect} ns");
        assert!(factor < most, "loss {loss}: {factor}");
    }
}

/// 256 KB by four workers over a fast path, at 1 % loss: the slowest of 100 is to end within 10 ms on hosts that have
/// other things to do; the protocol needs less than 1.7 of them.
#[test]
fn short_operations_have_no_long_tail() {
    let finished = |seed| took(&short(seed)) / MICRO;
    let mut times: Vec<u64> = (0..1000).map(finished).collect();
    times.sort_unstable();
    let at = |fraction: f64| times[(times.len() as f64 * fraction) as usize];
    println!("256 KB at 1 % loss: p50 {}, p90 {}, p99 {}, p999 {} us", at(0.5), at(0.9), at(0.99), at(0.999));
    assert!(at(0.99) < 1_700);
}

/// A lost frame holds its slot up for all four workers, and none can tell whose it was: each asks, a few times, and the
/// one whose contribution or result was lost sends its elements again.
#[test]
fn a_loss_costs_one_retransmission() {
    let totals = run(&link_bound(0, 0.01, 10_000));
    let (asked, again) = (totals.engines.questions, totals.engines.resent);
    println!(
        "{} lost, {asked} asked, {again} sent again; {} were there already, {} results sent again",
        totals.lost, totals.duplicates, totals.replies
    );
    assert!(again <= totals.lost && asked <= 8 * totals.lost);
}

/// Random loss leaves slots uneven; those that were spared take the work of the others (the paper's figure 7).
#[test]
fn stealing_shortens_the_tail() {
    let mean = |stealing| {
        let run = |seed| took(&Scenario { stealing, ..link_bound(seed, 0.01, 10_000) });
        (0..4).map(run).sum::<u64>() / 4 / MICRO
    };
    let (with, without) = (mean(true), mean(false));
    println!("10,000 chunks at 1 % loss: {with} us with stealing, {without} us without");
    assert!(with < without);
}

/// A small urgent tensor in the middle of a long one: it has slots of its own and goes first.
#[test]
fn what_is_urgent_waits_for_nobody() {
    let mut scenario = link_bound(0, 0.0, 10_000);
    let bulk = scenario.tensors[1];
    scenario.lanes = 2;
    scenario.tensors.push(Tensor { lane: 1, count: 20, at: START + 10_000 * MICRO, ..bulk });
    let ends = run_traced(&scenario).ends;
    let urgent = ends[2] - scenario.tensors[2].at;
    println!("urgent: {} us, bulk: {} us", urgent / MICRO, (ends[1] - START) / MICRO);
    // The window of the bulk tensor is in the cables already: 64 frames of 12 us.
    assert!(ends[2] < ends[1] && urgent < 1_200 * MICRO);
}
