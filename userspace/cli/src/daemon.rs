//! `sumac daemon`: runs the daemon.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use sumac_daemon::{
    Daemon, Versions,
    config::{Config, ConfigError, HostPort},
};

use crate::exit;

/// Runs the daemon in the foreground, for the trainers that connect to its socket.
///
/// On SIGTERM or Ctrl-C it notifies trainers, and open jobs end on all their workers. The XDP program
/// stays on the interface for the next daemon.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    /// The configuration, a TOML file; optional with --parameter-host.
    #[arg(long, value_name = "FILE", required_unless_present = "parameter_host")]
    config: Option<PathBuf>,
    /// Also be a parameter host of dynamic jobs, for the control plane at this address.
    #[arg(long, value_name = "HOST:PORT")]
    parameter_host: Option<HostPort>,
    /// A file with the output of `sumac-agg token --racks`.
    #[arg(long, value_name = "FILE", requires = "parameter_host")]
    parameter_host_secret: Option<PathBuf>,
    /// This parameter host's name there; default: the host's name.
    #[arg(long, value_name = "NAME", requires = "parameter_host")]
    parameter_host_name: Option<String>,
    /// Take over from the daemon that serves the configuration's socket: its trainers, their memory, and its
    /// jobs. When it runs, this one prints a line on standard output. If it cannot, the other one goes on.
    #[arg(long, conflicts_with = "check")]
    take_over: bool,
    /// Once it runs, log to the file that standard input is.
    #[arg(long, requires = "take_over", hide = true)]
    log_to_stdin: bool,
    /// Check the configuration, the secrets and certificates it names, host names, users and groups; then
    /// exit.
    #[arg(long)]
    check: bool,
    /// With --check: print one JSON object.
    #[arg(long, requires = "check")]
    json: bool,
}

/// The line by which a daemon that has taken over states that it runs.
pub const RUNNING: &str = "the new daemon runs";

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac daemon --config /etc/sumac/daemon.toml\n",
    "  sumac daemon --config /etc/sumac/daemon.toml --check\n",
    "  sumac daemon --parameter-host 10.77.0.1:48600 --parameter-host-secret /etc/sumac/racks.token\n",
    "        a dedicated parameter host; with --config also for trainers\n",
    "\n",
    "A configuration (every key except `aggregator` is optional):\n",
    "  aggregator = \"10.77.0.1:48600\"           the address of `sumac-agg serve`\n",
    "  secret_file = \"/etc/sumac/token\"         the output of `sumac-agg token`, for jobs without their \
    own\n",
    "  socket = \"/run/sumac/sumac.sock\"         the trainers' socket\n",
    "  socket_mode = \"0660\"                     its permissions\n",
    "  socket_group = \"sumac\"                   the group that these let in\n",
    "  [[allow]]                                who opens jobs under the daemon's secret, besides root\n",
    "  groups = [\"ml\"]                          also `users`\n",
    "  jobs = [\"{user}:*\"]                      names of jobs\n",
    "  [control_planes.east]                    another that trainers may name\n",
    "  address = \"east.example:48600\"           also `secret_file`\n",
    "  allow_uids = [1000]                      users that may connect\n",
    "  backend = \"auto\"                         auto, xdp, or udp\n",
    "  interface = \"eth1\"                       towards the aggregator; default: by route\n",
    "  shards = 2                               each with its own queue and thread\n",
    "  steer = \"auto\"                           rules in the NIC for these queues: auto, ntuple, or off\n",
    "  cpus = [0, 1]                            the CPUs of the data path's threads\n",
    "  [parameter_host]                         also be one; `control` defaults to `aggregator`\n",
    "  secret_file = \"/etc/sumac/racks.token\"   the output of `sumac-agg token --racks`\n\n",
    exit::help_text!(),
);

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.config.as_deref().unwrap_or(Path::new("the command line"));
    let config = config(args, name)?;
    sumac_daemon::limit_start()?;
    if args.check {
        sumac_daemon::check(&config)?;
        if args.json {
            exit::print_json(&serde_json::json!({ "file": name, "valid": true }))?;
        } else {
            writeln!(std::io::stdout().lock(), "{}: valid", name.display())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let prepared = match args.take_over {
        true => Daemon::prepare_takeover(config, Versions::own())?,
        false => Daemon::prepare(config)?,
    };
    let confined = prepared.confine()?;
    sumac_log::in_background().context("cannot start the thread that writes the log")?;
    let daemon = confined.start()?;
    tracing::info!(backend = daemon.backend(), "ready");
    if args.take_over {
        // Nobody may be listening.
        let _ = writeln!(std::io::stdout().lock(), "{RUNNING}");
    }
    if args.log_to_stdin
        && let Err(error) = sumac_log::continue_on_stdin()
    {
        // The jobs are this daemon's by now.
        tracing::warn!(%error, "the log stays on the standard error of `sumac upgrade`");
    }
    daemon.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Merges the configuration file and the command line. `name` is for messages.
fn config(args: &Args, name: &Path) -> Result<Config, ConfigError> {
    let mut config = match &args.config {
        Some(file) => Config::load(file)?,
        None => Config::parse("", name)?,
    };
    let Some(control) = args.parameter_host.clone() else { return Ok(config) };
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
