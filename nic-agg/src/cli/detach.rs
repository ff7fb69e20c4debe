//! `sumac-agg detach`: detaches the programs.

use std::io::{self, Write as _};

use anyhow::{Context as _, bail};
use sumac_agg::{clean, detach};

use super::options::{PinRoot, print_json};

/// The state after an error, and the remedy.
const PARTIAL: &str = "not all was removed; run it again for the rest";

const EXAMPLES: &str = "\
Examples:
  sumac-agg detach                        detach the programs from all interfaces; jobs keep their slots,
                                          and continue when the programs are attached again
  sumac-agg detach eth1                   detach them from one interface
  sumac-agg detach --all                  remove everything, jobs and slots included
  sumac-agg detach --all-namespaces       the same in all network namespaces, also in those that are gone";

/// Detach the aggregator from its interfaces
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The interfaces; all when none is given
    #[arg(value_name = "IFACE", conflicts_with_all = ["all", "all_namespaces"])]
    interfaces: Vec<String>,
    /// Remove jobs and slots too
    #[arg(long)]
    all: bool,
    /// Remove everything in all network namespaces
    #[arg(long)]
    all_namespaces: bool,
    #[command(flatten)]
    pins: PinRoot,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if args.all || args.all_namespaces {
        let removed = clean(&args.pins.pin_root, args.all_namespaces).context(PARTIAL)?;
        if args.json {
            return print_json(&serde_json::json!({ "removed": removed }));
        }
        for path in &removed {
            writeln!(out, "removed {}", path.display())?;
        }
        if removed.is_empty() {
            writeln!(out, "nothing of an aggregator's below {}", args.pins.pin_root.display())?;
        }
        return Ok(());
    }
    let detached = detach(&args.pins.pin_root, &args.interfaces).context(PARTIAL)?;
    if args.json {
        print_json(
            &serde_json::json!({ "interfaces": detached.interfaces, "kept_jobs": detached.kept_jobs }),
        )?;
    } else {
        detached.interfaces.iter().try_for_each(|interface| writeln!(out, "{interface}: detached"))?;
        if detached.interfaces.is_empty() && args.interfaces.is_empty() {
            writeln!(out, "nothing is attached")?;
        }
    }
    if !detached.kept_jobs.is_empty() && !args.json {
        let jobs = &detached.kept_jobs;
        writeln!(
            out,
            "kept the slots of jobs {jobs:?} for the next attach; `sumac-agg detach --all` removes them"
        )?;
    }
    let missing: Vec<_> = args.interfaces.iter().filter(|name| !detached.interfaces.contains(name)).collect();
    if !missing.is_empty() {
        bail!("not attached to {missing:?}: see sumac-agg status");
    }
    Ok(())
}
