//! Counters of frames, jobs and workers, summed over all CPUs, and the intentional drops.

use sumac_agg_layout::{Drops, Injected, Lateness, Times, name};
use sumac_wire::{
    MAX_WORKERS, Reason,
    reason::COUNTERS,
    tables::{WorkerCounters, worker_index},
};

use super::{Result, Tables, reading};

impl Tables {
    /// Returns the frames by reason.
    pub fn counters(&self) -> Result<Vec<(Reason, u64)>> {
        let count = |reason: &Reason| {
            let per_cpu = self.counters.get(&(*reason as u32), 0)?;
            Ok((*reason, per_cpu.iter().sum()))
        };
        Reason::ALL.iter().map(count).collect::<std::result::Result<_, _>>().map_err(reading(name::COUNTERS))
    }

    /// Returns a job's frames by reason, without those never counted.
    pub fn job_counters(&self, job: u16) -> Result<Vec<(Reason, u64)>> {
        let sum = self.job_counters.fold(job.into(), [0; COUNTERS], |sum, one| add(sum, &one))?;
        let all = Reason::ALL.iter().map(|reason| (*reason, sum[*reason as usize]));
        Ok(all.filter(|(_, count)| *count > 0).collect())
    }

    pub fn worker_counters(&self, job: u16, rank: u16) -> Result<WorkerCounters> {
        let zero = WorkerCounters::default();
        self.worker_counters.fold(worker_index(job, rank), zero, |sum, one| WorkerCounters {
            added: sum.added + one.added,
            last: sum.last + one.last,
            duplicates: sum.duplicates + one.duplicates,
            replies: sum.replies + one.replies,
        })
    }

    /// Returns the lateness of a worker, of the sampled chunks.
    pub fn lateness(&self, job: u16, rank: u16) -> Result<Lateness> {
        self.lateness.fold(worker_index(job, rank), Lateness::default(), |sum, one| Lateness {
            chunks: sum.chunks + one.chunks,
            sum: sum.sum + one.sum,
            max: sum.max.max(one.max),
        })
    }

    /// Returns the times to completion of a job's chunks.
    pub fn times(&self, job: u16) -> Result<Times> {
        self.times
            .fold(job.into(), Times::default(), |sum, one| Times { buckets: add(sum.buckets, &one.buckets) })
    }

    /// Returns the part of a job's frames that is dropped intentionally.
    pub fn drops(&self, job: u16) -> Result<Drops> {
        self.drops.get(job.into())
    }

    pub fn set_drops(&mut self, job: u16, drops: Drops) -> Result<()> {
        self.drops.set(job.into(), &drops)
    }

    /// Returns the number of a job's frames that were dropped intentionally.
    pub fn injected(&self, job: u16) -> Result<Injected> {
        self.injected.fold(job.into(), Injected::default(), |sum, one| Injected {
            up: sum.up + one.up,
            down: sum.down + one.down,
        })
    }

    /// Sets the counters of a job and its workers to zero.
    pub fn clear_counters(&mut self, job: u16) -> Result<()> {
        self.job_counters.clear(job.into())?;
        self.injected.clear(job.into())?;
        self.times.clear(job.into())?;
        for rank in 0..MAX_WORKERS as u16 {
            self.worker_counters.clear(worker_index(job, rank))?;
            self.lateness.clear(worker_index(job, rank))?;
        }
        Ok(())
    }
}

fn add<const N: usize>(mut sum: [u64; N], one: &[u64; N]) -> [u64; N] {
    sum.iter_mut().zip(one).for_each(|(sum, one)| *sum += one);
    sum
}
