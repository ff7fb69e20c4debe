//! The metrics of the data plane, of any kind, from its status.

use std::{collections::BTreeMap, fmt, sync::LazyLock};

use sumac_metrics::{Description, Encoder, Group, Histogram, Metric, Unit};
use sumac_udp::Counts;
use sumac_wire::{Reason, header::ELEMENT_LEN};

use sumac_agg_job::status::{
    self, DynamicPool, InterfaceStatus, Status,
    job::{DropStatus, JobStatus, LateStatus, WorkerStatus},
};

const POOL: Group<Status> = Group {
    labels: &[],
    metrics: &[
        Metric::gauge("sumac_aggregator_slots", Unit::None, "Slots of the pool of static jobs", |it| {
            it.slots.into()
        }),
        Metric::gauge("sumac_aggregator_slots_used", Unit::None, "Slots that static jobs have", |it| {
            it.slots_used.into()
        }),
        Metric::gauge("sumac_aggregator_pool", Unit::Bytes, "Memory of all slots", |it| it.pool_bytes as f64),
        Metric::gauge("sumac_aggregator_jobs", Unit::None, "Jobs in the data plane", |it| {
            it.jobs.len() as f64
        }),
    ],
};

const DYNAMIC: Group<DynamicPool> = Group {
    labels: &[],
    metrics: &[Metric::gauge(
        "sumac_aggregator_dynamic_slots",
        Unit::None,
        "Slots of each shard that dynamic jobs share",
        |it| it.slots.into(),
    )],
};

const DYNAMIC_USED: Group<u32> = Group {
    labels: &[],
    metrics: &[Metric::gauge(
        "sumac_aggregator_dynamic_slots_used",
        Unit::None,
        "Slots of all shards that hold a chunk of a dynamic job; a switch does not tell them",
        |it| (*it).into(),
    )],
};

const SHARDS: Group<u16> = Group {
    labels: &[],
    metrics: &[Metric::gauge("sumac_aggregator_shards", Unit::None, "Shards of the data plane", |it| {
        (*it).into()
    })],
};

const FRAMES: Group<u64> = Group {
    labels: &["reason"],
    metrics: &[Metric::counter("sumac_aggregator_frames", Unit::None, "Frames by outcome", |it| *it)],
};

const INTERFACES: Group<()> = Group {
    labels: &["interface", "mode"],
    metrics: &[Metric::info(
        "sumac_aggregator_interface",
        "An attached interface and its XDP mode: `driver`, `generic`, `hardware`, or `none` when it is gone",
    )],
};

const SOCKETS: Group<Counts> = Group {
    labels: &["shard"],
    metrics: &[
        Metric::counter(
            "sumac_aggregator_socket_packets_received",
            Unit::None,
            "Packets that a host aggregator received",
            |it| it.received,
        ),
        Metric::counter(
            "sumac_aggregator_socket_packets_sent",
            Unit::None,
            "Packets that a host aggregator sent",
            |it| it.sent,
        ),
    ],
};

const JOB_INFO: Group<()> = Group {
    labels: &["job_name", "job_number", "mode"],
    metrics: &[Metric::info("sumac_aggregator_job", "A job and its mode: `static` or `dynamic`")],
};

const JOBS: Group<JobStatus> = Group {
    labels: &["job_name", "job_number"],
    metrics: &[
        Metric::gauge(
            "sumac_aggregator_job_slots",
            Unit::None,
            "The job's slots; of a dynamic job, those of each shard that it may take",
            |it| it.slots.into(),
        ),
        Metric::gauge("sumac_aggregator_job_workers", Unit::None, "Workers, or racks, of the job", |it| {
            it.workers.len() as f64
        }),
        Metric::counter(
            "sumac_aggregator_job_chunks_completed",
            Unit::None,
            "Chunks that all workers have contributed to",
            |it| it.workers.iter().map(|worker| worker.last).sum(),
        ),
        Metric::counter(
            "sumac_aggregator_job_added",
            Unit::Bytes,
            "Values added, counted as full chunks, without headers",
            |it| {
                let added: u64 = it.workers.iter().map(|worker| worker.added).sum();
                added.saturating_mul(u64::from(it.elements) * ELEMENT_LEN as u64)
            },
        ),
    ],
};

const AGGREGATION: Group<status::job::Histogram> = Group {
    labels: &["job_name", "job_number"],
    metrics: &[Metric::histogram(
        "sumac_aggregator_job_aggregation",
        "From a chunk's first contribution to its last, of one chunk in 16; a switch does not measure it",
        |it| Histogram { buckets: it.buckets.clone(), sum: it.sum_ns },
    )],
};

const JOB_FRAMES: Group<u64> = Group {
    labels: &["job_name", "job_number", "reason"],
    metrics: &[Metric::counter(
        "sumac_aggregator_job_frames",
        Unit::None,
        "A job's frames by outcome",
        |it| *it,
    )],
};

const JOB_DROPS: Group<(f64, u64)> = Group {
    labels: &["job_name", "job_number", "direction"],
    metrics: &[
        Metric::gauge(
            "sumac_aggregator_job_injected_drop_ratio",
            Unit::None,
            "The part of packets that `sumac-agg drop` drops: `up`, arriving; `down`, leaving",
            |it| it.0 / 100.0,
        ),
        Metric::counter(
            "sumac_aggregator_job_injected_drops",
            Unit::None,
            "Packets that `sumac-agg drop` dropped",
            |it| it.1,
        ),
    ],
};

