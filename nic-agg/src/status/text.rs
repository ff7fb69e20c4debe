//! The status of an aggregator as text.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use sumac_agg_job::status::{
    ChunkLimit, DynamicPool, Status,
    job::{JobStatus, LateStatus, LevelStatus, WorkerStatus},
};
use sumac_control::plane::PlaneKind;
use sumac_udp::Counts;

use crate::job::Placed;

pub fn text(status: &Status, json: bool) -> io::Result<String> {
    let mut out = Vec::new();
    if json {
        serde_json::to_writer(&mut out, status)?;
        out.push(b'\n');
    } else {
        write_overview(&mut out, status)?;
        for job in &status.jobs {
            write_job(&mut out, job)?;
        }
        for ended in &status.ended {
            let counters = counters(&ended.counters);
            writeln!(out, "job {} epoch {}: ended; frames: {counters}", ended.job, ended.epoch)?;
        }
        if !status.counters.is_empty() {
            writeln!(out, "frames")?;
        }
        for (reason, count) in &status.counters {
            writeln!(out, "  {reason:<16}{count:>16}")?;
        }
    }
    String::from_utf8(out).map_err(io::Error::other)
}

fn write_overview(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let last_port = u32::from(status.base_port) + u32::from(status.shards).saturating_sub(1);
    let mib = status.pool_bytes as f64 / f64::from(1 << 20);
    let plane = match status.plane {
        PlaneKind::Host => "host process, ",
        PlaneKind::P4 => "P4 switch, ",
        PlaneKind::Ebpf | PlaneKind::None | PlaneKind::Parameter => "",
    };
    writeln!(out, "{plane}instance {:016x}, UDP ports {} to {last_port}", status.instance, status.base_port)?;
    writeln!(
        out,
        "pool     {} of {} slots used, up to {} elements{}, {mib:.1} MiB",
        status.slots_used,
        status.slots,
        status.elements,
        if status.jumbo { " (jumbo frames)" } else { "" },
    )?;
    if let Some(DynamicPool { slots, held, timeout_ms }) = status.dynamic {
        let all = u64::from(slots) * u64::from(status.shards);
        let held = held.map_or_else(|| format!("{all} slots"), |held| format!("{held} of {all} slots held"));
        let timeout = timeout_ms
            .map_or_else(String::new, |timeout| format!("; reclaimed after {timeout} ms without packets"));
        writeln!(out, "dynamic  {held}, {slots} in each shard{timeout}")?;
    }
    if let ChunkLimit { elements, port: Some(port) } = &status.chunk_limit {
        writeln!(out, "chunks   up to {elements} elements: the limit of interface {port}")?;
    }
    for rule in &status.drops {
        writeln!(
            out,
            "INTENTIONAL DROPS: {} % of arriving frames, {} % of leaving frames, of jobs {} to {}, present \
            or future",
            rule.up_percent, rule.down_percent, rule.first_job, rule.last_job
        )?;
    }
    if let Some(ip) = status.own_ip {
        writeln!(out, "own      {ip}: replies to ARP and ping")?;
    }
    for port in &status.ports {
        match port.mode {
            Some(mode) => writeln!(
                out,
                "port     {} (index {}): {mode} mode, MTU {}",
                port.interface, port.ifindex, port.mtu
            )?,
            None => {
                writeln!(out, "port     {}: gone, `sumac-agg detach {0}` removes its pin", port.interface)?;
            }
        }
    }
    for (port, counts) in (status.base_port..).zip(&status.sockets) {
        let Counts { received, sent, batches_received, batches_sent } = counts;
        writeln!(
            out,
            "socket   UDP port {port}: {received} packets in {batches_received} messages received, {sent} in \
            {batches_sent} sent"
        )?;
    }
    if status.ports.is_empty() && status.plane == PlaneKind::Ebpf {
        writeln!(out, "port     none: jobs and slots are kept for the next attachment")?;
    }
    Ok(())
}

