//! Collectives of the direct mode over a network that loses, duplicates, delays and reorders packets.

use std::{net::Ipv4Addr, ops::Range};

use sumac_transport::{
    Arithmetic, DType, Engine, Exchange, JobError, JobParams, JobState, OpError, Operation, Pattern, Peer,
    PeerId, PeerRole, PeerTable, Time,
};

use crate::direct_network::{Network, bytes, floats, params};

/// Even blocks for the first so many ranks.
pub fn blocks(count: usize, owners: usize, world: usize) -> Vec<Range<usize>> {
    (0..world)
        .map(|rank| if rank < owners { rank * count / owners..(rank + 1) * count / owners } else { 0..0 })
        .collect()
}

pub fn collective(
    number: u32,
    count: usize,
    [reduces, distributes, ring]: [bool; 3],
    owned: &[Range<usize>],
    values: &[f32],
) -> Operation {
    let arithmetic = if reduces { Arithmetic::Sum } else { Arithmetic::Bits };
    let (owned, contributors) = (owned.to_vec(), 0..owned.len() as u16);
    let pattern = Pattern::Collective { reduces, distributes, owned, contributors, ring };
    let exchange = Some(Box::new(Exchange { number, pattern }));
    Operation {
        exchange,
        ..Operation::allreduce(9 + number, DType::Float32, arithmetic, count, Box::new(bytes(values)))
    }
}

/// Small integers: their sums are exact in any order.
pub fn values(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7 + rank * 13) % 101) as f32).collect()
}

pub fn sum(world: usize, count: usize) -> Vec<f32> {
    let all: Vec<Vec<f32>> = (0..world).map(|rank| values(rank, count)).collect();
    (0..count).map(|index| all.iter().map(|values| values[index]).sum()).collect()
}

#[test]
fn sums_are_exact_by_owners_and_around_the_ring() {
    for (seed, loss) in [(1, 0.0), (2, 0.01), (3, 0.2)] {
        for (world, owners, ring) in
            [(2, 2, false), (4, 4, false), (4, 1, false), (5, 2, false), (2, 2, true), (5, 5, true)]
        {
            let (count, mut network) = (5000, Network::new(world as u16, seed, loss));
            for number in 0..2 {
                for rank in 0..world {
                    let owned = blocks(count, owners, world);
                    network.submit(
                        rank,
                        collective(number, count, [true, true, ring], &owned, &values(rank, count)),
                    );
                }
            }
            network.run(2);
            let expected = sum(world, count);
            for (rank, ended) in network.completions.iter_mut().enumerate() {
                for completion in ended {
                    assert_eq!(completion.result, Ok(()));
                    assert_eq!(completion.loss, None);
                    assert!(
                        floats(completion, count) == expected,
                        "rank {rank} of {world}, {owners} owners, ring {ring}"
                    );
                }
            }
        }
    }
}

/// Submits a rank's reduce-scatter (0) and its allgather (1) of these blocks.
pub fn scatter_and_gather(network: &mut Network, rank: usize, owned: &[Range<usize>], values: &[f32]) {
    let scatter = collective(0, values.len(), [true, false, false], owned, values);
    network.submit(rank, Operation { takes: owned[rank].clone(), ..scatter });
    let gather = collective(1, values.len(), [false, true, false], owned, values);
    network.submit(rank, Operation { gives: owned[rank].clone(), ..gather });
}

#[test]
fn the_other_collectives_move_their_blocks() {
    let (world, count) = (4, 3000);
    let owned = blocks(count, world, world);
    let root: Vec<Range<usize>> = (0..world).map(|rank| if rank == 2 { 0..count } else { 0..0 }).collect();
    let mut network = Network::new(world as u16, 7, 0.05);
    for rank in 0..world {
        let values = values(rank, count);
        scatter_and_gather(&mut network, rank, &owned, &values);
        let around = collective(2, count, [false, true, true], &owned, &values);
        network.submit(rank, Operation { gives: owned[rank].clone(), ..around });
        let broadcast = collective(3, count, [false, true, false], &root, &values);
        network.submit(rank, Operation { gives: root[rank].clone(), ..broadcast });
        let reduce = collective(4, count, [true, false, false], &root, &values);
        network.submit(rank, Operation { takes: root[rank].clone(), ..reduce });
    }
    network.run(5);
    let sums = sum(world, count);
    let gathered: Vec<f32> =
        (0..world).flat_map(|rank| values(rank, count)[owned[rank].clone()].to_vec()).collect();
    for (rank, ended) in network.completions.iter_mut().enumerate() {
        ended.sort_by_key(|completion| completion.id);
        let results: Vec<Vec<f32>> = ended.iter_mut().map(|completion| floats(completion, count)).collect();
        assert_eq!(results[0][owned[rank].clone()], sums[owned[rank].clone()], "reduce-scatter");
        assert!(results[1] == gathered && results[2] == gathered, "allgather");
        assert!(results[3] == values(2, count), "broadcast");
        assert!(rank != 2 || results[4] == sums, "reduce");
    }
}

