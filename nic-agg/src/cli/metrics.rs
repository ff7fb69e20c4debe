//! `sumac-agg metrics`: the list of the metrics of `sumac-agg serve`.

use std::io;

use sumac_agg::metrics::describe;

const EXAMPLES: &str = "\
Examples:
  sumac-agg metrics            a table in Markdown
  sumac-agg metrics --json     for programs";

/// List the metrics that `serve --metrics` exports to Prometheus: name, type, labels and meaning
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match args.json {
        true => sumac_metrics::write_json(&mut out, &describe())?,
        false => sumac_metrics::write_markdown(&mut out, &describe())?,
    }
    Ok(())
}