/// Writes one job and its workers.
pub fn write_job(out: &mut impl Write, job: &JobStatus) -> io::Result<()> {
    let to = Placed::destinations(job.group, job.is_copied);
    writeln!(
        out,
        "job {}{} epoch {}: {}, {} elements, {}, results to {to}",
        job.job,
        job.name.as_ref().map_or(String::new(), |name| format!(" `{name}`")),
        job.epoch,
        slots(job),
        job.elements,
        if job.checksum { "checksums" } else { "no checksums" },
    )?;
    if let Some(rate) = job.rate {
        writeln!(out, "  {:.3} Gbit/s of sums, {:.0} chunks/s", rate.gbit_per_s, rate.chunks_per_s)?;
    }
    write_times(out, job)?;
    if !job.parameter_hosts.is_empty() {
        let hosts: Vec<_> = job.parameter_hosts.iter().map(ToString::to_string).collect();
        writeln!(out, "  parameter hosts: {}", hosts.join(", "))?;
    }
    if let Some(reason) = &job.slots_reason {
        writeln!(out, "  slots: {reason}")?;
    }
    match job.level {
        LevelStatus::Only => {}
        LevelStatus::Root => writeln!(out, "  root: its workers are racks")?,
        LevelStatus::Rack { rack, parent } => writeln!(out, "  rack {rack} of the aggregator {parent}")?,
        LevelStatus::Middle { rack, parent } => {
            writeln!(out, "  rack {rack} of the aggregator {parent}: its workers are racks")?;
        }
    }
    if let Some(drops) = &job.drops {
        writeln!(
            out,
            "  INTENTIONAL DROPS: {} % of arriving frames ({} so far), {} % of leaving frames ({} so far)",
            drops.up_percent, drops.up, drops.down_percent, drops.down
        )?;
    }
    if let Some(slow) = &job.straggler {
        let late = slow.late.map(|LateStatus { late_mean_ns, late_max_ns, .. }| {
            let (mean, max) = (time(late_mean_ns), time(late_max_ns));
            format!(", {mean} behind the first on average, at most {max}")
        });
        writeln!(
            out,
            "  straggler: rank {} ({}) is last in {:.0} % of the chunks{}",
            slow.rank,
            slow.ip,
            slow.last_percent,
            late.unwrap_or_default()
        )?;
    }
    write_workers(out, job)?;
    if job.counters.is_empty() { Ok(()) } else { writeln!(out, "  frames: {}", counters(&job.counters)) }
}

fn write_times(out: &mut impl Write, job: &JobStatus) -> io::Result<()> {
    let Some(times) = job.aggregation.as_ref().filter(|times| times.count > 0) else { return Ok(()) };
    let (p50, p99) = (time(times.p50_ns), time(times.p99_ns));
    writeln!(
        out,
        "  chunks complete within {p50} (half), {p99} (99 %) of their first packet; {} seen",
        times.count
    )
}

fn counters(counters: &BTreeMap<&'static str, u64>) -> String {
    let all: Vec<_> = counters.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    all.join(", ")
}

fn slots(job: &JobStatus) -> String {
    if job.is_dynamic {
        return format!("dynamic, any of {} slots in each of {} shards", job.slots, job.shards);
    }
    format!(
        "slots {} to {} in {} lanes of {} shards{}",
        job.first_slot,
        job.first_slot + job.slots.saturating_sub(1),
        job.lanes,
        job.shards,
        if job.stealing { ", stealing" } else { "" },
    )
}

