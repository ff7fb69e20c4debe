//! `sumac-agg status`: ports, jobs, counters.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use sumac_agg::{
    Aggregator,
    status::{JobStatus, Status},
};

use super::{PinRoot, print_json};

const EXAMPLES: &str = "\
Examples:
  sumac-agg status
  sumac-agg status --json | jq .counters";

/// Show ports, jobs and counters
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pins: PinRoot,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Shows the status.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let status = Aggregator::open(&args.pins.pin_root)?.status()?;
    if args.json {
        return print_json(&status);
    }
    let mut out = io::stdout().lock();
    overview(&mut out, &status)?;
    for job in &status.jobs {
        show_job(&mut out, job)?;
    }
    writeln!(out, "frames")?;
    for (reason, count) in &status.counters {
        writeln!(out, "  {reason:<16}{count:>16}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn overview(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let last_port = status.base_port + status.shards - 1;
    let mib = status.pool_bytes as f64 / f64::from(1 << 20);
    writeln!(out, "instance {:016x}, UDP ports {} to {last_port}", status.instance, status.base_port)?;
    writeln!(
        out,
        "pool     {} of {} slots used, up to {} elements{}, {mib:.1} MiB",
        status.slots_used,
        status.slots,
        status.elements,
        if status.jumbo { " (jumbo frames)" } else { "" },
    )?;
    for port in &status.ports {
        match port.mode {
            Some(mode) => writeln!(
                out,
                "port     {} (index {}): {mode} mode, MTU {}",
                port.interface, port.ifindex, port.mtu
            )?,
            None => writeln!(out, "port     {}: gone, `sumac-agg detach {0}` forgets it", port.interface)?,
        }
    }
    if status.ports.is_empty() {
        writeln!(out, "port     none: only jobs and slots are kept for the next attach")?;
    }
    Ok(())
}

/// One job and its workers.
pub fn show_job(out: &mut impl Write, job: &JobStatus) -> io::Result<()> {
    let to = job.group.map_or("each worker's port".to_owned(), |group| group.to_string());
    writeln!(
        out,
        "job {} epoch {}: slots {} to {}, {} elements, {}, results to {to}",
        job.job,
        job.epoch,
        job.first_slot,
        job.first_slot + job.slots.saturating_sub(1),
        job.elements,
        if job.checksum { "checksums" } else { "no checksums" },
    )?;
    writeln!(
        out,
        "  {:>4} {:<21} {:>12} {:>12} {:>12} {:>12}",
        "rank", "address", "added", "last", "duplicates", "replies"
    )?;
    for worker in &job.workers {
        let address = format!("{}:{}", worker.ip, worker.port);
        writeln!(
            out,
            "  {:>4} {address:<21} {:>12} {:>12} {:>12} {:>12}",
            worker.rank, worker.added, worker.last, worker.duplicates, worker.replies
        )?;
    }
    Ok(())
}
