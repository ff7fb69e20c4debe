//! `sumac-agg logs`: the programs' messages.

use std::{os::fd::AsFd as _, process::ExitCode};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use sumac_agg::{Aggregator, log::ProgramLog};

use super::PinRoot;

/// Follow the programs' messages: rejected jobs, bursts of bad tokens
///
/// They go to standard error. Several readers share them, `sumac-agg serve` among them: each message reaches one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sumac-agg logs")]
pub struct Args {
    #[command(flatten)]
    pins: PinRoot,
}

/// Follows until a signal ends it.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut log = ProgramLog::open(&Aggregator::open(&args.pins.pin_root)?)?;
    loop {
        match poll(&mut [PollFd::new(log.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => log.flush(),
            Err(error) => return Err(error.into()),
        }
    }
}