/// A column of the table of workers, which is left out where it is zero for all.
type Column = (&'static str, fn(&WorkerStatus) -> u64, fn(u64) -> String);

const COLUMNS: [Column; 7] = [
    ("added", |worker| worker.added, |count| count.to_string()),
    ("last", |worker| worker.last, |count| count.to_string()),
    ("duplicates", |worker| worker.duplicates, |count| count.to_string()),
    ("replies", |worker| worker.replies, |count| count.to_string()),
    ("avoided", |worker| worker.avoided_paths, |count| count.to_string()),
    ("late", |worker| worker.late.map_or(0, |late| late.late_mean_ns), time),
    ("latest", |worker| worker.late.map_or(0, |late| late.late_max_ns), time),
];

fn write_workers(out: &mut impl Write, job: &JobStatus) -> io::Result<()> {
    let is_shown = |(_, value, _): &&Column| job.workers.iter().any(|worker| value(worker) > 0);
    let shown: Vec<&Column> = COLUMNS.iter().filter(is_shown).collect();
    write!(out, "  {:>4} {:<21}", "rank", "address")?;
    shown.iter().try_for_each(|(name, ..)| write!(out, " {name:>12}"))?;
    writeln!(out)?;
    for worker in &job.workers {
        let address = format!("{}:{}", worker.ip, worker.port);
        write!(out, "  {:>4} {address:<21}", worker.rank)?;
        for (_, value, text) in &shown {
            let value = value(worker);
            write!(out, " {:>12}", if value == 0 { "-".to_owned() } else { text(value) })?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Formats a time in a unit with few digits.
fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use sumac_agg_job::{
        seen::{JobSeen, WorkerSeen},
        status::job::{Observed, job_status, worker_status},
    };
    use sumac_agg_layout::{Drops, Lateness};
    use sumac_wire::tables::{JobEntry, WorkerCounters, job_flag};

    use super::*;

    fn worker(rank: u16, last: u64) -> WorkerStatus {
        let address = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, rank as u8), 48700);
        let counters = WorkerCounters { added: 100, last, ..WorkerCounters::default() };
        let late = Lateness { chunks: 2, sum: 3000, max: 2000 };
        worker_status(rank, address, None, WorkerSeen { counters, late, avoided_paths: 0 })
    }

    fn shown(workers: Vec<WorkerStatus>) -> String {
        shown_of(&JobEntry::default(), Vec::new(), workers)
    }

    fn shown_of(entry: &JobEntry, parents: Vec<SocketAddrV4>, workers: Vec<WorkerStatus>) -> String {
        let observed = Observed { parents, seen: JobSeen::default(), drops: Drops::default(), workers };
        let mut text = Vec::new();
        write_job(&mut text, &job_status(7, entry, observed)).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_rack_names_the_aggregator_above_it() {
        let parent = SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 1), 48700);
        let middle = job_flag::CHILD | job_flag::ROOT;
        for (flags, end) in [(job_flag::CHILD, ""), (middle, ": its workers are racks")] {
            let entry = JobEntry { rack: 2, racks: 3, flags, ..JobEntry::default() };
            let text = shown_of(&entry, vec![parent], vec![worker(0, 0)]);
            assert!(text.contains(&format!("  rack 2 of the aggregator 10.1.0.1{end}\n")), "{text}");
        }
    }

    #[test]
    fn paths_that_results_avoid_are_shown_where_there_are_some() {
        let avoids = WorkerStatus { avoided_paths: 7, ..worker(1, 0) };
        let row = |workers, rank: usize| {
            let text: String = shown(workers);
            let mut rows = text.lines().skip_while(|line| !line.starts_with("  rank address"));
            let columns = |row: &str| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let names = columns(rows.next().unwrap_or_default());
            let at = names.iter().position(|name| name == "avoided");
            at.and_then(|at| columns(rows.nth(rank)?).get(at).cloned())
        };
        assert_eq!(row(vec![worker(0, 0), avoids.clone()], 1).as_deref(), Some("7"));
        assert_eq!(row(vec![worker(0, 0), avoids], 0).as_deref(), Some("-"));
        assert_eq!(row(vec![worker(0, 0)], 0), None);
    }

    #[test]
    fn a_straggler_has_times_where_they_are_measured() {
        let workers = vec![worker(0, 20), worker(1, 80)];
        let text = shown(workers.clone());
        let line = "straggler: rank 1 (10.0.0.1) is last in 80 % of the chunks";
        assert!(
            text.contains(&format!("{line}, 1.5 us behind the first on average, at most 2.0 us\n")),
            "{text}"
        );
        let unmeasured = workers.into_iter().map(|worker| WorkerStatus { late: None, ..worker });
        let text = shown(unmeasured.collect());
        assert!(text.contains(&format!("{line}\n")) && !text.contains("late"), "{text}");
    }
}
