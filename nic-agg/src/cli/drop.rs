//! `sumac-agg drop`: drops frames on purpose.

use std::process::ExitCode;

use sumac_agg::{
    Aggregator,
    drops::{Part, drops},
    local::{self, Question},
};

use super::Which;

const EXAMPLES: &str = "\
Examples:
  sumac-agg drop --up 1% --down 1%            lose as a network that loses one packet in a hundred each way
  sumac-agg drop --up 0.1% --down 0 --job 7   only what job 7's workers send
  sumac-agg drop --up 0 --down 0              no more
  sumac-agg drop --up 1% --down 0 --host      by the aggregator of `sumac-agg serve --plane host`
  sumac-agg status                            what is dropped, and how many were";

/// Drop frames on purpose, to see what a loss does
///
/// Frames of jobs only, each drawn for by itself: of what arrives, and of what leaves; of a result, each worker's copy.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Part of what arrives
    #[arg(long, value_name = "PERCENT%")]
    up: Part,
    /// Part of what leaves
    #[arg(long, value_name = "PERCENT%")]
    down: Part,
    /// Only this job's; all jobs', also later ones', unless given
    #[arg(long, value_name = "N")]
    job: Option<u16>,
    #[command(flatten)]
    which: Which,
}

/// Sets it.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let drops = drops(args.up, args.down);
    match args.which.host {
        Some(port) => drop(local::ask(&local::host_name(port), &Question::drop(args.job, drops))?),
        None => Aggregator::open(&args.which.pins.pin_root)?.set_drops(args.job, drops)?,
    }
    Ok(ExitCode::SUCCESS)
}
