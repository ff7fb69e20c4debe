//! Counters of frames, jobs and workers, summed over all CPUs.

use sumac_agg_job::seen::{JobSeen, WorkerSeen};
use sumac_wire::{MAX_WORKERS, Reason, result_paths, tables::worker_index};

use super::{Result, Tables};

impl Tables {
    pub fn counters(&self) -> Result<Vec<(Reason, u64)>> {
        let count = |reason: &Reason| Ok((*reason, self.counters.get(*reason as u32)?.iter().sum()));
        Reason::ALL.iter().map(count).collect()
    }

    pub fn job_seen(&self, job: u16) -> Result<JobSeen> {
        let (mut sum, index) = (JobSeen::default(), job.into());
        for counters in self.job_counters.get(index)? {
            sum = sum.and(&JobSeen { counters, ..JobSeen::default() });
        }
        for times in self.times.get(index)? {
            sum = sum.and(&JobSeen { times, ..JobSeen::default() });
        }
        for injected in self.injected.get(index)? {
            sum = sum.and(&JobSeen { injected, ..JobSeen::default() });
        }
        Ok(sum)
    }

    pub fn worker_seen(&self, job: u16, rank: u16) -> Result<WorkerSeen> {
        let index = worker_index(job, rank);
        let all = self.worker_counters.get(index)?.into_iter().zip(self.lateness.get(index)?);
        let surveys = self.surveys.get(index)?.into_iter();
        let most = surveys.map(|record| result_paths::of_record(record).count_ones()).max();
        let avoided_paths = most.unwrap_or_default() as u16;
        let seen = all.map(|(counters, late)| WorkerSeen { counters, late, avoided_paths });
        Ok(seen.fold(WorkerSeen::default(), |sum, one| sum.and(&one)))
    }

    pub fn clear_counters(&mut self, job: u16) -> Result<()> {
        self.job_counters.clear(job.into())?;
        self.injected.clear(job.into())?;
        self.times.clear(job.into())?;
        for rank in 0..MAX_WORKERS as u16 {
            self.worker_counters.clear(worker_index(job, rank))?;
            self.lateness.clear(worker_index(job, rank))?;
            self.surveys.set(worker_index(job, rank), &Default::default())?;
        }
        Ok(())
    }
}
