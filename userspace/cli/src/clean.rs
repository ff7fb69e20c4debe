//! `sumac clean`: removes every trace of Sumac in the kernel.

use std::{io::Write as _, process::ExitCode};

use crate::{exit, pin_root::PinRoot};

/// Removes every program and pin of Sumac on this machine, in all network namespaces, and the rules that it put into NICs.
///
/// An aggregator on the same machine is removed too when its pins are below the same directory. Jobs that run
/// over any of them fail.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub struct Args {
    #[command(flatten)]
    pin_root: PinRoot,
}

/// Removes everything, and lists it.
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
