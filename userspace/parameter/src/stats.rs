//! The counters of a parameter host.

use serde::Serialize;
use sumac_wire::{Reason, reason::COUNTERS};

/// All jobs of one thread.
#[derive(Clone, Debug, Serialize)]
pub struct HostStats {
    /// The jobs.
    pub jobs: Vec<JobStats>,
    /// Packets by what became of them, also those of no job; by [`Reason`]'s number.
    #[serde(skip)]
    pub counters: [u64; COUNTERS],
    /// Bytes that the chunks of these jobs can take.
    pub memory: u64,
}

/// One job. Bytes are those of UDP payloads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JobStats {
    /// Its number.
    pub job: u16,
    /// Its incarnation.
    pub epoch: u16,
    /// The number of workers.
    pub world: u16,
    /// The number of them whose last packet came without an aggregator.
    pub direct: u32,
    /// Contributions of single workers that came in.
    pub contributions: u64,
    /// Sums of some workers.
    pub partial_sums: u64,
    /// Sums of all workers.
    pub full_sums: u64,
    /// Of all these, what a chunk had already.
    pub duplicates: u64,
    /// Of all these, what found a slot busy on its way.
    pub collisions: u64,
    /// Of all these, what told of congestion.
    pub marked: u64,
    /// Chunks that were summed.
    pub completed: u64,
    /// Of these, how many as floats.
    pub raw: u64,
    /// Requests for a chunk's floats, to one worker or all.
    pub asked_raw: u64,
    /// Results that were sent again.
    pub replies: u64,
    /// Probes that were answered.
    pub probes: u64,
    /// Packets that were refused.
    pub refused: u64,
    /// Bytes that came in.
    pub bytes_in: u64,
    /// Packets that left.
    pub sent: u64,
    /// Their bytes.
    pub bytes_out: u64,
}

impl Default for HostStats {
    fn default() -> HostStats {
        HostStats { jobs: Vec::new(), counters: [0; COUNTERS], memory: 0 }
    }
}

impl HostStats {
    /// Returns the number of packets with this reason.
    pub fn counter(&self, reason: Reason) -> u64 {
        self.counters[reason as usize]
    }

    /// One job's.
    pub fn job(&self, number: u16) -> Option<&JobStats> {
        self.jobs.iter().find(|job| job.job == number)
    }

    /// Adds what another thread counted.
    pub fn merge(&mut self, other: &HostStats) {
        self.memory += other.memory;
        self.counters.iter_mut().zip(other.counters).for_each(|(sum, one)| *sum += one);
        for job in &other.jobs {
            match self.jobs.iter_mut().find(|sum| sum.job == job.job) {
                Some(sum) => sum.merge(job),
                None => self.jobs.push(job.clone()),
            }
        }
    }
}

impl JobStats {
    /// Adds what another thread counted of the same job.
    pub fn merge(&mut self, other: &JobStats) {
        // Each thread knows of its own shards only.
        self.direct = self.direct.max(other.direct);
        for (sum, one) in self.counted().into_iter().zip(other.clone().counted()) {
            *sum += *one;
        }
    }

    fn counted(&mut self) -> [&mut u64; 15] {
        [
            &mut self.contributions,
            &mut self.partial_sums,
            &mut self.full_sums,
            &mut self.duplicates,
            &mut self.collisions,
            &mut self.marked,
            &mut self.completed,
            &mut self.raw,
            &mut self.asked_raw,
            &mut self.replies,
            &mut self.probes,
            &mut self.refused,
            &mut self.bytes_in,
            &mut self.sent,
            &mut self.bytes_out,
        ]
    }
}
