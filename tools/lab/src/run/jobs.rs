//! Several jobs that sum at the same time, over the same hosts and aggregators.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;
use sumac_client::{Loss, OpenReply};

use super::contents::{Comparison, Contents};
use super::counters::list;
use super::options::{Operation, RunOptions};
use super::reference_sum::Value as Element;
use super::trainers::Trainers;
use crate::clock::{Span, Times};
use crate::deployment::Deployment;
use crate::parallel::in_parallel;

/// The jobs of a run, each with all workers.
pub(super) struct Jobs<T> {
    all: Vec<(String, Trainers<T>)>,
}

/// The result of one of a run's jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobReport {
    pub name: String,
    /// Its number in packets.
    pub job: u16,
    /// Seconds to aggregate: from its first worker's start to its last worker's sum.
    pub tat_s: Times,
    /// Aggregated elements per second per worker, by the median.
    pub ate_per_s: f64,
    /// Its part of what all jobs have of that: 1 divided by their number when they share alike.
    pub share: f64,
    /// Chunks sent again by its workers.
    pub resent: u64,
    /// Results that said that their chunk had found its slot busy, of its workers together; 0 of a static
    /// job.
    pub collisions: u64,
}

impl<T: Element> Jobs<T> {
    /// Opens them one after the other.
    pub(super) fn join(deployment: &Deployment<'_>, options: &RunOptions) -> Result<Jobs<T>> {
        let name = |job: u16| if options.jobs == 1 { "lab".to_owned() } else { format!("lab{job}") };
        let join = |name: String| {
            Trainers::join(deployment, &name, options.operation).map(|trainers| (name, trainers))
        };
        Ok(Jobs { all: (0..options.jobs).map(name).map(join).collect::<Result<_>>()? })
    }

    fn first(&self) -> Result<&Trainers<T>> {
        self.all.first().map(|(_, trainers)| trainers).context("a job needs workers")
    }

    pub(super) fn opened(&self) -> Result<&OpenReply> {
        self.first()?.opened()
    }

    /// Each daemon's statistics, of all jobs, as long as they are open.
    pub(super) fn stats(&self) -> Result<Vec<Value>> {
        self.first()?.stats()
    }

    /// Writes each worker's values, which differ from job to job.
    pub(super) fn fill(&mut self, contents: Contents) -> Result<()> {
        (0..).zip(&mut self.all).try_for_each(|(job, (_, trainers))| trainers.fill(of_job(contents, job)))
    }

    /// Runs an operation on all tensors of all jobs at once; returns each job's start and end.
    pub(super) fn operate(&mut self, limit: Duration) -> Result<Vec<Span>> {
        in_parallel(self.all.iter_mut().collect(), |(_, trainers): &mut (_, Trainers<T>)| {
            trainers.operate(limit)
        })
    }

    /// Returns the missing contributions of each job's last operation, if it had a loss bound.
    pub(super) fn losses(&self) -> impl Iterator<Item = Loss> {
        self.all.iter().filter_map(|(_, trainers)| trainers.loss().cloned())
    }

    /// Compares every element of every worker of every job with the reference.
    pub(super) fn compare(&self, contents: Contents) -> Result<Comparison> {
        (0..).zip(&self.all).try_fold(Comparison::default(), |all, (job, (_, trainers))| {
            Ok(all.and(trainers.compare(of_job(contents, job))?))
        })
    }

    /// Returns each job's result, from its spans and the daemons' counters.
    pub(super) fn reports(
        &self,
        spans: &[Vec<Span>],
        stats: &[Value],
        operation: Operation,
    ) -> Result<Vec<JobReport>> {
        let mut reports = Vec::new();
        for (place, (name, trainers)) in self.all.iter().enumerate() {
            let job = trainers.opened()?.wire_job;
            let of_job: Vec<Span> = spans.iter().filter_map(|spans| spans.get(place).copied()).collect();
            let tat_s = Times::of_spans(&of_job);
            let sum = |field: &str| {
                let jobs = stats.iter().flat_map(|stats| list(&stats["jobs"]));
                jobs.filter(|one| one["job"] == job).filter_map(|one| one["engine"][field].as_u64()).sum()
            };
            reports.push(JobReport {
                name: name.clone(),
                job,
                tat_s,
                ate_per_s: operation.elements as f64 / tat_s.median,
                share: 0.0,
                resent: sum("resent"),
                collisions: sum("collisions"),
            });
        }
        let all: f64 = reports.iter().map(|report| report.ate_per_s).sum();
        reports.iter_mut().for_each(|report| report.share = report.ate_per_s / all);
        Ok(reports)
    }

    pub(super) fn leave(self) -> Result<()> {
        self.all.into_iter().try_for_each(|(_, trainers)| trainers.leave())
    }
}

/// The values of one of the jobs; those of the first are as if it were alone.
fn of_job(contents: Contents, job: u64) -> Contents {
    Contents { seed: contents.seed.wrapping_add(job), ..contents }
}
