//! `sumac metrics`: the list of the daemon's metrics.

use std::{io, process::ExitCode};

use crate::exit;

/// Lists the metrics that the daemon exports to Prometheus: name, type, labels and meaning.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    /// Print one JSON array.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac metrics            a table in Markdown\n",
    "  sumac metrics --json     for programs\n\n",
    exit::help_text!(),
);

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (metrics, mut out) = (sumac_daemon::metrics::describe(), io::stdout().lock());
    match args.json {
        true => sumac_metrics::write_json(&mut out, &metrics)?,
        false => sumac_metrics::write_markdown(&mut out, &metrics)?,
    }
    Ok(ExitCode::SUCCESS)
}
