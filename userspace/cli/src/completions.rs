//! `sumac completions`: completion scripts for shells.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

/// Prints a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sumac completions bash > /etc/bash_completion.d/sumac")]
pub struct Args {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "sumac", &mut script);
    std::io::Write::write_all(&mut std::io::stdout().lock(), &script)?;
    Ok(ExitCode::SUCCESS)
}
