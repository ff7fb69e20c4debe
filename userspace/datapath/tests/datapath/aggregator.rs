//! The host aggregator of `sumac-agg-host` with the job of a test.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_agg_host::HostDataPlane;
use sumac_agg_job::{NewJob, plane::AggregatorPlane as _};
use sumac_transport::JobParams;
use sumac_wire::{CLASSES, tables::JobEntry};

/// Listens at consecutive ports, one for each shard; `port` 0: at any that are free.
pub fn start(ip: Ipv4Addr, port: u16, shards: u16) -> HostDataPlane {
    let mut attempts = (0..64).map(|_| HostDataPlane::start(512, 64, shards, ip, port));
    attempts.find_map(Result::ok).expect("free ports")
}

/// Installs a job with these workers, of which one of `lose_every` packets in and out is lost; 0: none.
pub fn install(aggregator: &HostDataPlane, params: &JobParams, workers: Vec<SocketAddrV4>, lose_every: u32) {
    let slots = params.slots * u32::from(CLASSES * params.shards);
    let entry = JobEntry {
        token: params.token,
        slot_base: slots * u32::from(params.job % 2),
        slots,
        epoch: params.epoch,
        elements: params.elements,
        contributors: params.world,
        shards: params.shards,
        lane_slots_log2: params.slots.ilog2() as u16,
        ..JobEntry::default()
    };
    aggregator.add_job(&NewJob::at(params.job, entry, workers, [])).unwrap();
    let mut drops = aggregator.drops(params.job);
    drops.up = u32::MAX.checked_div(lose_every).unwrap_or(0);
    drops.down = drops.up;
    aggregator.set_drops(params.job..params.job + 1, drops).unwrap();
}