static WORKERS: LazyLock<Group<WorkerStatus>> =
    LazyLock::new(|| Group::declared(LATENESS.labels, WorkerStatus::DECLARED));

const LATENESS: Group<LateStatus> = Group {
    labels: &["job_name", "job_number", "rank"],
    metrics: &[
        Metric::duration(
            "sumac_aggregator_worker_lateness",
            "Time behind the chunks' first contributions, of one chunk in 16; a switch does not measure it",
            |it| it.late_sum_ns,
        ),
        Metric::counter(
            "sumac_aggregator_worker_lateness_chunks",
            Unit::None,
            "Chunks that this time was taken of",
            |it| it.late_chunks,
        ),
        Metric::gauge(
            "sumac_aggregator_worker_lateness_max",
            Unit::Seconds,
            "The longest of these times",
            |it| it.late_max_ns as f64 * 1e-9,
        ),
    ],
};

pub(super) fn describe() -> impl Iterator<Item = Description> {
    POOL.describe()
        .chain(DYNAMIC.describe())
        .chain(DYNAMIC_USED.describe())
        .chain(SHARDS.describe())
        .chain(FRAMES.describe())
        .chain(INTERFACES.describe())
        .chain(SOCKETS.describe())
        .chain(JOB_INFO.describe())
        .chain(JOBS.describe())
        .chain(AGGREGATION.describe())
        .chain(JOB_FRAMES.describe())
        .chain(JOB_DROPS.describe())
        .chain(WORKERS.describe())
        .chain(LATENESS.describe())
}

pub(super) fn encode(
    encoder: &mut Encoder<'_>,
    status: Status,
    names: &BTreeMap<u16, String>,
) -> fmt::Result {
    POOL.encode(encoder, &[(Vec::new(), &status)])?;
    let dynamic: Vec<_> = status.dynamic.iter().map(|pool| (Vec::new(), pool)).collect();
    DYNAMIC.encode(encoder, &dynamic)?;
    let used: Vec<_> = status.dynamic.iter().filter_map(|pool| Some((Vec::new(), pool.held?))).collect();
    DYNAMIC_USED.encode(encoder, &used)?;
    SHARDS.encode(encoder, &[(Vec::new(), status.shards)])?;
    FRAMES.encode(encoder, &by_reason(&[], &status.counters))?;
    INTERFACES.encode(encoder, &status.ports.iter().map(interface).collect::<Vec<_>>())?;
    let sockets =
        (0..).zip(&status.sockets).map(|(shard, counts): (u16, _)| (vec![shard.to_string()], counts));
    SOCKETS.encode(encoder, &sockets.collect::<Vec<_>>())?;
    encode_jobs(encoder, status.jobs, names)
}

fn encode_jobs(
    encoder: &mut Encoder<'_>,
    jobs: Vec<JobStatus>,
    names: &BTreeMap<u16, String>,
) -> fmt::Result {
    let label = |job: JobStatus| {
        // A job of `sumac-agg job add`, or of a rack, has no name here.
        (vec![names.get(&job.job).cloned().unwrap_or_default(), job.job.to_string()], job)
    };
    let jobs: Vec<(Vec<String>, JobStatus)> = jobs.into_iter().map(label).collect();
    let with = |labels: &[String], last: &str| [labels, &[last.to_owned()]].concat();
    let mode = |job: &JobStatus| if job.is_dynamic { "dynamic" } else { "static" };
    let info = jobs.iter().map(|(labels, job)| (with(labels, mode(job)), ()));
    JOB_INFO.encode(encoder, &info.collect::<Vec<_>>())?;
    JOBS.encode(encoder, &jobs)?;
    let times = jobs.iter().filter_map(|(labels, job)| Some((labels.clone(), job.aggregation.as_ref()?)));
    AGGREGATION.encode(encoder, &times.collect::<Vec<_>>())?;
    let frames = jobs.iter().flat_map(|(labels, job)| by_reason(labels, &job.counters));
    JOB_FRAMES.encode(encoder, &frames.collect::<Vec<_>>())?;
    let drops = jobs.iter().filter_map(|(labels, job)| Some((labels, job.drops?)));
    let drops = drops.flat_map(|(labels, DropStatus { up_percent, down_percent, up, down })| {
        [(with(labels, "up"), (up_percent, up)), (with(labels, "down"), (down_percent, down))]
    });
    JOB_DROPS.encode(encoder, &drops.collect::<Vec<_>>())?;
    let workers = jobs.iter().flat_map(|(labels, job)| {
        job.workers.iter().map(|worker| (with(labels, &worker.rank.to_string()), worker))
    });
    let workers: Vec<_> = workers.collect();
    WORKERS.encode(encoder, &workers)?;
    let late = workers.into_iter().filter_map(|(labels, worker)| Some((labels, worker.late?)));
    LATENESS.encode(encoder, &late.collect::<Vec<_>>())
}

/// Returns a series for each reason, also those that were never counted: a rate needs a counter's first
/// value.
fn by_reason(labels: &[String], counters: &BTreeMap<&'static str, u64>) -> Vec<(Vec<String>, u64)> {
    let count = |reason: &Reason| counters.get(reason.name()).copied().unwrap_or(0);
    let series = |reason: &Reason| ([labels, &[reason.name().to_owned()]].concat(), count(reason));
    Reason::ALL.iter().map(series).collect()
}

fn interface(status: &InterfaceStatus) -> (Vec<String>, ()) {
    let mode = status.mode.unwrap_or("none").to_owned();
    (vec![status.interface.clone(), mode], ())
}
