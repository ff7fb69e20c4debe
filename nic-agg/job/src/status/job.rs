//! The status of a job and its workers.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use serde::Serialize;
use sumac_agg_layout::{Drops, Injected, Times};
use sumac_wire::{
    Reason,
    tables::{JobEntry, job_flag},
};

use crate::{
    drops::percent,
    seen::{JobSeen, WorkerSeen},
};

/// A worker straggles when it is last this much more often than an even share.
pub const STRAGGLER_RATIO: f64 = 1.5;

#[derive(Clone, Debug, Serialize)]
pub struct JobStatus {
    pub job: u16,
    /// As its workers opened it; known while `sumac-agg serve` runs that installed it.
    pub name: Option<String>,
    /// Of the moment before the status; none of a job that stands still.
    pub rate: Option<Rate>,
    pub epoch: u16,
    pub is_dynamic: bool,
    /// The destinations of a dynamic job's sums; none at a rack, whose sums go to its root.
    pub parameter_hosts: Vec<SocketAddrV4>,
    pub first_slot: u32,
    /// The job's slots; of a dynamic job, those of each shard that it may take.
    pub slots: u32,
    pub slots_reason: Option<String>,
    /// 0 for a dynamic job, whose slots have no lanes.
    pub lanes: u32,
    pub shards: u16,
    /// Whether a completed slot takes the next chunk of its lane, whatever its number.
    pub stealing: bool,
    pub level: LevelStatus,
    pub elements: u16,
    /// Whether UDP checksums are verified.
    pub checksum: bool,
    /// The multicast group of results for workers that share an interface.
    pub group: Option<Ipv4Addr>,
    /// Whether each worker, or each group behind an interface, gets a copy of its own; else all get one
    /// together.
    pub is_copied: bool,
    /// Frames by reason, without those never counted.
    pub counters: BTreeMap<&'static str, u64>,
    pub drops: Option<DropStatus>,
    /// Times from a chunk's first contribution to its last, of one chunk in 16; a switch does not measure
    /// them.
    pub aggregation: Option<Histogram>,
    pub straggler: Option<Straggler>,
    /// The workers by rank; at a root the racks.
    pub workers: Vec<WorkerStatus>,
}

/// The speed of a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    pub chunks_per_s: f64,
    /// Of the sums' words, without headers.
    pub gbit_per_s: f64,
}

impl JobStatus {
    /// Sets the rate by an earlier status of the same job.
    pub(super) fn set_rate(&mut self, earlier: &JobStatus, elapsed: Duration) {
        let complete = |job: &JobStatus| job.workers.iter().map(|worker| worker.last).sum::<u64>();
        let chunks = complete(self).saturating_sub(complete(earlier));
        if chunks > 0 && (earlier.job, earlier.epoch) == (self.job, self.epoch) {
            let chunks_per_s = chunks as f64 / elapsed.as_secs_f64();
            let bits = f64::from(u32::from(self.elements) * u32::BITS);
            self.rate = Some(Rate { chunks_per_s, gbit_per_s: chunks_per_s * bits / 1e9 });
        }
    }
}

/// The counters of a job that is no more, until its number is used again.
#[derive(Clone, Debug, Serialize)]
pub struct EndedJob {
    pub job: u16,
    pub epoch: u16,
    pub counters: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LevelStatus {
    Only,
    Root,
    Rack {
        rack: u16,
        parent: Ipv4Addr,
    },
    /// A rack whose workers are racks.
    Middle {
        rack: u16,
        parent: Ipv4Addr,
    },
}

/// Intentional drops, in percent and in frames.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DropStatus {
    pub up_percent: f64,
    pub down_percent: f64,
    pub up: u64,
    pub down: u64,
}

/// The worker that completes more than its share of the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Straggler {
    pub rank: u16,
    pub ip: Ipv4Addr,
    /// The part of all chunks that waited for it last.
    pub last_percent: f64,
    #[serde(flatten)]
    pub late: Option<LateStatus>,
}

/// The delay of a worker's contributions behind the chunks' first ones, of one chunk in 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LateStatus {
    pub late_mean_ns: u64,
    pub late_max_ns: u64,
    /// The sum of the delays, and their number.
    pub late_sum_ns: u64,
    pub late_chunks: u64,
}

