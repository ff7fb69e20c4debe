//! `sumac doctor`: checks of the system and an interface.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use sumac_client::Client;
use sumac_hostprog::doctor::{Check, Severity, Subject, examine};

use crate::{
    exit,
    options::{PinRoot, Socket},
};

/// Checks for usual problems, and prints the remedy for each. Changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    /// The interface that leads to the aggregator; without it only the system is checked.
    #[arg(value_name = "IFACE")]
    interface: Option<String>,
    /// Elements in a chunk, for the check of the MTU.
    #[arg(long, value_name = "N", default_value_t = sumac_wire::DEFAULT_ELEMENTS)]
    chunk: u16,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pin_root: PinRoot,
    #[command(flatten)]
    socket: Socket,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac doctor                          the system\n",
    "  sumac doctor eth1                     also the interface\n",
    "  sumac doctor eth1 --chunk 360         also the MTU for chunks of 360 elements\n\n",
    exit::help_text!(),
);

/// Prints every check.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut checks = examine(&Subject {
        interface: args.interface.clone(),
        elements: args.chunk,
        pin_root: args.pin_root.path.clone(),
    });
    checks.push(daemon(args));
    let worst = checks.iter().map(|check| check.level).max().unwrap_or(Severity::Ok);
    let mut out = io::stdout().lock();
    if args.json {
        let all = serde_json::json!({ "worst": worst, "checks": checks });
        serde_json::to_writer_pretty(&mut out, &all).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        show(&mut out, &checks)?;
    }
    Ok(if worst == Severity::Fail { ExitCode::from(exit::ATTENTION) } else { ExitCode::SUCCESS })
}

fn daemon(args: &Args) -> Check {
    let path = args.socket.path.display();
    let (level, found, remedy) = match Client::connect(&args.socket.path).and_then(|client| client.stats()) {
        Ok(stats) if stats.fallback.is_empty() => {
            let reason = match stats.backend_reason.as_str() {
                "" => String::new(),
                reason => format!(" by auto: {reason}"),
            };
            (Severity::Ok, format!("answers at {path}, backend {}{reason}", stats.backend), None)
        }
        Ok(stats) => {
            let found = format!("runs on {}: {}", stats.backend, stats.fallback);
            let remedy = "correct the failed checks above, then restart it; where it says `yet`, it chooses \
            again itself";
            (Severity::Warn, found, Some(remedy.to_owned()))
        }
        Err(error) => (
            Severity::Warn,
            error.to_string(),
            Some("sumac daemon --config /etc/sumac/daemon.toml".to_owned()),
        ),
    };
    Check { name: "daemon", level, found, remedy }
}

fn show(out: &mut impl Write, checks: &[Check]) -> io::Result<()> {
    for check in checks {
        writeln!(out, "{:<5}{:<14}{}", check.level.name(), check.name, check.found)?;
        if let Some(remedy) = &check.remedy {
            writeln!(out, "{:<19}-> {remedy}", "")?;
        }
    }
    let count = |level| checks.iter().filter(|check| check.level == level).count();
    writeln!(
        out,
        "{} checks, {} warnings, {} failed",
        checks.len(),
        count(Severity::Warn),
        count(Severity::Fail)
    )
}
