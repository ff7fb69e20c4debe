//! The trainers of all workers, driven from one thread so that a test reads from top to bottom.

use std::time::Duration;

use sumac_client::{ClientError, Code, Element, Failure, JobOptions, Pending, Reduction, Tensor};
use sumac_lab::deployment::Deployment;
use sumac_lab::parallel::in_parallel;

use crate::exact::{ReferenceSum, Results, Value};
use crate::stats;
use crate::trainer::Trainer;
use crate::wait::LIMIT;

/// The trainers of one job, by rank.
#[derive(Debug)]
pub struct Crew {
    pub trainers: Vec<Trainer>,
}

/// Opens a job on these ranks at the same time; each comes back with what came of it.
pub fn open(
    sumac: &Deployment<'_>,
    ranks: impl IntoIterator<Item = u16>,
    options: impl Fn(u16) -> JobOptions + Sync,
) -> Vec<(u16, Result<Trainer, ClientError>)> {
    let open = |rank| Ok((rank, Trainer::open(sumac.socket(rank), rank, &options(rank))));
    in_parallel(ranks.into_iter().collect(), open).unwrap()
}

impl Crew {
    /// All workers join the job `name`; a dynamic one over all parameter hosts of the lab.
    pub fn join(sumac: &Deployment<'_>, name: &str) -> Crew {
        Crew::join_with(sumac, name, |options| sumac.in_its_mode(options))
    }

    /// All workers join the job `name`, with options.
    pub fn join_with(
        sumac: &Deployment<'_>,
        name: &str,
        change: impl Fn(JobOptions) -> JobOptions + Sync,
    ) -> Crew {
        let world = sumac.lab().spec().workers;
        let options = |rank| change(JobOptions::new(name, rank, world).timeout(LIMIT));
        let opened = open(sumac, 0..world, options);
        let trainer = |(rank, opened): (u16, Result<Trainer, ClientError>)| {
            opened.unwrap_or_else(|error| panic!("rank {rank} opens {name}: {error}"))
        };
        Crew { trainers: opened.into_iter().map(trainer).collect() }
    }

    /// One counter of all workers' engines together.
    pub fn counter(&self, name: &str) -> u64 {
        self.trainers.iter().map(|trainer| stats::counter(trainer, name)).sum()
    }

    /// The sums that all workers get of the values of a seed.
    pub fn allreduce(&self, seed: u64, count: usize) -> Results<f32> {
        self.results(self.submit(seed, count))
    }

    /// All workers hand in their values for a sum.
    pub fn submit(&self, seed: u64, count: usize) -> Vec<Pending<f32>> {
        self.hand_in(self.prepare(seed, count), Reduction::Sum)
    }

    /// The values of all workers, by rank: making them takes longer than summing them.
    pub fn prepare<T: Value>(&self, seed: u64, count: usize) -> Vec<Tensor<T>> {
        self.trainers.iter().map(|trainer| trainer.values(seed, count)).collect()
    }

    /// All workers hand in what was [prepared](Crew::prepare).
    pub fn hand_in<T: Value>(&self, tensors: Vec<Tensor<T>>, reduction: Reduction) -> Vec<Pending<T>> {
        let handed = self.trainers.iter().zip(tensors);
        handed.map(|(trainer, tensor)| trainer.hand_in(tensor, reduction)).collect()
    }

    /// Waits for a sum of all workers and returns its results, by rank.
    pub fn results(&self, pending: Vec<Pending<f32>>) -> Results<f32> {
        self.results_of(pending, Reduction::Sum)
    }

    /// The results of an operation of all workers on values of any type.
    pub fn reduce<T: Value>(&self, seed: u64, count: usize, reduction: Reduction) -> Results<T> {
        self.results_of(self.hand_in(self.prepare(seed, count), reduction), reduction)
    }

    fn results_of<T: Value>(&self, pending: Vec<Pending<T>>, reduction: Reduction) -> Results<T> {
        let numbers = ReferenceSum::of(self.trainers[0].job.opened(), reduction, 0.0);
        Results { numbers, by_rank: pending.into_iter().map(|pending| sum(pending).to_vec()).collect() }
    }

    /// All workers leave in good order.
    pub fn leave(self) {
        for Trainer { job, rank, .. } in self.trainers {
            job.close().unwrap_or_else(|error| panic!("rank {rank} leaves: {error}"));
        }
    }
}

/// The sum of an operation that must succeed.
pub fn sum<T: Element>(mut pending: Pending<T>) -> Tensor<T> {
    match pending.wait_timeout(LIMIT) {
        Ok(true) => pending.wait().unwrap_or_else(|error| panic!("the sum: {error}")),
        Ok(false) => panic!("the sum hangs: nothing for {} s", LIMIT.as_secs()),
        Err(error) => panic!("the sum: {error}"),
    }
}

/// Asserts that each of these operations fails as a part of its job, and that the message names the culprit.
pub fn assert_job_failed(pending: Vec<Pending<f32>>, culprit: &str) {
    for (rank, pending) in pending.into_iter().enumerate() {
        let failure = failure(pending, LIMIT);
        println!("rank {rank}: {failure}");
        assert_eq!(failure.code, Code::JobFailed, "rank {rank}: {failure}");
        assert!(failure.message.contains(culprit), "rank {rank}: {failure}");
    }
}

/// The error of an operation that must fail, and within `limit`.
pub fn failure<T: Element>(mut pending: Pending<T>, limit: Duration) -> Failure {
    match pending.wait_timeout(limit) {
        Ok(true) => panic!("a sum came where none could be"),
        Ok(false) => panic!("the operation hangs: nothing for {} s", limit.as_secs()),
        Err(failed) => match failed.error {
            ClientError::Daemon(failure) => failure,
            other => panic!("the daemon's answer is lost: {other}"),
        },
    }
}
