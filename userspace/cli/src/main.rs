//! The command line of a worker's host: one file per verb.
//!
//! Standard output carries what was asked for, standard error everything else. Every verb gives an exit code from
//! [`exit`].
#![forbid(unsafe_code)]

mod allreduce;
mod attach;
mod bench_xdp;
mod clean;
mod completions;
mod daemon;
mod detach;
mod doctor;
mod events;
mod exit;
mod man;
mod pin_root;
mod ports;
mod socket;
mod stats;
mod status;

use std::{io::IsTerminal as _, process::ExitCode};

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// In-network gradient aggregation: the host's side.
///
/// A host attaches Sumac's XDP program to its interface once; the daemon then receives results through AF_XDP
/// sockets and sums tensors for the trainers on this host.
#[derive(Debug, Parser)]
#[command(name = "sumac", version, after_help = exit::HELP, after_long_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac doctor eth1                     what would go wrong, and how to mend it\n",
    "  sumac attach eth1                     put the program on eth1, as fast as it can be had\n",
    "  sumac status                          what is attached, queue by queue\n",
    "  sumac daemon --config FILE            serve trainers until told to stop\n",
    "  sumac stats --watch                   what the daemon is doing, once a second\n",
    "  sumac allreduce --job J --rank R --world N IN.npy OUT.npy   one sum, from a shell\n",
    "  sumac detach eth1                     take the program away\n",
    "\n",
    "Messages: set RUST_LOG=debug for more of them, on standard error.\n",
    "\n",
    exit::help_text!(),
);

#[derive(Debug, Subcommand)]
enum Verb {
    Doctor(doctor::Args),
    Attach(attach::Args),
    Detach(detach::Args),
    Status(status::Args),
    Clean(clean::Args),
    Daemon(daemon::Args),
    Allreduce(allreduce::Args),
    Stats(stats::Args),
    Events(events::Args),
    Man(man::Args),
    Completions(completions::Args),
    BenchXdp(bench_xdp::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_messages();
    let done = match cli.verb {
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Attach(args) => attach::run(&args),
        Verb::Detach(args) => detach::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Clean(args) => clean::run(&args),
        Verb::Daemon(args) => daemon::run(&args),
        Verb::Allreduce(args) => allreduce::run(&args),
        Verb::Stats(args) => stats::run(&args),
        Verb::Events(args) => events::run(&args),
        Verb::Man(args) => man::run(&args),
        Verb::Completions(args) => completions::run(&args),
        Verb::BenchXdp(args) => bench_xdp::run(&args),
    };
    done.unwrap_or_else(|error| exit::failed(&error))
}

/// Messages go to standard error, at `info` unless RUST_LOG says otherwise.
fn start_messages() {
    let (filter, misread) = match EnvFilter::try_from_default_env() {
        Ok(filter) => (filter, None),
        Err(error) => {
            let misread = std::env::var_os(EnvFilter::DEFAULT_ENV).is_some().then_some(error);
            (EnvFilter::new("info"), misread)
        }
    };
    let stderr = std::io::stderr;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(stderr().is_terminal())
        .with_writer(stderr)
        .init();
    if let Some(error) = misread {
        tracing::warn!("RUST_LOG is passed over: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
