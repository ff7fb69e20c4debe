//! `sumac-agg man` and `completions`: files generated from the command line's definition.

use std::{fs, io::Write as _, path::PathBuf};

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;

/// Write manual pages (sumac-agg.1 and one for each verb) into a directory
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct ManArgs {
    /// The directory; made when it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(
    hide = true,
    after_help = "Example:\n  sumac-agg completions bash > /etc/bash_completion.d/sumac-agg"
)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub fn man(args: &ManArgs, command: Command) -> anyhow::Result<()> {
    let shown = args.directory.display();
    fs::create_dir_all(&args.directory).with_context(|| format!("making {shown}"))?;
    clap_mangen::generate_to(command, &args.directory).with_context(|| format!("writing to {shown}"))?;
    Ok(())
}

pub fn completions(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "sumac-agg", &mut script);
    let mut script = String::from_utf8(script).context("reading the generated script")?;
    // clap_complete 4.6 writes a hyphen in a program's name in two ways, so that bash finds no option of a
    // verb.
    if args.shell == Shell::Bash {
        script = script.replace("sumac__subcmd__agg", "sumac__agg");
    }
    Ok(std::io::stdout().lock().write_all(script.as_bytes())?)
}
