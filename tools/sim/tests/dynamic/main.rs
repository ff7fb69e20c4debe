//! Dynamic jobs (ATP): an aggregator that dies, is cut off or is full, late and replaced workers.
#![allow(clippy::expect_used, reason = "a test that cannot go on")]

mod fabric;
mod network;
mod paths;
mod reordering;
mod replacement;
mod values;

use network::Network;
use sumac_sim::{events::MICRO, link::Faults};
use sumac_transport::{Arithmetic, DType, DynamicParams, JobParams, Operation, Scale};
use sumac_wire::Reason;

/// Delays up to this of all frames.
fn jitter(nanoseconds: u64) -> Faults {
    Faults { reordering: 1.0, held_back: nanoseconds, ..Faults::default() }
}

/// Loss and duplication of 1 %, and jitter.
const LOSSY: Faults = Faults { loss: 0.01, duplication: 0.01, reordering: 1.0, held_back: 20 * MICRO };
const PERFECT: Faults = Faults { loss: 0.0, duplication: 0.0, reordering: 0.0, held_back: 0 };

/// A job of `world` workers with a window of 16 chunks of 8 elements, and `slots` slots.
fn job(world: u16, slots: u32) -> JobParams {
    JobParams {
        scaling: Scale::Fixed(1e6),
        dynamic: Some(DynamicParams::new(slots).with_window(16)),
        ..JobParams::new(3, world, 1, 8)
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn value(rank: usize, at: usize) -> f32 {
    ((at * 7 + rank * 13) % 101) as f32 / 8.0 - 6.0
}

/// A worker's part in the sum of 1,000 floats.
fn sum(rank: usize, signature: u32) -> Operation {
    let values: Vec<f32> = (0..1000).map(|at| value(rank, at)).collect();
    Operation::allreduce(signature, DType::Float32, Arithmetic::Sum, values.len(), Box::new(bytes(&values)))
}

/// Submits the sum of 1,000 floats, 125 chunks, on all workers.
fn submit(net: &mut Network, signature: u32) {
    (0..net.size()).for_each(|rank| net.submit(rank, sum(rank, signature)));
}

/// Checks that all workers completed `operations` sums in order with the right results.
fn check(net: &Network, operations: usize) {
    let sum_of = |at: usize| (0..net.size()).map(|rank| value(rank, at)).sum::<f32>();
    let expected: Vec<f32> = (0..1000).map(sum_of).collect();
    for rank in 0..net.size() {
        let completions = net.completions(rank);
        assert_eq!(completions.len(), operations, "rank {rank}");
        for (number, completion) in completions.iter().enumerate() {
            assert_eq!((completion.id.0, &completion.result), (number as u64, &Ok(())), "rank {rank}");
            assert_eq!(completion.buffer.input(0, 4000), bytes(&expected), "rank {rank}");
        }
    }
}

fn direct(net: &Network) -> Vec<u64> {
    net.engines().map(|engine| engine.stats().direct).collect()
}

fn resent(net: &Network) -> u64 {
    net.engines().map(|engine| engine.stats().resent).sum()
}

#[test]
fn three_workers_sum_by_slots_alone() {
    let mut net = Network::new(&job(3, 64), 1, PERFECT);
    net.join();
    (0..3).for_each(|operation| submit(&mut net, operation));
    net.run(3, 1);
    check(&net, 3);
    let stats = net.engine(0).stats();
    assert_eq!((stats.resent, stats.halvings, stats.direct, stats.raw_chunks), (0, 0, 0, 0));
}

#[test]
fn an_aggregator_that_dies_in_the_middle_is_passed_and_found_again() {
    let mut net = Network::new(&job(3, 64), 2, PERFECT);
    net.join();
    (0..4).for_each(|operation| submit(&mut net, operation));
    net.run(1, 1);
    net.aggregator().is_dead = true;
    net.run(4, 1);
    check(&net, 4);
    assert_eq!(direct(&net), [1; 3], "{}", net.summary());
    net.aggregator().restart().expect("the same job");
    net.idle(200);
    submit(&mut net, 4);
    net.run(5, 1);
    check(&net, 5);
    assert_eq!(direct(&net), [0; 3], "{}", net.summary());
}

#[test]
fn an_aggregator_that_no_longer_reaches_the_parameter_host_is_passed() {
    for seed in 0..200 {
        let mut net = Network::new(&job(3, 64), seed, LOSSY);
        net.join();
        (0..4).for_each(|operation| submit(&mut net, operation));
        net.run(1, 1);
        // It goes on to take contributions in, and keeps what is in its slots.
        net.aggregator().is_cut = true;
        net.run(4, 10);
        assert_eq!(direct(&net), [1; 3], "seed {seed}: {}", net.summary());
        assert_eq!(net.host_stats().direct, 3, "seed {seed}");
        net.aggregator().is_cut = false;
        net.idle(400);
        let full_sums = net.host_stats().full_sums;
        submit(&mut net, 4);
        net.run(5, 10);
        check(&net, 5);
        assert_eq!(direct(&net), [0; 3], "seed {seed}: {}", net.summary());
        let job = net.host_stats();
        assert_eq!(job.direct, 0, "results go by the aggregator again");
        assert!(job.full_sums > full_sums + 60, "125 chunks made {} sums", job.full_sums - full_sums);
    }
}

#[test]
fn an_aggregator_that_does_not_reach_the_parameter_host_is_passed_from_the_start() {
    let mut net = Network::new(&job(3, 64), 3, PERFECT);
    net.aggregator().is_cut = true;
    net.join();
    submit(&mut net, 0);
    net.run(1, 1);
    check(&net, 1);
    assert_eq!((direct(&net), resent(&net)), (vec![1; 3], 0));
    assert_eq!(net.aggregator().slots_in_use(), 0, "nothing was left there");
}

#[test]
fn one_worker_without_the_aggregator_does_not_hold_up_the_others() {
    for seed in 0..50 {
        let mut net = Network::new(&job(3, 64), seed, jitter(100));
        net.join();
        submit(&mut net, 0);
        net.run(1, 1);
        net.cut_off(Some(1));
        submit(&mut net, 1);
        net.run(2, 10);
        let before = resent(&net);
        (2..10).for_each(|operation| submit(&mut net, operation));
        net.run(10, 10);
        // Of 3,000: nothing waits in slots, where it cannot be complete.
        assert!(resent(&net) < before + 20, "seed {seed}: {before} before: {}", net.summary());
        assert_eq!((direct(&net), net.aggregator().slots_in_use()), (vec![0, 1, 0], 0), "seed {seed}");
        net.cut_off(None);
        net.idle(200);
        submit(&mut net, 10);
        net.run(11, 10);
        let full_sums = net.host_stats().full_sums;
        submit(&mut net, 11);
        net.run(12, 10);
        assert!(net.host_stats().full_sums >= full_sums + 125, "seed {seed}: {}", net.summary());
        check(&net, 12);
    }
}

/// Of a window of 256 chunks 16 are in flight: those of the others wait in slots in vain, and no more.
#[test]
fn others_pass_the_slots_with_the_first_result_of_one_that_does_without_the_aggregator() {
    let dynamic = DynamicParams::new(1024).without_congestion_control();
    let dynamic = DynamicParams { initial_window: Some(16), ..dynamic };
    let params = JobParams { dynamic: Some(dynamic), ..job(3, 1024) };
    for seed in 0..20 {
        let mut net = Network::new(&params, seed, jitter(100));
        net.join();
        submit(&mut net, 0);
        net.run(1, 1);
        net.cut_off(Some(1));
        (1..5).for_each(|operation| submit(&mut net, operation));
        net.run(5, 10);
        assert_eq!(direct(&net), [0, 1, 0], "seed {seed}");
        assert!(resent(&net) < 3 * 40, "seed {seed}: {}", net.summary());
        check(&net, 5);
    }
}

#[test]
fn without_an_aggregator_everything_goes_to_the_parameter_host() {
    for slots in [0, 64] {
        let mut net = Network::new(&job(3, slots), 3, PERFECT);
        if slots > 0 {
            net.aggregator().is_dead = true;
        }
        net.join();
        submit(&mut net, 0);
        net.run(1, 1);
        check(&net, 1);
        assert_eq!((direct(&net), resent(&net)), (vec![1; 3], 0));
    }
}

#[test]
fn slots_that_others_left_behind_are_avoided_and_then_taken() {
    let mut net = Network::new(&job(3, 64), 4, PERFECT);
    net.join();
    net.occupy_slots(64);
    submit(&mut net, 0);
    net.run(1, 1);
    let collisions = net.collisions();
    assert!(collisions > 0, "{}", net.summary());
    assert_eq!(net.engine(0).stats().resent, 0, "a collision costs no retransmission");
    net.idle(1000);
    submit(&mut net, 1);
    net.run(2, 1);
    check(&net, 2);
    assert!(net.collisions() < collisions + 100, "{}", net.collisions());
}

/// A chunk whose slot is busy passes as a whole: with far too few slots, and workers that are not in step,
/// chunks do not wait in slots for those of their packets that have passed. The few that do halve no window
/// for long. A slot is another chunk's as soon as its sum has left, so that a window's half finds room in 32:
/// if results freed them, there were more than 20,000 collisions in all of these.
#[test]
fn few_slots_cost_neither_retransmissions_nor_windows() {
    for (slots, least, most) in [(2, 40_000, u64::MAX), (8, 20_000, u64::MAX), (32, 1000, 10_000)] {
        let (mut resent_all, mut halved, mut collided) = (0, 0, 0);
        for seed in 0..20 {
            let params =
                JobParams { dynamic: Some(DynamicParams::new(slots).with_window(64)), ..job(6, slots) };
            let mut net = Network::new(&params, seed, jitter(2 * MICRO));
            net.join();
            (0..8).for_each(|operation| submit(&mut net, operation));
            net.run(8, 10);
            check(&net, 8);
            resent_all += resent(&net);
            collided += net.collisions();
            halved += net
                .engines()
                .map(|engine| engine.stats().halvings - engine.stats().halvings_undone)
                .sum::<u64>();
        }
        println!("{slots} slots: {collided} collisions, {resent_all} sent again, {halved} windows halved");
        assert!((least..most).contains(&collided), "{slots} slots: {collided}");
        assert!(
            resent_all < collided / 10 && halved < collided / 1000,
            "{slots} slots: {resent_all} {halved}"
        );
    }
}

#[test]
fn a_late_worker_does_not_halve_a_window() {
    let mut net = Network::new(&job(3, 64), 5, PERFECT);
    net.join();
    for operation in 0..5 {
        [0, 1].iter().for_each(|rank| net.submit(*rank, sum(*rank, operation)));
        net.idle(30);
        net.submit(2, sum(2, operation));
        net.run(operation as usize + 1, 1);
    }
    check(&net, 5);
    for engine in net.engines() {
        let stats = engine.stats();
        assert!(stats.halvings == 0 && stats.resent <= 5 * 10, "{}", net.summary());
    }
}

/// With one level another chunk takes a slot as soon as its sum has left, also where that sum or its result
/// is lost then. No worker is in a sum twice, and slots complete the most part of the chunks that they begin.
#[test]
fn few_slots_sum_right_under_loss() {
    for slots in [2, 4, 8] {
        let (mut full_sums, mut flushed) = (0, 0);
        for seed in 0..40 {
            let params =
                JobParams { dynamic: Some(DynamicParams::new(slots).with_window(64)), ..job(4, slots) };
            let mut net = Network::new(&params, seed, LOSSY);
            net.join();
            (0..4).for_each(|operation| submit(&mut net, operation));
            net.run(4, 20);
            check(&net, 4);
            full_sums += net.host_stats().full_sums;
            flushed += net.aggregator().counter(Reason::Flushed);
        }
        println!("{slots} slots: {full_sums} full sums of {} chunks, {flushed} flushed", 40 * 500);
        assert!(flushed > 0, "{slots} slots: {flushed}");
    }
}
