//! The paths of a lane's packets, and the weighted choice among them (MLT section 4.2.1).
//!
//! A path is a UDP source port. ECMP hashes ports, so the packets of one tensor spread over all routes, and a
//! packet with the same port takes the same route again. Which route that is need not be known: a path that
//! loses is chosen less.
//!
//! | event | weight of the path |
//! | --- | --- |
//! | an answer | grows by 1/256 |
//! | an answer later than those to packets on other paths | falls by 1/16 |
//! | a packet of it was lost | halves; below 1/32 the path is suspended |
//! | suspended | one packet after 100 ms, then after twice that, up to 3.2 s; its answer restores 1/8 |
//!
//! In a static job the aggregator reports which contributions it misses. In a dynamic job a worker cannot
//! distinguish its own loss from another's; the losses of others lower all of its paths alike. In a direct
//! job the receiver reports which packets have arrived, and each receiver has paths of its own.
//!
//! A path is chosen by its share of all weights, so losses that lower all weights alike change nothing.
//!
//! At most one packet in [`PROBE_PART`] goes by a suspended path. A job that waits sends few packets: they
//! would all be lost where half of the paths are suspended, and the job would never go on.

use serde::{Deserialize, Serialize};

use crate::{stats::PathStats, time::Time};

/// The weight of a path without losses.
const FULL: u16 = 1 << 10;
/// The growth with each answer.
const GAIN: u16 = FULL / 256;
/// A path below this weight is suspended.
const LEAST: u16 = FULL / 32;
/// The weight of a path whose probe was answered.
const RESTORED: u16 = FULL / 8;
/// One packet in so many may probe a suspended path.
const PROBE_PART: u32 = 8;
/// The pause before the first probe of a suspended path.
const PROBE_PAUSE: u64 = 100_000_000;
/// The number of times that the pause doubles.
const MAX_BACKOFF: u8 = 5;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Path {
    /// Up to [`FULL`]; 0: suspended.
    weight: u16,
    backoff: u8,
    /// The time of the next probe of a suspended path.
    probe_at: Time,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Paths {
    paths: Box<[Path]>,
    /// The path that is considered next.
    next: usize,
    /// The earliest probe of a suspended path.
    probe_at: Option<Time>,
    /// Packets since the last probe of a suspended path.
    since_probe: u32,
    /// The state of the generator of random numbers (Marsaglia's xorshift).
    random: u64,
}

impl Paths {
    /// So many paths, at least one.
    pub fn new(count: u16, seed: u64) -> Paths {
        let path = Path { weight: FULL, backoff: 0, probe_at: Time(0) };
        let paths = vec![path; usize::from(count.max(1))].into();
        Paths { paths, next: 0, probe_at: None, since_probe: 0, random: seed | 1 }
    }

    /// The counters of as many paths, with their weights.
    pub fn stats(&self) -> PathStats {
        let zeros = || vec![0; self.paths.len()];
        let weights = vec![u64::from(FULL); self.paths.len()];
        PathStats { sent: zeros(), lost: zeros(), late: zeros(), weight: weights }
    }

    //= mlt#4.2.1 load balancing packet by packet
    /// Chooses the path of the next packet: in turn, each with the probability of its weight.
    pub fn choose(&mut self, now: Time, stats: &mut PathStats) -> u16 {
        let path = self.due_probe(now).unwrap_or_else(|| self.weighted());
        stats.sent[path] += 1;
        path as u16
    }

    /// Chooses the path of a packet without an answer, which can be no probe.
    pub fn choose_without_probes(&mut self, stats: &mut PathStats) -> u16 {
        let path = self.weighted();
        stats.sent[path] += 1;
        path as u16
    }

    /// The path of a numbered probe. Probes take all paths in turn, whatever their weights: a job's path is
    /// lost when none of them works.
    pub fn of_probe(&self, number: u32, stats: &mut PathStats) -> u16 {
        let path = usize::from(number as u16) % self.paths.len();
        stats.sent[path] += 1;
        path as u16
    }

    pub fn weights(&self) -> impl Iterator<Item = u64> {
        self.paths.iter().map(|path| path.weight.into())
    }

    fn due_probe(&mut self, now: Time) -> Option<usize> {
        self.since_probe = self.since_probe.saturating_add(1);
        if self.since_probe < PROBE_PART || self.probe_at.is_none_or(|at| now < at) {
            return None;
        }
        let (due, _) = self.suspended().min_by_key(|(_, path)| path.probe_at)?;
        self.since_probe = 0;
        self.paths[due].suspend(now);
        self.schedule();
        Some(due)
    }

    fn suspended(&self) -> impl Iterator<Item = (usize, &Path)> {
        self.paths.iter().enumerate().filter(|(_, path)| path.weight == 0)
    }

    /// Finds the earliest probe.
    fn schedule(&mut self) {
        self.probe_at = self.suspended().map(|(_, path)| path.probe_at).min();
    }

    fn weighted(&mut self) -> usize {
        // All of them may be suspended: then they are taken in turn. So is a path now and then where all
        // weights are low: those that are left may be the dead ones.
        for _ in 0..4 * self.paths.len() {
            let path = self.turn();
            let weight = self.paths[path].weight;
            if weight == FULL || self.draw() < weight {
                return path;
            }
        }
        self.turn()
    }

    fn turn(&mut self) -> usize {
        let path = self.next;
        self.next = if path + 1 < self.paths.len() { path + 1 } else { 0 };
        path
    }

    /// A random number below [`FULL`].
    fn draw(&mut self) -> u16 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u16 % FULL
    }

    /// Records the answer to a packet on this path. `is_late`: packets sent later on other paths were
    /// answered long before. Returns whether the weight has changed.
    pub fn on_answer(&mut self, path: u16, is_late: bool, stats: &mut PathStats) -> bool {
        let number = usize::from(path);
        let Some(path) = self.paths.get_mut(number) else { return false };
        let before = path.weight;
        path.backoff = 0;
        path.weight = match path.weight {
            0 => RESTORED,
            weight if is_late => (weight - weight / 16).max(LEAST),
            weight => (weight + GAIN).min(FULL),
        };
        stats.late[number] += u64::from(is_late);
        stats.weight[number] = path.weight.into();
        path.weight != before
    }

    /// Suspends the paths that have not answered a survey, if any path has.
    pub fn on_survey(&mut self, now: Time, answered: &[bool], stats: &mut PathStats) {
        if !answered.contains(&true) {
            return;
        }
        for (number, path) in self.paths.iter_mut().enumerate() {
            if answered.get(number) != Some(&false) {
                continue;
            }
            path.suspend(now);
            stats.lost[number] += 1;
            stats.weight[number] = 0;
        }
        self.schedule();
    }

    /// Records that a packet on this path was lost. Returns whether the weight has changed.
    pub fn on_loss(&mut self, now: Time, path: u16, stats: &mut PathStats) -> bool {
        let number = usize::from(path);
        let Some(path) = self.paths.get_mut(number) else { return false };
        stats.lost[number] += 1;
        if path.weight == 0 {
            return false;
        }
        path.weight /= 2;
        if path.weight < LEAST {
            path.suspend(now);
            self.schedule();
        }
        stats.weight[number] = self.paths[number].weight.into();
        true
    }
}

