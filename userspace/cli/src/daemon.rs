//! `sumac daemon`: serves this host's trainers until it is told to stop.

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use sumac_daemon::{Daemon, config::Config};

use crate::exit;

/// Runs the daemon in the foreground: trainers connect to its socket, tensors move through the network.
///
/// It stops on SIGTERM or Ctrl-C: trainers are told, and jobs that are open end on all their workers. The XDP program
/// stays on the interface, and the next daemon takes it over.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    /// The configuration, a TOML file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Read the configuration, say whether it makes sense, and stop.
    #[arg(long)]
    check: bool,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac daemon --config /etc/sumac/daemon.toml\n",
    "  sumac daemon --config /etc/sumac/daemon.toml --check\n",
    "\n",
    "A configuration (every key but `aggregator` may be left out):\n",
    "  aggregator = \"10.77.0.1:48600\"           where `sumac-agg serve` listens\n",
    "  secret_file = \"/etc/sumac/secret\"        the secret of jobs that bring none\n",
    "  socket = \"/run/sumac/sumac.sock\"         where trainers connect\n",
    "  socket_mode = \"0660\"                     who may, by owner and group\n",
    "  allow_uids = [1000]                      and who of them, by user\n",
    "  backend = \"auto\"                         auto, xdp, or udp\n",
    "  interface = \"eth1\"                       towards the aggregator; else by route\n",
    "  shards = 2                               each with a queue and a thread of its own\n",
    "  steer = \"auto\"                           rules in the NIC that lead packets there: auto, ntuple, or off\n",
    "  cpus = [0, 1]                            where the data path's threads are pinned\n\n",
    exit::help_text!(),
);

/// Runs until SIGTERM or SIGINT.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.config)?;
    if args.check {
        writeln!(std::io::stdout().lock(), "{}: fine", args.config.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    let daemon = Daemon::start(config)?;
    tracing::info!(backend = daemon.backend(), "ready");
    daemon.run()?;
    Ok(ExitCode::SUCCESS)
}
