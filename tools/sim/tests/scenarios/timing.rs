//! Recovery times on the simulated clock: the same on every machine.

use sumac_sim::{
    events::{MICRO, MILLI, Nanos, SECOND},
    link::{Faults, LinkSpec},
    packet::Framing,
};
use sumac_transport::{Arithmetic, DType, JobParams, Scale};

use crate::{
    draw::{params, plan},
    run::{ends, ends_with_totals, run},
    scenario::{JobPlan, Kind, Scenario, Shape, Sums, Tensor},
    totals::Totals,
};

/// Time at which the tensor is submitted: after the handshake, however often that was lost.
const START: Nanos = 2 * SECOND;
/// Chunks of 2 elements with the length of 360: frames of 1,538 bytes.
const ELEMENTS: u16 = 2;
const FRAMING: Framing = Framing { stretch: 180 };

/// Four workers, 64 slots, a round trip of about 50 us, cables that carry a full frame in `spacing`, and loss
/// alone.
fn lossy_at(seed: u64, loss: f64, chunks: usize, spacing: Nanos) -> Scenario {
    let kind = Kind::AllReduce(Arithmetic::Sum);
    let tensor = |count, at| {
        let (dtype, lane, sums, poison) = (DType::Int32, 0, Sums::Fit, None);
        Tensor { kind, dtype, count, lane, at, sums, poison }
    };
    // The empty one begins the handshake.
    let tensors = vec![tensor(0, 0), tensor(chunks * usize::from(ELEMENTS), START)];
    let rate = FRAMING.chunk_len(ELEMENTS) * 8_000_000_000 / spacing;
    let jobs = vec![plan(JobParams { slots: 64, ..params(3, 4, ELEMENTS) }, tensors)];
    let cable = LinkSpec::new(rate, 20 * MICRO);
    Scenario {
        faults: Faults { loss, ..Faults::default() },
        ..Scenario::new(seed, FRAMING, Shape::One, jobs, cable)
    }
}

fn lossy(seed: u64, loss: f64, chunks: usize) -> Scenario {
    lossy_at(seed, loss, chunks, 500)
}

/// Cables that carry a frame in 12 us (1,500 bytes at 1 Gbit/s), in a window of ten times the path.
fn link_bound(seed: u64, loss: f64, chunks: usize) -> Scenario {
    lossy_at(seed, loss, chunks, 12 * MICRO)
}

/// 256 KB of floats with block exponents at 1 % loss, over a fast path.
fn short(seed: u64) -> Scenario {
    let mut scenario = lossy_at(seed, 0.01, 187, 2 * MICRO);
    let JobPlan { params, tensors, .. } = &mut scenario.jobs[0];
    (params.scaling, params.slots, tensors[1].dtype) = (Scale::Block, 128, DType::Float32);
    scenario
}

/// Time from the last tensor's submission to the last worker's last result.
fn took(scenario: &Scenario) -> Nanos {
    ends(scenario).last().map_or(0, |end| end - START)
}

/// The first of the seeds for means. Means of 200 runs of 64 chunks differ by a tenth between sets of seeds.
const FIRST_SEED: u64 = 400;

/// Median and mean over seeds, in microseconds.
fn times(seeds: u64, loss: f64, chunks: usize) -> (u64, u64) {
    let seeds_of = FIRST_SEED..FIRST_SEED + seeds;
    let mut times: Vec<u64> = seeds_of.map(|seed| took(&lossy(seed, loss, chunks)) / MICRO).collect();
    times.sort_unstable();
    (times[times.len() / 2], times.iter().sum::<u64>() / seeds)
}

/// The bounds are the measured times and a fifth: a rule that detects loss later by a round trip, or at a
/// tensor's end by one or two timeouts of 0.5 ms, exceeds them.
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
    for (chunks, loss, most_median, most_mean) in table {
        let seeds = if chunks == 64 { 200 } else { 40 };
        let (median, mean) = times(seeds, loss, chunks);
        println!("{chunks} chunks, loss {loss}: median {median} us, mean {mean} us");
        assert!(median <= most_median && mean <= most_mean, "{chunks} chunks, loss {loss}");
    }
}

