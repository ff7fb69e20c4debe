//! `sumac stats`: the daemon's counters.

mod jobs;

use std::{
    collections::BTreeSet,
    io::{self, Write},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use sumac_client::Client;

use crate::{exit, options::Socket};

/// The time between the two samples of a rate, without --watch.
const SAMPLE: Duration = Duration::from_millis(200);

/// Shows the running daemon's rates and counters. Counters that are zero are left out; --json has them.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    /// Show changed counters repeatedly, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Seconds between samples.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds,
        requires = "watch")]
    interval: f64,
    /// Print JSON, one object per sample.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: Socket,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac stats                       each job in a few lines, then all counters\n",
    "  sumac stats --watch               changes, each second\n",
    "  sumac stats --watch --json        the same as JSON, one object per line\n\n",
    exit::help_text!(),
);

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0.05 to 3600".to_owned()),
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let client = Client::connect(&args.socket.path)?;
    let interval = Duration::from_secs_f64(args.interval);
    if args.json {
        return print_json(&client, args.watch.then_some(interval));
    }
    let (mut before, mut then, mut is_first) = (client.stats_json()?, Instant::now(), true);
    // Rates need two samples.
    thread::sleep(if args.watch { interval } else { SAMPLE });
    loop {
        let (stats, now) = (client.stats_json()?, Instant::now());
        let (elapsed, mut out) = (now - then, io::stdout().lock());
        if is_first {
            jobs::show(&mut out, &stats, &before, elapsed)?;
            show_all(&mut out, &leaves(&stats))?;
        } else {
            writeln!(out, "-- after {:.1} s", elapsed.as_secs_f64())?;
            jobs::show_rates(&mut out, &stats, &before, elapsed)?;
            show_changes(&mut out, &leaves(&before), &leaves(&stats), elapsed)?;
        }
        out.flush()?;
        drop(out);
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        (before, then, is_first) = (stats, now, false);
        thread::sleep(interval);
    }
}

/// Prints the counters as one line of JSON; with an interval again and again.
fn print_json(client: &Client, interval: Option<Duration>) -> anyhow::Result<ExitCode> {
    loop {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &client.stats_json()?).map_err(io::Error::from)?;
        writeln!(out)?;
        out.flush()?;
        drop(out);
        let Some(interval) = interval else { return Ok(ExitCode::SUCCESS) };
        thread::sleep(interval);
    }
}

/// Returns every number, string and list of numbers (of a histogram) in the statistics, with its path.
fn leaves(stats: &Value) -> Vec<(String, Value)> {
    fn walk(path: &str, value: &Value, into: &mut Vec<(String, Value)>) {
        let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| walk(&below(key), value, into)),
            Value::Array(items) if items.iter().all(Value::is_object) => {
                items.iter().enumerate().for_each(|(n, item)| walk(&below(&name(n, items)), item, into));
            }
            Value::Null => {}
            leaf => into.push((path.to_owned(), leaf.clone())),
        }
    }
    let mut found = Vec::new();
    walk("", stats, &mut found);
    found
}

/// Returns an item's name in its list: its own if unique, else its index.
fn name(index: usize, items: &[Value]) -> String {
    let own = |item: &Value| {
        let named = ["name", "interface", "backend"].iter().find_map(|key| item[*key].as_str());
        named.map(str::to_owned)
    };
    let named = items.get(index).and_then(own);
    match named {
        Some(name) if items.iter().filter(|item| own(item).as_ref() == Some(&name)).count() > 1 => {
            format!("{name}.{index}")
        }
        Some(name) => name,
        None => index.to_string(),
    }
}

/// Returns whether a counter has counted nothing, or a list or text is empty.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn show_all(out: &mut impl Write, leaves: &[(String, Value)]) -> io::Result<()> {
    let shown = || leaves.iter().filter(|(_, value)| !is_zero(value));
    let width = shown().map(|(path, _)| path.len()).max().unwrap_or(0);
    for (path, value) in shown() {
        match value {
            Value::String(text) => writeln!(out, "{path:<width$}  {text}")?,
            other => writeln!(out, "{path:<width$}  {other}")?,
        }
    }
    Ok(())
}

