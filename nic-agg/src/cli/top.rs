//! `sumac-agg top`: a live view of the aggregator's jobs.

use std::time::{Duration, Instant};

use serde_json::Value;
use sumac_agg::local::{self, Question};
use sumac_agg_job::status::job::STRAGGLER_RATIO;
use sumac_loader::chain;
use sumac_top::{Cell, Column, Sample, Source, Table, Unit, counters::Pair, keys};
use sumac_wire::{DEFAULT_CONTROL_PORT, Reason, header::ELEMENT_LEN};

use super::{options::Target, status::status_json};

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac-agg top\n",
    "  sumac-agg top --host                                  of `sumac-agg serve --plane host`\n",
    "  sumac-agg top --switch                                of a P4 switch\n",
    "  sumac-agg top --json | jq '.jobs[0].workers'          one sample, as JSON\n\n",
    keys!(),
    "\nA worker that is last far more often than the others is a straggler: they wait for it.",
);

/// Show the aggregator's jobs live: rates, slots, drops, and how late each worker is
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    options: sumac_top::Options,
    #[command(flatten)]
    target: Target,
    /// The TCP port of the control plane whose jobs are shown, too
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_CONTROL_PORT)]
    control_port: u16,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args { options, target, control_port } = args;
    let source = Aggregator { target: target.clone(), control_port: *control_port, before: None };
    Ok(sumac_top::run(options, source)?)
}

const JOBS: &[Column] = &[
    Column::new("name", "job", Unit::Text),
    Column::new("workers", "workers", Unit::Count),
    Column::new("chunks_per_second", "chunks", Unit::PerSecond),
    Column::new("sum_bytes_per_second", "sums", Unit::BytesPerSecond),
    Column::new("frames_per_second", "frames", Unit::PerSecond),
    Column::new("frames_refused_per_second", "refused", Unit::PerSecond),
    Column::new("frames_repeated_per_second", "repeated", Unit::PerSecond),
    Column::new("aggregation_p50_seconds", "wait p50", Unit::Seconds),
    Column::new("aggregation_p99_seconds", "wait p99", Unit::Seconds),
    Column::new("straggler", "straggler", Unit::Text),
    Column::new("slots", "slots", Unit::Count),
    Column::new("mode", "mode", Unit::Text),
];

const WORKERS: &[Column] = &[
    Column::new("rank", "rank", Unit::Count),
    Column::new("ip", "address", Unit::Text),
    Column::new("contributions_per_second", "added", Unit::PerSecond),
    Column::new("last_ratio", "last", Unit::Ratio),
    Column::new("late_mean_seconds", "late", Unit::Seconds),
    Column::new("late_max_seconds", "latest", Unit::Seconds),
    Column::new("duplicates_per_second", "duplicates", Unit::PerSecond),
    Column::new("replies_per_second", "replies", Unit::PerSecond),
];

struct Aggregator {
    target: Target,
    control_port: u16,
    before: Option<(Value, Instant)>,
}

impl Source for Aggregator {
    fn sample(&mut self) -> Result<Sample, String> {
        let status = status_json(&self.target).map_err(|error| chain(error.as_ref()))?;
        let now = Instant::now();
        let (before, elapsed) = match &self.before {
            Some((before, then)) => (Some(before), now - *then),
            None => (None, Duration::ZERO),
        };
        let mut sample = sample(Pair { now: &status, before, elapsed });
        sample.facts.push(("control plane", control(self.control_port)));
        self.before = Some((status, now));
        Ok(sample)
    }
}

/// Returns the state of the control plane's jobs, or the reason that it is unknown.
fn control(port: u16) -> String {
    match local::ask(&local::control_name(port), &Question::Control { json: true }) {
        Ok(overview) => jobs_by_state(&serde_json::from_str(&overview).unwrap_or_default()),
        Err(error) => error.to_string(),
    }
}