/// A broadcast over cables that carry a frame in 12 us, in so many slots. Returns the time
/// over that of the root's frames alone, and of the chunks that receivers sent without values the part whose
/// zeros were wanted. `has_room`: frames without values have room for a result.
fn broadcast(seed: u64, loss: f64, chunks: usize, slots: u32, has_room: bool) -> (f64, f64) {
    let mut scenario = link_bound(seed, loss, chunks);
    scenario.has_room = has_room;
    let JobPlan { params, tensors, .. } = &mut scenario.jobs[0];
    (params.slots, tensors[1].kind) = (slots, Kind::Broadcast { root: 0 });
    let (ends, totals) = ends_with_totals(&scenario);
    let ideal = chunks as f64 * 12.0 * MICRO as f64;
    let took = ends.last().map_or(0, |end| end - START);
    let Totals { fixed, .. } = totals;
    assert_eq!(fixed.chunks_empty, 3 * chunks as u64, "of three receivers");
    (took as f64 / ideal, fixed.empty_wanted as f64 / fixed.chunks_empty as f64)
}

/// Receivers send headers. Their zeros are wanted where a header comes last.
#[test]
fn receivers_of_a_broadcast_send_headers() {
    // Loss of each frame on each cable; the most time, and the largest part that is wanted. The bounds are
    // those measured, and some more. The root waits for lost chunks within three quarters of its slots.
    // Without that loss cost half as much, but in labs most zeros were wanted, whatever the loss.
    for (loss, most_time, most_wanted) in [(0.0, 1.005, 0.0), (0.001, 1.08, 0.15), (0.01, 1.2, 0.1)] {
        for slots in [8, 16, 64] {
            let (time, wanted) = broadcast(FIRST_SEED, loss, 4000, slots, false);
            println!("{slots} slots, loss {loss}: {time:.3} of the link's time, {wanted:.4} wanted");
            assert!(time <= most_time && wanted <= most_wanted, "{slots} slots, loss {loss}");
            // Lost headers are asked for with their values. The rest gets them at the aggregator.
            let (time, wanted) = broadcast(FIRST_SEED, loss, 4000, slots, true);
            println!("with room: {time:.3} of the link's time, {wanted:.4} wanted");
            assert!(time <= most_time && wanted <= 2.0 * loss, "with room, {slots} slots, loss {loss}");
        }
    }
}

/// Six sums of 256 KB one after the other by four workers, with block exponents, on cables that carry a frame
/// in `spacing`.
fn sums_of_256_kb(seed: u64, loss: f64, spacing: Nanos) -> Scenario {
    let mut scenario = lossy_at(seed, loss, 187, spacing);
    scenario.cable.delay = 10 * MICRO;
    let JobPlan { params, tensors, .. } = &mut scenario.jobs[0];
    params.scaling = Scale::Block;
    let sum = |number: u64| Tensor { dtype: DType::Float32, at: START + number * 500 * MILLI, ..tensors[1] };
    let sums: Vec<Tensor> = (0..6).map(sum).collect();
    tensors.splice(1.., sums);
    scenario
}

