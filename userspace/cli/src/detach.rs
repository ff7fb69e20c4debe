//! `sumac detach`: removes the host program from an interface.

use std::{io::Write as _, process::ExitCode};

use crate::{exit, options::PinRoot};

/// Removes Sumac's program from an interface, with its pins and its rules in the NIC.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub struct Args {
    /// The interface.
    #[arg(value_name = "IFACE", required_unless_present = "all")]
    interface: Option<String>,
    /// From all interfaces, in all network namespaces; an aggregator stays.
    #[arg(long, conflicts_with = "interface")]
    all: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pin_root: PinRoot,
}

/// Detaches, and lists the removed pins.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = &args.pin_root.path;
    let removed = match &args.interface {
        Some(interface) => sumac_hostprog::detach(interface, root)?,
        None => sumac_hostprog::detach_all(root)?,
    };
    if args.json {
        exit::print_json(&serde_json::json!({ "removed": removed }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = std::io::stdout().lock();
    for path in removed {
        writeln!(out, "removed {}", path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}
