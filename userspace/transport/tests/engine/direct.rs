//! The direct mode over a network that loses, duplicates, delays and reorders packets, from a seed.

use std::{collections::BTreeMap, net::Ipv4Addr, ops::Range};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_transport::{
    Arithmetic, Completion, DType, DirectParams, Engine, Exchange, JobParams, JobState, OpError, Operation,
    Pattern, Peer, PeerId, PeerRole, PeerTable, Time, Tuning,
};

const US: u64 = 1_000;

struct Network {
    engines: Vec<Engine>,
    /// Packets under way by the time of arrival: from, to, payload.
    packets: BTreeMap<(u64, u64), (usize, usize, Vec<u8>)>,
    number: u64,
    now: Time,
    random: ChaCha8Rng,
    loss: f64,
    completions: Vec<Vec<Completion>>,
    sent: u64,
}

fn params(world: u16) -> JobParams {
    let direct = Some(DirectParams { line_rate: 1_000_000_000, ..DirectParams::new(64) });
    JobParams { token: 77, rack_world: 1, slots: 0, elements: 64, direct, ..JobParams::new(1, world, 1, 64) }
}

impl Network {
    fn new(world: u16, seed: u64, loss: f64) -> Network {
        let address =
            |rank: u16| std::net::SocketAddrV4::new(Ipv4Addr::from(0x0a00_0001 + u32::from(rank)), 48_700);
        let peers =
            PeerTable::new((0..world).map(|rank| Peer { role: PeerRole::Worker, address: address(rank) }));
        let engine = |rank| {
            Engine::starting_at(JobParams { rank, ..params(world) }, &peers, &Tuning::default(), 0)
                .expect("parameters")
        };
        println!("seed {seed}");
        Network {
            engines: (0..world).map(engine).collect(),
            packets: BTreeMap::new(),
            number: 0,
            now: Time(0),
            random: ChaCha8Rng::seed_from_u64(seed),
            loss,
            completions: (0..world).map(|_| Vec::new()).collect(),
            sent: 0,
        }
    }

    fn submit(&mut self, rank: usize, operation: Operation) {
        self.engines[rank].submit(self.now, operation).map_err(|(error, _)| error).expect("accepted");
    }

    fn send(&mut self) {
        for from in 0..self.engines.len() {
            let mut out = vec![0; self.engines[from].frame_len()];
            while let Some(packet) = self.engines[from].poll_transmit(self.now, &mut out) {
                self.sent += 1;
                let copies = if self.random.random_bool(0.01) { 2 } else { 1 };
                for _ in 0..copies {
                    if self.random.random_bool(self.loss) {
                        continue;
                    }
                    let delay = 40 * US + self.random.random_range(0..30 * US);
                    self.number += 1;
                    let at = (self.now.0 + delay, self.number);
                    self.packets.insert(at, (from, usize::from(packet.to.0), out[..packet.len].to_vec()));
                }
            }
            self.completions[from].extend(std::iter::from_fn(|| self.engines[from].poll_completion()));
        }
    }

    /// Runs until every worker has so many completions.
    fn run(&mut self, completions: usize) {
        while self.completions.iter().any(|ended| ended.len() < completions) {
            self.step();
            self.send();
            assert!(self.now.0 < 60_000_000_000, "it takes longer than a minute");
        }
    }

    fn step(&mut self) {
        self.send();
        let arrival = self.packets.keys().next().map(|(at, _)| Time(*at));
        let timers = self.engines.iter().filter_map(Engine::poll_timeout).min();
        let Some(next) = arrival.into_iter().chain(timers).min() else { return };
        self.now = self.now.max(next);
        while let Some(entry) = self.packets.first_entry() {
            if entry.key().0 > self.now.0 {
                break;
            }
            let (from, to, payload) = entry.remove();
            self.engines[to].on_payload(self.now, PeerId(from as u16), &payload);
        }
        for engine in &mut self.engines {
            if engine.poll_timeout().is_some_and(|at| at <= self.now) {
                engine.on_timeout(self.now);
            }
        }
    }
}

/// Even blocks for the first so many ranks.
fn blocks(count: usize, owners: usize, world: usize) -> Vec<Range<usize>> {
    (0..world)
        .map(|rank| if rank < owners { rank * count / owners..(rank + 1) * count / owners } else { 0..0 })
        .collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn floats(completion: &mut Completion, count: usize) -> Vec<f32> {
    let bytes = completion.buffer.output(0, count * 4);
    bytes.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().expect("four bytes"))).collect()
}