/// The last chunks of a sum have no later result that shows a loss. Their tail is probed for, and what a
/// later result shows to be lost near the end is sent at once. The bounds are of the second longest of 200
/// sums at 1 % loss. Of 1,500 sums the 99th percentile is 1.2 times the time without loss at 400 Mbit/s, and
/// 1.5 times at 10 Gbit/s; with a retransmission timeout in the tail it was 3.3 and 3.5 times. For each lost
/// frame little more than one contribution is sent again.
#[test]
fn a_loss_near_the_end_costs_little_time() {
    for (spacing, most) in [(30_760, 130), (1_230, 200)] {
        let times = |loss, seed| -> Vec<Nanos> {
            let ends = ends(&sums_of_256_kb(seed, loss, spacing));
            // The empty tensor, and the first sum, which measures the path.
            (1..6).map(|number| ends[1 + number] - START - number as u64 * 500 * MILLI).collect()
        };
        let without = times(0.0, 0)[4];
        let mut all: Vec<Nanos> = (0..40).flat_map(|seed| times(0.01, seed)).collect();
        all.sort_unstable();
        let mut totals = Totals::default();
        (0..10).for_each(|seed| totals.add(&run(&sums_of_256_kb(seed, 0.01, spacing))));
        let (lost, asked, again) = (totals.links.lost, totals.fixed.questions, totals.fixed.resent);
        println!(
            "without loss {without} ns; median {} ns, 99th percentile {} ns; {lost} lost, {asked} asked, \
            {again} sent again",
            all[100], all[198]
        );
        assert!(all[198] * 100 <= without * most, "{spacing} ns a frame");
        assert!(again * 10 <= lost * 13 && asked <= 9 * lost, "{spacing} ns a frame");
    }
}

/// A worker pauses for 20 ms, 400 round trips, near the end of a sum. The others ask a few times, in pauses
/// that double.
#[test]
fn a_pause_near_the_end_costs_a_few_queries() {
    for percent in [50, 80, 95] {
        let mut scenario = lossy_at(0, 0.0, 1000, 1_230);
        let whole = took(&scenario);
        let from = START + whole / 100 * percent;
        scenario.jobs[0].pause = Some((3, from, from + 20 * MILLI));
        let totals = run(&scenario);
        println!(
            "after {percent} %: {} asked, {} of them for the tail",
            totals.needless, totals.fixed.tail_probes
        );
        assert!(totals.fixed.resent <= 3, "after {percent} %: one for each of the others");
        assert!(totals.needless <= 3 * 24, "after {percent} %: {}", totals.needless);
    }
}

/// Twenty tensors of a window each, and one worker that is 6 ms late with each of them, more than a hundred
/// round trips. The others probe once during the first and once during the second; then they know how late it
/// is.
#[test]
fn stragglers_cost_a_few_probes() {
    let mut scenario = lossy(0, 0.0, 64);
    let JobPlan { tensors, lateness, .. } = &mut scenario.jobs[0];
    let tensor = tensors[1];
    *tensors = (0..20).map(|step| Tensor { at: START + step * 20 * MILLI, ..tensor }).collect();
    lateness[3] = 6 * MILLI;
    let totals = run(&scenario);
    println!("{} of {} chunks asked for", totals.needless, 20 * 64 * 4);
    assert_eq!((totals.fixed.suspects_fast, totals.fixed.resent), (0, 0));
    assert!((1..=3 * 2 * 2).contains(&totals.needless), "{}", totals.needless);
}

/// Losing 0.01, 0.1 and 1 % of all frames in each direction of each of four workers costs less than 1, 2 and
/// 6 % of the time: the retransmissions are more frames, and the pipe stays full.
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

/// 256 KB by four workers over a fast path, at 1 % loss: the slowest of 100 is to end within 10 ms on busy
/// hosts; the protocol needs less than 1.7 of them in 99 % of the runs. Of 6,000 seeds 60 need more, 7 to 13
/// of each thousand: 3 is the standard deviation, so 20 of a thousand would be another distribution.
#[test]
fn short_operations_have_no_long_tail() {
    let mut times: Vec<u64> = (0..1000).map(|seed| took(&short(seed)) / MICRO).collect();
    times.sort_unstable();
    let at = |fraction: f64| times[(times.len() as f64 * fraction) as usize];
    println!("256 KB at 1 % loss: p50 {}, p90 {}, p99 {}, p999 {} us", at(0.5), at(0.9), at(0.99), at(0.999));
    assert!(at(0.98) < 1_700);
}

