//! The counters and times of a job and of a worker, in the units of the eBPF aggregator's maps.

use sumac_agg_layout::{Injected, Lateness, Times};
use sumac_wire::{reason::COUNTERS, tables::WorkerCounters};

/// One shard's statistics of one job.
#[derive(Clone, Copy, Debug)]
pub struct JobSeen {
    /// Packets by what became of them, by [`Reason`](sumac_wire::Reason).
    pub counters: [u64; COUNTERS],
    /// The times of one chunk in [`SAMPLED`](sumac_agg_layout::SAMPLED).
    pub times: Times,
    pub injected: Injected,
}

impl Default for JobSeen {
    fn default() -> JobSeen {
        JobSeen { counters: [0; COUNTERS], times: Times::default(), injected: Injected::default() }
    }
}

impl JobSeen {
    /// The same of several shards together.
    pub fn and(mut self, other: &JobSeen) -> JobSeen {
        let add = |sums: &mut [u64], others: &[u64]| {
            sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
        };
        add(&mut self.counters, &other.counters);
        add(&mut self.times.buckets, &other.times.buckets);
        self.times.sum = self.times.sum.saturating_add(other.times.sum);
        self.injected.up += other.injected.up;
        self.injected.down += other.injected.down;
        self
    }
}

/// One shard's statistics of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerSeen {
    pub counters: WorkerCounters,
    /// Their delay, of one chunk in [`SAMPLED`](sumac_agg_layout::SAMPLED).
    pub late: Lateness,
    /// Paths that its results avoid.
    pub avoided_paths: u16,
}

impl WorkerSeen {
    /// The same of several shards together.
    pub fn and(self, other: &WorkerSeen) -> WorkerSeen {
        let (a, b) = (self.counters, other.counters);
        WorkerSeen {
            counters: WorkerCounters {
                added: a.added + b.added,
                last: a.last + b.last,
                duplicates: a.duplicates + b.duplicates,
                replies: a.replies + b.replies,
            },
            late: Lateness {
                chunks: self.late.chunks + other.late.chunks,
                sum: self.late.sum.saturating_add(other.late.sum),
                max: self.late.max.max(other.late.max),
            },
            avoided_paths: self.avoided_paths.max(other.avoided_paths),
        }
    }
}
