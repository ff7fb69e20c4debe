//! `sumac-agg logs`: the programs' log messages.

use sumac_agg::Aggregator;

use super::options::PinRoot;

/// Follow the programs' messages: rejected jobs, bursts of bad tokens
///
/// They go to standard error. Several readers share the log, among them `sumac-agg serve`: each message
/// reaches one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sumac-agg logs")]
pub struct Args {
    #[command(flatten)]
    pins: PinRoot,
}

/// Follows until a signal ends it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    Ok(Aggregator::open(&args.pins.pin_root)?.log()?.run(None)?)
}
