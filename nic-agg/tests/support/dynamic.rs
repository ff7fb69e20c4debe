//! Dynamic jobs and their frames.

use std::net::Ipv4Addr;

use sumac_agg_job::NewJob;
use sumac_wire::{
    DEFAULT_BASE_PORT, Header, Kind,
    frame::{self, Endpoints, OVERHEAD},
    header::flag,
    tables::{JobEntry, WorkerEntry, job_flag},
};

use super::{AGGREGATOR, AGGREGATOR_MAC, frames::value, job_of, result_token, with_entry};

/// DSCP and ECN of frames that routers may mark.
pub const ECT: u8 = 0x2a;
/// Slots of each shard that the jobs here may take.
pub const SLOTS: u32 = 16;

/// Returns a parameter host, or a root.
pub fn host(number: u8) -> WorkerEntry {
    WorkerEntry {
        ip: Ipv4Addr::new(10, 77, 0, 200 + number).to_bits(),
        port: 48700,
        mac: [2, 0, 0, 0, 1, number],
        ifindex: 200 + u32::from(number),
        aggregator_ip: AGGREGATOR.to_bits(),
        aggregator_mac: AGGREGATOR_MAC,
        ..WorkerEntry::default()
    }
}

/// Returns a dynamic job of one level.
pub fn dynamic_job(world: u8, elements: u16) -> NewJob {
    let dynamic = |entry: JobEntry| {
        let flags = entry.flags | job_flag::DYNAMIC;
        JobEntry { flags, slot_base: 0, slots: SLOTS, lane_slots_log2: 0, ..entry }
    };
    NewJob { parents: vec![host(0)], ..with_entry(job_of(world, elements), dynamic) }
}

/// Returns the job at rack 1 of two.
pub fn rack_job(world: u8, elements: u16) -> NewJob {
    let below = |entry: JobEntry| {
        let (flags, contributors) = (entry.flags | job_flag::CHILD, u16::from(world) + 1);
        JobEntry { flags, contributors, rack: 1, racks: 2, ..entry }
    };
    NewJob { parents: vec![host(9)], ..with_entry(dynamic_job(world, elements), below) }
}

/// Returns the job at the root of as many racks.
pub fn root_job(racks: u8, elements: u16) -> NewJob {
    with_entry(dynamic_job(racks, elements), |entry| {
        let flags = entry.flags | job_flag::ROOT;
        JobEntry { flags, contributors: 2 * u16::from(racks), ..entry }
    })
}

/// Returns the header of `rank`'s contribution to chunk `seq` in `slot`.
pub fn header(job: &NewJob, rank: usize, seq: u32, slot: u32) -> Header {
    let (world, bit) = (job.workers.len() as u8, 1 << rank);
    let below = Header {
        kind: Kind::Contribution as u8,
        job: job.job,
        epoch: job.entry.epoch,
        seq,
        slot,
        elements: job.entry.elements,
        tensor: 7,
        offset: seq.wrapping_mul(256),
        timestamp: 1000 + rank as u32,
        token: job.entry.token,
        ..Header::default()
    };
    let JobEntry { flags, rack, racks, .. } = job.entry;
    match flags & (job_flag::ROOT | job_flag::CHILD) {
        0 => Header { fan_in_0: world, bitmap_0: bit, ..below },
        job_flag::CHILD => {
            Header { fan_in_0: world, bitmap_0: bit, fan_in_1: racks as u8, bitmap_1: 1 << rack, ..below }
        }
        _ => Header {
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
    Header { kind: Kind::Result as u8, token: result_token(), flags: 0, contributors: 4, ..*request }
}

/// Returns the values of `rank`'s part of a chunk.
pub fn values(header: &Header, rank: usize) -> Vec<i32> {
    (0..usize::from(header.elements)).map(|i| value(rank, header.seq, i)).collect()
}

/// Returns a frame to the aggregator, to the port of the shard of the header's lane.
pub fn frame(job: &NewJob, from: &WorkerEntry, header: &Header, values: &[i32], dscp_ecn: u8) -> Vec<u8> {
    let shard = header.lane % job.entry.shards;
    let to = Endpoints {
        src_mac: from.mac,
        dst_mac: AGGREGATOR_MAC,
        src_ip: from.ip,
        dst_ip: from.aggregator_ip,
        src_port: 50_000,
        dst_port: DEFAULT_BASE_PORT + shard,
        dscp_ecn,
    };
    let mut bytes = vec![0; OVERHEAD];
    bytes.extend(header.to_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_be_bytes()));
    let len = bytes.len() - OVERHEAD;
    frame::emit(&mut bytes, &to, len, job.entry.flags & job_flag::CHECKSUM != 0).unwrap();
    bytes
}

/// Returns the frame of `rank`, with its own values.
pub fn contribution(job: &NewJob, rank: usize, header: &Header) -> Vec<u8> {
    frame(job, &job.workers[rank], header, &values(header, rank), ECT)
}
