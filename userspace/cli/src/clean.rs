//! `sumac clean`: removes all programs and pins of Sumac.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use anyhow::bail;
use sumac_hostprog::inventory::Inventory;

use crate::{exit, options::PinRoot};

/// Removes all programs and pins of Sumac on this machine, in all network namespaces, and its rules in NICs.
///
/// This includes an aggregator on the same machine if its pins are below the same directory. Jobs that use any of them
/// fail, so it asks before it ends one.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub struct Args {
    /// List what would be removed, and the jobs that would end; remove nothing.
    #[arg(long)]
    dry_run: bool,
    /// End jobs without a question.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    pin_root: PinRoot,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = &args.pin_root.path;
    let found = sumac_hostprog::inventory(root)?;
    let mut out = io::stdout().lock();
    if args.dry_run {
        for path in &found.paths {
            writeln!(out, "would remove {}", path.display())?;
        }
        for jobs in &found.jobs {
            writeln!(out, "would end {jobs}")?;
        }
    } else {
        confirm(args, &found)?;
        for path in &sumac_hostprog::clean(root)? {
            writeln!(out, "removed {}", path.display())?;
        }
    }
    if found.paths.is_empty() {
        writeln!(out, "nothing of Sumac's below {}", root.display())?;
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
