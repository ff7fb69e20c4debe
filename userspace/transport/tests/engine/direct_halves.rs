//! Float32 in 16 bits in direct jobs (`wire` int16).

use sumac_transport::{Arithmetic, JobParams, NonFinitePolicy, OpError, Operation, Tuning, WireFormat};

use crate::{
    direct::{blocks, collective, scatter_and_gather, served},
    direct_network::{Network, bytes, floats, params},
};

/// Values of which hardly any is a multiple of its packet's step. The largest magnitude is below 2^7.
fn values(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7 + rank * 13) % 101) as f32 * 1.234 - 60.0).collect()
}

fn sum(ranks: std::ops::Range<usize>, count: usize) -> Vec<f32> {
    let all: Vec<Vec<f32>> = ranks.map(|rank| values(rank, count)).collect();
    (0..count).map(|index| all.iter().map(|values| values[index]).sum()).collect()
}

/// The documented bound (docs/api.md, "Arithmetic").
fn bound(workers: usize) -> f32 {
    (workers * workers) as f32 * 128.0 / 32_767.0
}

fn network(world: usize, not_finite: NonFinitePolicy, seed: u64, loss: f64) -> Network {
    let params = JobParams { wire: WireFormat::Int16, not_finite, ..params(world as u16) };
    Network::with_params(&params, seed, loss, &Tuning::default())
}

#[test]
fn only_what_a_worker_takes_is_replaced() {
    let (world, count) = (4, 3000);
    let owned = blocks(count, world, world);
    let mut network = network(world, NonFinitePolicy::Error, 7, 0.05);
    for rank in 0..world {
        let values = values(rank, count);
        scatter_and_gather(&mut network, rank, &owned, &values);
    }
    network.run(2);
    let sums = sum(0..world, count);
    for (rank, ended) in network.completions.iter_mut().enumerate() {
        ended.sort_by_key(|completion| completion.id);
        let [scattered, gathered] = [0, 1].map(|at| floats(&mut ended[at], count));
        for (index, own) in values(rank, count).into_iter().enumerate() {
            if owned[rank].contains(&index) {
                assert!((scattered[index] - sums[index]).abs() <= bound(world), "rank {rank}, {index}");
            } else {
                assert_eq!(scattered[index], own, "rank {rank}, {index}: an input that it only sends");
            }
            let owner = owned.iter().position(|block| block.contains(&index)).expect("a block");
            assert_eq!(gathered[index], values(owner, count)[index], "the bits, and no sum");
        }
    }
}

#[test]
fn workers_of_servers_have_the_same_means() {
    let count = 5000;
    for (servers, world) in [(1, 3), (2, 5), (3, 4)] {
        let mut network = network(world, NonFinitePolicy::Error, 3, 0.1);
        for rank in 0..world {
            let own = Box::new(bytes(&values(rank, count)));
            let mean = served((0, rank), (servers, world), count, true, Arithmetic::Mean);
            network.submit(rank, Operation { buffer: own, ..mean });
        }
        network.run(1);
        let workers = world - servers;
        let sums = sum(servers..world, count);
        let all: Vec<_> = network.completions.iter_mut().map(|ended| floats(&mut ended[0], count)).collect();
        for means in &all[servers..] {
            assert!(*means == all[servers], "{servers} of {world}");
            let is_near = |(mean, sum): (&f32, &f32)| (mean - sum / workers as f32).abs() <= bound(workers);
            assert!(means.iter().zip(&sums).all(is_near), "{servers} of {world}");
        }
    }
}

#[test]
fn a_bound_is_never_exceeded() {
    let (world, count, mut missed) = (4, 20_000, 0);
    for seed in 1..6 {
        let mut network = network(world, NonFinitePolicy::Error, seed, 0.08);
        for rank in 0..world {
            let owned = blocks(count, world, world);
            let operation = collective(0, count, [true, true, false], &owned, &values(rank, count));
            network.submit(rank, Operation { loss_bound: 0.1, ..operation });
        }
        network.run(1);
        for (rank, ended) in network.completions.iter_mut().enumerate() {
            assert_eq!(ended[0].result, Ok(()));
            let loss = ended[0].loss.clone().expect("a bound");
            assert!(loss.by_worker.iter().all(|lost| *lost <= loss.budget), "{loss:?}");
            missed += loss.by_worker.iter().sum::<u64>();
            let most = 64.0 * world as f32 + bound(world);
            let results = floats(&mut ended[0], count);
            assert!(results.iter().all(|value| value.abs() <= most), "rank {rank}");
        }
    }
    assert!(missed > 0, "some run was short of a chunk");
}

#[test]
fn values_that_are_not_finite_fail_or_are_kept() {
    let (world, count) = (3, 1000);
    for (policy, is_ring) in [
        (NonFinitePolicy::Error, false),
        (NonFinitePolicy::Error, true),
        (NonFinitePolicy::Raw, false),
        (NonFinitePolicy::Raw, true),
    ] {
        let mut network = network(world, policy, 5, 0.05);
        for rank in 0..world {
            let mut values = values(rank, count);
            if rank == 1 {
                (values[700], values[701], values[702]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
            }
            let owned = blocks(count, world, world);
            network.submit(rank, collective(0, count, [true, true, is_ring], &owned, &values));
        }
        network.run(1);
        let sums = sum(0..world, count);
        for (rank, ended) in network.completions.iter_mut().enumerate() {
            if policy == NonFinitePolicy::Error {
                match (&ended[0].result, rank) {
                    (Err(OpError::NotFinite { index: 700, .. }), 1) | (Err(OpError::Peer { .. }), 0 | 2) => {}
                    (other, _) => panic!("rank {rank}: {other:?}"),
                }
                continue;
            }
            assert_eq!(ended[0].result, Ok(()), "rank {rank}");
            let results = floats(&mut ended[0], count);
            assert!(results[700].is_nan(), "rank {rank}: {}", results[700]);
            assert_eq!(results[701..703], [f32::INFINITY, f32::NEG_INFINITY], "rank {rank}");
            let is_near = |at: usize| (results[at] - sums[at]).abs() <= bound(world);
            assert!((0..700).chain(703..count).all(is_near), "rank {rank}: the others are sums");
        }
    }
}
