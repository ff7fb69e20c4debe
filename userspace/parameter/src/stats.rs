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

/// Defines the counters of a job, and their sum over threads.
macro_rules! job_stats {
    ($($(#[$doc:meta])* $counter:ident,)*) => {
        /// The counters of one job. Bytes are those of UDP payloads.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct JobStats {
            pub job: u16,
            pub epoch: u16,
            pub world: u16,
            /// Workers whose last packet came without an aggregator.
            pub direct: u32,
            /// Ranks that the oldest chunk of a stalled lane waits for: no contribution has come for a
            /// second.
            pub waiting_for: Vec<u16>,
            $($(#[$doc])* pub $counter: u64,)*
        }

        impl JobStats {
            /// Adds another thread's counters of the same job.
            pub fn merge(&mut self, other: &JobStats) {
                // Each thread knows of its own shards only.
                self.direct = self.direct.max(other.direct);
                self.waiting_for.extend(&other.waiting_for);
                self.waiting_for.sort_unstable();
                self.waiting_for.dedup();
                $(self.$counter += other.$counter;)*
            }
        }
    };
}

job_stats! {
    /// Contributions of single workers that came in.
    contributions,
    partial_sums,
    full_sums,
    /// Of all these, those that a chunk had already.
    duplicates,
    /// Of all these, those that found a slot busy on their way.
    collisions,
    /// Of all these, those with a mark of congestion.
    marked,
    completed,
    /// Of these, those completed without some workers: bounded loss.
    partial,
    /// Of these, those summed as floats.
    raw,
    /// Requests for a chunk's floats, to one worker or all.
    asked_raw,
    /// Results that were sent again.
    replies,
    probes,
    refused,
    /// Times that a lane stalled.
    stalls,
    bytes_in,
    sent,
    bytes_out,
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
