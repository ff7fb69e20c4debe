//! `sumac upgrade`: starts a new daemon that takes over from the running one.

mod log;

use std::{
    io::{self, BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Context as _, bail};

use sumac_daemon::config::Config;

use crate::{daemon::RUNNING, exit};

/// Starts this release's daemon in the background, which takes over from the running one.
///
/// Trainers stay connected, their memory stays registered, and jobs go on. The new daemon is a process of its
/// own, which outlives this command. If it cannot take over, the running daemon goes on, and this command
/// fails with the reason.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    /// The new daemon's configuration, a TOML file. `socket` names the running one.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac upgrade --config /etc/sumac/daemon.toml\n",
    "        after a new release was installed, for a daemon that was started by hand\n",
    "  systemctl reload sumac-daemon\n",
    "        the same for the unit, whose ExecReload is this command\n\n",
    exit::help_text!(),
);

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    // The new daemon reports a configuration that cannot be read.
    let socket = Config::load(&args.config).ok().map(|config| config.socket);
    let log = log::of_successor(socket.as_deref()).context("cannot open a file for the new daemon's log")?;
    let mut child = Command::new(&program)
        .args(["daemon", "--take-over", "--log-to-stdin", "--config"])
        .arg(&args.config)
        .stdin(log)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C in this terminal is not for the daemon.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    // Until it runs its messages, and the reason of a failure, are this command's.
    let messages = child.stderr.take().map(|mut stderr| {
        thread::spawn(move || {
            let _ = io::copy(&mut stderr, &mut io::stderr());
        })
    });
    let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines().map_while(Result::ok));
    let runs = lines.into_iter().flatten().any(|line| line == RUNNING);
    if let Some(messages) = messages {
        let _ = messages.join();
    }
    if runs {
        tracing::info!(pid = child.id(), "a new daemon has taken over");
        return Ok(ExitCode::SUCCESS);
    }
    // Its reason is on standard error.
    let status = child.wait().context("cannot wait for the new daemon")?;
    bail!("the new daemon has not taken over ({status}); the running one goes on")
}
