//! The summary of each job, in front of all counters.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::Value;

/// Writes the jobs of a daemon's trainers, then those of its parameter host.
/// `before`: the statistics `elapsed` earlier, for rates.
pub(super) fn show(out: &mut impl Write, stats: &Value, before: &Value, elapsed: Duration) -> io::Result<()> {
    let (jobs, hosted) = (items(&stats["jobs"]), items(&stats["parameter_host"]));
    jobs.iter().try_for_each(|job| show_job(out, job, &rates(job, before, elapsed)))?;
    hosted.iter().try_for_each(|job| show_hosted(out, job))?;
    if jobs.is_empty() && hosted.is_empty() { Ok(()) } else { writeln!(out) }
}

/// Writes each job's rates.
pub(super) fn show_rates(
    out: &mut impl Write,
    stats: &Value,
    before: &Value,
    elapsed: Duration,
) -> io::Result<()> {
    let mut jobs = items(&stats["jobs"]).iter();
    jobs.try_for_each(|job| writeln!(out, "job {}: {}", text(job, "name"), rates(job, before, elapsed)))
}

/// Returns a job's rates, and the quantiles of its round trips.
fn rates(job: &Value, before: &Value, elapsed: Duration) -> String {
    let same = |other: &&Value| ["name", "epoch"].iter().all(|key| other[*key] == job[*key]);
    let nothing = Value::Null;
    let earlier = items(&before["jobs"]).iter().find(same).map_or(&nothing, |job| &job["engine"]);
    let engine = &job["engine"];
    let gbits = |field| {
        let bytes = number(engine, field).saturating_sub(number(earlier, field));
        bytes as f64 * 8e-9 / elapsed.as_secs_f64().max(1e-9)
    };
    let trips = &engine["round_trips"];
    format!(
        "{:.3} Gbit/s sent, {:.3} received; round trips {} (p50), {} (p99)",
        gbits("bytes_sent"),
        gbits("bytes_received"),
        duration(number(trips, "p50_ns")),
        duration(number(trips, "p99_ns")),
    )
}

fn duration(nanos: u64) -> String {
    match nanos {
        0 => "none".to_owned(),
        1..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        _ => format!("{:.1} ms", nanos as f64 / 1e6),
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or(0)
}

fn text<'a>(of: &'a Value, field: &str) -> &'a str {
    of[field].as_str().unwrap_or("?")
}

fn show_job(out: &mut impl Write, job: &Value, rates: &str) -> io::Result<()> {
    let (engine, n) = (&job["engine"], |field| number(job, field));
    writeln!(
        out,
        "job {}: {}, rank {} of {}, {}; {} of {} operations ended",
        text(job, "name"),
        text(job, "mode"),
        n("rank"),
        n("world"),
        text(job, "state"),
        n("operations_ended"),
        n("operations_submitted"),
    )?;
    writeln!(out, "  rates   {rates}")?;
    writeln!(
        out,
        "  chunks  {} sent, {} results, {} in flight, {} retransmitted",
        number(engine, "chunks_sent"),
        number(engine, "results"),
        number(engine, "in_flight"),
        number(engine, "resent"),
    )?;
    writeln!(out, "  slots   {}: {}", n("slots"), text(job, "slots_reason"))?;
    match number(engine, "cwnd") {
        _ if job["dynamic"].is_object() => show_dynamic(out, job),
        0 => Ok(()),
        window => writeln!(out, "  window  congestion window {window} in all; {}", congestion(engine)),
    }
}

/// The signs of congestion and their effects.
fn congestion(engine: &Value) -> String {
    let n = |field| number(engine, field);
    format!("{} halvings, {} marked results", n("halvings"), n("marked"))
}

fn show_dynamic(out: &mut impl Write, job: &Value) -> io::Result<()> {
    let (engine, dynamic) = (&job["engine"], &job["dynamic"]);
    let hosts: Vec<_> = items(&dynamic["hosts"]).iter().filter_map(Value::as_str).collect();
    let (direct, lanes) = (number(engine, "direct"), items(&job["lanes"]).len());
    let path = match direct {
        0 => "all lanes through the aggregator".to_owned(),
        direct => format!(
            "{direct} of {lanes} lanes direct to the parameter host: no answer through the aggregator"
        ),
    };
    writeln!(out, "  path    {path}; parameter hosts: {}", hosts.join(", "))?;
    writeln!(
        out,
        "          {} results after a collision, {} positions remapped to another slot",
        number(engine, "collisions"),
        number(engine, "remapped"),
    )?;
    let control = if dynamic["congestion_control"] == false { " (no congestion control)" } else { "" };
    writeln!(
        out,
        "  window  {} chunks per lane, congestion window {} in all{control}; {}",
        number(dynamic, "window"),
        number(engine, "cwnd"),
        congestion(engine),
    )?;
    writeln!(out, "  floats  {} chunks sent as floats after an overflow", number(engine, "raw_chunks"))
}

