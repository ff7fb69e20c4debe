//! Each job in a few lines, in front of all the counters: what a person looks for first.

use std::io::{self, Write};

use serde_json::Value;

/// Writes the jobs of a daemon, then those that it sums for others as their parameter host.
pub(super) fn show(out: &mut impl Write, stats: &Value) -> io::Result<()> {
    let (jobs, hosted) = (items(&stats["jobs"]), items(&stats["parameter_host"]));
    jobs.iter().try_for_each(|job| show_job(out, job))?;
    hosted.iter().try_for_each(|job| show_hosted(out, job))?;
    if jobs.is_empty() && hosted.is_empty() { Ok(()) } else { writeln!(out) }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or(0)
}

fn word<'a>(of: &'a Value, field: &str) -> &'a str {
    of[field].as_str().unwrap_or("?")
}

fn show_job(out: &mut impl Write, job: &Value) -> io::Result<()> {
    let (engine, n) = (&job["engine"], |field| number(job, field));
    writeln!(
        out,
        "job {}: {}, rank {} of {}, {}; {} of {} operations ended",
        word(job, "name"),
        word(job, "mode"),
        n("rank"),
        n("world"),
        word(job, "state"),
        n("operations_ended"),
        n("operations_submitted"),
    )?;
    let trips = &engine["round_trips"];
    writeln!(
        out,
        "  chunks  {} sent, {} results, {} in flight, {} sent again; round trips of {:.1} ms (half), {:.1} ms (99 %)",
        number(engine, "chunks_sent"),
        number(engine, "results"),
        number(engine, "in_flight"),
        number(engine, "resent"),
        number(trips, "p50_ns") as f64 / 1e6,
        number(trips, "p99_ns") as f64 / 1e6,
    )?;
    writeln!(out, "  slots   {}: {}", n("slots"), word(job, "slots_reason"))?;
    if job["dynamic"].is_object() { show_dynamic(out, job) } else { Ok(()) }
}

fn show_dynamic(out: &mut impl Write, job: &Value) -> io::Result<()> {
    let (engine, dynamic) = (&job["engine"], &job["dynamic"]);
    let hosts: Vec<_> = items(&dynamic["hosts"]).iter().filter_map(Value::as_str).collect();
    let (direct, lanes) = (number(engine, "direct"), items(&job["lanes"]).len());
    let way = match direct {
        0 => "all lanes through the aggregator".to_owned(),
        direct => format!("{direct} of {lanes} lanes past the aggregator, which leads nowhere"),
    };
    writeln!(out, "  way     {way}; parameter hosts: {}", hosts.join(", "))?;
    writeln!(
        out,
        "          {} results of chunks that had found their slot busy, {} places moved to another slot",
        number(engine, "collisions"),
        number(engine, "remapped"),
    )?;
    let control = if dynamic["congestion_control"] == false { " (no congestion control)" } else { "" };
    writeln!(
        out,
        "  window  {} chunks a lane, {} in flight allowed in all{control}; halved {} times, {} results marked",
        number(dynamic, "window"),
        number(engine, "cwnd"),
        number(engine, "halvings"),
        number(engine, "marked"),
    )?;
    writeln!(out, "  floats  {} chunks asked for, whose integers overflowed", number(engine, "raw_chunks"))
}

fn show_hosted(out: &mut impl Write, job: &Value) -> io::Result<()> {
    let n = |field| number(job, field);
    writeln!(
        out,
        "parameter host of job {}.{}: {} chunks summed for {} workers, {} of them now past the aggregator",
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
    writeln!(
        out,
        "  floats  {} chunks, whose integers overflowed; {} results sent again",
        n("raw"),
        n("replies")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(stats: &Value) -> String {
        let mut out = Vec::new();
        show(&mut out, stats).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_dynamic_job_tells_its_way() {
        let job = |direct: u64| {
            let dynamic = json!({ "hosts": ["10.0.0.9:48700"], "window": 256, "congestion_control": true });
            let engine = json!({ "direct": direct, "cwnd": 40, "halvings": 2, "collisions": 7 });
            json!({ "jobs": [{ "name": "a", "mode": "dynamic", "dynamic": dynamic, "engine": engine, "lanes": [{}, {}] }] })
        };
        let text = shown(&job(0));
        assert!(text.contains("all lanes through the aggregator; parameter hosts: 10.0.0.9:48700"), "{text}");
        assert!(text.contains("7 results of chunks") && text.contains("40 in flight allowed"), "{text}");
        assert!(shown(&job(1)).contains("1 of 2 lanes past the aggregator"), "{text}");
    }

    #[test]
    fn a_static_job_has_no_window_and_nobody_has_nothing() {
        let text = shown(
            &json!({ "jobs": [{ "name": "a", "mode": "static", "slots": 64, "slots_reason": "asked" }] }),
        );
        assert!(text.contains("slots   64: asked") && !text.contains("window"), "{text}");
        assert_eq!(shown(&json!({ "jobs": [] })), "");
    }

    #[test]
    fn a_parameter_host_tells_what_it_sums() {
        let hosted = json!({ "job": 3, "epoch": 1, "completed": 9, "world": 4, "full_sums": 8 });
        let text = shown(&json!({ "jobs": [], "parameter_host": [hosted] }));
        assert!(text.starts_with("parameter host of job 3.1: 9 chunks summed for 4 workers"), "{text}");
    }
}
