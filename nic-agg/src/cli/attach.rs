//! `sumac-agg attach`: attaches the programs to interfaces.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use serde::Serialize;
use sumac_agg::{
    AttachOptions,
    attach::{AggregatorInterface, Attachment, attach},
    pool::{Pools, variant_of},
};
use sumac_agg_layout::State;
use sumac_loader::Variant;

use super::options::print_json;

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
    #[command(flatten)]
    options: AttachOptions,
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
    /// The directory of the pins.
    pins: PathBuf,
    ports: Vec<AggregatorInterface>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let Attachment { aggregator, state, ports } = attach(&args.options)?;
    let pool_bytes = Pools::of(&state).memory(variant_of(&state));
    let pins = aggregator.pins().path().to_owned();
    if args.json {
        let State { instance, slots, dynamic_slots, .. } = state;
        return print_json(&Attached { instance, slots, dynamic_slots, pool_bytes, pins, ports });
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
    writeln!(out, "pinned at {}", pins.display())?;
    Ok(())
}
