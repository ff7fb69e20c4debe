//! `sumac-agg status`: interfaces, jobs, counters.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
};

use serde_json::Value;
use sumac_agg::{
    Aggregator,
    local::{self, AskError, Question},
    status::text::text,
};
use sumac_agg_job::status::{Status, with_rates};

use super::options::Target;

const EXAMPLES: &str = "\
Examples:
  sumac-agg status
  sumac-agg status --json | jq .counters
  sumac-agg status --host        of `sumac-agg serve --plane host`
  sumac-agg status --switch      of `sumac-agg serve --plane p4runtime` or bfrt";

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
    let text = match args.target.process() {
        Some(name) => local::ask(&name, &Question::Status { json: args.json })?,
        None => text(&ebpf_status(&args.target, true)?, args.json)?,
    };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// Returns the status of a target, as `--json` prints it.
pub fn status_json(target: &Target) -> anyhow::Result<Value> {
    match target.process() {
        Some(name) => {
            let status = local::ask(&name, &Question::Status { json: true })?;
            Ok(serde_json::from_str(&status)?)
        }
        None => Ok(serde_json::to_value(ebpf_status(target, false)?)?),
    }
}

/// Returns the status of the attached aggregator, with the names of jobs; with their rates, it takes a
/// moment.
fn ebpf_status(target: &Target, rates: bool) -> anyhow::Result<Status> {
    let aggregator = Aggregator::open(&target.pins.pin_root)?;
    let mut status = if rates { with_rates(|| aggregator.status())? } else { aggregator.status()? };
    let reasons = notes(&aggregator, &Question::SlotsReasons);
    status.set_notes(notes(&aggregator, &Question::JobNames), reasons);
    Ok(status)
}

/// Returns what `sumac-agg serve` knows about the jobs if it opened them: their names, or the reasons for
/// their slots.
fn notes(aggregator: &Aggregator, question: &Question) -> BTreeMap<u16, String> {
    let answer = local::ask(&local::ebpf_name(aggregator.pins()), question);
    let notes = answer.map(|json| serde_json::from_str(&json));
    match notes {
        Ok(Ok(notes)) => notes,
        Err(AskError::Nobody { .. }) => BTreeMap::new(),
        Ok(Err(error)) => unknown(&error),
        Err(error) => unknown(&error),
    }
}

fn unknown(error: &dyn std::error::Error) -> BTreeMap<u16, String> {
    tracing::warn!("the names of jobs, or the reasons for their slots, are unknown: {error}");
    BTreeMap::new()
}
