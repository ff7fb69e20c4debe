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
use sumac_transport::{Arithmetic, DType, DynamicParams, JobParams, Operation, Scaling};

/// A job of `world` workers with a window of 16 chunks of 8 elements, and so many slots.
fn job(world: u16, slots: u32) -> JobParams {
    let dynamic = DynamicParams::new(slots).with_window(16);
    JobParams { dynamic: Some(dynamic), scaling: Scaling::Fixed(1e6), ..support::job(world, 1, 8) }
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
    Operation::allreduce(signature, DType::F32, Arithmetic::Sum, count, Box::new(bytes(&values)))
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
