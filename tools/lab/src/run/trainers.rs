//! The trainers of a run: one connection, job and tensor per rank, all at once.

use std::sync::{Barrier, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;
use sumac_client::{
    Client, ClientError, CollectiveKind, Job, JobOptions, Loss, Mode, OpOptions, OpenReply, Pending, Tensor,
};

use super::contents::{Blocks, Comparison, Contents};
use super::options::Operation;
use super::reference_sum::{ReferenceSum, Value as Element};
use crate::clock::{Span, around, monotonic};
use crate::deployment::Deployment;
use crate::interrupt;
use crate::parallel::in_parallel;

/// The interval at which a waiting trainer checks for an interrupt.
const LOOK: Duration = Duration::from_millis(200);

/// The time for which a trainer polls before it sleeps.
const SPIN: Duration = Duration::from_micros(200);

const JOIN_LIMIT: Duration = Duration::from_secs(30);

const PANICKED: &str = "a trainer's thread of the lab panicked";

/// Makes the error of a rank whose daemon refused or failed.
fn failed(rank: u16, doing: &'static str) -> impl Fn(ClientError) -> anyhow::Error {
    move |error| anyhow!("rank {rank}, {doing}: {error}")
}

struct Trainer<T> {
    rank: u16,
    client: Client,
    job: Job,
    tensor: Option<Tensor<T>>,
    /// Of the last operation, if it had a loss bound.
    loss: Option<Loss>,
}

/// One job with all its workers.
pub struct Trainers<T> {
    all: Vec<Trainer<T>>,
    kind: CollectiveKind,
    operation: Operation,
}

impl<T: Element> Trainers<T> {
    /// Connects to all daemons, joins the job `name` as all its workers and makes a tensor for each.
    pub fn join(deployment: &Deployment<'_>, name: &str, operation: Operation) -> Result<Trainers<T>> {
        let of_host = operation.ranks_per_host;
        let world = deployment.lab().spec().workers * of_host;
        let mut clients = Vec::new();
        for rank in 0..world {
            clients.push((rank, deployment.client(rank / of_host)?));
        }
        // A worker's join returns when all have joined, so they must come at the same time.
        let all = in_parallel(clients, |(rank, client)| {
            let tensor = client.tensor::<T>(operation.elements).map_err(failed(rank, "making its tensor"))?;
            let options = JobOptions::new(name, rank, world).wire(operation.wire).timeout(JOIN_LIMIT);
            let options = deployment.in_its_mode(options);
            let options = if of_host > 1 { options.local_world(of_host) } else { options };
            let job = client.open(&options).map_err(failed(rank, "joining the job"))?;
            Ok(Trainer { rank, client, job, tensor: Some(tensor), loss: None })
        })?;
        Ok(Trainers { all, kind: deployment.options().collective(), operation })
    }

    pub fn opened(&self) -> Result<&OpenReply> {
        self.all.first().map(|trainer| trainer.job.opened()).context("a job needs workers")
    }

    pub fn fill(&mut self, contents: Contents) -> Result<()> {
        in_parallel(self.all.iter_mut().collect(), |trainer: &mut Trainer<T>| {
            if let Some(tensor) = &mut trainer.tensor {
                // Of a server's tensor nothing is read.
                contents.fill(trainer.rank.saturating_sub(trainer.job.opened().servers), tensor);
            }
            Ok(())
        })
        .map(|_| ())
    }

    /// Runs an operation on all tensors, all workers at once; returns the first one's start and the last
    /// one's end.
    pub fn operate(&mut self, limit: Duration) -> Result<Span> {
        let start = Barrier::new(self.all.len());
        let (kind, Operation { reduction, loss_bound, polled, .. }) = (self.kind, self.operation);
        let options = OpOptions { reduction, loss_bound, polled, ..OpOptions::default() };
        let spans = in_parallel(self.all.iter_mut().collect(), |trainer: &mut Trainer<T>| {
            start.wait();
            trainer.operate(kind, options, limit)
        })?;
        self.check_losses()?;
        Ok(around(&spans))
    }

    /// Checks that all workers report the same missing contributions, each within the bound, and all ranges
    /// of its own. In a direct job each has what did not arrive there.
    fn check_losses(&self) -> Result<()> {
        let Some(first) = self.loss() else { return Ok(()) };
        if self.opened()?.mode == Mode::Direct {
            let losses = self.all.iter().filter_map(|trainer| trainer.loss.as_ref());
            let is_within = |loss: &Loss| loss.by_worker.iter().all(|lost| *lost <= loss.budget);
            return losses.into_iter().try_for_each(|loss| {
                ensure!(is_within(loss), "more is lost than the bound allows: {loss:?}");
                Ok(())
            });
        }
        let of_host = usize::from(self.operation.ranks_per_host);
        for (rank, trainer) in self.all.iter().enumerate() {
            let loss = trainer.loss.as_ref().context("a worker does not report its loss")?;
            let own: u64 = loss.own.iter().map(|(first, end)| end - first).sum();
            let most = loss.by_worker.iter().max().copied().unwrap_or(0);
            ensure!(loss.by_worker == first.by_worker, "workers 0 and {rank} report other losses");
            ensure!(Some(&own) == loss.by_worker.get(rank / of_host), "rank {rank}: {own} of {loss:?}");
            ensure!(most <= loss.budget, "worker {rank}: {loss:?}");
        }
        Ok(())
    }

    /// Returns the missing contributions of the last operation, if it had a loss bound.
    pub fn loss(&self) -> Option<&Loss> {
        self.all.first().and_then(|trainer| trainer.loss.as_ref())
    }

    /// Compares every element of every worker with the reference, on all CPUs.
    pub fn compare(&self, contents: Contents) -> Result<Comparison> {
        const PACKETS: usize = 100;
        let Operation { reduction, loss_bound, ranks_per_host, .. } = self.operation;
        let reference = ReferenceSum::of(self.opened()?, reduction, loss_bound);
        let reference = ReferenceSum { ranks_per_host: ranks_per_host.into(), ..reference };
        let (block, elements) = (PACKETS * reference.packet::<T>(), self.operation.elements);
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // Servers have parts of the result.
        let workers = &self.all[self.opened()?.servers.into()..];
        let results: Vec<&[T]> =
            workers.iter().map(|trainer| trainer.tensor.as_deref().unwrap_or(&[])).collect();
        let own = |trainer: &'_ Trainer<T>| trainer.loss.as_ref().map_or(Vec::new(), |loss| loss.own.clone());
        let missing = self
            .all
            .iter()
            .map(|trainer| trainer.loss.as_ref().map_or(Vec::new(), |loss| loss.missing.clone()));
        let missing: Vec<Vec<(u64, u64)>> = missing.collect();
        let blocks = Blocks { kind: self.kind, size: elements / self.all.len().max(1), missing: &missing };
        // The ranks of a host have the same.
        let hosts = self.all.iter().step_by(ranks_per_host.into());
        let left_out: Vec<Vec<(u64, u64)>> = hosts.map(own).collect();
        let left_out: Vec<&[(u64, u64)]> = left_out.iter().map(Vec::as_slice).collect();
        let next = RwLock::new((0..elements).step_by(block));
        let take = || next.write().unwrap_or_else(PoisonError::into_inner).next();
        let parts = in_parallel((0..cpus).collect(), |_| {
            let mut comparison = Comparison::default();
            while let Some(first) = take() {
                let last = (first + block).min(elements);
                let compared = match self.loss() {
                    _ if self.kind.has_blocks() => {
                        contents.compare_blocks(reference, first..last, &results, &blocks)
                    }
                    None => contents.compare(reference, first..last, &results),
                    Some(_) if reference.direct.is_some() => {
                        contents.compare(reference, first..last, &results)
                    }
                    Some(_) => contents.compare_bounded(reference, first..last, &results, &left_out),
                };
                comparison = comparison.and(compared);
            }
            Ok(comparison)
        })?;
        Ok(parts.into_iter().fold(Comparison::default(), Comparison::and))
    }

    /// Each daemon's statistics, as long as the job is open.
    pub fn stats(&self) -> Result<Vec<Value>> {
        let of_host = usize::from(self.operation.ranks_per_host);
        let ask = |trainer: &Trainer<T>| {
            trainer.client.stats_json().map_err(failed(trainer.rank, "asking for statistics"))
        };
        self.all.iter().step_by(of_host).map(ask).collect()
    }

    pub fn leave(self) -> Result<()> {
        in_parallel(self.all, |trainer| trainer.job.close().map_err(failed(trainer.rank, "leaving the job")))
            .map(|_| ())
    }
}

impl<T: Element> Trainer<T> {
    fn operate(&mut self, kind: CollectiveKind, options: OpOptions<'_>, limit: Duration) -> Result<Span> {
        let (rank, seconds) = (self.rank, limit.as_secs());
        let fail = |error| failed(rank, "summing")(error);
        // An earlier operation that failed kept it; that error ended the run already.
        let tensor = self.tensor.take().context(PANICKED)?;
        let (begin, deadline) = (monotonic(), Instant::now() + limit);
        let submitted = match kind {
            CollectiveKind::Allgather => self.job.allgather(tensor, options),
            CollectiveKind::ReduceScatter => self.job.reduce_scatter(tensor, options),
            _ => self.job.allreduce_with(tensor, options),
        };
        let mut pending = submitted.map_err(|failed| fail(failed.error))?;
        let polled_end = options.polled.then(|| poll(&pending)).flatten();
        while !pending.wait_timeout(LOOK).map_err(|failed| fail(failed.error))? {
            interrupt::check()?;
            if Instant::now() > deadline {
                bail!(
                    "rank {rank} waited {seconds} s for its result; `sumac stats` and the logs in the \
                    lab's folder tell more"
                );
            }
        }
        let end = polled_end.unwrap_or_else(monotonic);
        self.loss = pending.loss().cloned();
        self.tensor = Some(pending.wait().map_err(|failed| fail(failed.error))?);
        Ok((begin, end))
    }
}

/// Polls an operation's completion word for some time. Returns the end, if it came.
fn poll<T: Element>(pending: &Pending<T>) -> Option<f64> {
    let end = Instant::now() + SPIN;
    while Instant::now() < end {
        if pending.is_ended() {
            return Some(monotonic());
        }
        std::thread::yield_now();
    }
    None
}