impl Path {
    /// Suspends the path until its next probe.
    fn suspend(&mut self, now: Time) {
        self.weight = 0;
        self.probe_at = now.plus(PROBE_PAUSE << self.backoff);
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The share of each path in 10,000 packets, in percent.
    fn shares(paths: &mut Paths, now: Time) -> Vec<u64> {
        let mut stats = paths.stats();
        (0..10_000).for_each(|_| {
            paths.choose(now, &mut stats);
        });
        stats.sent.iter().map(|sent| sent / 100).collect()
    }

    //= mlt#4.2.1 load balancing packet by packet
    #[test]
    fn packets_are_spread_evenly_without_losses() {
        assert_eq!(shares(&mut Paths::new(1, 7), Time(0)), [100]);
        assert_eq!(shares(&mut Paths::new(4, 7), Time(0)), [25; 4]);
    }

    #[test]
    fn weights_follow_losses_and_lateness() {
        // (answers, late answers, losses) on path 0 of 2, and its share in percent.
        let table = [
            ("nothing", (0, 0, 0), 49..=51),
            ("one loss", (0, 0, 1), 31..=35),
            ("two losses", (0, 0, 2), 18..=22),
            ("and answers", (128, 0, 2), 40..=44),
            ("late answers", (0, 11, 0), 31..=36),
            ("always late", (0, 1_000, 0), 2..=4),
            ("always lost", (0, 0, 6), 0..=0),
        ];
        for (case, (answers, late, losses), expected) in table {
            let mut paths = Paths::new(2, 7);
            let mut stats = paths.stats();
            (0..losses).for_each(|_| {
                paths.on_loss(Time(0), 0, &mut stats);
            });
            (0..late).for_each(|_| {
                paths.on_answer(0, true, &mut stats);
            });
            (0..answers).for_each(|_| {
                paths.on_answer(0, false, &mut stats);
            });
            let share = shares(&mut paths, Time(0))[0];
            assert!(expected.contains(&share), "{case}: {share} %");
            assert_eq!((stats.late[0], stats.lost[0]), (late, losses), "{case}");
        }
    }

    #[test]
    fn losses_everywhere_leave_the_spread_even() {
        let mut paths = Paths::new(4, 7);
        let mut stats = paths.stats();
        for _ in 0..20 {
            (0..4).for_each(|path| {
                paths.on_loss(Time(0), path, &mut stats);
            });
            assert_eq!(shares(&mut paths, Time(0)).iter().filter(|share| **share > 20).count(), 4);
        }
    }

    #[test]
    fn a_path_that_is_left_with_little_weight_does_not_take_all_packets() {
        let mut paths = Paths::new(4, 7);
        let mut stats = paths.stats();
        for (path, losses) in [(0, 5), (1, 6), (2, 6), (3, 6)] {
            (0..losses).for_each(|_| {
                paths.on_loss(Time(0), path, &mut stats);
            });
        }
        assert!(shares(&mut paths, Time(0))[0] < 50, "it may be the dead one");
    }

    /// A job that waits sends a few packets in each 200 ms. If all of them probed suspended paths, none would
    /// arrive.
    #[test]
    fn few_packets_mostly_take_paths_that_work() {
        let mut paths = Paths::new(64, 7);
        let mut stats = paths.stats();
        for path in 0..32 {
            (0..6).for_each(|_| {
                paths.on_loss(Time(0), path, &mut stats);
            });
        }
        for at in 1..=20 {
            let chosen: Vec<u16> = (0..4).map(|_| paths.choose(Time(at * 200 * MS), &mut stats)).collect();
            assert!(chosen.iter().filter(|path| **path >= 32).count() >= 3, "{} ms: {chosen:?}", at * 200);
        }
        let probed = stats.sent[..32].iter().filter(|sent| **sent == 1).count();
        assert_eq!(probed, 10, "one packet in eight, by those that have waited longest");
    }

    #[test]
    fn a_suspended_path_is_probed_less_and_less_and_recovers() {
        let mut paths = Paths::new(3, 7);
        let mut stats = paths.stats();
        (0..6).for_each(|_| {
            paths.on_loss(Time(0), 1, &mut stats);
        });
        let mut probes = Vec::new();
        for at in 0..3_000 {
            let before = stats.sent[1];
            (0..10).for_each(|_| {
                paths.choose(Time(at * MS), &mut stats);
            });
            (stats.sent[1] > before).then(|| probes.push(at));
        }
        assert_eq!((probes, stats.sent[1]), (vec![100, 300, 700, 1500], 4), "one packet each");
        paths.on_answer(1, false, &mut stats);
        let share = shares(&mut paths, Time(3_000 * MS))[1];
        assert!((4..=8).contains(&share), "an eighth of the others': {share} %");
        (0..1_000).for_each(|_| {
            paths.on_answer(1, false, &mut stats);
        });
        assert_eq!(shares(&mut paths, Time(3_000 * MS)), [33; 3]);
    }
}
