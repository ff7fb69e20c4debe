//! `sumac-agg control`: racks, parameter hosts and jobs of the control plane.

use std::io::{self, Write as _};

use sumac_agg::local::{self, Question};
use sumac_wire::DEFAULT_CONTROL_PORT;

const EXAMPLES: &str = "\
Examples:
  sumac-agg control
  sumac-agg control --json | jq .parameter_hosts
  sumac-agg control --port 48601       of the `sumac-agg serve` that listens there";

/// Show racks, parameter hosts and jobs of the control plane that `sumac-agg serve` runs here
///
/// `sumac-agg status` shows the aggregator's slots and jobs. A rack's control plane relays its workers to a
/// root, and has no jobs of its own to show.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The TCP port that it listens on
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_CONTROL_PORT)]
    port: u16,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let text = local::ask(&local::control_name(args.port), &Question::Control { json: args.json })?;
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}
