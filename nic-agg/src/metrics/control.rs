//! The metrics of the control plane, from its overview.

use std::fmt;

use sumac_control::{
    coordinator::overview::{Below, Job, Overview},
    server::stats::ServerStats,
};
use sumac_metrics::{Description, Encoder, Group, Metric, Unit};

const STATES: [&str; 4] = ["waiting", "starting", "running", "over"];

const SERVER: Group<ServerStats> = Group {
    labels: &[],
    metrics: &[
        Metric::gauge("sumac_control_connections", Unit::None, "Open connections", |it| {
            it.connections as f64
        }),
        Metric::gauge(
            "sumac_control_connections_unauthenticated",
            Unit::None,
            "Open connections that have shown no secret yet",
            |it| it.strangers as f64,
        ),
        Metric::counter(
            "sumac_control_connections_accepted",
            Unit::None,
            "Connections that were accepted",
            |it| it.accepted,
        ),
        Metric::counter(
            "sumac_control_connections_rejected",
            Unit::None,
            "Connections that were closed at once: there were too many",
            |it| it.rejected,
        ),
        Metric::counter("sumac_control_joins", Unit::None, "Workers that joined a job", |it| it.joins),
        Metric::counter(
            "sumac_control_joins_refused",
            Unit::None,
            "Joins that a job refused: another world size, a taken rank, no free slots",
            |it| it.joins_refused,
        ),
        Metric::gauge("sumac_control_journal", Unit::Bytes, "Size of the journal", |it| {
            it.journal.bytes as f64
        }),
        Metric::counter(
            "sumac_control_journal_records",
            Unit::None,
            "Records written to the journal",
            |it| it.journal.records,
        ),
        Metric::counter(
            "sumac_control_journal_failures",
            Unit::None,
            "Writes of the journal that failed",
            |it| it.journal.failures,
        ),
    ],
};

const DENIED: Group<u64> = Group {
    labels: &["reason"],
    metrics: &[Metric::counter(
        "sumac_control_denied",
        Unit::None,
        "Workers, racks and parameter hosts that were denied: wrong `secret`, other `version`, bad `request`",
        |it| *it,
    )],
};

const MEMBERS: Group<Below> = Group {
    labels: &["kind", "name"],
    metrics: &[
        Metric::gauge(
            "sumac_control_member_available",
            Unit::None,
            "1: the data plane of a rack or parameter host answers; 0: it is out of service",
            |it| f64::from(u8::from(it.away.is_none())),
        ),
        Metric::gauge("sumac_control_member_jobs", Unit::None, "Jobs at a rack or parameter host", |it| {
            it.jobs.len() as f64
        }),
    ],
};

const JOB_STATES: Group<usize> = Group {
    labels: &["state"],
    metrics: &[Metric::gauge("sumac_control_jobs", Unit::None, "Jobs by state", |it| *it as f64)],
};

const JOBS: Group<Job> = Group {
    labels: &["job_name", "job_number"],
    metrics: &[
        Metric::gauge("sumac_control_job_workers", Unit::None, "Workers of the job", |it| it.world.into()),
        Metric::gauge(
            "sumac_control_job_workers_missing",
            Unit::None,
            "Workers that have not joined",
            |it| it.missing.len() as f64,
        ),
        Metric::gauge(
            "sumac_control_job_workers_vacant",
            Unit::None,
            "Dead workers that may be replaced",
            |it| it.vacant.len() as f64,
        ),
        Metric::gauge(
            "sumac_control_job_aggregators_missing",
            Unit::None,
            "Aggregators that do not have the job at present",
            |it| it.without.len() as f64,
        ),
    ],
};

pub(super) fn describe() -> impl Iterator<Item = Description> {
    SERVER
        .describe()
        .chain(DENIED.describe())
        .chain(MEMBERS.describe())
        .chain(JOB_STATES.describe())
        .chain(JOBS.describe())
}

pub(super) fn encode(encoder: &mut Encoder<'_>, overview: &Overview) -> fmt::Result {
    let Overview { racks, parameter_hosts, jobs, server } = overview;
    SERVER.encode(encoder, &[(Vec::new(), server)])?;
    let denied = server.denied;
    let reasons = [("secret", denied.secret), ("version", denied.version), ("request", denied.request)];
    DENIED.encode(encoder, &reasons.map(|(reason, count)| (vec![reason.to_owned()], count)))?;
    let members = racks.iter().map(|below| ("rack", below));
    let members = members.chain(parameter_hosts.iter().map(|below| ("parameter_host", below)));
    let members = members.map(|(kind, below)| (vec![kind.to_owned(), below.name.clone()], below));
    MEMBERS.encode(encoder, &members.collect::<Vec<_>>())?;
    let in_state = |state: &&str| jobs.iter().filter(|job| job.state == **state).count();
    let states = STATES.map(|state| (vec![state.to_owned()], in_state(&state)));
    JOB_STATES.encode(encoder, &states)?;
    let labelled = jobs.iter().map(|job| (vec![job.name.clone(), job.job.to_string()], job));
    JOBS.encode(encoder, &labelled.collect::<Vec<_>>())
}
