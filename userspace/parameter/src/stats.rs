//! The counters of a parameter host.

use serde::Serialize;
use sumac_wire::{Reason, reason::COUNTERS};

#[derive(Clone, Debug, Serialize)]
pub struct HostStats {
    pub jobs: Vec<JobStats>,
    /// Packets by [`Reason`]'s number, also those of no job.
    #[serde(skip)]
    pub counters: [u64; COUNTERS],
    /// Bytes that the chunks of these jobs can take.
    pub memory: u64,
}

sumac_job::statistics! {
    /// The counters of one job. Bytes are those of UDP payloads.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
    pub struct JobStats {
        pub job: u16,
        pub epoch: u16,
        pub world: u16,
        /// Workers whose last packet came without an aggregator.
        pub direct: u32,
        /// Ranks that the oldest chunk of a stalled lane waits for: no contribution has come for a second.
        pub waiting_for: Vec<u16>,
    }
    /// Contributions of single workers.
    contributions: Counter "sumac_hosted_job_contributions",
    /// Sums of some workers that came from an aggregator.
    partial_sums: Counter "sumac_hosted_job_partial_sums",
    /// Sums of all workers that came from an aggregator.
    full_sums: Counter "sumac_hosted_job_full_sums",
    /// Contributions and sums that a chunk had already.
    duplicates: Counter "sumac_hosted_job_duplicates",
    /// Contributions and sums that found a slot busy on their way.
    collisions: Counter "sumac_hosted_job_collisions",
    /// Contributions and sums with a mark of congestion.
    marked: Counter "sumac_hosted_job_marked",
    /// Chunks that were completed.
    completed: Counter "sumac_hosted_job_completed",
    /// Chunks that were completed without some workers: bounded loss.
    partial: Counter "sumac_hosted_job_completed_partial",
    /// Chunks that were summed as floats.
    raw: Counter "sumac_hosted_job_completed_raw",
    /// Requests for a chunk's floats, to one worker or all.
    asked_raw: Counter "sumac_hosted_job_raw_requests",
    /// Results that were sent again.
    replies: Counter "sumac_hosted_job_replies",
    /// Probes of the path received.
    probes: Counter "sumac_hosted_job_probes",
    /// Packets of the job that were refused.
    refused: Counter "sumac_hosted_job_packets_refused",
    /// Times that a lane stalled.
    stalls: Counter "sumac_hosted_job_stalls",
    /// UDP payload received.
    bytes_in: Bytes "sumac_hosted_job_received",
    /// Packets sent.
    sent: Counter "sumac_hosted_job_packets_sent",
    /// UDP payload sent.
    bytes_out: Bytes "sumac_hosted_job_sent",
}

impl JobStats {
    /// Adds another thread's counters of the same job.
    pub fn merge(&mut self, other: &JobStats) {
        self.add(other);
        // Each thread knows of its own shards only.
        self.direct = self.direct.max(other.direct);
        self.waiting_for.extend(&other.waiting_for);
        self.waiting_for.sort_unstable();
        self.waiting_for.dedup();
    }
}

impl Default for HostStats {
    fn default() -> HostStats {
        HostStats { jobs: Vec::new(), counters: [0; COUNTERS], memory: 0 }
    }
}

impl HostStats {
    pub fn counter(&self, reason: Reason) -> u64 {
        self.counters[reason as usize]
    }

    pub fn job(&self, number: u16) -> Option<&JobStats> {
        self.jobs.iter().find(|job| job.job == number)
    }

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
