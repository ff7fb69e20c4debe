//! Counters of each job, its chunks' times and last workers, and loss injection: the data that
//! the eBPF aggregator keeps in its maps, in the same units and of the same chunks.

use std::time::Instant;

use sumac_agg_job::seen::{JobSeen, WorkerSeen};
use sumac_agg_layout::{Began, Drops, Injected, SAMPLED, TIME_BUCKETS};
use sumac_wire::{MAX_JOBS, MAX_WORKERS, Reason, dynamic, slot, tables::worker_index};

/// A chunk that is in a slot.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    seq: u32,
    owner: u32,
    /// Index in the table of beginnings.
    place: usize,
}

impl Chunk {
    /// In this slot of the pool.
    pub fn of_static(slot: u32, contribution: &slot::Contribution) -> Chunk {
        let place = slot as usize * 2 + usize::from(contribution.version);
        Chunk { seq: contribution.seq, owner: contribution.owner, place }
    }

    /// In this shared slot, behind a pool of `pool` slots.
    pub fn shared(slot: u32, pool: u32, contribution: &dynamic::Contribution) -> Chunk {
        let place = pool as usize * 2 + slot as usize;
        Chunk { seq: contribution.seq, owner: contribution.owner, place }
    }
}

pub struct Watch {
    jobs: Vec<JobSeen>,
    workers: Vec<WorkerSeen>,
    drops: Vec<Drops>,
    /// When the chunks in both versions of each slot began, and behind those, the chunks in shared slots.
    began: Vec<Began>,
    start: Instant,
}

impl Watch {
    /// Of a pool of so many slots.
    pub fn new(slots: u32) -> Watch {
        Watch {
            jobs: Vec::new(),
            workers: Vec::new(),
            drops: vec![Drops::default(); MAX_JOBS],
            began: vec![Began::default(); slots as usize * 2],
            start: Instant::now(),
        }
    }

    /// Watches so many shared slots beside those of the pool.
    pub fn share(&mut self, pool: u32, shared: u32) {
        self.began.resize(pool as usize * 2 + shared as usize, Began::default());
    }

    /// Watches job numbers below `jobs`, if it did not before.
    pub fn make_room(&mut self, jobs: usize) {
        self.jobs.resize(jobs.max(self.jobs.len()), JobSeen::default());
        self.workers.resize(self.jobs.len() * MAX_WORKERS, WorkerSeen::default());
    }

    /// Begins anew with a job; what is lost of it on purpose stays.
    pub fn forget(&mut self, job: u16) {
        if let Some(seen) = self.jobs.get_mut(usize::from(job)) {
            *seen = JobSeen::default();
        }
        let first = worker_index(job, 0) as usize;
        if let Some(workers) = self.workers.get_mut(first..first + MAX_WORKERS) {
            workers.fill(WorkerSeen::default());
        }
    }

    pub fn job(&self, job: u16) -> JobSeen {
        self.jobs.get(usize::from(job)).copied().unwrap_or_default()
    }

    pub fn worker(&self, job: u16, rank: u16) -> WorkerSeen {
        self.workers.get(worker_index(job, rank) as usize).copied().unwrap_or_default()
    }

    pub fn worker_mut(&mut self, index: usize) -> Option<&mut WorkerSeen> {
        self.workers.get_mut(index)
    }

    /// Counts a packet of a job, or a copy of a result.
    pub fn count(&mut self, job: u16, reason: Reason) {
        if let Some(seen) = self.jobs.get_mut(usize::from(job)) {
            seen.counters[reason as usize] += 1;
        }
    }

    pub fn drops(&self, job: u16) -> Drops {
        self.drops.get(usize::from(job)).copied().unwrap_or_default()
    }

    /// By job number, ascending from 1.
    pub fn all_drops(&self) -> impl Iterator<Item = (u16, Drops)> {
        (0..).zip(self.drops.iter().copied()).skip(1)
    }

    pub fn set_drops(&mut self, job: u16, drops: Drops) {
        if let Some(old) = self.drops.get_mut(usize::from(job)) {
            *old = drops;
        }
    }

    /// Returns whether a packet of a job that arrived is to be dropped intentionally, and counts it.
    pub fn loses_arriving(&mut self, job: u16) -> bool {
        self.loses(job, |drops| drops.up, |injected| &mut injected.up)
    }

    /// As [`Watch::loses_arriving`], for one that is about to leave.
    pub fn loses_leaving(&mut self, job: u16) -> bool {
        self.loses(job, |drops| drops.down, |injected| &mut injected.down)
    }

    fn loses(
        &mut self,
        job: u16,
        part: impl Fn(&Drops) -> u32,
        counter: impl Fn(&mut Injected) -> &mut u64,
    ) -> bool {
        let part = part(&self.drops(job));
        let is_lost = part != 0 && rand::random::<u32>() < part;
        if let Some(seen) = self.jobs.get_mut(usize::from(job)).filter(|_| is_lost) {
            *counter(&mut seen.injected) += 1;
        }
        is_lost
    }

    /// Looks at a contribution of elements to a chunk that was taken into its slot; `is_last`: the chunk
    /// waited for it.
    pub fn look(&mut self, job: u16, index: usize, chunk: Chunk, is_last: bool) {
        if !chunk.seq.is_multiple_of(SAMPLED) {
            return;
        }
        let Some(began) = self.began.get_mut(chunk.place) else { return };
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if (began.seq, began.owner) != (chunk.seq, chunk.owner) {
            *began = Began { at: now, seq: chunk.seq, owner: chunk.owner };
        }
        let waited = now.saturating_sub(began.at);
        if let Some(WorkerSeen { late, .. }) = self.workers.get_mut(index) {
            late.chunks += 1;
            late.sum = late.sum.saturating_add(waited);
            late.max = late.max.max(waited);
        }
        if let Some(seen) = self.jobs.get_mut(usize::from(job)).filter(|_| is_last) {
            let bucket = waited.checked_ilog2().unwrap_or(0) as usize;
            seen.times.buckets[bucket.min(TIME_BUCKETS - 1)] += 1;
            seen.times.sum = seen.times.sum.saturating_add(waited);
        }
    }
}
