//! `sumac events`: the program's own messages.

use std::process::ExitCode;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd as _;
use sumac_hostprog::{Attached, log::ProgramLog};

use crate::{exit, pin_root::PinRoot};

/// Shows what the program on an interface reports: bursts of wrong tokens, strangers, packets of unknown jobs.
///
/// At most one message a second and kind for each CPU; each says how many packets it stands for. Ends with Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub struct Args {
    /// The interface.
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Show what waits and end.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    pin_root: PinRoot,
}

/// Shows messages until interrupted.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let attached = Attached::open(&args.interface, &args.pin_root.path)?;
    let mut messages = ProgramLog::open(&attached)?;
    loop {
        messages.flush();
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        match poll(&mut [PollFd::new(messages.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
