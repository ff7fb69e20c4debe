//! `sumac attach`: attaches the host program to an interface.

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use sumac_daemon::config::Config;
use sumac_hostprog::{AttachOptions, Attached, HostMode, Queues};
use sumac_netutil::Steer;

use crate::{exit, options::PinRoot};

/// Attaches Sumac's program to an interface; it stays when this command ends.
///
/// Attaching again replaces the program atomically, without losing a frame; sockets, jobs and counters stay.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    /// The interface that leads to the aggregator.
    #[arg(value_name = "IFACE", required_unless_present = "config")]
    interface: Option<String>,
    /// The daemon's configuration, for interface, mode, queues, ports and rules in the NIC; with its backend
    /// "udp" nothing is attached.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "interface", "mode", "queues", "base_port", "shards", "steer", "pin_root",
    ])]
    config: Option<PathBuf>,
    /// Mode of the program and of the sockets.
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    mode: HostMode,
    /// Receive queues to open sockets on: all, or a list such as 0,2-3.
    #[arg(long, value_name = "LIST", default_value = "all")]
    queues: Queues,
    /// UDP port of the first shard; results arrive on it.
    #[arg(long, value_name = "PORT", default_value_t = sumac_wire::DEFAULT_BASE_PORT)]
    base_port: u16,
    /// Number of shards, each with the next port.
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: u16,
    /// Rules in the NIC that steer each shard's port to its queue.
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    steer: Steer,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pin_root: PinRoot,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac attach eth1                      in the fastest available mode\n",
    "  sumac attach eth1 --mode zerocopy      or fail\n",
    "  sumac attach --config /etc/sumac/daemon.toml\n",
    "                                         as the daemon would; its systemd unit does so before it starts \
    it\n",
    "  sumac attach eth1 --queues 0,1         sockets on two of its queues\n",
    "  sumac attach eth1 --shards 2 --steer ntuple\n",
    "                                         each shard's packets to its queue, or fail\n\n",
    exit::help_text!(),
);

/// Attaches, and prints what was bound.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(attached) = attach(args)? else {
        if args.json {
            exit::print_json(&serde_json::json!({ "interface": null }))?;
        } else {
            writeln!(std::io::stdout().lock(), "nothing to attach: the configuration's backend is udp")?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let interface = &attached.interface().name;
    if args.json {
        let (base_port, shards) = attached.ports();
        exit::print_json(&serde_json::json!({
            "interface": interface,
            "program_id": attached.program_id(),
            "mode": attached.mode().to_string(),
            "fallback": attached.fallback(),
            "queues": attached.queues(),
            "rx_queues": attached.interface().rx_queues,
            "base_port": base_port,
            "shards": shards,
            "steering": attached.steering(),
            "pins": attached.pin_path(),
        }))?;
    } else {
        report(interface, &attached)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Attaches as the configuration or the options say; `None` where the configuration needs no program.
fn attach(args: &Args) -> anyhow::Result<Option<Attached>> {
    if let Some(file) = &args.config {
        return Ok(sumac_daemon::attach(&Config::load(file)?)?);
    }
    let options = AttachOptions {
        mode: args.mode,
        queues: args.queues.clone(),
        base_port: args.base_port,
        shards: args.shards,
        steer: args.steer,
        pin_root: args.pin_root.path.clone(),
        ..AttachOptions::new(args.interface.clone().unwrap_or_default())
    };
    Ok(Some(sumac_hostprog::attach(&options)?))
}

fn report(interface: &str, attached: &Attached) -> std::io::Result<()> {
    let (first, shards) = attached.ports();
    let queues = Queues::Only(attached.queues());
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{interface}: program {} in {} mode, queues {queues} of {}, UDP ports {}, pinned at {}",
        attached.program_id(),
        attached.mode(),
        attached.interface().rx_queues,
        port_range(first, shards),
        attached.pin_path().display(),
    )?;
    if let Some(reason) = attached.fallback() {
        writeln!(out, "{interface}: not in driver mode: {reason}")?;
    }
    writeln!(out, "{interface}: {}", attached.steering().for_worker())
}

/// The UDP ports of `shards` shards: `48700`, or `48700-48703`.
pub fn port_range(first: u16, shards: u16) -> String {
    match u32::from(shards).saturating_sub(1) {
        0 => first.to_string(),
        more => format!("{first}-{}", u32::from(first) + more),
    }
}

#[cfg(test)]
mod tests {
    use super::port_range;

    #[test]
    fn one_port_is_no_range() {
        assert_eq!(port_range(48700, 1), "48700");
        assert_eq!(port_range(48700, 4), "48700-48703");
        assert_eq!(port_range(65535, 1), "65535");
        assert_eq!(port_range(0, 0), "0", "settings of another release");
    }
}
