//! The trainers of a run: one connection, job and tensor per worker, all at once.

use std::sync::{Barrier, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use sumac_client::{Client, ClientError, Job, JobOptions, OpOptions, OpenReply, Tensor};

use super::Operation;
use super::contents::{Comparison, Contents};
use super::reference_sum::{ReferenceSum, Value as Element};
use crate::clock::{Span, around, monotonic};
use crate::deployment::{DeployError, Deployment};
use crate::interrupt;

/// The interval at which a waiting trainer checks for an interrupt.
const LOOK: Duration = Duration::from_millis(200);

/// The join timeout.
const JOIN_LIMIT: Duration = Duration::from_secs(30);

/// The failure of a trainer.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// Its daemon could not be reached.
    #[error(transparent)]
    Deploy(#[from] DeployError),
    /// Its daemon refused or failed.
    #[error("worker {rank}, {doing}: {source}")]
    Client {
        /// The worker.
        rank: u16,
        /// The action.
        doing: &'static str,
        /// The client's error.
        source: Box<ClientError>,
    },
    /// The sum did not come.
    #[error(
        "worker {rank} waited {seconds} s for its sum; `sumac stats` and the logs in the lab's folder tell more"
    )]
    Late {
        /// The worker.
        rank: u16,
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// A lab without workers.
    #[error("a job needs workers")]
    Nobody,
    /// A thread of the lab itself died.
    #[error("a trainer's thread of the lab panicked")]
    Thread,
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] interrupt::Interrupted),
}

struct Trainer<T> {
    rank: u16,
    client: Client,
    job: Job,
    tensor: Option<Tensor<T>>,
}

/// One job with all its workers.
pub struct Trainers<T> {
    all: Vec<Trainer<T>>,
    operation: Operation,
}

impl<T: Element> Trainers<T> {
    /// Connects to all daemons, joins the job `name` as all its workers and makes a tensor for each.
    ///
    /// # Errors
    /// The first worker's that cannot.
    pub fn join(
        deployment: &Deployment<'_>,
        name: &str,
        operation: Operation,
    ) -> Result<Trainers<T>, TrainError> {
        let world = deployment.lab().spec().workers;
        let mut clients = Vec::new();
        for rank in 0..world {
            clients.push((rank, deployment.client(rank)?));
        }
        // A worker's join returns when all have joined, so they must come at the same time.
        let all = in_parallel(clients, |(rank, client)| {
            let fail =
                |doing| move |source: ClientError| TrainError::Client { rank, doing, source: source.into() };
            let tensor = client.tensor::<T>(operation.elements).map_err(fail("making its tensor"))?;
            let options = JobOptions::new(name, rank, world).wire(operation.wire).timeout(JOIN_LIMIT);
            let options = deployment.in_its_mode(options);
            let job = client.open(&options).map_err(fail("joining the job"))?;
            Ok(Trainer { rank, client, job, tensor: Some(tensor) })
        })?;
        Ok(Trainers { all, operation })
    }

    /// The terms of the job.
    ///
    /// # Errors
    /// When there are none.
    pub fn opened(&self) -> Result<&OpenReply, TrainError> {
        self.all.first().map(|trainer| trainer.job.opened()).ok_or(TrainError::Nobody)
    }

    /// Writes each worker's values.
    ///
    /// # Errors
    /// Only when a thread dies.
    pub fn fill(&mut self, contents: Contents) -> Result<(), TrainError> {
        in_parallel(self.all.iter_mut().collect(), |trainer: &mut Trainer<T>| {
            if let Some(tensor) = &mut trainer.tensor {
                contents.fill(trainer.rank, tensor);
            }
            Ok(())
        })
        .map(|_| ())
    }

    /// Sums all tensors, all workers at once; returns the first one's start and the last one's end.
    ///
    /// # Errors
    /// The first worker's that fails or takes longer than `limit`.
    pub fn allreduce(&mut self, limit: Duration) -> Result<Span, TrainError> {
        let start = Barrier::new(self.all.len());
        let options = OpOptions { reduction: self.operation.reduction, ..OpOptions::default() };
        let spans = in_parallel(self.all.iter_mut().collect(), |trainer: &mut Trainer<T>| {
            start.wait();
            trainer.allreduce(options, limit)
        })?;
        Ok(around(&spans))
    }

    /// Compares every element of every worker with the reference, on all CPUs.
    ///
    /// # Errors
    /// Only when a thread dies.
    pub fn compare(&self, contents: Contents) -> Result<Comparison, TrainError> {
        const PACKETS: usize = 100;
        let reference = ReferenceSum::of(self.opened()?, self.operation.reduction);
        let (block, elements) = (PACKETS * reference.packet::<T>(), self.operation.elements);
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let results: Vec<&[T]> =
            self.all.iter().map(|trainer| trainer.tensor.as_deref().unwrap_or(&[])).collect();
        let next = RwLock::new((0..elements).step_by(block));
        let take = || next.write().unwrap_or_else(PoisonError::into_inner).next();
        let parts = in_parallel((0..cpus).collect(), |_| {
            let mut comparison = Comparison::default();
            while let Some(first) = take() {
                let last = (first + block).min(elements);
                comparison = comparison.and(contents.compare(reference, first..last, &results));
            }
            Ok(comparison)
        })?;
        Ok(parts.into_iter().fold(Comparison::default(), Comparison::and))
    }

    /// Each daemon's statistics, as long as the job is open.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn stats(&self) -> Result<Vec<Value>, TrainError> {
        let ask = |trainer: &Trainer<T>| {
            let rank = trainer.rank;
            let fail = |source: ClientError| TrainError::Client {
                rank,
                doing: "asking for statistics",
                source: source.into(),
            };
            trainer.client.stats_json().map_err(fail)
        };
        self.all.iter().map(ask).collect()
    }

    /// Leaves the job, all together.
    ///
    /// # Errors
    /// The first worker's that is not let go.
    pub fn leave(self) -> Result<(), TrainError> {
        in_parallel(self.all, |trainer| {
            let rank = trainer.rank;
            trainer.job.close().map_err(|source| TrainError::Client {
                rank,
                doing: "leaving the job",
                source: source.into(),
            })
        })
        .map(|_| ())
    }
}

impl<T: Element> Trainer<T> {
    fn allreduce(&mut self, options: OpOptions<'_>, limit: Duration) -> Result<Span, TrainError> {
        let rank = self.rank;
        let fail = |source: ClientError| TrainError::Client { rank, doing: "summing", source: source.into() };
        // An earlier operation that failed kept it; that error ended the run already.
        let Some(tensor) = self.tensor.take() else { return Err(TrainError::Thread) };
        let (begin, deadline) = (monotonic(), Instant::now() + limit);
        let mut pending = self.job.allreduce_with(tensor, options).map_err(|failed| fail(failed.error))?;
        while !pending.wait_timeout(LOOK).map_err(|failed| fail(failed.error))? {
            interrupt::check()?;
            if Instant::now() > deadline {
                return Err(TrainError::Late { rank, seconds: limit.as_secs() });
            }
        }
        let end = monotonic();
        self.tensor = Some(pending.wait().map_err(|failed| fail(failed.error))?);
        Ok((begin, end))
    }
}

/// Does `work` on every item in a thread of its own, and returns the results in the items' order.
pub(super) fn in_parallel<I: Send, O: Send>(
    items: Vec<I>,
    work: impl Fn(I) -> Result<O, TrainError> + Sync,
) -> Result<Vec<O>, TrainError> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap_or(Err(TrainError::Thread)));
        results.collect::<Vec<_>>().into_iter().collect()
    })
}