/// A rank's part in a reduction of the workers' values at the first `servers` of `world` ranks.
pub fn served(
    (number, rank): (u32, usize),
    (servers, world): (usize, usize),
    count: usize,
    distributes: bool,
    arithmetic: Arithmetic,
) -> Operation {
    let owned = blocks(count, servers, world);
    let (is_server, block) = (rank < servers, owned[rank].clone());
    let contributors = servers as u16..world as u16;
    let pattern = Pattern::Collective { reduces: true, distributes, owned, contributors, ring: false };
    let values = Box::new(bytes(&values(rank, count)));
    Operation {
        exchange: Some(Box::new(Exchange { number, pattern })),
        gives: if is_server { 0..0 } else { 0..count },
        takes: if is_server { block } else { 0..if distributes { count } else { 0 } },
        ..Operation::allreduce(9 + number, DType::Float32, arithmetic, count, values)
    }
}

#[test]
fn servers_reduce_what_workers_send_and_contribute_nothing() {
    let (count, all) = (5000, [Arithmetic::Sum, Arithmetic::Mean, Arithmetic::Min, Arithmetic::Max]);
    for (seed, loss) in [(1, 0.0), (2, 0.01), (3, 0.2)] {
        for (servers, world) in [(1, 2), (1, 4), (2, 5), (3, 4)] {
            let mut network = Network::new(world as u16, seed, loss);
            let operations = all.iter().flat_map(|arithmetic| [(*arithmetic, true), (*arithmetic, false)]);
            for ((arithmetic, distributes), number) in operations.clone().zip(0..) {
                for rank in 0..world {
                    let at = (number, rank);
                    network.submit(rank, served(at, (servers, world), count, distributes, arithmetic));
                }
            }
            network.run(operations.clone().count());
            let expected = |arithmetic, at: usize| {
                let column = (servers..world).map(|rank| values(rank, count)[at]);
                match arithmetic {
                    Arithmetic::Max => column.fold(f32::NEG_INFINITY, f32::max),
                    Arithmetic::Min => column.fold(f32::INFINITY, f32::min),
                    Arithmetic::Mean => {
                        (f64::from(column.sum::<f32>()) * (1.0 / (world - servers) as f64)) as f32
                    }
                    _ => column.sum(),
                }
            };
            let owned = blocks(count, servers, world);
            for (rank, ended) in network.completions.iter_mut().enumerate() {
                ended.sort_by_key(|completion| completion.id);
                for (completion, (arithmetic, distributes)) in ended.iter_mut().zip(operations.clone()) {
                    assert_eq!(completion.result, Ok(()));
                    let result = floats(completion, count);
                    let taken = match rank < servers {
                        true => owned[rank].clone(),
                        false => 0..if distributes { count } else { 0 },
                    };
                    for at in (0..count).step_by(97) {
                        let expected = if taken.contains(&at) {
                            expected(arithmetic, at)
                        } else {
                            values(rank, count)[at]
                        };
                        assert_eq!(result[at], expected, "rank {rank}, {servers} of {world}, {arithmetic:?}");
                    }
                }
            }
        }
    }
}

/// A missing sum is the worker's own value times the workers, of which servers are none.
#[test]
fn servers_count_for_no_bound() {
    for seed in 1..6 {
        let (servers, world, count) = (2, 5, 20_000);
        let mut network = Network::new(world as u16, seed, 0.08);
        for rank in 0..world {
            let operation = served((0, rank), (servers, world), count, true, Arithmetic::Sum);
            network.submit(rank, Operation { loss_bound: 0.1, ..operation });
        }
        network.run(1);
        let mut missed = 0;
        for rank in servers..world {
            let completion = &mut network.completions[rank][0];
            let loss = completion.loss.clone().expect("a bound");
            assert!(loss.by_worker.iter().all(|lost| *lost <= loss.budget), "{loss:?}");
            let (result, own) = (floats(completion, count), values(rank, count));
            for at in loss.missing.into_iter().flatten() {
                missed += 1;
                assert_eq!(result[at], own[at] * 3.0, "rank {rank}");
            }
        }
        assert!(missed > 0, "some run was short of a chunk");
    }
}

#[test]
fn a_value_that_is_not_finite_fails_a_sum_on_servers_too() {
    let (servers, world, count) = (1, 3, 2000);
    let mut network = Network::new(world as u16, 3, 0.01);
    for rank in 0..world {
        let mut own = values(rank, count);
        if rank == 2 {
            own[77] = f32::NAN;
        }
        let operation = served((0, rank), (servers, world), count, true, Arithmetic::Sum);
        network.submit(rank, Operation { buffer: Box::new(bytes(&own)), ..operation });
    }
    network.run(1);
    for rank in [0, 1] {
        assert!(matches!(network.completions[rank][0].result, Err(OpError::Peer { .. })), "rank {rank}");
    }
    let own = &network.completions[2][0].result;
    assert!(matches!(own, Err(OpError::NotFinite { index: 77, .. })), "{own:?}");
}