sumac_job::statistics! {
    /// A worker, or a rack at a root.
    #[derive(Clone, Debug, Serialize)]
    pub struct WorkerStatus {
        pub rank: u16,
        pub ip: Ipv4Addr,
        pub port: u16,
        /// The MAC address of the worker or of its router; unknown to a host aggregator.
        pub mac: Option<String>,
        /// The interface towards the worker; unknown to a host aggregator.
        pub ifindex: Option<u32>,
        /// None at a switch, which does not measure it.
        #[serde(flatten)]
        pub late: Option<LateStatus>,
    }
    /// Contributions that were added.
    added: Counter "sumac_aggregator_worker_contributions",
    /// Contributions that were the last of their chunk: the others waited for this worker.
    last: Counter "sumac_aggregator_worker_contributions_last",
    /// Contributions that had been added before.
    duplicates: Counter "sumac_aggregator_worker_duplicates",
    /// Results sent again.
    replies: Counter "sumac_aggregator_worker_replies",
    /// Paths (source ports) that its results avoid, since it got no answer by them.
    avoided_paths: Gauge "sumac_aggregator_worker_avoided_paths",
}

/// Times in buckets that double.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    pub count: u64,
    pub sum_ns: u64,
    /// Upper bounds of the quantiles' buckets.
    pub p50_ns: u64,
    pub p99_ns: u64,
    /// Upper bound in nanoseconds, and count, of each bucket that is not empty.
    pub buckets: Vec<(u64, u64)>,
}

impl Histogram {
    fn of(times: &Times) -> Histogram {
        let all = times.buckets.iter().enumerate().map(|(log2, count)| (2u64 << log2, *count));
        let buckets: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
        let count = buckets.iter().map(|(_, count)| count).sum::<u64>();
        let quantile = |percent: u64| {
            let mut below = 0;
            let found = buckets.iter().find(|(_, here)| {
                below += here;
                below * 100 >= count * percent
            });
            found.map_or(0, |(upper, _)| *upper)
        };
        Histogram { count, sum_ns: times.sum, p50_ns: quantile(50), p99_ns: quantile(99), buckets }
    }
}

/// Returns the totals of the jobs among the entries that were removed, of those that had any frames.
pub fn ended<E>(
    entries: impl IntoIterator<Item = (u16, JobEntry)>,
    seen: impl Fn(u16) -> Result<JobSeen, E>,
) -> Result<Vec<EndedJob>, E> {
    let mut ended = Vec::new();
    for (job, JobEntry { epoch, flags, .. }) in entries {
        if flags & job_flag::ACTIVE != 0 {
            continue;
        }
        let seen = seen(job)?;
        let counters = by_reason(|reason| seen.counters[reason as usize]);
        if !counters.is_empty() {
            ended.push(EndedJob { job, epoch, counters });
        }
    }
    Ok(ended)
}

pub fn slots_used(jobs: &[JobStatus]) -> u32 {
    jobs.iter().filter(|job| !job.is_dynamic).map(|job| job.slots).sum()
}

/// The facts about a job at an aggregator.
#[derive(Debug)]
pub struct Observed {
    /// The job's root, or its parameter hosts.
    pub parents: Vec<SocketAddrV4>,
    pub seen: JobSeen,
    pub drops: Drops,
    pub workers: Vec<WorkerStatus>,
}

pub fn by_reason(count: impl Fn(Reason) -> u64) -> BTreeMap<&'static str, u64> {
    let all = Reason::ALL.iter().map(|reason| (reason.name(), count(*reason)));
    all.filter(|(_, count)| *count > 0).collect()
}

/// Returns a job's status without the notes of the control plane.
pub fn job_status(number: u16, entry: &JobEntry, observed: Observed) -> JobStatus {
    let has = |flag| entry.flags & flag != 0;
    let (drops, JobSeen { counters, times, injected }) = (observed.drops, observed.seen);
    let is_dropping = drops != Drops::default() || injected != Injected::default();
    let is_dynamic = has(job_flag::DYNAMIC);
    let level = match observed.parents.first() {
        Some(parent) if has(job_flag::CHILD) && has(job_flag::ROOT) => {
            LevelStatus::Middle { rack: entry.rack, parent: *parent.ip() }
        }
        _ if has(job_flag::ROOT) => LevelStatus::Root,
        Some(parent) if has(job_flag::CHILD) => LevelStatus::Rack { rack: entry.rack, parent: *parent.ip() },
        _ => LevelStatus::Only,
    };
    let is_rack = matches!(level, LevelStatus::Rack { .. });
    JobStatus {
        job: number,
        name: None,
        rate: None,
        epoch: entry.epoch,
        is_dynamic,
        parameter_hosts: if is_dynamic && !is_rack { observed.parents } else { Vec::new() },
        first_slot: entry.slot_base,
        slots: entry.slots,
        slots_reason: None,
        lanes: if is_dynamic { 0 } else { entry.slots / entry.lane_slots() },
        shards: entry.shards,
        stealing: has(job_flag::STEALING),
        level,
        elements: entry.elements,
        checksum: has(job_flag::CHECKSUM),
        group: (entry.group_ip != 0).then(|| Ipv4Addr::from_bits(entry.group_ip)),
        is_copied: !has(job_flag::MULTICAST),
        counters: by_reason(|reason| counters[reason as usize]),
        drops: is_dropping.then(|| DropStatus {
            up_percent: percent(drops.up),
            down_percent: percent(drops.down),
            up: injected.up,
            down: injected.down,
        }),
        aggregation: Some(Histogram::of(&times)),
        straggler: straggler(&observed.workers),
        workers: observed.workers,
    }
}

