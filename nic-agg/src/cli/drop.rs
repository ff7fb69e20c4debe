//! `sumac-agg drop`: drops frames intentionally.

use sumac_agg::{
    Aggregator,
    local::{self, Question},
};
use sumac_agg_job::drops::{DropRate, drops, numbers, percent};

use super::options::{Target, print_json};

const EXAMPLES: &str = "\
Examples:
  sumac-agg drop --up 1% --down 1%            like a network that loses one packet in a hundred each way
  sumac-agg drop --up 0.1% --down 0 --job 7   only packets from job 7's workers
  sumac-agg drop --up 0 --down 0              stop dropping
  sumac-agg drop --up 1% --down 0 --host      at the aggregator of `sumac-agg serve --plane host`
  sumac-agg drop --up 1% --down 0 --switch    at a P4 switch
  sumac-agg status                            the rates, and the numbers of dropped frames";

/// Drop frames intentionally, to test the effect of loss
///
/// Frames of jobs only, each by its own random number: those that arrive, and those that leave. Each worker's
/// copy of a result counts by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The part of the frames that arrive
    #[arg(long, value_name = "PERCENT%")]
    up: DropRate,
    /// The part of the frames that leave
    #[arg(long, value_name = "PERCENT%")]
    down: DropRate,
    /// Only this job's frames; without it those of all jobs, present and future
    #[arg(long, value_name = "N")]
    job: Option<u16>,
    #[command(flatten)]
    target: Target,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let drops = drops(args.up, args.down);
    match args.target.process() {
        Some(name) => drop(local::ask(&name, &Question::drop(args.job, drops))?),
        None => Aggregator::open(&args.target.pins.pin_root)?.set_drops(numbers(args.job)?, drops)?,
    }
    if args.json {
        let (up, down) = (percent(drops.up), percent(drops.down));
        let set = serde_json::json!({ "job": args.job, "up_percent": up, "down_percent": down });
        return print_json(&set);
    }
    Ok(())
}
