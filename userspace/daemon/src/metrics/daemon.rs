//! The metrics of the daemon as a whole and of its data path.

use std::fmt;
use std::sync::atomic::Ordering;

use sumac_api::Failure;
use sumac_datapath::{DatapathStats, IoReport};
use sumac_metrics::{Description, Encoder, Group, Metric, Unit};

use crate::backend::FramePath;
use crate::state::DaemonState;

const INFO: Group<()> = Group {
    labels: &["version", "backend"],
    metrics: &[Metric::info("sumac_daemon", "The daemon's version and backend (`xdp` or `udp`)")],
};

const DAEMON: Group<DaemonState> = Group {
    labels: &[],
    metrics: &[
        Metric::gauge("sumac_clients", Unit::None, "Open connections of trainers", |it| {
            it.core.totals().connections as f64
        }),
        Metric::gauge("sumac_fallback", Unit::None, "1: the backend is not the requested one", |it| {
            f64::from(u8::from(!it.backend.fallback().is_empty()))
        }),
        Metric::counter("sumac_opens", Unit::None, "Jobs that were opened", |it| it.opens.opened()),
    ],
};

const FAILED_OPENS: Group<u64> = Group {
    labels: &["code"],
    metrics: &[Metric::counter(
        "sumac_opens_failed",
        Unit::None,
        "Jobs that could not be opened, by the failure's code",
        |it| *it,
    )],
};

const SPANS: Group<u64> = Group {
    labels: &["outcome"],
    metrics: &[Metric::counter(
        "sumac_traced_operations",
        Unit::None,
        "Operations with spans: `exported`, `refused` by the collector, or dropped as the queue was full \
        (`overflowed`)",
        |it| *it,
    )],
};

const THREADS: Group<DatapathStats> = Group {
    labels: &["thread"],
    metrics: &[
        Metric::counter("sumac_datapath_rounds", Unit::None, "Rounds of a thread of the data path", |it| {
            it.rounds
        }),
        Metric::counter("sumac_datapath_sleeps", Unit::None, "Rounds that ended asleep", |it| it.sleeps),
        Metric::counter(
            "sumac_datapath_errors",
            Unit::None,
            "System calls of the data path that failed",
            |it| it.port_errors,
        ),
        Metric::counter("sumac_datapath_packets_sent", Unit::None, "Packets sent", |it| it.port.counts.sent),
        Metric::counter("sumac_datapath_packets_received", Unit::None, "Packets received", |it| {
            it.port.counts.received
        }),
        Metric::counter(
            "sumac_datapath_packets_malformed",
            Unit::None,
            "Received packets that are not Sumac's, or malformed",
            |it| it.port.malformed,
        ),
        Metric::counter(
            "sumac_datapath_packets_undelivered",
            Unit::None,
            "Received packets of no job here, or from a wrong source",
            |it| it.undelivered.unknown_job + it.undelivered.wrong_source + it.undelivered.no_lane,
        ),
        Metric::counter(
            "sumac_datapath_packets_refused",
            Unit::None,
            "Packets that the kernel refused to send",
            |it| it.port.refused,
        ),
        Metric::counter(
            "sumac_datapath_packets_dropped",
            Unit::None,
            "Packets that the kernel dropped before their AF_XDP socket",
            |it| dropped(&it.port),
        ),
        Metric::counter(
            "sumac_datapath_frames_exhausted",
            Unit::None,
            "Attempts to send that found no free frame",
            |it| it.port.full,
        ),
    ],
};

const SOCKETS: Group<()> = Group {
    labels: &["thread", "interface", "path"],
    metrics: &[Metric::info(
        "sumac_datapath_port",
        "The way of a thread's packets: `zero_copy`, `copy` or `generic` (AF_XDP), or `udp`",
    )],
};

const FRAMES: Group<u32> = Group {
    labels: &["state"],
    metrics: &[Metric::gauge("sumac_umem_frames", Unit::None, "Frames of the UMEM by state", |it| {
        f64::from(*it)
    })],
};

const HOST_PROGRAM: Group<u64> = Group {
    labels: &["reason"],
    metrics: &[Metric::counter(
        "sumac_host_program_packets",
        Unit::None,
        "Packets in the host's XDP program, by outcome",
        |it| *it,
    )],
};

pub(super) fn describe() -> impl Iterator<Item = Description> {
    INFO.describe()
        .chain(DAEMON.describe())
        .chain(FAILED_OPENS.describe())
        .chain(SPANS.describe())
        .chain(THREADS.describe())
        .chain(SOCKETS.describe())
        .chain(FRAMES.describe())
        .chain(HOST_PROGRAM.describe())
}

pub(super) fn encode(
    encoder: &mut Encoder<'_>,
    state: &DaemonState,
    threads: &[DatapathStats],
) -> fmt::Result {
    let about = vec![env!("CARGO_PKG_VERSION").to_owned(), state.backend.name().to_owned()];
    INFO.encode(encoder, &[(about, ())])?;
    DAEMON.encode(encoder, &[(Vec::new(), state)])?;
    FAILED_OPENS.encode(encoder, &state.opens.failed())?;
    let counters = &state.spans.counters;
    let spans = [
        ("exported", &counters.exported),
        ("refused", &counters.refused),
        ("overflowed", &counters.overflowed),
    ];
    let spans = spans.map(|(outcome, count)| (vec![outcome.to_owned()], count.load(Ordering::Relaxed)));
    SPANS.encode(encoder, &spans)?;
    let named = threads.iter().map(|thread| (vec![thread.name.clone()], thread));
    THREADS.encode(encoder, &named.collect::<Vec<_>>())?;
    SOCKETS.encode(encoder, &threads.iter().map(|thread| (port(thread), ())).collect::<Vec<_>>())?;
    if let Some(frames) = DatapathStats::frames(threads) {
        let states = [
            ("free", frames.free),
            ("held", frames.held),
            ("sent", frames.sent),
            ("filled", frames.filled),
            ("reading", frames.reading),
        ];
        FRAMES.encode(encoder, &states.map(|(state, count)| (vec![state.to_owned()], count)))?;
    }
    HOST_PROGRAM.encode(encoder, &host_program(state).map_err(unreadable)?)
}

/// Logs why a scrape is answered with an error.
pub(super) fn unreadable(failure: Failure) -> fmt::Error {
    tracing::warn!(%failure, "cannot read the data path's statistics for a scrape");
    fmt::Error
}

fn host_program(state: &DaemonState) -> Result<Vec<(Vec<String>, u64)>, Failure> {
    let counters = state.backend.host_program()?;
    Ok(counters.into_iter().map(|(reason, count)| (vec![reason], count.as_u64().unwrap_or(0))).collect())
}

/// Returns the labels of a thread's port.
fn port(thread: &DatapathStats) -> Vec<String> {
    let io = &thread.port;
    let path = match io.sockets.is_empty() {
        true => io.backend,
        false => FramePath::of(std::iter::once(io)).name(),
    };
    vec![thread.name.clone(), io.interface.clone().unwrap_or_default(), path.to_owned()]
}

/// Returns the packets that the kernel had no frame or no place in a ring for.
fn dropped(io: &IoReport) -> u64 {
    let kernel = io.sockets.iter().filter_map(|socket| socket.kernel);
    kernel.map(|kernel| kernel.rx_dropped + kernel.rx_ring_full).sum()
}
