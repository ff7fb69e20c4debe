//! `sumac clean`: removes all programs and pins of Sumac.

use std::{io::Write as _, process::ExitCode};

use crate::{exit, options::PinRoot};

/// Removes all programs and pins of Sumac on this machine, in all network namespaces, and its rules in NICs.
///
/// This includes an aggregator on the same machine if its pins are below the same directory. Jobs that use
/// any of them fail.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub struct Args {
    #[command(flatten)]
    pin_root: PinRoot,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let removed = sumac_hostprog::clean(&args.pin_root.path)?;
    let mut out = std::io::stdout().lock();
    for path in &removed {
        writeln!(out, "removed {}", path.display())?;
    }
    if removed.is_empty() {
        writeln!(out, "nothing of Sumac's below {}", args.pin_root.path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}
