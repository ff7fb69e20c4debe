//! `sumac events`: the host program's messages.

use std::process::ExitCode;

use sumac_hostprog::Attached;

use crate::{exit, options::PinRoot};

/// Shows the messages of the program on an interface: bursts of bad tokens, wrong sources, unknown jobs.
///
/// The rate is at most one message per second, kind and CPU; each has its number of packets. Ends with
/// Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub struct Args {
    /// The interface.
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Show pending messages and exit.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    pin_root: PinRoot,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let attached = Attached::open(&args.interface, &args.pin_root.path)?;
    let mut log = attached.log()?;
    if args.once {
        log.flush();
    } else {
        log.run(None)?;
    }
    Ok(ExitCode::SUCCESS)
}
