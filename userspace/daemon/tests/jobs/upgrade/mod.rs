//! New daemons take over from running ones, under traffic. See `lab.rs` for the topology.

mod refusals;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use crate::lab::{Kind, Lab};
use crate::wait::eventually;
use sumac_client::{Client, Job, JobOptions, Mode, Pending, Tensor};

const WORLD: u16 = 2;
/// Elements of the operations that are outstanding at once.
const COUNTS: [usize; 5] = [20_000, 1, 5_000, 70_003, 333];

/// Returns a seed, and prints it.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = u64::from(now.subsec_nanos());
    println!("seed {seed}");
    seed
}

/// Returns an integer that a float holds exactly, as its sums.
fn value(seed: u64, round: u64, tensor: usize, rank: u16, i: usize) -> f32 {
    let mixed = (seed ^ round << 32 ^ (tensor as u64) << 24 ^ u64::from(rank) << 20 ^ i as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 40) as i32 % 10_000) as f32
}

/// A trainer that sums and compares all sums, until rank 0 is asked to stop.
struct Trainer {
    rounds: Arc<AtomicU64>,
    working: JoinHandle<(Client, Job)>,
}

fn work(client: &Client, job: &Job, rank: u16, seed: u64, rounds: &AtomicU64, stop: &AtomicBool) {
    let mut tensors: Vec<Tensor<f32>> = client.tensors(&COUNTS).unwrap();
    let mut control: Tensor<i32> = client.tensor(1).unwrap();
    for round in 0.. {
        for (number, tensor) in tensors.iter_mut().enumerate() {
            for (i, element) in tensor.iter_mut().enumerate() {
                *element = value(seed, round, number, rank, i);
            }
        }
        control[0] = i32::from(rank == 0 && stop.load(SeqCst));
        let pending: Vec<Pending<f32>> =
            tensors.into_iter().map(|tensor| job.allreduce(tensor).unwrap()).collect();
        let last = job.allreduce(control).unwrap();
        tensors = pending.into_iter().map(|pending| pending.wait().unwrap()).collect();
        control = last.wait().unwrap();
        for (number, tensor) in tensors.iter().enumerate() {
            for (i, sum) in tensor.iter().enumerate() {
                let world = job.opened().world;
                let expected: f32 = (0..world).map(|rank| value(seed, round, number, rank, i)).sum();
                assert_eq!(*sum, expected, "seed {seed}, round {round}, tensor {number}, element {i}");
            }
        }
        rounds.fetch_add(1, SeqCst);
        if control[0] > 0 {
            return;
        }
    }
}

/// Starts a trainer on each host.
fn train(lab: &Lab, name: &str, seed: u64, options: impl Fn(JobOptions) -> JobOptions) -> Training {
    let stop = Arc::new(AtomicBool::new(false));
    let jobs = lab.open(name, options);
    let trainers = (0..).zip(jobs).map(|(rank, (client, job))| {
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), stop.clone());
        let counted = rounds.clone();
        let working = thread::spawn(move || {
            work(&client, &job, rank, seed, &counted, &stop);
            (client, job)
        });
        Trainer { rounds, working }
    });
    Training { trainers: trainers.collect(), stop }
}

struct Training {
    trainers: Vec<Trainer>,
    stop: Arc<AtomicBool>,
}

impl Training {
    /// Waits until every trainer has compared so many more rounds.
    fn await_rounds(&self, more: u64) {
        for trainer in &self.trainers {
            let enough = trainer.rounds.load(SeqCst) + more;
            eventually("sums", || {
                assert!(!trainer.working.is_finished(), "a trainer has ended");
                (trainer.rounds.load(SeqCst) >= enough).then_some(())
            });
        }
    }

    /// Stops all trainers, and closes the job.
    fn finish(self) -> u64 {
        self.stop.store(true, SeqCst);
        let ended: Vec<_> = self
            .trainers
            .into_iter()
            .map(|trainer| (trainer.rounds, trainer.working.join().unwrap()))
            .collect();
        let rounds = ended.iter().map(|(rounds, _)| rounds.load(SeqCst)).max().unwrap();
        let closing: Vec<_> = ended
            .into_iter()
            .map(|(_, (_client, job))| thread::spawn(move || job.close().unwrap()))
            .collect();
        closing.into_iter().for_each(|closing| closing.join().unwrap());
        rounds
    }
}

/// Upgrades the daemons in turn, several times, while the job sums.
fn upgrade_in_turn(mut lab: Lab, further: &str, options: impl Fn(JobOptions) -> JobOptions) {
    let training = train(&lab, "traffic", seed(), options);
    for _ in 0..3 {
        for host in 0..usize::from(WORLD) {
            training.await_rounds(2);
            lab.upgrade(host, further);
        }
    }
    training.await_rounds(2);
    println!("{} rounds over 6 handovers", training.finish());
}

#[test]
fn daemons_of_a_static_job_are_upgraded_in_turn() {
    upgrade_in_turn(Lab::new(usize::from(WORLD)), "", |o| o);
}

#[test]
fn a_takeover_creates_nothing_once_the_former_daemon_has_let_go() {
    let mut lab = Lab::new(usize::from(WORLD));
    let training = train(&lab, "no socket", seed(), |o| o);
    training.await_rounds(1);
    lab.upgrade_after(0, "", |socket| {
        let successors = format!("{}.upgrade", socket.display());
        std::fs::remove_file(&successors).unwrap();
        // Neither removed nor replaced by a socket.
        std::fs::create_dir(&successors).unwrap();
    });
    training.await_rounds(2);
    training.finish();
}

#[test]
fn daemons_of_a_static_job_with_shards_and_few_slots_are_upgraded() {
    let further = "shards = 2";
    upgrade_in_turn(Lab::with(usize::from(WORLD), further), further, |o| o.slots(16));
}

#[test]
fn daemons_of_several_ranks_are_upgraded_in_turn() {
    upgrade_in_turn(Lab::with_ranks(usize::from(WORLD), 2), "", |o| o);
    let dynamic = Lab::dynamic(Kind::Host { shared: 256 }, usize::from(WORLD), 1, "");
    upgrade_in_turn(Lab { ranks_per_host: 2, ..dynamic }, "", |o| o.mode(Mode::Dynamic));
}

#[test]
fn daemons_of_a_dynamic_job_are_upgraded_in_turn() {
    let lab = Lab::dynamic(Kind::Host { shared: 256 }, usize::from(WORLD), 1, "");
    upgrade_in_turn(lab, "", |o| o.mode(Mode::Dynamic));
}

#[test]
fn daemons_of_a_direct_job_are_upgraded_in_turn() {
    upgrade_in_turn(Lab::new(usize::from(WORLD)), "", |o| o.mode(Mode::Direct));
}
