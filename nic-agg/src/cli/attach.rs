//! `sumac-agg attach`: attaches the programs to interfaces.

use std::{
    io::{self, Write as _},
    net::Ipv4Addr,
    process::ExitCode,
    time::Duration,
};

use serde::Serialize;
use sumac_agg::{
    AttachOptions,
    attach::{AggregatorInterface, attach},
    pool::{DEFAULT_DYNAMIC_SLOTS, DEFAULT_SLOTS, Pools, variant_of},
};
use sumac_agg_layout::State;
use sumac_hostprog::Steer;
use sumac_loader::{Variant, XdpMode};
use sumac_wire::DEFAULT_BASE_PORT;

use super::options::{PinRoot, print_json};

const EXAMPLES: &str = "\
Examples:
  sumac-agg attach eth1 eth2 eth3 eth4
        each worker behind an interface of its own: every result leaves through each of them
  sumac-agg attach eth1
        all workers behind one interface: results go to a multicast group
  sumac-agg attach eth1 --slots 16384 --elements 352
        room for more jobs; the longest chunks for an MTU of 1500
  sumac-agg attach eth1 --own 10.0.0.9
        an address that no kernel has: the program replies to ARP and ping
  sumac-agg attach eth1 --mode generic
        a driver without XDP; several times slower";

/// Attach the aggregator to interfaces, or replace it there
///
/// Attaching again keeps the pool with its jobs and replaces the programs without losing a frame.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The interfaces
    #[arg(value_name = "IFACE", required = true)]
    interfaces: Vec<String>,
    /// Slots in the pool, which jobs share; each takes 6.6 KiB of kernel memory, or 17.4 KiB for jumbo frames
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SLOTS)]
    slots: u32,
    /// Slots of each shard that dynamic jobs share by hashing; each takes 3.3 KiB. 0: no dynamic jobs
    #[arg(long, value_name = "N", default_value_t = DEFAULT_DYNAMIC_SLOTS)]
    dynamic_slots: u32,
    /// Milliseconds after which a dynamic job that sends nothing loses its slots
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    slot_timeout: u32,
    /// Largest chunk that a job may ask for, in elements of 4 bytes [default: 832, or 2224 for jumbo frames through one interface]
    #[arg(long, value_name = "N")]
    elements: Option<u16>,
    /// Load the programs for frames of several buffers; an MTU above 3506 implies it
    #[arg(long)]
    jumbo: bool,
    /// UDP destination port of shard 0
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_BASE_PORT)]
    base_port: u16,
    /// UDP ports from the base port on, one for each shard of a job's slots
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: u16,
    /// Reply to ARP and ping for this address, which no kernel has and which the workers use
    #[arg(long, value_name = "IP")]
    own: Option<Ipv4Addr>,
    /// XDP mode
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    mode: XdpMode,
    /// With several shards, rules in the NIC that direct each shard's port to a queue of its own
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    steer: Steer,
    #[command(flatten)]
    pins: PinRoot,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Attached {
    instance: u64,
    slots: u32,
    dynamic_slots: u32,
    pool_bytes: u64,
    ports: Vec<AggregatorInterface>,
}

/// Attaches, and prints what was bound.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (aggregator, ports) = attach(&AttachOptions {
        interfaces: args.interfaces.clone(),
        slots: args.slots,
        dynamic_slots: args.dynamic_slots,
        slot_timeout: Duration::from_millis(args.slot_timeout.into()),
        elements: args.elements,
        jumbo: args.jumbo,
        base_port: args.base_port,
        shards: args.shards,
        own_ip: args.own,
        mode: args.mode,
        steer: args.steer,
        pin_root: args.pins.pin_root.clone(),
    })?;
    let state = aggregator.state()?;
    let pool_bytes = Pools::of(&state).memory(variant_of(&state));
    if args.json {
        let State { instance, slots, dynamic_slots, .. } = state;
        return print_json(&Attached { instance, slots, dynamic_slots, pool_bytes, ports });
    }
    let mut out = io::stdout().lock();
    for AggregatorInterface { interface, mode, fallback, steering } in &ports {
        let reason = fallback.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        writeln!(out, "{interface}: attached in {mode} mode{reason}")?;
        if let Some(steering) = steering {
            writeln!(out, "{interface}: {steering}")?;
        }
    }
    let mib = pool_bytes as f64 / f64::from(1 << 20);
    let jumbo = if variant_of(&state) == Variant::Jumbo { ", for jumbo frames" } else { "" };
    let dynamic = match state.dynamic_slots {
        0 => String::new(),
        slots => format!(" and {slots} in each shard for dynamic jobs"),
    };
    writeln!(
        out,
        "pool: {} slots of up to {} elements{dynamic}, {mib:.1} MiB{jumbo}",
        state.slots, state.elements
    )?;
    Ok(ExitCode::SUCCESS)
}
