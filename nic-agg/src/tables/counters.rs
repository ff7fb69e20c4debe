//! What is counted of each job and worker, of all CPUs together, and the drops on purpose.

use aya::maps::{MapData, MapError, PerCpuArray, PerCpuValues};
use sumac_agg_layout::{Drops, Injected, Lateness, TIME_BUCKETS, Times, name};
use sumac_wire::{
    MAX_WORKERS, Reason,
    reason::COUNTERS,
    tables::{WorkerCounters, worker_index},
};
use zerocopy::{FromBytes, transmute};

use super::{Result, Tables, at};

impl Tables {
    /// A job's frames by reason; those of other reasons left out.
    ///
    /// # Errors
    /// As the kernel answers; so for every function here.
    pub fn job_counters(&self, job: u16) -> Result<Vec<(Reason, u64)>> {
        let per_cpu = read::<[u64; COUNTERS], _>(&self.job_counters, job.into());
        let per_cpu = per_cpu.map_err(at("reading", name::JOB_COUNTERS))?;
        let sum = |reason: &Reason| per_cpu.iter().map(|counters| counters[*reason as usize]).sum();
        let all = Reason::ALL.iter().map(|reason| (*reason, sum(reason)));
        Ok(all.filter(|(_, count)| *count > 0).collect())
    }

    /// What a worker did.
    ///
    /// # Errors
    /// As [`Tables::job_counters`].
    pub fn worker_counters(&self, job: u16, rank: u16) -> Result<WorkerCounters> {
        let per_cpu = read::<WorkerCounters, _>(&self.worker_counters, worker_index(job, rank));
        let per_cpu = per_cpu.map_err(at("reading", name::WORKER_COUNTERS))?;
        Ok(per_cpu.into_iter().fold(WorkerCounters::default(), |sum, one| WorkerCounters {
            added: sum.added + one.added,
            last: sum.last + one.last,
            duplicates: sum.duplicates + one.duplicates,
            replies: sum.replies + one.replies,
        }))
    }

    /// How late a worker was, in the chunks that were looked at.
    ///
    /// # Errors
    /// As [`Tables::job_counters`].
    pub fn lateness(&self, job: u16, rank: u16) -> Result<Lateness> {
        let per_cpu = read::<Lateness, _>(&self.lateness, worker_index(job, rank));
        let per_cpu = per_cpu.map_err(at("reading", name::LATENESS))?;
        Ok(per_cpu.into_iter().fold(Lateness::default(), |sum, one| Lateness {
            chunks: sum.chunks + one.chunks,
            sum: sum.sum + one.sum,
            max: sum.max.max(one.max),
        }))
    }

    /// How long a job's chunks took.
    ///
    /// # Errors
    /// As [`Tables::job_counters`].
    pub fn times(&self, job: u16) -> Result<Times> {
        let per_cpu = read::<Times, _>(&self.times, job.into()).map_err(at("reading", name::TIMES))?;
        let mut sum = [0; TIME_BUCKETS];
        for times in per_cpu {
            for (sum, one) in sum.iter_mut().zip(times.buckets) {
                *sum += one;
            }
        }
        Ok(Times { buckets: sum })
    }

    /// How many of a job's frames are to be dropped on purpose.
    ///
    /// # Errors
    /// As [`Tables::job_counters`].
    pub fn drops(&self, job: u16) -> Result<Drops> {
        let bytes = self.drops.get(&u32::from(job), 0).map_err(at("reading", name::DROPS))?;
        Ok(transmute!(bytes))
    }

    /// Sets it.
    ///
    /// # Errors
    /// As [`Tables::job_counters`].
    pub fn set_drops(&mut self, job: u16, drops: Drops) -> Result<()> {
        let bytes: [u8; size_of::<Drops>()] = transmute!(drops);
        self.drops.set(u32::from(job), bytes, 0).map_err(at("writing", name::DROPS))
    }

    /// How many were dropped.
    ///
    /// # Errors
    /// As [`Tables::job_counters`].
    pub fn injected(&self, job: u16) -> Result<Injected> {
        let per_cpu = read::<Injected, _>(&self.injected, job.into());
        let per_cpu = per_cpu.map_err(at("reading", name::INJECTED))?;
        let add = |sum: Injected, one: Injected| Injected { up: sum.up + one.up, down: sum.down + one.down };
        Ok(per_cpu.into_iter().fold(Injected::default(), add))
    }

    /// Sets all that is counted of a job and its workers to zero.
    ///
    /// # Errors
    /// As [`Tables::job_counters`].
    pub fn clear_counters(&mut self, job: u16) -> Result<()> {
        let number = u32::from(job);
        clear(&mut self.job_counters, number).map_err(at("writing", name::JOB_COUNTERS))?;
        clear(&mut self.injected, number).map_err(at("writing", name::INJECTED))?;
        clear(&mut self.times, number).map_err(at("writing", name::TIMES))?;
        for rank in 0..MAX_WORKERS as u16 {
            let index = worker_index(job, rank);
            clear(&mut self.worker_counters, index).map_err(at("writing", name::WORKER_COUNTERS))?;
            clear(&mut self.lateness, index).map_err(at("writing", name::LATENESS))?;
        }
        Ok(())
    }
}

/// The values of all CPUs.
fn read<T: FromBytes, const N: usize>(
    map: &PerCpuArray<MapData, [u8; N]>,
    index: u32,
) -> std::result::Result<Vec<T>, MapError> {
    let per_cpu = map.get(&index, 0)?;
    // Both are as long as the map's values, or opening it had failed.
    Ok(per_cpu.iter().filter_map(|bytes| T::read_from_bytes(bytes).ok()).collect())
}

fn clear<const N: usize>(
    map: &mut PerCpuArray<MapData, [u8; N]>,
    index: u32,
) -> std::result::Result<(), MapError> {
    let cpus = map.get(&index, 0)?.len();
    map.set(index, PerCpuValues::try_from(vec![[0; N]; cpus])?, 0)
}