fn show_hosted(out: &mut impl Write, job: &Value) -> io::Result<()> {
    let n = |field| number(job, field);
    writeln!(
        out,
        "parameter host of job {}.{}: {} chunks summed for {} workers, {} of them on the direct path",
        n("job"),
        n("epoch"),
        n("completed"),
        n("world"),
        n("direct"),
    )?;
    writeln!(
        out,
        "  from    {} full sums, {} partial sums, {} single contributions; {:.1} MB in, {:.1} MB out",
        n("full_sums"),
        n("partial_sums"),
        n("contributions"),
        n("bytes_in") as f64 / 1e6,
        n("bytes_out") as f64 / 1e6,
    )?;
    writeln!(out, "  floats  {} chunks after an overflow; {} results retransmitted", n("raw"), n("replies"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(stats: &Value) -> String {
        let mut out = Vec::new();
        show(&mut out, stats, &Value::Null, Duration::from_secs(1)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rates_come_first_and_are_those_of_the_time_between_two_samples() {
        let job = |sent: u64, epoch: u64| {
            let trips = json!({ "p50_ns": 65536, "p99_ns": 2097152 });
            let engine = json!({ "bytes_sent": sent, "bytes_received": 0, "round_trips": trips });
            json!({ "jobs": [{ "name": "a", "epoch": epoch, "engine": engine }] })
        };
        let mut out = Vec::new();
        show(&mut out, &job(1_000_000_000, 1), &job(750_000_000, 1), Duration::from_secs(2)).unwrap();
        let text = String::from_utf8(out).unwrap();
        let first = "  rates   1.000 Gbit/s sent, 0.000 received; round trips 65.5 us (p50), 2.1 ms (p99)";
        assert_eq!(text.lines().nth(1), Some(first));
        let mut out = Vec::new();
        show_rates(&mut out, &job(250_000_000, 2), &job(900_000_000, 1), Duration::from_secs(1)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("job a: 2.000 Gbit/s sent"), "a new incarnation begins at zero: {text}");
    }

    #[test]
    fn a_dynamic_job_shows_its_path() {
        let job = |direct: u64| {
            let dynamic = json!({ "hosts": ["10.0.0.9:48700"], "window": 256, "congestion_control": true });
            let engine = json!({ "direct": direct, "cwnd": 40, "halvings": 2, "collisions": 7 });
            json!({ "jobs": [{ "name": "a",
                "mode": "dynamic", "dynamic": dynamic, "engine": engine, "lanes": [{}, {}] }] })
        };
        let text = shown(&job(0));
        assert!(text.contains("all lanes through the aggregator; parameter hosts: 10.0.0.9:48700"), "{text}");
        assert!(
            text.contains("7 results after a collision") && text.contains("congestion window 40"),
            "{text}"
        );
        assert!(shown(&job(1)).contains("1 of 2 lanes direct"), "{text}");
    }

    #[test]
    fn a_static_job_has_a_window_only_with_congestion_control_and_no_job_prints_nothing() {
        let text = shown(
            &json!({ "jobs": [{ "name": "a", "mode": "static", "slots": 64, "slots_reason": "asked" }] }),
        );
        assert!(text.contains("slots   64: asked") && !text.contains("window"), "{text}");
        let engine = json!({ "cwnd": 12, "halvings": 3, "marked": 40 });
        let text = shown(&json!({ "jobs": [{ "name": "a", "mode": "static", "engine": engine }] }));
        assert!(
            text.contains("window  congestion window 12 in all; 3 halvings, 40 marked results"),
            "{text}"
        );
        assert_eq!(shown(&json!({ "jobs": [] })), "");
    }

    #[test]
    fn a_parameter_host_shows_its_jobs() {
        let hosted = json!({ "job": 3, "epoch": 1, "completed": 9, "world": 4, "full_sums": 8 });
        let text = shown(&json!({ "jobs": [], "parameter_host": [hosted] }));
        assert!(text.starts_with("parameter host of job 3.1: 9 chunks summed for 4 workers"), "{text}");
    }
}