//= switchml#4.5 retransmission by the worker
/// A lost frame blocks its slot for all four workers, and none can tell whose it was: each asks a few times,
/// and the one whose contribution or result was lost sends its elements again.
#[test]
fn a_loss_costs_one_retransmission() {
    let totals = run(&link_bound(0, 0.01, 10_000));
    let (lost, asked, again) = (totals.links.lost, totals.fixed.questions, totals.fixed.resent);
    println!(
        "{lost} lost, {asked} asked, {again} sent again; {} duplicates, {} results sent again",
        totals.duplicates, totals.replied
    );
    assert!(again <= lost && asked <= 8 * lost);
}

/// Random loss leaves slots uneven; those that were spared take the chunks of the others (SwitchML's figure
/// 7). Where the slots hold what the path does, that is 7 and 10 % of the time; where they hold ten times as
/// much, the link hides it.
#[test]
fn stealing_shortens_the_tail() {
    for (loss, spacing, least) in [(0.01, 500, 1.04), (0.03, 500, 1.06), (0.01, 12 * MICRO, 1.0)] {
        let mean = |stealing| {
            let run = |seed| {
                let mut scenario = lossy_at(seed, loss, 10_000, spacing);
                scenario.jobs[0].stealing = stealing;
                took(&scenario)
            };
            (0..4).map(run).sum::<u64>() / 4 / MICRO
        };
        let (with, without) = (mean(true), mean(false));
        println!("10,000 chunks, {spacing} ns each, loss {loss}: {with} us with stealing, {without} without");
        assert!(without as f64 > least * with as f64);
    }
}

/// A small urgent tensor in the middle of a long one has slots of its own and goes first.
#[test]
fn an_urgent_tensor_does_not_wait() {
    let mut scenario = link_bound(0, 0.0, 10_000);
    let plan = &mut scenario.jobs[0];
    let at = START + 10 * MILLI;
    plan.lanes = 2;
    plan.tensors.push(Tensor { lane: 1, count: 20, at, ..plan.tensors[1] });
    let ends = ends(&scenario);
    let urgent = ends[2] - at;
    println!("urgent: {} us, bulk: {} us", urgent / MICRO, (ends[1] - START) / MICRO);
    // The window of the bulk tensor is on the cables already: 64 frames of 12 us.
    assert!(ends[2] < ends[1] && urgent < 1_200 * MICRO);
}

/// A sum of few floats takes one round trip and one packet of each worker on an idle stream; one of a value
/// more takes two, of exponents and of values.
#[test]
fn a_sum_of_few_floats_takes_one_round_trip() {
    const SUMS: u64 = 5;
    let run = |count| {
        let tensor = |count, at| {
            let (kind, dtype, lane) = (Kind::AllReduce(Arithmetic::Sum), DType::Float32, 0);
            Tensor { kind, dtype, count, lane, at, sums: Sums::Fit, poison: None }
        };
        let at = |number| START + number * MILLI;
        let tensors = std::iter::once(tensor(0, 0)).chain((0..SUMS).map(|number| tensor(count, at(number))));
        let params = JobParams { slots: 64, scaling: Scale::Block, ..params(3, 4, 352) };
        let jobs = vec![plan(params, tensors.collect())];
        let cable = LinkSpec::new(100_000_000_000, 20 * MICRO);
        let scenario = Scenario::new(0, Framing { stretch: 1 }, Shape::One, jobs, cable);
        let (ends, totals) = ends_with_totals(&scenario);
        let took = (0..SUMS).zip(&ends[1..]).map(|(number, end)| end - at(number)).max();
        let packets = totals.fixed.chunks_sent + totals.fixed.exponent_rounds;
        (took.unwrap_or(0), packets / SUMS / 4)
    };
    let (few, longer) = (run(35), run(36));
    println!("35 floats: {} ns, {} packets; 36: {} ns, {} packets", few.0, few.1, longer.0, longer.1);
    assert_eq!((few.1, longer.1), (1, 2));
    assert!(few.0 < 42 * MICRO && longer.0 > 80 * MICRO, "cables of 20 us, there and back");
}