/// Returns a worker's status; `link`: its MAC address and its interface, where the aggregator knows them.
pub fn worker_status(
    rank: u16,
    address: SocketAddrV4,
    link: Option<([u8; 6], u32)>,
    WorkerSeen { counters, late, avoided_paths }: WorkerSeen,
) -> WorkerStatus {
    WorkerStatus {
        rank,
        ip: *address.ip(),
        port: address.port(),
        mac: link.map(|(mac, _)| mac.map(|byte| format!("{byte:02x}")).join(":")),
        ifindex: link.map(|(_, ifindex)| ifindex),
        added: counters.added,
        last: counters.last,
        duplicates: counters.duplicates,
        replies: counters.replies,
        avoided_paths: avoided_paths.into(),
        late: Some(LateStatus {
            late_mean_ns: late.sum / late.chunks.max(1),
            late_max_ns: late.max,
            late_sum_ns: late.sum,
            late_chunks: late.chunks,
        }),
    }
}

fn straggler(workers: &[WorkerStatus]) -> Option<Straggler> {
    let chunks = workers.iter().map(|worker| worker.last).sum::<u64>();
    let slowest = workers.iter().max_by_key(|worker| worker.last)?;
    let last = slowest.last as f64 / chunks.max(1) as f64;
    let is_slow = workers.len() > 1 && last * workers.len() as f64 > STRAGGLER_RATIO;
    is_slow.then_some(Straggler {
        rank: slowest.rank,
        ip: slowest.ip,
        last_percent: last * 100.0,
        late: slowest.late,
    })
}

#[cfg(test)]
mod tests {
    use sumac_agg_layout::Lateness;
    use sumac_wire::tables::WorkerCounters;

    use super::*;

    fn worker(rank: u16, last: u64) -> WorkerStatus {
        let address = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, rank as u8), 48700);
        let counters = WorkerCounters { added: 100, last, ..WorkerCounters::default() };
        let late = Lateness { chunks: 2, sum: 10, max: 7 };
        worker_status(rank, address, None, WorkerSeen { counters, late, avoided_paths: 0 })
    }

    #[test]
    fn stragglers_are_last_more_often_than_the_others() {
        let of = |last: &[u64]| {
            let workers: Vec<_> = (0..).zip(last).map(|(rank, last)| worker(rank, *last)).collect();
            straggler(&workers).map(|straggler| (straggler.rank, straggler.last_percent))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[100]), None, "a single worker");
        assert_eq!(of(&[0, 0]), None, "no chunk yet");
        assert_eq!(of(&[25, 30, 25, 20]), None, "nearly even");
        assert_eq!(of(&[10, 10, 80, 0]), Some((2, 80.0)));
        assert_eq!(of(&[30, 70]), None, "two in turn");
        assert_eq!(of(&[10, 90]), Some((1, 90.0)));
    }

    #[test]
    fn a_rate_is_of_the_chunks_that_were_completed_meanwhile() {
        let status = |epoch, last| {
            let entry =
                JobEntry { epoch, elements: 250, slots: 8, lane_slots_log2: 3, ..JobEntry::default() };
            let workers = vec![worker(0, last), worker(1, last)];
            let observed =
                Observed { parents: Vec::new(), seen: JobSeen::default(), drops: Drops::default(), workers };
            job_status(7, &entry, observed)
        };
        let rate = |(epoch, before), now| {
            let mut job = status(3, now);
            job.set_rate(&status(epoch, before), Duration::from_millis(500));
            job.rate
        };
        assert_eq!(rate((3, 10), 35), Some(Rate { chunks_per_s: 100.0, gbit_per_s: 100.0 * 8000.0 / 1e9 }));
        assert_eq!((rate((3, 10), 10), rate((2, 0), 10)), (None, None), "still, or another job");
    }

    #[test]
    fn quantiles_are_the_buckets_upper_bounds() {
        assert_eq!(Histogram::of(&Times::default()), Histogram::default());
        let mut times = Times::default();
        (times.buckets[9], times.buckets[10], times.buckets[20]) = (60, 39, 1);
        let histogram = Histogram::of(&times);
        assert_eq!((histogram.count, histogram.p50_ns, histogram.p99_ns), (100, 1024, 2048));
        assert_eq!(histogram.buckets, [(1024, 60), (2048, 39), (2 << 20, 1)]);
    }
}
