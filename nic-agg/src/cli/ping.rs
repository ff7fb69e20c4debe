//! `sumac-agg ping`: whether the control plane lives.

use sumac_agg::local::{self, AskError, Question};
use sumac_wire::DEFAULT_CONTROL_PORT;

const EXAMPLES: &str = "\
Examples:
  sumac-agg ping
  sumac-agg ping --port 48601       of the `sumac-agg serve` that listens there";

/// Check that the control plane that `sumac-agg serve` runs here answers, for health probes
///
/// It succeeds with any number of jobs, and while a data plane, a switch or a rack's root does not answer.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The TCP port that it listens on
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_CONTROL_PORT)]
    port: u16,
}

/// Waits for any answer: a control plane of another release that refuses the question lives.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match local::ask(&local::control_name(args.port), &Question::Ping) {
        Ok(_) | Err(AskError::Refused(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
