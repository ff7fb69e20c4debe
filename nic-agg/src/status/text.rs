//! The status of an aggregator as text.

use std::io::{self, Write};

use super::{
    ChunkLimit, DynamicPool, Plane, Status,
    job::{JobStatus, LevelStatus},
};
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
        writeln!(out, "frames")?;
        for (reason, count) in &status.counters {
            writeln!(out, "  {reason:<16}{count:>16}")?;
        }
    }
    String::from_utf8(out).map_err(io::Error::other)
}

fn write_overview(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let last_port = u32::from(status.base_port) + u32::from(status.shards).saturating_sub(1);
    let mib = status.pool_bytes as f64 / f64::from(1 << 20);
    let plane = if status.plane == Plane::Host { "host process, " } else { "" };
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
        writeln!(
            out,
            "dynamic  {held} of {all} slots held, {slots} in each shard; reclaimed after {timeout_ms} ms without packets"
        )?;
    }
    if let ChunkLimit { elements, port: Some(port) } = &status.chunk_limit {
        writeln!(out, "chunks   up to {elements} elements: the limit of interface {port}")?;
    }
    for rule in &status.drops {
        writeln!(
            out,
            "INTENTIONAL DROPS: {} % of arriving frames, {} % of leaving frames, of jobs {} to {}, present or future",
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
    if status.ports.is_empty() && status.plane == Plane::Ebpf {
        writeln!(out, "port     none: jobs and slots are kept for the next attachment")?;
    }
    Ok(())
}

/// Writes one job and its workers.
pub fn write_job(out: &mut impl Write, job: &JobStatus) -> io::Result<()> {
    let to = Placed::destinations(job.group, job.is_copied);
    writeln!(
        out,
        "job {} epoch {}: {}, {} elements, {}, results to {to}",
        job.job,
        job.epoch,
        slots(job),
        job.elements,
        if job.checksum { "checksums" } else { "no checksums" },
    )?;
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
        LevelStatus::Rack { rack, parent } => writeln!(out, "  rack {rack} of the root {parent}")?,
    }
    if let Some(drops) = &job.drops {
        writeln!(
            out,
            "  INTENTIONAL DROPS: {} % of arriving frames ({} so far), {} % of leaving frames ({} so far)",
            drops.up_percent, drops.up, drops.down_percent, drops.down
        )?;
    }
    let times = &job.aggregation;
    if times.count > 0 {
        let (p50, p99) = (time(times.p50_ns), time(times.p99_ns));
        writeln!(
            out,
            "  chunks complete within {p50} (half), {p99} (99 %) of their first packet; {} seen",
            times.count
        )?;
    }
    if let Some(slow) = &job.straggler {
        let (mean, max) = (time(slow.late_mean_ns), time(slow.late_max_ns));
        writeln!(
            out,
            "  straggler: rank {} ({}) is last in {:.0} % of the chunks, {mean} behind the first on average, at most {max}",
            slow.rank, slow.ip, slow.last_percent
        )?;
    }
    write_workers(out, job)?;
    let counters: Vec<_> = job.counters.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    if counters.is_empty() { Ok(()) } else { writeln!(out, "  frames: {}", counters.join(", ")) }
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

fn write_workers(out: &mut impl Write, job: &JobStatus) -> io::Result<()> {
    writeln!(
        out,
        "  {:>4} {:<21} {:>12} {:>12} {:>12} {:>12} {:>10} {:>10}",
        "rank", "address", "added", "last", "duplicates", "replies", "late", "latest"
    )?;
    for worker in &job.workers {
        let address = format!("{}:{}", worker.ip, worker.port);
        writeln!(
            out,
            "  {:>4} {address:<21} {:>12} {:>12} {:>12} {:>12} {:>10} {:>10}",
            worker.rank,
            worker.added,
            worker.last,
            worker.duplicates,
            worker.replies,
            time(worker.late_mean_ns),
            time(worker.late_max_ns)
        )?;
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
