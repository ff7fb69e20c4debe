//! `sumac-agg status`: interfaces, jobs, counters.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
};

use sumac_agg::{
    Aggregator,
    local::{self, AskError, Question},
    status::text::text,
};

use super::options::Target;

const EXAMPLES: &str = "\
Examples:
  sumac-agg status
  sumac-agg status --json | jq .counters
  sumac-agg status --host        of `sumac-agg serve --plane host`";

/// Show interfaces, jobs and counters
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let text = match args.target.host {
        Some(port) => local::ask(&local::host_name(port), &Question::Status { json: args.json })?,
        None => {
            let aggregator = Aggregator::open(&args.target.pins.pin_root)?;
            let mut status = aggregator.status()?;
            let mut reasons = slots_reasons(&aggregator);
            status.jobs.iter_mut().for_each(|job| job.slots_reason = reasons.remove(&job.job));
            text(&status, args.json)?
        }
    };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// Returns the reasons for the jobs' numbers of slots, which `sumac-agg serve` has if it opened them.
fn slots_reasons(aggregator: &Aggregator) -> BTreeMap<u16, String> {
    let answer = local::ask(&local::ebpf_name(aggregator.pins()), &Question::SlotsReasons);
    let reasons = answer.map(|json| serde_json::from_str(&json));
    match reasons {
        Ok(Ok(reasons)) => reasons,
        Err(AskError::Nobody { .. }) => BTreeMap::new(),
        Ok(Err(error)) => unknown(&error),
        Err(error) => unknown(&error),
    }
}

fn unknown(error: &dyn std::error::Error) -> BTreeMap<u16, String> {
    tracing::warn!("the reasons for the jobs' numbers of slots are unknown: {error}");
    BTreeMap::new()
}
