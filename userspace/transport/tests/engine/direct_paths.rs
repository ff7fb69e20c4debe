//! Paths of a direct job: each worker avoids those on which its packets to another one are lost or late.

use sumac_transport::{Tuning, stats::PathStats};

use crate::{
    direct::{blocks, collective, sum, values},
    direct_network::{Network, floats},
};

const COUNT: usize = 60_000;
const PATHS: usize = 4;

/// Two workers with four paths.
struct Pair {
    network: Network,
    sums: usize,
}

impl Pair {
    fn new(seed: u64, loss: f64) -> Pair {
        let tuning = Tuning { paths: PATHS as u16, ..Tuning::default() };
        Pair { network: Network::with_tuning(2, seed, loss, &tuning), sums: 0 }
    }

    fn stats(&self, rank: usize) -> PathStats {
        self.network.engines[rank].stats().paths.clone()
    }

    /// So many exact sums. Returns the first worker's packets on each path meanwhile, in percent.
    fn shares(&mut self, sums: usize) -> Vec<u64> {
        let before = self.stats(0).sent;
        for _ in 0..sums {
            for rank in 0..2 {
                let owned = blocks(COUNT, 2, 2);
                let number = self.sums as u32;
                self.network.submit(
                    rank,
                    collective(number, COUNT, [true, true, false], &owned, &values(rank, COUNT)),
                );
            }
            self.sums += 1;
            self.network.run(self.sums);
        }
        for ended in &mut self.network.completions {
            let last = ended.last_mut().expect("a sum");
            assert!(last.result.is_ok() && floats(last, COUNT) == sum(2, COUNT));
        }
        let sent: Vec<u64> =
            self.stats(0).sent.iter().zip(before).map(|(after, before)| after - before).collect();
        let all: u64 = sent.iter().sum();
        sent.iter().map(|sent| 100 * sent / all).collect()
    }
}

#[test]
fn packets_are_spread_evenly_without_losses() {
    let mut pair = Pair::new(1, 0.0);
    let shares = pair.shares(3);
    assert!(shares.iter().all(|share| (22..=28).contains(share)), "{shares:?}");
    // Reordering by nearly a round trip makes packets late, on all paths alike.
    let stats = pair.stats(0);
    assert_eq!(stats.lost, [0; PATHS], "{stats:?}");
    assert!(stats.weight.iter().all(|weight| *weight > 0), "{stats:?}");
}

#[test]
fn losses_everywhere_suspend_no_path_for_long() {
    for seed in 1..4 {
        let mut pair = Pair::new(seed, 0.05);
        let shares = pair.shares(6);
        assert!(shares.iter().all(|share| (10..=45).contains(share)), "{shares:?}");
        assert!(pair.stats(0).lost.iter().all(|lost| *lost > 0));
    }
}

#[test]
fn a_dead_path_is_suspended_probed_and_taken_again() {
    for seed in 1..4 {
        let mut pair = Pair::new(seed, 0.0);
        pair.network.path_loss.insert(2, 1.0);
        pair.shares(2);
        let before = pair.stats(0);
        assert_eq!(before.weight[2], 0, "{before:?}");
        let start = pair.network.now.0;
        while pair.network.now.0 - start < 800_000_000 {
            pair.shares(10);
        }
        let probes = pair.stats(0).sent[2] - before.sent[2];
        assert!((2..=5).contains(&probes), "{probes} probes in 800 ms");
        assert_eq!(pair.stats(0).weight[2], 0);
        pair.network.path_loss.clear();
        let mut rounds = 0;
        while pair.shares(10)[2] < 15 {
            rounds += 1;
            assert!(rounds < 60, "the path works, and is not used: {:?}", pair.stats(0));
        }
    }
}

#[test]
fn the_share_of_a_lossy_path_falls() {
    for seed in 1..4 {
        let mut pair = Pair::new(seed, 0.001);
        pair.network.path_loss.insert(1, 0.2);
        pair.shares(4);
        let shares = pair.shares(4);
        assert!(shares[1] <= 8, "{shares:?}");
        let stats = pair.stats(0);
        assert!(stats.lost[1] > 0, "{stats:?}");
    }
}

#[test]
fn the_share_of_a_late_path_falls() {
    for seed in 1..4 {
        let mut pair = Pair::new(seed, 0.0);
        pair.network.path_delay.insert(3, 60_000);
        pair.shares(4);
        let shares = pair.shares(4);
        let stats = pair.stats(0);
        assert!(shares[3] <= 15 && stats.late[3] > 0, "{shares:?} {stats:?}");
    }
}

#[test]
fn a_path_that_only_loses_towards_one_worker_is_used_towards_the_others() {
    let tuning = Tuning { paths: PATHS as u16, ..Tuning::default() };
    let mut network = Network::with_tuning(3, 5, 0.0, &tuning);
    network.dead = Some((0, 1, 2));
    for number in 0..8 {
        for rank in 0..3 {
            let owned = blocks(COUNT, 3, 3);
            network
                .submit(rank, collective(number, COUNT, [true, true, false], &owned, &values(rank, COUNT)));
        }
        network.run(number as usize + 1);
    }
    let [one, other] = [1, 2].map(|to| network.by_path[&(0, to, 2)]);
    assert!(one * 4 < other, "{one} packets to where they are lost, and {other}");
}
