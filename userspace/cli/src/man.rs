//! `sumac man`: manual pages from the command line's own description.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use clap::CommandFactory as _;

/// Writes manual pages (sumac.1 and one for each verb) into a directory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory; made when it is missing.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes the pages.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let shown = args.directory.display();
    fs::create_dir_all(&args.directory).map_err(|error| anyhow!("could not make {shown}: {error}"))?;
    clap_mangen::generate_to(crate::Cli::command(), &args.directory)
        .map_err(|error| anyhow!("could not write manual pages to {shown}: {error}"))?;
    Ok(ExitCode::SUCCESS)
}
