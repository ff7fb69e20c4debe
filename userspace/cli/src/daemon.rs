//! `sumac daemon`: serves this host's trainers until it is told to stop.

use std::{
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use sumac_daemon::{
    Daemon,
    config::{Config, ConfigError},
};

use crate::exit;

/// Runs the daemon in the foreground: trainers connect to its socket, tensors move through the network.
///
/// It stops on SIGTERM or Ctrl-C: trainers are told, and jobs that are open end on all their workers. The XDP program
/// stays on the interface, and the next daemon takes it over.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    /// The configuration, a TOML file; with --parameter-host it may be left out.
    #[arg(long, value_name = "FILE", required_unless_present = "parameter_host")]
    config: Option<PathBuf>,
    /// Be a parameter host of dynamic jobs, too, for the control plane at this address.
    #[arg(long, value_name = "ADDRESS:PORT")]
    parameter_host: Option<SocketAddr>,
    /// A file with the secret that the control plane has for racks and parameter hosts.
    #[arg(long, value_name = "FILE", requires = "parameter_host")]
    parameter_host_secret: Option<PathBuf>,
    /// What this parameter host is called there; without it as this host is.
    #[arg(long, value_name = "NAME", requires = "parameter_host")]
    parameter_host_name: Option<String>,
    /// Read the configuration, say whether it makes sense, and stop.
    #[arg(long)]
    check: bool,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac daemon --config /etc/sumac/daemon.toml\n",
    "  sumac daemon --config /etc/sumac/daemon.toml --check\n",
    "  sumac daemon --parameter-host 10.77.0.1:48600 --parameter-host-secret /etc/sumac/racks.secret\n",
    "        a dedicated parameter host; with --config, beside trainers\n",
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
    "  cpus = [0, 1]                            where the data path's threads are pinned\n",
    "  [parameter_host]                         be one; `control` is that of `aggregator`\n",
    "  secret_file = \"/etc/sumac/racks.secret\"  as `sumac-agg serve --rack-secret-file`\n\n",
    exit::help_text!(),
);

/// Runs until SIGTERM or SIGINT.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.config.as_deref().unwrap_or(Path::new("the command line"));
    let config = config(args, name)?;
    if args.check {
        writeln!(std::io::stdout().lock(), "{}: fine", name.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    let daemon = Daemon::start(config)?;
    tracing::info!(backend = daemon.backend(), "ready");
    daemon.run()?;
    Ok(ExitCode::SUCCESS)
}

/// The configuration, with what the command line says in its place. `name` is for messages.
fn config(args: &Args, name: &Path) -> Result<Config, ConfigError> {
    let mut config = match &args.config {
        Some(file) => Config::load(file)?,
        None => Config::parse("", name)?,
    };
    let Some(control) = args.parameter_host else { return Ok(config) };
    let mut host = config.parameter_host.take().unwrap_or_default();
    host.control = Some(control);
    if let Some(secret) = &args.parameter_host_secret {
        (host.secret, host.secret_file) = (None, Some(secret.clone()));
    }
    host.name = args.parameter_host_name.clone().or(host.name);
    config.parameter_host = Some(host);
    config.check(name)?;
    Ok(config)
}
