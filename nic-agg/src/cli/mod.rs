//! The command line: its verbs, messages and exit codes.

mod attach;
mod control;
mod detach;
mod drop;
mod generate;
mod identity;
mod job;
mod logs;
mod metrics;
mod options;
mod ping;
mod serve;
mod status;
mod token;
mod top;

use std::{io, process::ExitCode};

use clap::{CommandFactory as _, Parser, Subcommand};
use sumac_agg::{AddJobError, OpenError, local::AskError};
use sumac_control::release::{FormatVersion, requested};
use sumac_loader::chain;

const HELP: &str = "\
Examples:
  sumac-agg attach eth1 eth2 eth3 eth4    aggregate packets of four interfaces
  sumac-agg serve                         let remote daemons open jobs on it
  sumac-agg token                         print what these daemons need to join
  sumac-agg status                        interfaces, jobs, counters
  sumac-agg top                           jobs, rates and stragglers, live
  sumac-agg control                       racks, parameter hosts and jobs of the control plane
  sumac-agg ping                          whether the control plane answers, for health probes
  sumac-agg detach                        detach the programs; jobs keep their slots
  sumac-agg detach --all                  remove everything

Messages: set RUST_LOG=debug for more of them, on standard error.

Exit codes:
  0  done
  1  failed; the reason and a remedy are on standard error
  2  the command line is wrong
  3  no aggregator is attached in this network namespace, or no `sumac-agg serve` answers";

/// In-network gradient aggregation: the aggregator's side.
///
/// XDP programs on the interfaces of this machine add the gradients of all workers and send the sum back.
/// They need no process of their own; remote daemons open their jobs by `serve`.
#[derive(Debug, Parser)]
#[command(name = "sumac-agg", version, after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a command line is parsed once")]
enum Verb {
    Attach(attach::Args),
    Detach(detach::Args),
    Status(status::Args),
    Top(top::Args),
    Control(control::Args),
    Ping(ping::Args),
    Job(job::Args),
    Drop(drop::Args),
    Serve(serve::Args),
    Token(token::Args),
    Logs(logs::Args),
    Metrics(metrics::Args),
    Man(generate::ManArgs),
    Completions(generate::CompletionsArgs),
}

/// No aggregator is attached, or none answers.
const NOT_ATTACHED: u8 = 3;

pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let own = [FormatVersion { of: "maps of the aggregator", version: sumac_agg_layout::ABI }];
    if let Some(table) = requested(&arguments, "sumac-agg", env!("CARGO_PKG_VERSION"), &own) {
        println!("{table}");
        return ExitCode::SUCCESS;
    }
    let cli = Cli::parse();
    // Messages would be written over the live view.
    if !matches!(cli.verb, Verb::Top(_)) {
        sumac_log::start();
    }
    let done = match cli.verb {
        Verb::Attach(args) => attach::run(&args),
        Verb::Detach(args) => detach::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Control(args) => control::run(&args),
        Verb::Ping(args) => ping::run(&args),
        Verb::Job(args) => job::run(&args),
        Verb::Drop(args) => drop::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Token(args) => token::run(&args),
        Verb::Logs(args) => logs::run(&args),
        Verb::Metrics(args) => metrics::run(&args),
        Verb::Man(args) => generate::man(&args, Cli::command()),
        Verb::Completions(args) => generate::completions(&args, Cli::command()),
    };
    let code = done.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS);
    sumac_log::finish();
    code
}

/// Prints the error. A reader that closed its end (`sumac-agg status | head`) is none.
fn failed(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    sumac_log::print(&format!("sumac-agg: {}", chain(error.as_ref())));
    let is_missing = error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(OpenError::NotAttached { .. }))
            || matches!(cause.downcast_ref(), Some(AddJobError::Open(OpenError::NotAttached { .. })))
            || matches!(cause.downcast_ref(), Some(AskError::Nobody { .. }))
    });
    if is_missing { ExitCode::from(NOT_ATTACHED) } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
