//! The trainers of all workers, driven from one thread so that a test reads from top to bottom.

use std::thread;
use std::time::Duration;

use sumac_client::{
    Client, ClientError, Element, Failure, Job, JobOptions, OpOptions, Pending, Reduction, Tensor,
};
use sumac_lab::deployment::Deployment;

use crate::exact::{self, ReferenceSum, Results, Value};
use crate::stats;
use crate::wait::LIMIT;

/// One worker's trainer with its job open.
#[derive(Debug)]
pub struct Trainer {
    /// Its connection to its daemon.
    pub client: Client,
    pub job: Job,
    pub rank: u16,
}

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
    let options = &options;
    thread::scope(|scope| {
        let opening: Vec<_> = ranks
            .into_iter()
            .map(|rank| (rank, scope.spawn(move || open_one(sumac.socket(rank), rank, &options(rank)))))
            .collect();
        opening.into_iter().map(|(rank, opened)| (rank, opened.join().unwrap())).collect()
    })
}

/// Connects to a daemon and opens a job.
///
/// # Errors
/// As [`Client::open`].
pub fn open_one(
    socket: impl AsRef<std::path::Path>,
    rank: u16,
    options: &JobOptions,
) -> Result<Trainer, ClientError> {
    let client = Client::connect(socket)?;
    let job = client.open(options)?;
    Ok(Trainer { client, job, rank })
}

impl Trainer {
    /// Hands in this worker's values for a sum.
    pub fn submit(&self, seed: u64, count: usize) -> Pending<f32> {
        self.submit_as(seed, count, Reduction::Sum)
    }

    /// Hands in this worker's values, of any type and for any reduction.
    ///
    /// # Panics
    /// When they are not accepted.
    pub fn submit_as<T: Value>(&self, seed: u64, count: usize, reduction: Reduction) -> Pending<T> {
        self.hand_in(self.values(seed, count), reduction)
    }

    fn values<T: Value>(&self, seed: u64, count: usize) -> Tensor<T> {
        let mut tensor = self.client.tensor::<T>(count).unwrap();
        for (index, element) in tensor.iter_mut().enumerate() {
            *element = exact::value(seed, self.rank, index);
        }
        tensor
    }

    fn hand_in<T: Value>(&self, tensor: Tensor<T>, reduction: Reduction) -> Pending<T> {
        let pending = self.job.allreduce_with(tensor, OpOptions { reduction, ..OpOptions::default() });
        pending.unwrap_or_else(|error| panic!("rank {}: {error}", self.rank))
    }
}

impl Crew {
    /// All workers join the job `name`.
    ///
    /// # Panics
    /// When one of them cannot.
    pub fn join(sumac: &Deployment<'_>, name: &str) -> Crew {
        Crew::join_with(sumac, name, |options| options)
    }

    /// All workers join the job `name`, with options.
    ///
    /// # Panics
    /// When one of them cannot.
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

    /// All workers join the dynamic job `name`, over all parameter hosts of the lab.
    ///
    /// # Panics
    /// When one of them cannot.
    pub fn join_dynamic(sumac: &Deployment<'_>, name: &str) -> Crew {
        Crew::join_with(sumac, name, |options| sumac.in_its_mode(options))
    }

    /// One counter of all workers' engines together.
    ///
    /// # Panics
    /// When one does not say.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        self.trainers.iter().map(|trainer| stats::counter(trainer, name)).sum()
    }

    /// The sums that all workers get of the values of a seed.
    ///
    /// # Panics
    /// When one of them fails or does not end.
    pub fn allreduce(&self, seed: u64, count: usize) -> Results<f32> {
        self.results(self.submit(seed, count))
    }

    /// All workers hand in their values for a sum.
    pub fn submit(&self, seed: u64, count: usize) -> Vec<Pending<f32>> {
        self.submit_as(seed, count, Reduction::Sum)
    }

    /// All workers hand in their values, nearly at once.
    fn submit_as<T: Value>(&self, seed: u64, count: usize, reduction: Reduction) -> Vec<Pending<T>> {
        self.hand_in(self.prepare(seed, count), reduction)
    }

    /// The values of all workers, by rank: making them takes longer than summing them.
    #[must_use]
    pub fn prepare<T: Value>(&self, seed: u64, count: usize) -> Vec<Tensor<T>> {
        self.trainers.iter().map(|trainer| trainer.values(seed, count)).collect()
    }

    /// All workers hand in what was [prepared](Crew::prepare).
    ///
    /// # Panics
    /// When it is not accepted.
    pub fn hand_in<T: Value>(&self, tensors: Vec<Tensor<T>>, reduction: Reduction) -> Vec<Pending<T>> {
        let handed = self.trainers.iter().zip(tensors);
        handed.map(|(trainer, tensor)| trainer.hand_in(tensor, reduction)).collect()
    }

    /// Waits for a sum of all workers and returns its results, by rank.
    ///
    /// # Panics
    /// When it fails or does not end.
    pub fn results(&self, pending: Vec<Pending<f32>>) -> Results<f32> {
        self.results_of(pending, Reduction::Sum)
    }

    /// The results of an operation of all workers on values of any type.
    ///
    /// # Panics
    /// When it fails or does not end.
    pub fn reduce<T: Value>(&self, seed: u64, count: usize, reduction: Reduction) -> Results<T> {
        self.results_of(self.submit_as(seed, count, reduction), reduction)
    }

    fn results_of<T: Value>(&self, pending: Vec<Pending<T>>, reduction: Reduction) -> Results<T> {
        let numbers = ReferenceSum::of(self.trainers[0].job.opened(), reduction);
        Results { numbers, by_rank: pending.into_iter().map(|pending| sum(pending).to_vec()).collect() }
    }

    /// All workers leave in good order.
    ///
    /// # Panics
    /// When one of them cannot.
    pub fn leave(self) {
        for Trainer { job, rank, .. } in self.trainers {
            job.close().unwrap_or_else(|error| panic!("rank {rank} leaves: {error}"));
        }
    }
}

/// The sum of an operation that must succeed.
///
/// # Panics
/// When it fails, or does not end.
pub fn sum<T: Element>(mut pending: Pending<T>) -> Tensor<T> {
    match pending.wait_timeout(LIMIT) {
        Ok(true) => pending.wait().unwrap_or_else(|error| panic!("the sum: {error}")),
        Ok(false) => panic!("the sum hangs: nothing for {} s", LIMIT.as_secs()),
        Err(error) => panic!("the sum: {error}"),
    }
}

/// The error of an operation that must fail, and within `limit`.
///
/// # Panics
/// When it succeeds, or hangs, or fails for want of a daemon.
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
