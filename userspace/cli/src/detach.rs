//! `sumac detach`: takes the program off an interface.

use std::{io::Write as _, process::ExitCode};

use crate::{exit, pin_root::PinRoot};

/// Takes Sumac's program off an interface, and removes its pins and the rules that it put into the NIC.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub struct Args {
    /// The interface.
    #[arg(value_name = "IFACE")]
    interface: String,
    #[command(flatten)]
    pin_root: PinRoot,
}

/// Detaches, and lists what was removed.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    for path in sumac_hostprog::detach(&args.interface, &args.pin_root.path)? {
        writeln!(out, "removed {}", path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}
