//! Dynamic jobs (ATP): real engines and a real parameter host, an aggregator in memory, and a network between them.
#![allow(clippy::expect_used, reason = "a test that cannot go on")]

mod alone;
mod faults;
mod network;
mod slots;
mod storms;
#[path = "../support/mod.rs"]
mod support;
mod takeover;
mod tensors;

use network::{Network, Weather};
use sumac_transport::{Arithmetic, DType, DynamicParams, JobParams, Operation, Scale};

/// A job of `world` workers with a window of 16 chunks of 8 elements, and so many slots.
fn job(world: u16, slots: u32) -> JobParams {
    let dynamic = DynamicParams::new(slots).with_window(16);
    JobParams { dynamic: Some(dynamic), scaling: Scale::Fixed(1e6), ..support::job(world, 1, 8) }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn value(rank: usize, at: usize) -> f32 {
    ((at * 7 + rank * 13) % 101) as f32 / 8.0 - 6.0
}

fn sum_of(world: usize, at: usize) -> f32 {
    (0..world).map(|rank| value(rank, at)).sum()
}

/// A worker's part in the sum of `count` floats.
fn sum(rank: usize, signature: u32, count: usize) -> Operation {
    let values: Vec<f32> = (0..count).map(|at| value(rank, at)).collect();
    Operation::allreduce(signature, DType::Float32, Arithmetic::Sum, count, Box::new(bytes(&values)))
}

/// Submits the sum of `count` floats on all workers.
fn submit(net: &mut Network, signature: u32, count: usize) {
    (0..net.engines.len()).for_each(|rank| net.submit(rank, sum(rank, signature, count)));
}

/// All workers ended `operations` sums of `count` floats, in order and right.
fn check(net: &Network, operations: usize, count: usize) {
    let expected: Vec<f32> = (0..count).map(|at| sum_of(net.engines.len(), at)).collect();
    for (rank, completions) in net.completions.iter().enumerate() {
        assert_eq!(completions.len(), operations, "rank {rank}");
        for (number, completion) in completions.iter().enumerate() {
            assert_eq!((completion.id.0, &completion.result), (number as u64, &Ok(())), "rank {rank}");
            assert_eq!(completion.buffer.input(0, count * 4), bytes(&expected), "rank {rank}");
        }
    }
}

#[test]
fn three_workers_sum_by_slots_alone() {
    let mut net = Network::new(&job(3, 64), 1);
    net.join();
    for operation in 0..3 {
        submit(&mut net, operation, 1000);
    }
    net.run(3, 1);
    check(&net, 3, 1000);
    let stats = net.engines[0].stats();
    assert_eq!((stats.resent, stats.halvings, stats.direct, stats.raw_chunks), (0, 0, 0, 0));
}

#[test]
fn sums_are_exact_whatever_the_network_does() {
    for seed in 0..500 {
        let mut net = Network::new(&job(3, 32), seed);
        net.weather = Weather { lost: 0.05, doubled: 0.05, marked: 0.01, jitter: 20_000 };
        for operation in 0..3 {
            submit(&mut net, operation, 1000);
        }
        net.run(3, 100);
        check(&net, 3, 1000);
    }
}

#[test]
fn an_aggregator_that_dies_in_the_middle_is_passed_and_found_again() {
    let mut net = Network::new(&job(3, 64), 2);
    net.join();
    for operation in 0..4 {
        submit(&mut net, operation, 1000);
    }
    net.run(1, 1);
    net.is_up = false;
    net.run(4, 1);
    check(&net, 4, 1000);
    assert!(net.engines.iter().all(|engine| engine.stats().direct == 1), "{}", net.summary());
    net.aggregator.forget();
    net.is_up = true;
    net.idle(200);
    submit(&mut net, 4, 1000);
    net.run(5, 1);
    check(&net, 5, 1000);
    assert!(net.engines.iter().all(|engine| engine.stats().direct == 0), "{}", net.summary());
}

#[test]
fn an_aggregator_that_no_longer_reaches_the_parameter_host_is_passed() {
    for seed in 0..200 {
        let mut net = Network::new(&job(3, 64), seed);
        net.weather = Weather { lost: 0.01, doubled: 0.01, marked: 0.0, jitter: 20_000 };
        net.join();
        for operation in 0..4 {
            submit(&mut net, operation, 1000);
        }
        net.run(1, 1);
        // It goes on to take contributions in, and keeps what is in its slots.
        net.is_cut = true;
        net.run(4, 10);
        assert!(net.engines.iter().all(|engine| engine.stats().direct == 1), "{}", net.summary());
        assert_eq!(net.host.stats().jobs[0].direct, 3);
        net.is_cut = false;
        net.idle(400);
        let full_sums = net.host.stats().jobs[0].full_sums;
        submit(&mut net, 4, 1000);
        net.run(5, 10);
        check(&net, 5, 1000);
        assert!(net.engines.iter().all(|engine| engine.stats().direct == 0), "{}", net.summary());
        let job = &net.host.stats().jobs[0];
        assert_eq!(job.direct, 0, "results go by the aggregator again");
        assert!(job.full_sums > full_sums + 60, "125 chunks made {} sums", job.full_sums - full_sums);
    }
}

#[test]
fn an_aggregator_that_does_not_reach_the_parameter_host_is_passed_from_the_start() {
    let mut net = Network::new(&job(3, 64), 3);
    net.is_cut = true;
    net.join();
    submit(&mut net, 0, 1000);
    net.run(1, 1);
    check(&net, 1, 1000);
    assert!(net.engines.iter().all(|engine| engine.stats().direct == 1 && engine.stats().resent == 0));
    assert_eq!(net.aggregator.in_use(), 0, "nothing was left there");
}

#[test]
fn one_worker_without_the_aggregator_does_not_hold_up_the_others() {
    for seed in 0..50 {
        let mut net = Network::new(&job(3, 64), seed);
        net.weather = Weather { jitter: 100, ..Weather::default() };
        net.join();
        submit(&mut net, 0, 1000);
        net.run(1, 1);
        net.cut_off = Some(1);
        submit(&mut net, 1, 1000);
        net.run(2, 10);
        let resent = |net: &Network| net.engines.iter().map(|engine| engine.stats().resent).sum::<u64>();
        let before = resent(&net);
        (2..10).for_each(|operation| submit(&mut net, operation, 1000));
        net.run(10, 10);
        // Of 3,000: nothing waits in slots, where it cannot be complete.
        assert!(resent(&net) < before + 20, "{before} before: {}", net.summary());
        let direct: Vec<u64> = net.engines.iter().map(|engine| engine.stats().direct).collect();
        assert_eq!((direct, net.aggregator.in_use()), (vec![0, 1, 0], 0));
        net.cut_off = None;
        net.idle(200);
        submit(&mut net, 10, 1000);
        net.run(11, 10);
        let full_sums = net.host.stats().jobs[0].full_sums;
        submit(&mut net, 11, 1000);
        net.run(12, 10);
        assert!(net.host.stats().jobs[0].full_sums >= full_sums + 125, "{}", net.summary());
        check(&net, 12, 1000);
    }
}

#[test]
fn without_an_aggregator_everything_goes_to_the_parameter_host() {
    for (slots, is_up) in [(0, false), (64, false)] {
        let mut net = Network::new(&job(3, slots), 3);
        net.is_up = is_up;
        net.join();
        submit(&mut net, 0, 1000);
        net.run(1, 1);
        check(&net, 1, 1000);
        assert!(net.engines.iter().all(|engine| engine.stats().direct == 1 && engine.stats().resent == 0));
    }
}

#[test]
fn slots_that_others_left_behind_are_worked_around_and_then_taken() {
    let mut net = Network::new(&job(3, 64), 4);
    net.join();
    net.aggregator.occupy((net.now / 1_000_000) as u32);
    submit(&mut net, 0, 1000);
    net.run(1, 1);
    let collisions = net.aggregator.collisions;
    assert!(collisions > 0, "{}", net.summary());
    assert_eq!(net.engines[0].stats().resent, 0, "a collision costs no retransmission");
    net.idle(1000);
    submit(&mut net, 1, 1000);
    net.run(2, 1);
    check(&net, 2, 1000);
    assert!(net.aggregator.collisions < collisions + 100, "{}", net.aggregator.collisions);
}

#[test]
fn a_worker_that_comes_late_costs_nobody_his_window() {
    let mut net = Network::new(&job(3, 64), 5);
    net.join();
    for operation in 0..5 {
        for rank in [0, 1] {
            net.submit(rank, sum(rank, operation, 1000));
        }
        net.idle(30);
        net.submit(2, sum(2, operation, 1000));
        net.run(operation as usize + 1, 1);
    }
    check(&net, 5, 1000);
    for engine in &net.engines {
        let stats = engine.stats();
        assert!(stats.halvings == 0 && stats.resent <= 5 * 10, "{}", net.summary());
    }
}
