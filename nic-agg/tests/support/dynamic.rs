//! Dynamic jobs and their frames.

use std::net::Ipv4Addr;

use sumac_agg::{Level, NewDynamic, NewJob, NewWorker};
use sumac_wire::{
    DEFAULT_BASE_PORT, Header, Kind,
    frame::{self, Endpoints, OVERHEAD},
    header::flag,
};

use super::{AGGREGATOR, AGGREGATOR_MAC, frames::value, job_of};

/// DSCP and ECN of frames that routers may mark.
pub const ECT: u8 = 0x2a;
/// DSCP and ECN of a frame that a router has marked.
pub const CE: u8 = 0x2b;
/// Slots of each shard that the jobs here may take.
pub const SLOTS: u32 = 16;

/// Returns a parameter host, or a root.
pub fn host(number: u8) -> NewWorker {
    NewWorker {
        ip: Ipv4Addr::new(10, 77, 0, 200 + number),
        port: 48700,
        mac: [2, 0, 0, 0, 1, number],
        ifindex: 200 + u32::from(number),
        aggregator_ip: AGGREGATOR,
        aggregator_mac: AGGREGATOR_MAC,
    }
}

/// Returns a dynamic job of one level.
pub fn dynamic_job(world: u8, elements: u16) -> NewJob {
    let dynamic = NewDynamic { slots: SLOTS, hosts: vec![host(0)] };
    NewJob { dynamic: Some(dynamic), ..job_of(world, elements) }
}

/// Returns the job at rack 1 of two.
pub fn rack_job(world: u8, elements: u16) -> NewJob {
    let level = Level::Rack { rack: 1, racks: 2, contributors: u16::from(world) + 1, parent: host(9) };
    let dynamic = NewDynamic { slots: SLOTS, hosts: Vec::new() };
    NewJob { level, dynamic: Some(dynamic), ..job_of(world, elements) }
}

/// Returns the job at the root of as many racks.
pub fn root_job(racks: u8, elements: u16) -> NewJob {
    NewJob { level: Level::Root { contributors: 2 * u16::from(racks) }, ..dynamic_job(racks, elements) }
}

/// Returns the header of `rank`'s contribution to chunk `seq` in `slot`.
pub fn header(job: &NewJob, rank: usize, seq: u32, slot: u32) -> Header {
    let (world, bit) = (job.workers.len() as u8, 1 << rank);
    let below = Header {
        kind: Kind::Contribution as u8,
        job: job.job,
        epoch: job.epoch,
        seq,
        slot,
        elements: job.elements,
        tensor: 7,
        offset: seq.wrapping_mul(256),
        timestamp: 1000 + rank as u32,
        token: job.token,
        ..Header::default()
    };
    match job.level {
        Level::Only => Header { fan_in_0: world, bitmap_0: bit, ..below },
        Level::Rack { rack, racks, .. } => {
            Header { fan_in_0: world, bitmap_0: bit, fan_in_1: racks as u8, bitmap_1: 1 << rack, ..below }
        }
        Level::Root { .. } => Header {
            fan_in_0: 2,
            bitmap_0: 0b11,
            fan_in_1: world,
            bitmap_1: bit,
            flags: flag::LEVEL,
            ..below
        },
    }
}

/// Returns the header of the parameter host's reply to a packet.
pub fn result(request: &Header) -> Header {
    Header { kind: Kind::Result as u8, flags: 0, contributors: 4, ..*request }
}

/// Returns the values of `rank`'s part of a chunk.
pub fn values(header: &Header, rank: usize) -> Vec<i32> {
    (0..usize::from(header.elements)).map(|i| value(rank, header.seq, i)).collect()
}

/// Returns a frame to the aggregator, to the port of the shard of the header's lane.
pub fn frame(job: &NewJob, from: &NewWorker, header: &Header, values: &[i32], dscp_ecn: u8) -> Vec<u8> {
    let shard = header.lane % job.shards;
    let to = Endpoints {
        src_mac: from.mac,
        dst_mac: AGGREGATOR_MAC,
        src_ip: from.ip.to_bits(),
        dst_ip: from.aggregator_ip.to_bits(),
        src_port: 50_000,
        dst_port: DEFAULT_BASE_PORT + shard,
        dscp_ecn,
    };
    let mut bytes = vec![0; OVERHEAD];
    bytes.extend(header.to_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_be_bytes()));
    let len = bytes.len() - OVERHEAD;
    frame::emit(&mut bytes, &to, len, job.checksum).unwrap();
    bytes
}

/// Returns the frame of `rank`, with its own values.
pub fn contribution(job: &NewJob, rank: usize, header: &Header) -> Vec<u8> {
    frame(job, &job.workers[rank], header, &values(header, rank), ECT)
}