fn collective(
    number: u32,
    count: usize,
    [reduces, distributes, ring]: [bool; 3],
    owned: &[Range<usize>],
    values: &[f32],
) -> Operation {
    let arithmetic = if reduces { Arithmetic::Sum } else { Arithmetic::Bits };
    let pattern = Pattern::Collective { reduces, distributes, owned: owned.to_vec(), ring };
    let exchange = Some(Box::new(Exchange { number, pattern }));
    Operation {
        exchange,
        ..Operation::allreduce(9 + number, DType::Float32, arithmetic, count, Box::new(bytes(values)))
    }
}

/// Small integers: their sums are exact in any order.
fn values(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7 + rank * 13) % 101) as f32).collect()
}

fn sum(world: usize, count: usize) -> Vec<f32> {
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

#[test]
fn the_other_collectives_move_their_blocks() {
    let (world, count) = (4, 3000);
    let owned = blocks(count, world, world);
    let root: Vec<Range<usize>> = (0..world).map(|rank| if rank == 2 { 0..count } else { 0..0 }).collect();
    let mut network = Network::new(world as u16, 7, 0.05);
    for rank in 0..world {
        let values = values(rank, count);
        let scatter = collective(0, count, [true, false, false], &owned, &values);
        network.submit(rank, Operation { takes: owned[rank].clone(), ..scatter });
        let gather = collective(1, count, [false, true, false], &owned, &values);
        network.submit(rank, Operation { gives: owned[rank].clone(), ..gather });
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

fn transfer(number: u32, pattern: Pattern, count: usize, values: &[f32]) -> Operation {
    let buffer = Box::new(bytes(values));
    let exchange = Some(Box::new(Exchange { number, pattern }));
    Operation { exchange, ..Operation::allreduce(5, DType::Float32, Arithmetic::Bits, count, buffer) }
}

#[test]
fn transfers_go_both_ways_and_missing_values_are_zero_or_kept() {
    let count = 10_000;
    for keeps in [false, true] {
        let mut network = Network::new(2, 11, 0.3);
        for (rank, to) in [(0, 1), (1, 0)] {
            let gives = transfer(rank, Pattern::Send { to }, count, &vec![rank as f32 + 1.0; count]);
            network.submit(rank as usize, Operation { takes: 0..0, ..gives });
            let takes =
                transfer(u32::from(to), Pattern::Receive { from: to, keeps }, count, &vec![-5.0; count]);
            network.submit(rank as usize, Operation { gives: 0..0, loss_bound: 0.2, ..takes });
        }
        network.run(2);
        for (rank, ended) in network.completions.iter_mut().enumerate() {
            ended.sort_by_key(|completion| completion.id);
            assert!(ended.iter().all(|completion| completion.result == Ok(())));
            let missing = ended[1].loss.clone().expect("a bound").missing;
            let lost: usize = missing.iter().map(ExactSizeIterator::len).sum();
            assert!(lost > 0 && lost <= count / 5, "{lost}");
            let other = (2 - rank) as f32;
            for (index, value) in floats(&mut ended[1], count).into_iter().enumerate() {
                let is_missing = missing.iter().any(|range| range.contains(&index));
                let expected = if !is_missing {
                    other
                } else if keeps {
                    -5.0
                } else {
                    0.0
                };
                assert_eq!(value, expected, "element {index}");
            }
        }
    }
}

#[test]
fn ends_that_disagree_name_each_other() {
    let mut network = Network::new(2, 1, 0.1);
    network.submit(0, transfer(3, Pattern::Send { to: 1 }, 1000, &[0.0; 1000]));
    network.submit(1, transfer(3, Pattern::Receive { from: 0, keeps: false }, 999, &[0.0; 999]));
    network.run(1);
    let [ours, theirs] =
        ["1000 values of float32 with loss bound 0", "999 values of float32 with loss bound 0"];
    let expected = |rank, ours: &str, theirs: &str| OpError::Disagrees {
        rank,
        ours: ours.to_owned(),
        theirs: theirs.to_owned(),
    };
    assert_eq!(network.completions[0][0].result, Err(expected(1, ours, theirs)));
    assert_eq!(network.completions[1][0].result, Err(expected(0, theirs, ours)));
    let is_failed = |engine: &Engine| matches!(engine.state(), JobState::Failed(_));
    assert!(!network.engines.iter().any(is_failed), "the job goes on");
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
