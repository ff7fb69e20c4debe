//! `sumac top`: a live view of the daemon's jobs.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use serde_json::Value;
use sumac_client::Client;
use sumac_top::{Cell, Column, Sample, Source, Table, Unit, counters::Pair, keys};

use crate::{exit, options::Socket};

/// Shows the running daemon's jobs live: rates, loss, round trips, windows and slots, and each job's lanes.
///
/// When the daemon goes away, the view says so, and goes on with the next one. Stragglers are seen at the
/// aggregator: `sumac-agg top`.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    options: sumac_top::Options,
    #[command(flatten)]
    socket: Socket,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac top                                      until q\n",
    "  sumac top --interval 5                         a sample in five seconds\n",
    "  sumac top --once                               one sample, as text\n",
    "  sumac top --json | jq '.jobs[].loss_ratio'     one sample, as JSON\n\n",
    keys!(),
    "\n",
    exit::help_text!(),
);

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    sumac_top::run(&args.options, Daemon { path: args.socket.path.clone(), client: None, before: None })?;
    Ok(ExitCode::SUCCESS)
}

const JOBS: &[Column] = &[
    Column::new("name", "job", Unit::Text),
    Column::new("state", "state", Unit::Text),
    Column::new("rank", "rank", Unit::Count),
    Column::new("workers", "of", Unit::Count),
    Column::new("operations_per_second", "ops", Unit::PerSecond),
    Column::new("sent_bytes_per_second", "sent", Unit::BytesPerSecond),
    Column::new("received_bytes_per_second", "received", Unit::BytesPerSecond),
    Column::new("results_per_second", "results", Unit::PerSecond),
    Column::new("loss_ratio", "resent", Unit::Ratio),
    Column::new("round_trip_p50_seconds", "rtt p50", Unit::Seconds),
    Column::new("round_trip_p99_seconds", "rtt p99", Unit::Seconds),
    Column::new("chunks_in_flight", "in flight", Unit::Count),
    Column::new("window_chunks", "window", Unit::Count),
    Column::new("slots", "slots", Unit::Count),
    Column::new("mode", "mode", Unit::Text),
    Column::new("operations_outstanding", "waiting", Unit::Count),
];

const LANES: &[Column] = &[
    Column::new("lane", "lane", Unit::Count),
    Column::new("state", "state", Unit::Text),
    Column::new("chunks_per_second", "chunks", Unit::PerSecond),
    Column::new("loss_ratio", "resent", Unit::Ratio),
    Column::new("queries_per_second", "queries", Unit::PerSecond),
    Column::new("round_trip_smoothed_seconds", "rtt", Unit::Seconds),
    Column::new("round_trip_shortest_seconds", "shortest", Unit::Seconds),
    Column::new("chunks_in_flight", "in flight", Unit::Count),
    Column::new("window_chunks", "window", Unit::Count),
    Column::new("slots", "slots", Unit::Count),
];

/// The daemon behind a socket.
struct Daemon {
    path: PathBuf,
    client: Option<Client>,
    before: Option<(Value, Instant)>,
}

impl Source for Daemon {
    fn sample(&mut self) -> Result<Sample, String> {
        let read = |client: &mut Option<Client>| {
            let connected = client.take().map_or_else(|| Client::connect(&self.path), Ok)?;
            let stats = connected.stats_json()?;
            *client = Some(connected);
            Ok::<_, sumac_client::ClientError>(stats)
        };
        let stats = read(&mut self.client).map_err(|error| sumac_loader::chain(&error))?;
        let now = Instant::now();
        let (before, elapsed) = match &self.before {
            Some((before, then)) => (Some(before), now - *then),
            None => (None, Duration::ZERO),
        };
        let sample = sample(Pair { now: &stats, before, elapsed }, &self.path.display().to_string());
        self.before = Some((stats, now));
        Ok(sample)
    }
}

/// Returns the sample of two readings of the daemon's statistics.
fn sample(stats: Pair<'_>, socket: &str) -> Sample {
    let jobs: Vec<Pair<'_>> = stats.at("jobs").items(&["name", "epoch"]).collect();
    let parts = jobs
        .iter()
        .map(|job| Table { columns: LANES, rows: job.at("lanes").items(&["lane"]).map(lane).collect() });
    Sample {
        facts: facts(stats, socket),
        jobs: Table { columns: JOBS, rows: jobs.iter().map(|job| row(*job)).collect() },
        parts_name: "lanes",
        parts: parts.collect(),
    }
}

fn facts(stats: Pair<'_>, socket: &str) -> Vec<(&'static str, String)> {
    let mut ports: Vec<String> = stats.at("ports").items(&[]).map(path).collect();
    ports.dedup();
    // This connection is one of them.
    let clients = stats.count("clients").saturating_sub(1);
    let mut facts = vec![
        ("daemon", format!("{socket}; other connections: {clients}")),
        ("path", format!("{}: {}", stats.text("backend"), ports.join(", "))),
    ];
    let fallback = stats.text("fallback");
    if !fallback.is_empty() {
        facts.push(("fell back", fallback));
    }
    if let Some(hosted) = stats.now["parameter_host"].as_array() {
        facts.push(("parameter host", format!("of {} jobs", hosted.len())));
    }
    facts
}

