//! Whole hosts under seeds: trainers that are honest, lie, hang, diverge and die; loss, duplication and
//! reordering; hosts that are killed, live upgrades, restarts of aggregator and coordinator.
//!
//! A failing scenario prints its seed. One command replays it:
//! `SEED=n cargo test -p sumac-sim --test hosts -- --nocapture`; `SEEDS=10000` runs as many.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use sumac_api::Code;
use sumac_sim::events::{MILLI, Nanos};
use sumac_sim::hosts::client::{Behaviour, Client, Ending, Work};
use sumac_sim::hosts::cluster::{Cluster, Fault, Network};

const SECOND: Nanos = 1000 * MILLI;
/// The time by which every trainer has its end, whatever happens.
const DEADLINE: Nanos = 60 * SECOND;

#[derive(Debug, Default)]
struct Totals {
    scenarios: u32,
    /// Trainers whose sums were all right, and whose job has failed.
    done: u32,
    failed: u32,
    upgrades: u32,
    packets: u64,
}

/// `hosts`: of which a job has all, each with a rank or with several, or one that has all ranks.
fn work(rng: &mut ChaCha8Rng, number: usize, hosts: u16, shards: u16) -> Work {
    let (world, local_world) = match rng.random_range(0..10) {
        0..2 => {
            let world = rng.random_range(1..5);
            (world, Some(world))
        }
        2..6 => {
            let local = rng.random_range(1..4);
            (hosts * local, Some(local))
        }
        _ => (hosts, None),
    };
    let count = rng.random_range(1..12);
    let operations = (0..count).map(|_| (rng.random_range(1..3000), rng.random_bool(0.5))).collect();
    Work {
        job: format!("job{number}"),
        world,
        shards,
        slots: 1 << rng.random_range(3..6),
        is_by_name: rng.random_bool(0.4),
        local_world,
        operations,
    }
}

fn faults(rng: &mut ChaCha8Rng, hosts: usize) -> Vec<(Nanos, Fault)> {
    let mut faults = Vec::new();
    for _ in 0..rng.random_range(0..3) {
        let (at, host) = (rng.random_range(0..3 * SECOND), rng.random_range(0..hosts));
        let fault = match rng.random_range(0..4) {
            0 => Fault::KillHost(host),
            1 => Fault::RestartAggregator,
            2 => Fault::RestartCoordinator,
            _ => Fault::CutControl(host, at + rng.random_range(0..4 * SECOND)),
        };
        faults.push((at, fault));
    }
    faults
}

fn run(seed: u64, totals: &mut Totals) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (hosts, shards) = (rng.random_range(1..5), rng.random_range(1..3));
    let network = Network {
        loss: [0.0, 0.001, 0.02, 0.1][rng.random_range(0..4)],
        duplication: [0.0, 0.01, 0.1][rng.random_range(0..3)],
        jitter: [0, 50_000, MILLI][rng.random_range(0..3)],
    };
    let faults = if rng.random_bool(0.5) { faults(&mut rng, hosts) } else { Vec::new() };
    let is_faulty = !faults.is_empty();
    let mut cluster = Cluster::new(rng.random(), hosts, shards, network, faults.clone());
    cluster.upgrades = [0.0, 0.02, 0.2][rng.random_range(0..3)];
    let jobs = rng.random_range(1..3);
    let mut misbehaves = vec![false; jobs];
    for (number, misbehaves) in misbehaves.iter_mut().enumerate() {
        let work = work(&mut rng, number, hosts as u16, shards);
        let own = rng.random_range(0..hosts);
        for rank in 0..work.world {
            let behaviour = match rng.random_range(0..20) {
                0 => Behaviour::Diverges,
                1 => Behaviour::Hangs,
                2 => Behaviour::Dies,
                3..7 => Behaviour::Lies,
                _ => Behaviour::Honest,
            };
            *misbehaves |= !matches!(behaviour, Behaviour::Honest | Behaviour::Lies);
            let host = match work.local_world {
                Some(local) if local == work.world => own,
                local => usize::from(rank / local.unwrap_or(1)),
            };
            cluster.connect(host, rank, &work, behaviour);
        }
    }
    let context = format!("seed {seed}: {hosts} hosts, {network:?}, {faults:?}");
    // A trainer that hangs keeps the others waiting until it is killed.
    cluster.run(20 * SECOND, Cluster::are_clients_done);
    for index in 0..cluster.clients.len() {
        let client = &mut cluster.clients[index];
        let (host, now) = (client.host, cluster.now());
        let client = &mut cluster.clients[index];
        if client.behaviour == Behaviour::Hangs && client.ending.is_none() {
            let host = cluster.hosts[host].as_mut();
            host.into_iter().for_each(|host| client.disconnect(now, host));
        }
    }
    let is_done = cluster.run(DEADLINE, Cluster::are_clients_done);
    let open: Vec<String> = cluster.clients.iter().map(Client::open_ends).collect();
    assert!(is_done, "{context}: not all have an end: {open:#?}");
    for client in &cluster.clients {
        let is_innocent = !is_faulty && !misbehaves.iter().any(|misbehaves| *misbehaves);
        match &client.ending {
            Some(Ending::Done) => totals.done += 1,
            Some(Ending::Failed(failure)) => {
                assert!(!is_innocent, "{context}: {failure}");
                assert!(
                    !failure.message.is_empty() && failure.code != Code::Internal,
                    "{context}: {failure:?}"
                );
                totals.failed += 1;
            }
            Some(Ending::Gone) => {}
            None => panic!("{context}: {}", client.open_ends()),
        }
    }
    cluster.disconnect_all();
    let end = cluster.now() + 30 * SECOND;
    assert!(cluster.run(end, Cluster::is_empty), "{context}: left over: {}", cluster.leftovers());
    let [sent, delivered, lost, to_dead] = cluster.packets;
    assert_eq!(sent, delivered + lost + to_dead + cluster.under_way(), "{context}: packets are conserved");
    totals.scenarios += 1;
    totals.upgrades += cluster.hosts.iter().flatten().map(|host| host.upgrades).sum::<u32>();
    totals.packets += sent;
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn whole_hosts_keep_their_promises() {
    let mut totals = Totals::default();
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(300),
    };
    for seed in seeds {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut totals)));
        if let Err(panic) = ran {
            eprintln!("replay: SEED={seed} cargo test -p sumac-sim --test hosts -- --nocapture");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{totals:?}");
}
