//! Jobs for vectors, and frames of their workers and parents.

use std::net::Ipv4Addr;

use sumac_wire::{
    Header, Kind,
    frame::{self, Endpoints, OVERHEAD},
    header::flag,
    stream::place,
};

use crate::record::{FORMAT, Host, Job, Level, Mode, Setup};

/// The UDP port of shard 0.
pub const BASE_PORT: u16 = sumac_wire::DEFAULT_BASE_PORT;
/// The shards of the aggregator.
pub const SHARDS: u16 = 2;
/// Slots of the pool of static jobs.
pub const POOL: u32 = 64;
/// Slots of each shard that dynamic jobs share.
pub const DYNAMIC_POOL: u32 = 32;
/// Of these, those that the jobs here may take.
pub const DYNAMIC_SLOTS: u32 = 16;
/// DSCP and ECN of frames: class selector 1, not ECN-capable.
pub const TOS: u8 = 0x20;
const AGGREGATOR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xff];
/// The aggregator's interface towards the first parent.
const UPLINK: u32 = 8;

/// Returns an aggregator with these jobs.
pub fn setup(name: &str, seed: Option<u64>, jobs: Vec<Job>) -> Setup {
    let name = name.to_owned();
    Setup {
        format: FORMAT,
        name,
        seed,
        base_port: BASE_PORT,
        shards: SHARDS,
        slots: POOL,
        dynamic_slots: DYNAMIC_POOL,
        jobs,
    }
}

fn worker(rank: u8) -> Host {
    let side = 10 + rank;
    Host {
        ip: Ipv4Addr::new(10, 77, side, 2),
        port: 49_000,
        mac: vec![2, 0, 0, 0, 0, rank],
        aggregator_ip: Ipv4Addr::new(10, 77, side, 1),
        aggregator_mac: AGGREGATOR_MAC.to_vec(),
        interface: rank.into(),
    }
}

/// Returns a root, or a parameter host.
pub fn parent(number: u8) -> Host {
    let side = 200 + number;
    Host {
        ip: Ipv4Addr::new(10, 77, side, 1),
        port: BASE_PORT,
        mac: vec![2, 0, 0, 0, 1, number],
        aggregator_ip: Ipv4Addr::new(10, 77, side, 2),
        aggregator_mac: AGGREGATOR_MAC.to_vec(),
        interface: UPLINK + u32::from(number),
    }
}

/// Returns a static job of one level with a lane of 4 slots, whose number also sets its place in the pool.
pub fn static_job(number: u16, world: u8, elements: u16) -> Job {
    let token = 0x5eed_f00d_cafe_1234 + u64::from(number);
    Job {
        job: number,
        epoch: 3,
        token,
        result_token: sumac_job::result_token(token),
        elements,
        slot_base: 8 * u32::from(number - 1),
        slots: 4,
        lane_slots_log2: 2,
        shards: 1,
        contributors: world.into(),
        workers: (0..world).map(worker).collect(),
        ..Job::default()
    }
}

/// Returns a dynamic job of one level with two shards.
pub fn dynamic_job(number: u16, world: u8, elements: u16) -> Job {
    let (slots, parents) = (DYNAMIC_SLOTS, vec![parent(0)]);
    let job = static_job(number, world, elements);
    Job { mode: Mode::Dynamic, slot_base: 0, slots, lane_slots_log2: 0, shards: SHARDS, parents, ..job }
}

/// Returns a job at rack 1 of two.
pub fn at_rack(job: Job) -> Job {
    let contributors = job.contributors + 1;
    // Rank 0 is below the other rack.
    let ranks = (1..contributors).map(|rank| 1 << rank).collect();
    Job { level: Level::Rack, contributors, rack: 1, racks: 2, ranks, parents: vec![parent(3)], ..job }
}

/// Returns a job whose workers are racks of two workers each.
pub fn at_root(job: Job) -> Job {
    let ranks = (0..job.contributors).map(|rack| 0b11 << (2 * rack)).collect();
    Job { level: Level::Root, contributors: 2 * job.contributors, ranks, ..job }
}

/// Returns the header of the contribution of `rank` to chunk `seq`, which takes the place that the chunk's
/// number gives it.
pub fn header(job: &Job, rank: usize, seq: u32) -> Header {
    let (world, bit) = (job.workers.len() as u8, 1 << rank);
    let (slot, flags) = match job.mode {
        Mode::Static => {
            let place = place(seq, job.lane_slots_log2.into());
            (place.slot, if place.version == 1 { flag::POOL_VERSION } else { 0 })
        }
        Mode::Dynamic => (seq % job.slots, 0),
    };
    let below = Header {
        kind: Kind::Contribution as u8,
        flags,
        job: job.job,
        epoch: job.epoch,
        seq,
        slot,
        elements: job.elements,
        tensor: 7,
        offset: seq.wrapping_mul(job.elements.into()),
        timestamp: 1000 + rank as u32,
        token: job.token,
        received: seq,
        ..Header::default()
    };
    match job.level {
        Level::Root => Header {
            flags: below.flags | flag::LEVEL,
            fan_in_0: 2,
            bitmap_0: 0b11,
            fan_in_1: world,
            bitmap_1: bit,
            ..below
        },
        // A dynamic job's packets name their rack from the start.
        Level::Rack if job.mode == Mode::Dynamic => Header {
            fan_in_0: world,
            bitmap_0: bit,
            fan_in_1: job.racks as u8,
            bitmap_1: 1 << job.rack,
            ..below
        },
        Level::Only | Level::Rack => Header { fan_in_0: world, bitmap_0: bit, ..below },
    }
}

/// Returns the header of the parent's result for a chunk of a rack.
pub fn from_parent(job: &Job, rank: usize, seq: u32) -> Header {
    let below = header(job, rank, seq);
    Header {
        kind: Kind::Result as u8,
        flags: below.flags | flag::LEVEL,
        token: job.result_token,
        fan_in_1: job.racks as u8,
        bitmap_1: sumac_wire::workers::all_workers(job.racks),
        contributors: job.contributors,
        next_seq: seq.wrapping_add(2 << job.lane_slots_log2),
        ..below
    }
}

/// Returns a whole frame to the port of `shard`.
pub fn frame(job: &Job, from: &Host, header: &Header, values: &[i32], shard: u16, dscp_ecn: u8) -> Vec<u8> {
    let entry = from.entry(0);
    let to = Endpoints {
        src_mac: entry.mac,
        dst_mac: entry.aggregator_mac,
        src_ip: entry.ip,
        dst_ip: entry.aggregator_ip,
        src_port: 50_000 + header.timestamp as u16 % 64,
        dst_port: BASE_PORT + shard,
        dscp_ecn,
    };
    let mut bytes = vec![0; OVERHEAD];
    bytes.extend(header.to_bytes());
    bytes.extend(values.iter().take(header.elements.into()).flat_map(|value| value.to_be_bytes()));
    let len = bytes.len() - OVERHEAD;
    // The buffer has the length that is asked for, and a payload that IPv4 can carry.
    let written = frame::emit(&mut bytes, &to, len, job.checksum);
    debug_assert_eq!(written, Some(bytes.len()));
    bytes
}
