//! The metrics and where their values come from, by the conventions of Prometheus: base units, `_total` for counters.

use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Unit;
use sumac_transport::{EngineStats, Histogram};

use crate::daemon::DaemonState;
use crate::datapath::{DatapathStats, JobStats};

const NANOS: f64 = 1e-9;
/// The bounds of histograms, as powers of two nanoseconds: from 4 us to 17 s.
const BOUNDS: std::ops::RangeInclusive<u32> = 12..=34;

/// A scraped daemon.
#[derive(Debug)]
pub(super) struct DaemonMetrics(Arc<DaemonState>);

type Labels = Vec<(&'static str, String)>;

/// The value of one series.
enum Value {
    Counter(u64),
    Gauge(f64),
    Histogram(Box<Histogram>),
}

/// Name, help and unit of one metric of every job, and its value in the job's statistics or in those of its engines.
type Metric<S, T> = (&'static str, &'static str, Option<Unit>, fn(&S) -> T);

const JOBS: [Metric<JobStats, f64>; 3] = [
    ("ready", "1: the job sums; 0: its path is probed, or it has failed", None, |it| {
        f64::from(u8::from(it.state == "ready"))
    }),
    ("workers", "The workers of the job", None, |it| it.world.into()),
    ("slots", "The slots of each lane", None, |it| it.slots.into()),
];

const COUNTERS: [Metric<EngineStats, u64>; 23] = [
    ("operations_submitted", "Operations that engines were given", None, |it| it.operations_submitted),
    ("operations_completed", "Operations that ended without an error", None, |it| it.operations_completed),
    ("operations_failed", "Operations that ended with an error", None, |it| it.operations_failed),
    ("chunks_sent", "Chunks sent for the first time", None, |it| it.chunks_sent),
    ("chunks_resent", "Chunks whose elements were sent again", None, |it| it.resent),
    ("queries", "Packets without elements for chunks considered lost", None, |it| it.questions),
    ("results", "Results received", None, |it| it.results),
    ("results_partial", "Results that lack the values of some workers", None, |it| it.partial),
    ("chunks_missing", "Answers of the aggregator that a contribution is missing", None, |it| it.missing),
    ("chunks_given_up", "Chunks that did not arrive and were not waited for", None, |it| it.chunks_lost),
    ("losses_by_order", "Chunks considered lost since later ones were answered", None, |it| it.suspects_fast),
    ("losses_by_timeout", "Chunks considered lost by a timeout", None, |it| it.suspects_timer),
    ("losses_spurious", "Chunks considered lost that were only late", None, |it| it.suspects_spurious),
    ("flushes", "Contributions that complete a chunk without the missing ones", None, |it| it.flushes),
    ("collisions", "Results of chunks whose slot was busy", None, |it| it.collisions),
    ("slots_reassigned", "Chunks that took another slot than their regular one", None, |it| it.steals),
    ("results_marked", "Results with a mark of congestion", None, |it| it.marked),
    ("window_halvings", "Halvings of the congestion window", None, |it| it.halvings),
    ("mismatches", "Chunks that workers use for different operations", None, |it| it.mismatches),
    ("chunks_faulty", "Own chunks with a value that does not fit or is not finite", None, |it| {
        it.chunks_faulty
    }),
    ("results_faulty", "Results with such a value of any worker", None, |it| it.results_faulty),
    ("sent", "UDP payload sent", Some(Unit::Bytes), |it| it.bytes_sent),
    ("received", "UDP payload received", Some(Unit::Bytes), |it| it.bytes_received),
];

const GAUGES: [Metric<EngineStats, f64>; 5] = [
    ("chunks_in_flight", "Chunks in flight", None, |it| it.in_flight as f64),
    ("window_chunks", "The congestion window of dynamic jobs", None, |it| it.cwnd as f64),
    ("direct_lanes", "Lanes that send past the slots to the parameter host", None, |it| it.direct as f64),
    ("round_trip_smoothed", "The smoothed round trip", Some(Unit::Seconds), |it| {
        it.rtt.smoothed_ns as f64 * NANOS
    }),
    ("round_trip_shortest", "The shortest round trip", Some(Unit::Seconds), |it| {
        it.rtt.shortest_ns as f64 * NANOS
    }),
];

const HISTOGRAMS: [Metric<EngineStats, Histogram>; 2] = [
    ("round_trip", "From a packet to its answer, of chunks that were sent once", Some(Unit::Seconds), |it| {
        it.round_trips.clone()
    }),
    ("chunk_completion", "From a chunk's first packet to its result", Some(Unit::Seconds), |it| {
        it.completions.clone()
    }),
];

impl Value {
    fn kind(&self) -> MetricType {
        match self {
            Value::Counter(_) => MetricType::Counter,
            Value::Gauge(_) => MetricType::Gauge,
            Value::Histogram(_) => MetricType::Histogram,
        }
    }

    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> Result<(), Error> {
        match self {
            Value::Counter(count) => encoder.encode_counter::<NoLabelSet, u64, u64>(count, None),
            Value::Gauge(value) => encoder.encode_gauge(value),
            Value::Histogram(histogram) => {
                let sum = histogram.sum() as f64 * NANOS;
                encoder.encode_histogram::<NoLabelSet>(sum, histogram.count(), &buckets(histogram), None)
            }
        }
    }
}

/// The counts in buckets whose bounds are the same for all histograms, in seconds.
fn buckets(histogram: &Histogram) -> Vec<(f64, u64)> {
    let bounds = BOUNDS.map(|power| 1 << power).chain([u64::MAX]);
    let mut from = 0;
    let mut buckets = Vec::new();
    for bound in bounds {
        let inside = histogram.buckets().filter(|(upper, _)| (from + 1..=bound).contains(upper));
        let seconds = if bound == u64::MAX { f64::MAX } else { bound as f64 * NANOS };
        buckets.push((seconds, inside.map(|(_, count)| count).sum()));
        from = bound;
    }
    buckets
}

/// Writes one metric: a series for each set of labels.
fn write(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    series: &[(Labels, Value)],
) -> Result<(), Error> {
    let Some((_, first)) = series.first() else { return Ok(()) };
    let mut encoder = encoder.encode_descriptor(name, help, unit, first.kind())?;
    series.iter().try_for_each(|(labels, value)| match labels.is_empty() {
        true => value.encode(&mut encoder),
        false => value.encode(&mut encoder.encode_family(labels)?),
    })
}

/// Writes one metric of all jobs.
fn of_jobs(
    encoder: &mut DescriptorEncoder<'_>,
    jobs: &[(Labels, JobStats)],
    (name, help, unit): (&str, &str, Option<Unit>),
    value: impl Fn(&JobStats) -> Value,
) -> Result<(), Error> {
    let series: Vec<_> = jobs.iter().map(|(labels, job)| (labels.clone(), value(job))).collect();
    write(encoder, &format!("sumac_job_{name}"), help, unit.as_ref(), &series)
}

impl DaemonMetrics {
    pub(super) fn new(state: Arc<DaemonState>) -> DaemonMetrics {
        DaemonMetrics(state)
    }

    fn encode_daemon(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        threads: &[DatapathStats],
    ) -> Result<(), Error> {
        let info =
            Info::new(vec![("version", env!("CARGO_PKG_VERSION")), ("backend", self.0.backend.name())]);
        info.encode(encoder.encode_descriptor("sumac_daemon", "The daemon", None, MetricType::Info)?)?;
        let clients = vec![(Labels::new(), Value::Gauge(self.0.sessions.len() as f64))];
        write(encoder, "sumac_clients", "Open connections of trainers", None, &clients)?;
        let per_thread = |value: fn(&DatapathStats) -> u64| -> Vec<(Labels, Value)> {
            let series = |thread: &DatapathStats| {
                (vec![("thread", thread.name.clone())], Value::Counter(value(thread)))
            };
            threads.iter().map(series).collect()
        };
        let rounds = per_thread(|thread| thread.rounds);
        write(encoder, "sumac_datapath_rounds", "Rounds of a thread of the data path", None, &rounds)?;
        let sleeps = per_thread(|thread| thread.sleeps);
        write(encoder, "sumac_datapath_sleeps", "Rounds that ended asleep", None, &sleeps)?;
        let errors = per_thread(|thread| thread.port_errors);
        write(encoder, "sumac_datapath_errors", "System calls of the data path that failed", None, &errors)
    }

    /// The UMEM's frames, and the counters of the host's XDP program.
    fn encode_xdp(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        threads: &[DatapathStats],
    ) -> Result<(), Error> {
        if let Some(frames) = DatapathStats::frames(threads) {
            let state = |state: &'static str, count: u32| {
                (vec![("state", state.to_owned())], Value::Gauge(count.into()))
            };
            let states = [
                state("free", frames.free),
                state("held", frames.held),
                state("sent", frames.sent),
                state("filled", frames.filled),
                state("reading", frames.reading),
            ];
            write(encoder, "sumac_umem_frames", "Frames of the UMEM by state", None, &states)?;
        }
        let counters = self.0.backend.host_program().map_err(|_| Error)?;
        let series: Vec<_> = counters
            .into_iter()
            .map(|(reason, count)| (vec![("reason", reason)], Value::Counter(count.as_u64().unwrap_or(0))))
            .collect();
        write(encoder, "sumac_host_program_packets", "Packets in the host's XDP program", None, &series)
    }

    fn encode_jobs(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        threads: &[DatapathStats],
    ) -> Result<(), Error> {
        let measured = DatapathStats::merge_jobs(threads).into_iter().map(|(job, _)| job);
        let named = measured.filter_map(|job| Some((self.0.jobs.name(job.job)?, job)));
        let jobs: Vec<(Labels, JobStats)> =
            named.map(|(name, job)| (vec![("job", name), ("rank", job.rank.to_string())], job)).collect();
        for (name, help, unit, value) in JOBS {
            of_jobs(encoder, &jobs, (name, help, unit), |job| Value::Gauge(value(job)))?;
        }
        for (name, help, unit, value) in COUNTERS {
            of_jobs(encoder, &jobs, (name, help, unit), |job| Value::Counter(value(&job.engine)))?;
        }
        for (name, help, unit, value) in GAUGES {
            of_jobs(encoder, &jobs, (name, help, unit), |job| Value::Gauge(value(&job.engine)))?;
        }
        for (name, help, unit, value) in HISTOGRAMS {
            of_jobs(encoder, &jobs, (name, help, unit), |job| {
                Value::Histogram(Box::new(value(&job.engine)))
            })?;
        }
        Ok(())
    }
}

impl Collector for DaemonMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let threads = self.0.backend.stats().map_err(|_| Error)?;
        self.encode_daemon(&mut encoder, &threads)?;
        self.encode_xdp(&mut encoder, &threads)?;
        self.encode_jobs(&mut encoder, &threads)
    }
}