fn jobs_by_state(overview: &Value) -> String {
    let jobs = overview["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let of = |state: &str| jobs.iter().filter(|job| job["state"] == state).count();
    // A `serve` of an earlier release does not count its connections.
    let connections =
        overview["server"]["connections"].as_u64().map(|count| format!("{count} connections; "));
    let mut text = format!(
        "{}jobs: {} running, {} starting, {} waiting",
        connections.unwrap_or_default(),
        of("running"),
        of("starting"),
        of("waiting")
    );
    for job in jobs.iter().filter(|job| job["state"] == "waiting") {
        text += &format!("; {} waits for ranks {}", job["name"].as_str().unwrap_or("?"), job["missing"]);
    }
    text
}

/// Returns the sample of two readings of the status.
fn sample(status: Pair<'_>) -> Sample {
    let jobs: Vec<Pair<'_>> = status.at("jobs").items(&["job", "epoch"]).collect();
    let parts = jobs.iter().map(|job| Table { columns: WORKERS, rows: workers(*job) });
    Sample {
        facts: facts(status),
        jobs: Table { columns: JOBS, rows: jobs.iter().map(|job| row(*job)).collect() },
        parts_name: "workers",
        parts: parts.collect(),
    }
}

fn facts(status: Pair<'_>) -> Vec<(&'static str, String)> {
    let ports: Vec<String> = status
        .at("ports")
        .items(&[])
        .map(|port| format!("{} {}", port.text("interface"), port.now["mode"].as_str().unwrap_or("gone")))
        .collect();
    let ports = if ports.is_empty() { "no interfaces of its own".to_owned() } else { ports.join(", ") };
    let slots = format!("{} of {} used", status.count("slots_used"), status.count("slots"));
    let mut facts = vec![("aggregator", format!("{}, {ports}", status.text("plane"))), ("slots", slots)];
    if status.now["dynamic"].is_object() {
        let pool = status.at("dynamic");
        let slots = pool.count("slots") * status.count("shards");
        let used = pool.now["held"].as_u64().map(|held| format!("{held} of {slots} used"));
        facts.push(("dynamic slots", used.unwrap_or_else(|| slots.to_string())));
    }
    let dropping = status.now["drops"].as_array().is_some_and(|drops| !drops.is_empty());
    if dropping {
        facts.push(("drops", "packets are dropped on purpose: `sumac-agg status` shows which".to_owned()));
    }
    facts
}

fn row(job: Pair<'_>) -> Vec<Cell> {
    let workers: Vec<Pair<'_>> = job.at("workers").items(&["rank"]).collect();
    let chunks = sum(workers.iter().map(|worker| worker.rate("last")));
    let bytes = chunks.map(|chunks| chunks * job.number("elements") * ELEMENT_LEN as f64);
    let counters = job.at("counters");
    let frames = |counts: fn(Reason) -> bool| {
        sum(Reason::ALL.iter().filter(|reason| counts(**reason)).map(|reason| counters.rate(reason.name())))
    };
    let times = job.at("aggregation");
    let name = match job.now["name"].as_str() {
        Some(name) => name.to_owned(),
        None => format!("#{}", job.count("job")),
    };
    vec![
        Cell::Text(name),
        Cell::Number(workers.len() as f64),
        chunks.into(),
        bytes.into(),
        frames(|_| true).into(),
        frames(Reason::is_refusal).into(),
        frames(|reason| matches!(reason, Reason::Duplicate | Reason::Replied | Reason::Stale)).into(),
        times.quantile(0.5).into(),
        times.quantile(0.99).into(),
        Cell::Text(straggler(&workers).unwrap_or_else(|| "-".to_owned())),
        Cell::Number(job.number("slots")),
        Cell::Text(if job.now["is_dynamic"] == true { "dynamic" } else { "static" }.to_owned()),
    ]
}

/// Returns the sum; none when any of the numbers is unknown.
fn sum(numbers: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    numbers.sum()
}

fn workers(job: Pair<'_>) -> Vec<Vec<Cell>> {
    let workers: Vec<Pair<'_>> = job.at("workers").items(&["rank"]).collect();
    let row = |worker: &Pair<'_>| {
        vec![
            Cell::Number(worker.number("rank")),
            Cell::Text(worker.text("ip")),
            worker.rate("added").into(),
            last_ratio(*worker, &workers).into(),
            worker.ratio("late_sum_ns", "late_chunks").map(|nanos| nanos / 1e9).into(),
            worker.now["late_max_ns"].as_f64().map(|nanos| nanos / 1e9).into(),
            worker.rate("duplicates").into(),
            worker.rate("replies").into(),
        ]
    };
    workers.iter().map(row).collect()
}

/// Returns the part of the chunks since the last sample that waited for this worker last.
fn last_ratio(worker: Pair<'_>, workers: &[Pair<'_>]) -> Option<f64> {
    let chunks: u64 = workers.iter().map(|worker| worker.growth("last")).sum::<Option<u64>>()?;
    (chunks > 0).then_some(worker.growth("last")? as f64 / chunks as f64)
}

