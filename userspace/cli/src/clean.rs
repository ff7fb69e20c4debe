//! `sumac clean`: removes all programs and pins of Sumac.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::bail;
use sumac_hostprog::inventory::Inventory;

use crate::{exit, options::PinRoot};

/// Removes all programs and pins of Sumac on this machine, in all network namespaces, and its rules in NICs.
///
/// This includes an aggregator on the same machine if its pins are below the same directory. Jobs that use
/// any of them fail, so it asks before it ends one.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub struct Args {
    /// List what would be removed, and the jobs that would end; remove nothing.
    #[arg(long)]
    dry_run: bool,
    /// End jobs without a question.
    #[arg(long, short)]
    yes: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pin_root: PinRoot,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = &args.pin_root.path;
    let found = sumac_hostprog::inventory(root)?;
    if args.dry_run {
        return show(args, &found.paths, &found.jobs);
    }
    confirm(args, &found)?;
    show(args, &sumac_hostprog::clean(root)?, &[])
}

/// Prints what was, or would be, removed.
fn show(args: &Args, paths: &[PathBuf], jobs: &[String]) -> anyhow::Result<ExitCode> {
    if args.json {
        exit::print_json(&match args.dry_run {
            true => serde_json::json!({ "would_remove": paths, "would_end": jobs }),
            false => serde_json::json!({ "removed": paths }),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = io::stdout().lock();
    let (remove, end) = if args.dry_run { ("would remove", "would end") } else { ("removed", "ended") };
    for path in paths {
        writeln!(out, "{remove} {}", path.display())?;
    }
    for jobs in jobs {
        writeln!(out, "{end} {jobs}")?;
    }
    if paths.is_empty() {
        writeln!(out, "nothing of Sumac's below {}", args.pin_root.path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks whether jobs shall end; without a terminal `--yes` must say so.
fn confirm(args: &Args, found: &Inventory) -> anyhow::Result<()> {
    if args.yes || found.jobs.is_empty() {
        return Ok(());
    }
    let jobs = found.jobs.join(", ");
    if !io::stdin().is_terminal() {
        bail!("this ends {jobs}; nothing was removed: give --yes to remove them, --dry-run to list all");
    }
    eprint!("sumac: this ends {jobs}. Continue? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("nothing was removed");
    }
    Ok(())
}
