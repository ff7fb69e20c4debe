//! The command line of a worker's host: one file per command.
//!
//! Results go to standard output, messages to standard error. Exit codes are those of [`exit`].
#![forbid(unsafe_code)]

mod allreduce;
mod attach;
mod clean;
mod daemon;
mod detach;
mod doctor;
mod events;
mod exit;
mod generate;
mod metrics;
mod options;
mod ping;
mod qos;
mod reference;
mod stats;
mod status;
mod top;
mod upgrade;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use sumac_control::release::{FormatVersion, requested};
use sumac_daemon::Versions;

/// In-network gradient aggregation: the command line of a worker's host.
///
/// Sumac's XDP program is attached to an interface once. The daemon then receives results through AF_XDP
/// sockets and sums tensors for the trainers on this host.
#[derive(Debug, Parser)]
#[command(name = "sumac", version, after_help = exit::HELP, after_long_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac doctor eth1                     checks for usual problems, with the remedy\n",
    "  sumac attach eth1                     attach the program to eth1, in the fastest available mode\n",
    "  sumac status                          attached programs, per queue\n",
    "  sumac daemon --config FILE            serve trainers until SIGTERM\n",
    "  sumac stats --watch                   the daemon's counters, once a second\n",
    "  sumac top                             a live view of its jobs\n",
    "  sumac allreduce --job J --rank R --world N IN.npy OUT.npy   sum one array\n",
    "  sumac detach eth1                     remove the program\n",
    "  sumac --version -v                    the versions of packets, protocols and maps\n",
    "\n",
    "Messages go to standard error; RUST_LOG=debug prints more of them.\n",
    "\n",
    exit::help_text!(),
);

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(doctor::Args),
    Attach(attach::Args),
    Detach(detach::Args),
    Status(status::Args),
    Clean(clean::Args),
    Daemon(daemon::Args),
    Upgrade(upgrade::Args),
    Allreduce(allreduce::Args),
    Stats(stats::Args),
    Top(top::Args),
    Ping(ping::Args),
    Events(events::Args),
    Metrics(metrics::Args),
    Qos(qos::Args),
    Man(generate::Man),
    Completions(generate::Completions),
    Reference(reference::Args),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(table) = requested(&arguments, "sumac", env!("CARGO_PKG_VERSION"), &versions()) {
        println!("{table}");
        return ExitCode::SUCCESS;
    }
    let cli = Cli::parse();
    // Messages would be written over the live view.
    if !matches!(cli.command, Command::Top(_)) {
        sumac_log::start();
    }
    let result = match cli.command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Detach(args) => detach::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Clean(args) => clean::run(&args),
        Command::Daemon(args) => daemon::run(&args),
        Command::Upgrade(args) => upgrade::run(&args),
        Command::Allreduce(args) => allreduce::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Qos(args) => qos::run(&args),
        Command::Man(args) => generate::man(&args, Cli::command()),
        Command::Completions(args) => generate::completions(&args, Cli::command()),
        Command::Reference(args) => reference::run(&args),
    };
    let code = result.unwrap_or_else(|error| exit::failed(&error));
    sumac_log::finish();
    code
}

/// Returns the versions that a host's programs have, as `--version -v` prints them.
fn versions() -> [FormatVersion; 3] {
    let Versions { format, local_api, program_abi, .. } = Versions::own();
    [
        FormatVersion { of: "local API", version: local_api },
        FormatVersion { of: "maps of the host's program", version: program_abi },
        FormatVersion { of: "handover between daemons", version: format },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
