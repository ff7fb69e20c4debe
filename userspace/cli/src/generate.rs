//! `sumac man` and `sumac completions`: files generated from the command line's definition.

use std::{fs, io::Write as _, path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use clap::Command;
use clap_complete::Shell;

/// Writes manual pages (sumac.1 and one for each command) into a directory.
#[derive(Debug, clap::Args)]
pub struct Man {
    /// The directory; created if it does not exist.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sumac completions bash > /etc/bash_completion.d/sumac")]
pub struct Completions {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub fn man(args: &Man, command: Command) -> anyhow::Result<ExitCode> {
    let directory = args.directory.display();
    fs::create_dir_all(&args.directory).map_err(|error| anyhow!("cannot create {directory}: {error}"))?;
    clap_mangen::generate_to(command, &args.directory)
        .map_err(|error| anyhow!("cannot write manual pages to {directory}: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

pub fn completions(args: &Completions, mut command: Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "sumac", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
