//! The metrics of jobs, and of those that this host is a parameter host of.

use std::fmt;

use sumac_host::JobSummary;
use sumac_metrics::{Description, Encoder, Group, Histogram, Metric, Unit};
use sumac_parameter::JobStats as HostedStats;

use crate::core::Core;
use crate::datapath::{DatapathStats, JobStats};

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
            "sumac_job_fragments_failed",
            Unit::None,
            "Parts of operations, one for each lane, that ended with an error",
            |it| it.lanes.engine.operations_failed,
        ),
        Metric::counter("sumac_job_chunks_sent", Unit::None, "Chunks sent for the first time", |it| {
            it.lanes.engine.chunks_sent
        }),
        Metric::counter(
            "sumac_job_chunks_resent",
            Unit::None,
            "Chunks whose elements were sent again",
            |it| it.lanes.engine.resent,
        ),
        Metric::counter(
            "sumac_job_queries",
            Unit::None,
            "Packets without elements for chunks considered lost",
            |it| it.lanes.engine.questions,
        ),
        Metric::counter("sumac_job_results", Unit::None, "Results received", |it| it.lanes.engine.results),
        Metric::counter(
            "sumac_job_results_partial",
            Unit::None,
            "Results that lack the values of some workers",
            |it| it.lanes.engine.partial,
        ),
        Metric::counter(
            "sumac_job_chunks_missing",
            Unit::None,
            "Answers of the aggregator that a contribution is missing",
            |it| it.lanes.engine.missing,
        ),
        Metric::counter(
            "sumac_job_chunks_given_up",
            Unit::None,
            "Chunks that did not arrive and were not waited for",
            |it| it.lanes.engine.chunks_lost,
        ),
        Metric::counter(
            "sumac_job_losses_by_order",
            Unit::None,
            "Chunks considered lost since later ones were answered",
            |it| it.lanes.engine.suspects_fast,
        ),
        Metric::counter(
            "sumac_job_losses_by_timeout",
            Unit::None,
            "Chunks considered lost by a timeout",
            |it| it.lanes.engine.suspects_timer,
        ),
        Metric::counter(
            "sumac_job_losses_spurious",
            Unit::None,
            "Chunks considered lost that were only late",
            |it| it.lanes.engine.suspects_spurious,
        ),
        Metric::counter(
            "sumac_job_flushes",
            Unit::None,
            "Contributions that complete a chunk without the missing ones",
            |it| it.lanes.engine.flushes,
        ),
        Metric::counter("sumac_job_collisions", Unit::None, "Results of chunks whose slot was busy", |it| {
            it.lanes.engine.collisions
        }),
        Metric::counter(
            "sumac_job_slots_reassigned",
            Unit::None,
            "Chunks that took another slot than their regular one",
            |it| it.lanes.engine.steals,
        ),
        Metric::counter("sumac_job_results_marked", Unit::None, "Results with a mark of congestion", |it| {
            it.lanes.engine.marked
        }),
        Metric::counter("sumac_job_window_halvings", Unit::None, "Halvings of the congestion window", |it| {
            it.lanes.engine.halvings
        }),
        Metric::counter(
            "sumac_job_mismatches",
            Unit::None,
            "Chunks that workers use for different operations",
            |it| it.lanes.engine.mismatches,
        ),
        Metric::counter(
            "sumac_job_chunks_faulty",
            Unit::None,
            "Own chunks with a value that does not fit or is not finite",
            |it| it.lanes.engine.chunks_faulty,
        ),
        Metric::counter(
            "sumac_job_results_faulty",
            Unit::None,
            "Results with such a value of any worker",
            |it| it.lanes.engine.results_faulty,
        ),
        Metric::counter(
            "sumac_job_packets_dropped",
            Unit::None,
            "Received packets that were dropped",
            |it| it.lanes.engine.frames.dropped(),
        ),
        Metric::counter("sumac_job_sent", Unit::Bytes, "UDP payload sent", |it| it.lanes.engine.bytes_sent),
        Metric::counter("sumac_job_received", Unit::Bytes, "UDP payload received", |it| {
            it.lanes.engine.bytes_received
        }),
        Metric::gauge("sumac_job_chunks_in_flight", Unit::None, "Chunks in flight", |it| {
            it.lanes.engine.in_flight as f64
        }),
        Metric::gauge("sumac_job_window_chunks", Unit::None, "The congestion window of dynamic jobs", |it| {
            it.lanes.engine.cwnd as f64
        }),
        Metric::gauge(
            "sumac_job_direct_lanes",
            Unit::None,
            "Lanes that send past the slots to the parameter host",
            |it| it.lanes.engine.direct as f64,
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
        Metric::counter(
            "sumac_hosted_job_contributions",
            Unit::None,
            "Contributions of single workers",
            |it| it.contributions,
        ),
        Metric::counter(
            "sumac_hosted_job_partial_sums",
            Unit::None,
            "Sums of some workers that came from an aggregator",
            |it| it.partial_sums,
        ),
        Metric::counter(
            "sumac_hosted_job_full_sums",
            Unit::None,
            "Sums of all workers that came from an aggregator",
            |it| it.full_sums,
        ),
        Metric::counter("sumac_hosted_job_completed", Unit::None, "Chunks that were completed", |it| {
            it.completed
        }),
        Metric::counter("sumac_hosted_job_replies", Unit::None, "Results that were sent again", |it| {
            it.replies
        }),
        Metric::counter("sumac_hosted_job_stalls", Unit::None, "Times that a lane stalled", |it| it.stalls),
        Metric::counter("sumac_hosted_job_received", Unit::Bytes, "UDP payload received", |it| it.bytes_in),
        Metric::counter("sumac_hosted_job_sent", Unit::Bytes, "UDP payload sent", |it| it.bytes_out),
    ],
};

pub(super) fn describe() -> impl Iterator<Item = Description> {
    JOBS.describe().chain(HOSTED.describe())
}

pub(super) fn samples(core: &Core, threads: &[DatapathStats]) -> Vec<(Vec<String>, JobSample)> {
    let measured = DatapathStats::merge_jobs(threads).into_iter().map(|(lanes, _)| lanes);
    let sample = |lanes: JobStats| {
        let job = core.summary(lanes.job)?;
        Some((vec![job.name.clone(), lanes.rank.to_string()], JobSample { job, lanes }))
    };
    measured.filter_map(sample).collect()
}

pub(super) fn encode(encoder: &mut Encoder<'_>, jobs: Vec<(Vec<String>, JobSample)>) -> fmt::Result {
    JOBS.encode(encoder, &jobs)
}

pub(super) fn encode_hosted(encoder: &mut Encoder<'_>, jobs: Vec<HostedStats>) -> fmt::Result {
    let numbered = jobs.into_iter().map(|job| (vec![job.job.to_string()], job));
    HOSTED.encode(encoder, &numbered.collect::<Vec<_>>())
}

fn histogram(durations: &sumac_transport::Histogram) -> Histogram {
    Histogram { buckets: durations.buckets().collect(), sum: durations.sum() }
}