/// Returns the worker that the chunks since the last sample waited for more than their share.
fn straggler(workers: &[Pair<'_>]) -> Option<String> {
    let ratios = workers.iter().filter_map(|worker| Some((worker, last_ratio(*worker, workers)?)));
    let (worker, ratio) = ratios.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let is_slow = workers.len() > 1 && ratio * workers.len() as f64 > STRAGGLER_RATIO;
    is_slow.then(|| format!("rank {} ({:.0}% last)", worker.count("rank"), ratio * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(last: [u64; 2]) -> Value {
        let worker = |rank: usize| {
            json!({ "rank": rank, "ip": "10.0.0.1",
                "added": last[0] + last[1], "last": last[rank], "duplicates": 0, "replies": 0,
                "late_sum_ns": last[rank] * 1000, "late_chunks": last[rank], "late_max_ns": 9000 })
        };
        json!({
            "plane": "ebpf", "slots": 512,
                "slots_used": 128, "shards": 2, "dynamic": { "slots": 64, "held": 3 }, "drops": [],
            "ports": [{ "interface": "eth1", "mode": "generic" }, { "interface": "eth2", "mode": null }],
            "jobs": [{ "job": 3, "epoch": 1, "name": null, "is_dynamic": false, "slots": 128, "elements": 256,
                "counters": { "added": last[0], "bad_token": last[1] }, "aggregation": { "buckets": [] },
                "workers": [worker(0), worker(1)] }],
        })
    }

    fn cell(sample: &Sample, key: &str) -> Cell {
        let at = JOBS.iter().position(|column| column.key == key).unwrap();
        sample.jobs.rows[0][at].clone()
    }

    #[test]
    fn the_worker_that_the_others_wait_for_is_named() {
        let (before, now) = (status([100, 0]), status([110, 90]));
        let sample = sample(Pair { now: &now, before: Some(&before), elapsed: Duration::from_secs(2) });
        assert_eq!(cell(&sample, "name"), Cell::Text("#3".into()));
        assert_eq!(cell(&sample, "straggler"), Cell::Text("rank 1 (90% last)".into()));
        assert_eq!(cell(&sample, "chunks_per_second"), Cell::Number(50.0));
        assert_eq!(cell(&sample, "sum_bytes_per_second"), Cell::Number(50.0 * 1024.0));
        assert_eq!(cell(&sample, "frames_per_second"), Cell::Number(50.0));
        assert_eq!(cell(&sample, "frames_refused_per_second"), Cell::Number(45.0));
        assert_eq!(sample.parts[0].rows[1][3..5], [Cell::Number(0.9), Cell::Number(1e-6)]);
        let facts = [
            ("aggregator", "ebpf, eth1 generic, eth2 gone".to_owned()),
            ("slots", "128 of 512 used".to_owned()),
            ("dynamic slots", "3 of 128 used".to_owned()),
        ];
        assert_eq!(sample.facts, facts);
    }

    #[test]
    fn times_that_a_switch_does_not_measure_are_unknown() {
        let mut both = [status([100, 0]), status([110, 90])];
        for status in &mut both {
            status["jobs"][0]["aggregation"] = Value::Null;
            for worker in status["jobs"][0]["workers"].as_array_mut().unwrap() {
                worker.as_object_mut().unwrap().retain(|key, _| !key.starts_with("late"));
            }
        }
        let [before, now] = &both;
        let sample = sample(Pair { now, before: Some(before), elapsed: Duration::from_secs(2) });
        assert_eq!(sample.parts[0].rows[1][3..6], [Cell::Number(0.9), Cell::Unknown, Cell::Unknown]);
        assert_eq!(cell(&sample, "aggregation_p99_seconds"), Cell::Unknown);
        assert_eq!(cell(&sample, "straggler"), Cell::Text("rank 1 (90% last)".into()));
    }

    #[test]
    fn without_an_earlier_sample_there_are_no_rates() {
        let now = status([100, 0]);
        let first = sample(Pair { now: &now, before: None, elapsed: Duration::ZERO });
        assert_eq!(first.jobs.rows[0].len(), JOBS.len());
        assert_eq!(first.parts[0].rows[0].len(), WORKERS.len());
        assert_eq!(cell(&first, "straggler"), Cell::Text("-".into()));
        assert_eq!(cell(&first, "chunks_per_second"), Cell::Unknown);
    }

    #[test]
    fn jobs_that_wait_are_named_with_the_missing_ranks() {
        let job = |name: &str, state: &str| json!({ "name": name, "state": state, "missing": [1, 3] });
        let overview =
            json!({ "server": { "connections": 5 }, "jobs": [job("a", "running"), job("b", "waiting")] });
        let expected = "5 connections; jobs: 1 running, 0 starting, 1 waiting; b waits for ranks [1,3]";
        assert_eq!(jobs_by_state(&overview), expected);
    }
}
