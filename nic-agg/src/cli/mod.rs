//! Verbs, and what they share: messages, exit codes, where the pins are.

mod attach;
mod bench;
mod control;
mod detach;
mod drop;
mod generate;
mod job;
mod logs;
pub mod status;

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use serde::Serialize;
use sumac_agg::{OpenError, aggregator::ChangeError, pins::DEFAULT_PIN_ROOT};

use crate::serve;

const HELP: &str = "\
Examples:
  sumac-agg attach eth1 eth2 eth3 eth4    aggregate what arrives at four ports
  sumac-agg serve --secret-file secret    let remote daemons open jobs on it
  sumac-agg status                        ports, jobs, counters
  sumac-agg control                       racks, parameter hosts and jobs of the control plane
  sumac-agg detach                        take the programs off; jobs keep their slots
  sumac-agg detach --all                  take everything away

Messages: set RUST_LOG=debug for more of them, on standard error.

Exit codes:
  0  done
  1  failed; standard error says why and what to do
  2  the command line is wrong
  3  no aggregator is attached in this network namespace";

/// In-network gradient aggregation: the aggregator's side.
///
/// XDP programs on the ports of this machine add the gradients of all workers and send the sum back. They go on
/// without a process of their own; `serve` is what remote daemons open their jobs with.
#[derive(Debug, Parser)]
#[command(name = "sumac-agg", version, after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Attach(attach::Args),
    Detach(detach::Args),
    Status(status::Args),
    Control(control::Args),
    Job(job::Args),
    Drop(drop::Args),
    Serve(serve::Args),
    Logs(logs::Args),
    Bench(bench::Args),
    Man(generate::ManArgs),
    Completions(generate::CompletionsArgs),
}

/// Where the aggregator is pinned.
#[derive(Debug, clap::Args)]
struct PinRoot {
    /// Where the aggregator is pinned; must be on a bpffs
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_ROOT)]
    pin_root: PathBuf,
}

/// Which aggregator is meant.
#[derive(Debug, clap::Args)]
struct Which {
    #[command(flatten)]
    pins: PinRoot,
    /// The one that `sumac-agg serve --plane host` runs on this UDP port, not the attached one
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "48700", conflicts_with = "pin_root")]
    host: Option<u16>,
}

/// No aggregator is attached.
const NOT_ATTACHED: u8 = 3;

pub fn main() -> ExitCode {
    let cli = Cli::parse();
    start_messages();
    let done = match cli.verb {
        Verb::Attach(args) => attach::run(&args),
        Verb::Detach(args) => detach::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Control(args) => control::run(&args),
        Verb::Job(args) => job::run(&args),
        Verb::Drop(args) => drop::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Logs(args) => logs::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Man(args) => generate::man(&args),
        Verb::Completions(args) => generate::completions(&args),
    };
    done.unwrap_or_else(|error| failed(&error))
}

fn start_messages() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .init();
}

/// Says why a verb failed. A reader that went away (`sumac-agg status | head`) is no failure.
fn failed(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("sumac-agg: {error:#}");
    let open = error.downcast_ref::<OpenError>().or(match error.downcast_ref::<ChangeError>() {
        Some(ChangeError::Open(open)) => Some(open),
        _ => None,
    });
    match open {
        Some(OpenError::NotAttached { .. }) => ExitCode::from(NOT_ATTACHED),
        _ => ExitCode::FAILURE,
    }
}

/// Prints one JSON object.
fn print_json(value: &impl Serialize) -> anyhow::Result<ExitCode> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    io::Write::write_all(&mut io::stdout().lock(), &text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_holds_together() {
        super::Cli::command().debug_assert();
    }
}
