//! `sumac attach`: puts the program on an interface.

use std::{io::Write as _, process::ExitCode};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use sumac_hostprog::{AttachOptions, Attached, Mode, Queues, Steer};

use crate::{exit, pin_root::PinRoot, ports};

/// Puts Sumac's program on an interface; it stays when this command ends.
///
/// Attaching again replaces the program in one step, without losing a frame; sockets, jobs and counters stay.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP, after_long_help = EXAMPLES)]
pub struct Args {
    /// The interface that leads to the aggregator.
    #[arg(value_name = "IFACE")]
    interface: String,
    /// auto: the driver's XDP, or the slower generic one with a warning; zerocopy and copy: the driver's XDP or
    /// nothing, and sockets of that kind; generic: the generic XDP.
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = parse_mode())]
    mode: Mode,
    /// Receive queues to open sockets on: all, or a list such as 0,2-3.
    #[arg(long, value_name = "LIST", default_value = "all")]
    queues: Queues,
    /// UDP port of the first shard; results arrive on it.
    #[arg(long, value_name = "PORT", default_value_t = sumac_wire::DEFAULT_BASE_PORT)]
    base_port: u16,
    /// Number of shards, each with the next port.
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: u16,
    /// Rules in the NIC that lead each shard's port to a queue of its own. auto: where the driver takes them, else what
    /// steers instead is told; ntuple: rules or nothing; off: none, and none stay from before.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = parse_steer())]
    steer: Steer,
    #[command(flatten)]
    pin_root: PinRoot,
}

const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  sumac attach eth1                      as fast as the driver can\n",
    "  sumac attach eth1 --mode zerocopy      or not at all\n",
    "  sumac attach eth1 --queues 0,1         sockets on two of its queues\n",
    "  sumac attach eth1 --shards 2 --steer ntuple\n",
    "                                         each shard's packets to its queue, or not at all\n\n",
    exit::help_text!(),
);

fn parse_mode() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(Mode::ALL.map(Mode::name)).try_map(|word| word.parse::<Mode>())
}

fn parse_steer() -> impl TypedValueParser<Value = Steer> {
    PossibleValuesParser::new(Steer::ALL.map(Steer::name)).try_map(|word| word.parse::<Steer>())
}

/// Attaches, and says what was really bound.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let attached = sumac_hostprog::attach(&AttachOptions {
        ifname: args.interface.clone(),
        mode: args.mode,
        queues: args.queues.clone(),
        base_port: args.base_port,
        shards: args.shards,
        steer: args.steer,
        pin_root: args.pin_root.path.clone(),
    })?;
    report(&args.interface, &attached)?;
    Ok(ExitCode::SUCCESS)
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
        ports::range(first, shards),
        attached.pin_path().display(),
    )?;
    if let Some(why) = attached.fallback() {
        writeln!(out, "{interface}: not in driver mode: {why}")?;
    }
    writeln!(out, "{interface}: {}", attached.steering().for_worker())
}