/// Returns a port's way of packets: its interface, XDP mode, and whether frames are copied.
fn path(port: Pair<'_>) -> String {
    let sockets = port.now["sockets"].as_array().map_or(&[][..], Vec::as_slice);
    if sockets.is_empty() {
        return port.text("local");
    }
    let is_zero_copy = sockets.iter().all(|socket| socket["bound"]["zero_copy"] == true);
    let copy = if is_zero_copy { "zero-copy" } else { "copy" };
    format!("{} {} {copy}", port.text("interface"), port.text("xdp_mode"))
}

fn row(job: Pair<'_>) -> Vec<Cell> {
    let engine = job.at("engine");
    let trips = engine.at("round_trips");
    let outstanding = job.count("operations_submitted").saturating_sub(job.count("operations_ended"));
    vec![
        Cell::Text(job.text("name")),
        Cell::Text(job.text("state")),
        Cell::Number(job.number("rank")),
        Cell::Number(job.number("world")),
        job.rate("operations_ended").into(),
        engine.rate("bytes_sent").into(),
        engine.rate("bytes_received").into(),
        engine.rate("results").into(),
        engine.ratio("resent", "chunks_sent").into(),
        trips.quantile(0.5).into(),
        trips.quantile(0.99).into(),
        Cell::Number(engine.number("in_flight")),
        window(engine),
        Cell::Number(job.number("slots")),
        Cell::Text(job.text("mode")),
        Cell::Number(outstanding as f64),
    ]
}

fn lane(lane: Pair<'_>) -> Vec<Cell> {
    let engine = lane.at("engine");
    let seconds = |key: &str| match engine.at("rtt").number(key) {
        0.0 => Cell::Unknown,
        nanos => Cell::Number(nanos * 1e-9),
    };
    vec![
        Cell::Number(lane.number("lane")),
        Cell::Text(lane.text("state")),
        engine.rate("chunks_sent").into(),
        engine.ratio("resent", "chunks_sent").into(),
        engine.rate("questions").into(),
        seconds("smoothed_ns"),
        seconds("shortest_ns"),
        Cell::Number(engine.number("in_flight")),
        window(engine),
        Cell::Number(lane.number("slots")),
    ]
}

/// The congestion window; none of a job without congestion control.
fn window(engine: Pair<'_>) -> Cell {
    match engine.number("cwnd") {
        0.0 => Cell::Unknown,
        chunks => Cell::Number(chunks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Statistics after `n` operations.
    fn stats(n: u64) -> Value {
        let engine = json!({
            "bytes_sent": n * 1_000_000,
                "bytes_received": n * 2_000_000, "results": n * 900, "chunks_sent": n * 1000,
            "resent": n * 10,
                "in_flight": 64, "cwnd": 0, "round_trips": { "buckets": [[65_536, n * 99], [2_097_152, n]] },
            "rtt": { "smoothed_ns": 80_000, "shortest_ns": 0 },
        });
        json!({
            "backend": "xdp",
                "clients": 3, "fallback": "", "ports": [{ "interface": "eth1", "xdp_mode": "driver",
                "sockets": [{ "bound": { "zero_copy": false } }] }],
            "jobs": [{ "name": "train",
                "epoch": 1, "rank": 2, "world": 4, "state": "ready", "mode": "static", "slots": 128,
                "operations_submitted": n + 3, "operations_ended": n, "engine": engine,
                "lanes": [{ "lane": 0, "state": "ready", "slots": 128, "engine": engine }] }],
        })
    }

    #[test]
    fn rates_are_those_since_the_last_sample() {
        let (before, now) = (stats(100), stats(120));
        let pair = Pair { now: &now, before: Some(&before), elapsed: Duration::from_secs(2) };
        let sample = sample(pair, "/run/a.sock");
        let cell = |key: &str| {
            let at = JOBS.iter().position(|column| column.key == key).unwrap();
            sample.jobs.rows[0][at].clone()
        };
        assert_eq!(cell("operations_per_second"), Cell::Number(10.0));
        assert_eq!(cell("sent_bytes_per_second"), Cell::Number(1e7));
        assert_eq!(cell("loss_ratio"), Cell::Number(0.01));
        assert_eq!(cell("round_trip_p50_seconds"), Cell::Number(65_536.0 * 1e-9));
        assert_eq!(
            (cell("window_chunks"), cell("operations_outstanding")),
            (Cell::Unknown, Cell::Number(3.0))
        );
        assert_eq!(sample.parts[0].rows[0][2], Cell::Number(10_000.0));
        assert_eq!(sample.parts[0].rows[0][6], Cell::Unknown, "no round trip yet");
        let facts = [
            ("daemon", "/run/a.sock; other connections: 2".to_owned()),
            ("path", "xdp: eth1 driver copy".to_owned()),
        ];
        assert_eq!(sample.facts, facts);
    }

    #[test]
    fn every_row_has_its_columns() {
        let now = stats(1);
        let first = sample(Pair { now: &now, before: None, elapsed: Duration::ZERO }, "a");
        assert_eq!(first.jobs.rows[0].len(), JOBS.len());
        assert_eq!(first.parts[0].rows[0].len(), LANES.len());
        assert_eq!(first.jobs.rows[0][4], Cell::Unknown, "no rate yet");
    }
}
