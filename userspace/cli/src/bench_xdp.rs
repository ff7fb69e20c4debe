//! `sumac bench-xdp`: nanoseconds per frame of the host program.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use sumac_hostprog::measure::{Measurement, measure};

use crate::exit;

/// Measures the host program on this machine in the kernel's test run: nanoseconds per frame.
#[derive(Debug, clap::Args)]
#[command(hide = true, after_help = exit::HELP)]
pub struct Args {
    /// Elements per frame, as a list.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,256,360")]
    elements: Vec<u16>,
    /// Frames per run.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    repeat: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let measured = measure(&args.elements, args.repeat)?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &measured).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{:<24}{:>10}{:>10}{:>12}", "frame", "elements", "bytes", "ns/frame")?;
    for Measurement { frame, elements, bytes, ns_per_frame } in &measured {
        writeln!(out, "{frame:<24}{elements:>10}{bytes:>10}{ns_per_frame:>12}")?;
    }
    Ok(ExitCode::SUCCESS)
}
