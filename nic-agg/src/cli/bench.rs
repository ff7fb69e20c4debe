//! `sumac-agg bench`: nanoseconds per frame of the aggregator's program.

use std::io::{self, Write as _};

use sumac_agg::replay::{Measurement, ReplayOptions, replay};

use super::options::print_json;

/// Measure the aggregator's program on this machine: nanoseconds per frame, by the kernel's test run
#[derive(Debug, clap::Args)]
#[command(hide = true, after_help = "Example:\n  sumac-agg bench --elements 64,256,360 --workers 4 --json")]
pub struct Args {
    /// Elements in a frame, as a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,256,360")]
    elements: Vec<u16>,
    /// Workers of the job, as a list: with 1 every frame completes its slot, with 32 nearly none
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,32")]
    workers: Vec<u8>,
    /// A dynamic job: with 1 worker every frame is passed on, and each chunk has its result as one frame more
    #[arg(long)]
    dynamic: bool,
    /// Without UDP checksums
    #[arg(long)]
    no_checksum: bool,
    /// Frames in each run
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    repeat: u32,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let options = ReplayOptions { dynamic: args.dynamic, checksum: !args.no_checksum, repeat: args.repeat };
    let measured = replay(&args.workers, &args.elements, options)?;
    if args.json {
        return print_json(&measured);
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{:>8}{:>10}{:>10}{:>12}", "workers", "elements", "bytes", "ns/frame")?;
    for Measurement { workers, elements, bytes, ns_per_frame, .. } in &measured {
        writeln!(out, "{workers:>8}{elements:>10}{bytes:>10}{ns_per_frame:>12}")?;
    }
    Ok(())
}