#[test]
fn a_bound_is_used_and_never_exceeded() {
    for seed in 1..6 {
        let (world, count) = (4, 20_000);
        let mut network = Network::new(world as u16, seed, 0.08);
        for rank in 0..world {
            let operation =
                collective(0, count, [true, true, false], &blocks(count, world, world), &values(rank, count));
            network.submit(rank, Operation { loss_bound: 0.1, ..operation });
        }
        network.run(1);
        let expected = sum(world, count);
        for (rank, ended) in network.completions.iter_mut().enumerate() {
            let completion = &mut ended[0];
            assert_eq!(completion.result, Ok(()));
            let loss = completion.loss.clone().expect("a bound");
            assert!(loss.by_worker.iter().any(|lost| *lost > 0), "{loss:?}");
            assert!(loss.by_worker.iter().all(|lost| *lost <= loss.budget), "{loss:?}");
            let missing = loss.missing;
            let is_missing = |index: usize| missing.iter().any(|range| range.contains(&index));
            let results = floats(completion, count);
            let own = values(rank, count);
            for index in (0..count).filter(|index| is_missing(*index)) {
                // A partial sum, or this worker's own value for all.
                let is_own = results[index] == own[index] * world as f32;
                assert!(is_own || results[index] <= expected[index], "element {index}");
            }
        }
    }
}

#[test]
fn a_peer_that_is_not_there_is_named() {
    let mut network = Network::new(3, 1, 0.0);
    let all = network.engines.len();
    let is_failed = |engine: &Engine| matches!(engine.state(), JobState::Failed(_));
    while !network.engines[..all - 1].iter().all(is_failed) {
        network.send();
        network.packets.retain(|_, (from, to, _)| *from != 2 && *to != 2);
        network.step();
    }
    for engine in &network.engines[..all - 1] {
        let JobState::Failed(why) = engine.state() else { panic!("{:?}", engine.state()) };
        assert!(why.to_string().starts_with("rank 2 does not answer"), "{why}");
    }
}

#[test]
fn packets_that_no_worker_sends_change_nothing() {
    let mut network = Network::new(2, 1, 0.0);
    let long = JobParams { elements: 65, rank: 1, ..params(2) };
    let address = |last| std::net::SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 48_700);
    let peer = |last| Peer { role: PeerRole::Worker, address: address(last) };
    let mut stranger = Engine::new(long, &PeerTable::new([peer(1), peer(2)])).expect("parameters");
    let mut out = vec![0; stranger.frame_len()];
    let sent = stranger.poll_transmit(Time(0), &mut out).expect("a probe that is too long");
    network.engines[0].on_payload(Time(0), PeerId(1), &out[..sent.len]);
    network.engines[0].on_payload(Time(0), PeerId(7), &out[..sent.len]);
    assert_eq!(network.engines[0].stats().frames.dropped(), 2);
}

#[test]
fn values_that_are_not_finite_fail_on_all_workers() {
    let (world, count) = (3, 1000);
    let mut network = Network::new(world as u16, 5, 0.05);
    for rank in 0..world {
        let mut values = values(rank, count);
        if rank == 1 {
            values[700] = f32::NAN;
        }
        network
            .submit(rank, collective(0, count, [true, true, false], &blocks(count, world, world), &values));
    }
    network.run(1);
    for (rank, ended) in network.completions.iter().enumerate() {
        match (&ended[0].result, rank) {
            (Err(OpError::NotFinite { index: 700, .. }), 1) | (Err(OpError::Peer { .. }), 0 | 2) => {}
            (other, _) => panic!("rank {rank}: {other:?}"),
        }
    }
}

#[test]
fn the_statistics_of_a_state_are_those_of_all_peers() {
    let (world, count) = (3, 20_000);
    let mut network = Network::new(world as u16, 9, 0.0);
    for rank in 0..world {
        let owned = blocks(count, world, world);
        network.submit(rank, collective(0, count, [true, true, false], &owned, &values(rank, count)));
    }
    let mut most = 0;
    while network.completions.iter().any(Vec::is_empty) {
        network.advance();
        most = most.max(network.engines[0].stats().in_flight);
    }
    let stats = network.engines[0].stats();
    assert!((80_000..200_000).contains(&stats.rtt.smoothed_ns), "twice 40 to 70 us: {:?}", stats.rtt);
    assert!(stats.rtt.shortest_ns >= 80_000 && stats.rtt.timeout_ns > stats.rtt.smoothed_ns);
    assert!((64..=128).contains(&most), "in flight to two peers: {most}");
    assert_eq!(stats.cwnd, 128, "a window of 64 for each of them");
    assert!(stats.rate_bps <= 2_000_000_000, "line rate to each of them: {}", stats.rate_bps);
    network.engines[0].fail(JobError::Worker { rank: 1, reason: "left".into() });
    let failed = network.engines[0].stats();
    assert_eq!((failed.in_flight, failed.rtt.shortest_ns >= 80_000), (0, true));
}