fn show_changes(
    out: &mut impl Write,
    old: &[(String, Value)],
    new: &[(String, Value)],
    elapsed: Duration,
) -> io::Result<()> {
    let seconds = elapsed.as_secs_f64();
    let mut is_unchanged = true;
    for (path, value) in new {
        let was = old.iter().find(|(other, _)| other == path).map(|(_, value)| value);
        if was == Some(value) {
            continue;
        }
        is_unchanged = false;
        match (was.and_then(Value::as_u64), value.as_u64()) {
            (Some(was), Some(is)) if is >= was => {
                writeln!(out, "{path}  {is} (+{:.0}/s)", (is - was) as f64 / seconds)?;
            }
            _ => writeln!(out, "{path}  {value}")?,
        }
    }
    for path in removed(old, new) {
        is_unchanged = false;
        writeln!(out, "{path}  removed")?;
    }
    if is_unchanged {
        writeln!(out, "nothing changed")?;
    }
    Ok(())
}

/// Returns the paths of removed counters; of a whole removed job or port only its own path.
fn removed<'a>(old: &'a [(String, Value)], new: &[(String, Value)]) -> BTreeSet<&'a str> {
    let is_missing = |path: &str| !new.iter().any(|(other, _)| other == path);
    let shortest = |path: &'a str| {
        let end = path.match_indices('.').nth(1).map_or(path.len(), |(end, _)| end);
        let whole = path.get(..=end).unwrap_or(path);
        if new.iter().any(|(other, _)| other.starts_with(whole)) { path } else { &path[..end] }
    };
    old.iter().map(|(path, _)| path.as_str()).filter(|path| is_missing(path)).map(shortest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counters_are_named_by_their_path() {
        let stats = json!({ "backend": "xdp",
            "jobs": [{ "name": "digits", "engine": { "sent": 3 } }], "ports": [{ "full": 1 }] });
        let paths: Vec<_> = leaves(&stats).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["backend", "jobs.digits.engine.sent", "jobs.digits.name", "ports.0.full"]);
    }

    #[test]
    fn two_ports_of_one_name_are_numbered() {
        let stats = json!({ "ports": [{ "backend": "udp", "sent": 1 }, { "backend": "udp", "sent": 2 }] });
        let paths: Vec<_> = leaves(&stats).into_iter().map(|(path, _)| path).collect();
        assert!(
            paths.contains(&"ports.udp.0.sent".to_owned()) && paths.contains(&"ports.udp.1.sent".to_owned()),
            "{paths:?}"
        );
    }

    #[test]
    fn a_histogram_is_one_line() {
        let stats = json!({ "lanes": [{ "lane": 0,
            "completions": { "buckets": [[1024, 7], [2048, 1]] } }, { "lane": 1 }] });
        let found = leaves(&stats);
        assert_eq!(found[0], ("lanes.0.completions.buckets".to_owned(), json!([[1024, 7], [2048, 1]])));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn zeros_are_left_out() {
        let mut out = Vec::new();
        let stats = json!({ "sent": 3, "lost": 0, "rate": 0.0, "error": "", "hosts": [], "on": false });
        show_all(&mut out, &leaves(&stats)).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "on    false\nsent  3\n");
    }

    #[test]
    fn only_what_changes_is_shown_again() {
        let old = leaves(&json!({ "sent": 100, "backend": "xdp", "level": 5 }));
        let new = leaves(&json!({ "sent": 300, "backend": "xdp", "level": 4 }));
        let mut out = Vec::new();
        show_changes(&mut out, &old, &new, Duration::from_secs(2)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "level  4\nsent  300 (+100/s)\n");
    }

    #[test]
    fn a_removed_job_is_one_line() {
        let old = leaves(&json!({
            "fallback": "reason",
            "jobs": [{ "name": "a",
                "sent": 1, "error": "x" }, { "name": "b", "sent": 2, "lanes": [{ "lane": 0 }] }],
        }));
        let new = leaves(&json!({ "jobs": [{ "name": "a", "sent": 1 }] }));
        let found: Vec<_> = removed(&old, &new).into_iter().collect();
        assert_eq!(found, ["fallback", "jobs.a.error", "jobs.b"]);
        assert!(removed(&new, &new).is_empty());
    }

    #[test]
    fn an_interval_is_a_number_of_seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for bad in ["0", "-1", "nan", "x", "1e9"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
