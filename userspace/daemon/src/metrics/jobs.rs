//! The metrics of jobs, and of those that this host is a parameter host of.

use std::fmt;
use std::sync::LazyLock;

use sumac_datapath::{DatapathStats, JobStats};
use sumac_host::JobSummary;
use sumac_metrics::{Description, Encoder, Group, Histogram, Metric, Unit};
use sumac_parameter::JobStats as HostedStats;
use sumac_transport::EngineStats;

use crate::core::Core;

const NANOS: f64 = 1e-9;

/// One job's statistics: of its operations, and of its lanes together.
pub(super) struct JobSample {
    job: JobSummary,
    lanes: JobStats,
}

const JOBS: Group<JobSample> = Group {
    // Prometheus itself sets a label `job`.
    labels: &["job_name", "rank"],
    metrics: &[
        Metric::gauge(
            "sumac_job_ready",
            Unit::None,
            "1: the job sums; 0: its path is probed, or it has failed",
            |it| f64::from(u8::from(it.lanes.state == "ready")),
        ),
        Metric::gauge(
            "sumac_job_control_connected",
            Unit::None,
            "1: the control plane of the job answers; 0: the connection is lost",
            |it| f64::from(u8::from(it.job.is_connected)),
        ),
        Metric::gauge("sumac_job_workers", Unit::None, "The workers of the job", |it| it.lanes.world.into()),
        Metric::gauge("sumac_job_slots", Unit::None, "The slots of each lane", |it| it.lanes.slots.into()),
        Metric::gauge("sumac_job_clients", Unit::None, "Trainers' connections to the job", |it| {
            it.job.clients.into()
        }),
        Metric::counter("sumac_job_operations_submitted", Unit::None, "Operations of trainers", |it| {
            it.job.submitted
        }),
        Metric::counter("sumac_job_operations_ended", Unit::None, "Operations that ended", |it| it.job.ended),
        Metric::counter(
            "sumac_job_packets_dropped",
            Unit::None,
            "Received packets that were dropped",
            |it| it.lanes.engine.frames.dropped(),
        ),
        Metric::gauge("sumac_job_round_trip_smoothed", Unit::Seconds, "The smoothed round trip", |it| {
            it.lanes.engine.rtt.smoothed_ns as f64 * NANOS
        }),
        Metric::gauge("sumac_job_round_trip_shortest", Unit::Seconds, "The shortest round trip", |it| {
            it.lanes.engine.rtt.shortest_ns as f64 * NANOS
        }),
        Metric::histogram(
            "sumac_job_round_trip",
            "From a packet to its answer, of chunks that were sent once",
            |it| histogram(&it.lanes.engine.round_trips),
        ),
        Metric::histogram("sumac_job_chunk_completion", "From a chunk's first packet to its result", |it| {
            histogram(&it.lanes.engine.completions)
        }),
    ],
};

/// The counters that an engine declares.
static ENGINE: LazyLock<Group<EngineStats>> =
    LazyLock::new(|| Group::declared(JOBS.labels, EngineStats::DECLARED));

const HOSTED: Group<HostedStats> = Group {
    labels: &["job_number"],
    metrics: &[
        Metric::gauge(
            "sumac_hosted_job_workers",
            Unit::None,
            "The workers of a parameter host's job",
            |it| it.world.into(),
        ),
        Metric::gauge(
            "sumac_hosted_job_workers_awaited",
            Unit::None,
            "Workers that the oldest chunk of a stalled lane waits for",
            |it| it.waiting_for.len() as f64,
        ),
    ],
};

/// The counters that a parameter host declares.
static HOSTED_COUNTERS: LazyLock<Group<HostedStats>> =
    LazyLock::new(|| Group::declared(HOSTED.labels, HostedStats::DECLARED));

pub(super) fn describe() -> impl Iterator<Item = Description> {
    JOBS.describe().chain(ENGINE.describe()).chain(HOSTED.describe()).chain(HOSTED_COUNTERS.describe())
}

pub(super) fn samples(core: &Core, threads: &[DatapathStats]) -> Vec<(Vec<String>, JobSample)> {
    let measured = DatapathStats::merge_jobs(threads).into_iter().map(|(lanes, _)| lanes);
    let sample = |lanes: JobStats| {
        let job = core.summary(lanes.id)?;
        Some((vec![job.name.clone(), lanes.rank.to_string()], JobSample { job, lanes }))
    };
    measured.filter_map(sample).collect()
}

pub(super) fn encode(encoder: &mut Encoder<'_>, jobs: Vec<(Vec<String>, JobSample)>) -> fmt::Result {
    JOBS.encode(encoder, &jobs)?;
    let engines: Vec<_> = jobs.iter().map(|(labels, job)| (labels.clone(), &job.lanes.engine)).collect();
    ENGINE.encode(encoder, &engines)
}

pub(super) fn encode_hosted(encoder: &mut Encoder<'_>, jobs: Vec<HostedStats>) -> fmt::Result {
    let numbered = jobs.into_iter().map(|job| (vec![job.job.to_string()], job));
    let numbered: Vec<_> = numbered.collect();
    HOSTED.encode(encoder, &numbered)?;
    HOSTED_COUNTERS.encode(encoder, &numbered)
}

fn histogram(durations: &sumac_transport::Histogram) -> Histogram {
    Histogram { buckets: durations.buckets().collect(), sum: durations.sum() }
}
