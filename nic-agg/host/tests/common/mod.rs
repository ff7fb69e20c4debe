//! Packets as workers make them, and an aggregator with one job.

pub mod shared;
pub mod summed;

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_agg_host::HostAggregator;
use sumac_agg_job::NewJob;
use sumac_wire::{
    Header, Kind,
    header::{HEADER_LEN, flag},
    stream::place,
    tables::JobEntry,
};

pub const JOB: u16 = 5;
pub const EPOCH: u16 = 3;
pub const TOKEN: u64 = 0xfeed_beef_0bad_cafe;

/// The token in its results.
pub fn result_token() -> u64 {
    sumac_job::result_token(TOKEN)
}
pub const SLOTS_LOG2: u32 = 2;
pub const SLOTS: u32 = 1 << SLOTS_LOG2;
pub const ELEMENTS: u16 = 64;

pub fn entry() -> JobEntry {
    JobEntry {
        token: TOKEN,
        slot_base: 8,
        slots: SLOTS,
        lane_slots_log2: SLOTS_LOG2 as u16,
        shards: 1,
        epoch: EPOCH,
        elements: ELEMENTS,
        ..JobEntry::default()
    }
}

pub fn worker_ip(rank: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, rank as u8, 2)
}

pub fn worker(rank: u16) -> SocketAddrV4 {
    SocketAddrV4::new(worker_ip(rank), 50_000 + rank)
}

/// A job of one level, with `world` workers.
pub fn job(entry: JobEntry, world: u16) -> NewJob {
    NewJob::at(JOB, entry, (0..world).map(worker), [])
}

/// An aggregator whose slots 8 to 11 are the job's.
pub fn aggregator(world: u16) -> HostAggregator {
    let mut aggregator = HostAggregator::new(16, 360).unwrap();
    let entry = JobEntry { contributors: world, ..entry() };
    aggregator.install(&job(entry, world)).unwrap();
    aggregator
}

/// A contribution's header, for chunk `seq`.
pub fn header(world: u16, rank: u16, seq: u32, elements: u16) -> Header {
    let place = place(seq, SLOTS_LOG2);
    Header {
        kind: Kind::Contribution as u8,
        flags: if place.version == 1 { flag::POOL_VERSION } else { 0 },
        job: JOB,
        epoch: EPOCH,
        seq,
        received: seq,
        slot: place.slot,
        fan_in_0: world as u8,
        elements,
        bitmap_0: 1 << rank,
        tensor: 9,
        offset: seq.wrapping_mul(u32::from(ELEMENTS)),
        timestamp: 1000 + u32::from(rank),
        token: TOKEN,
        ..Header::default()
    }
}

pub fn packet(header: &Header, values: &[i32]) -> Vec<u8> {
    let mut packet = header.to_bytes().to_vec();
    packet.extend(values.iter().flat_map(|value| value.to_be_bytes()));
    packet
}

/// Returns the values of worker `rank` for chunk `seq`.
pub fn values(rank: u16, seq: u32, elements: u16) -> Vec<i32> {
    let mix = |i: u32| {
        (seq.wrapping_mul(0x9e37_79b9) ^ i.wrapping_mul(0x85eb_ca6b) ^ u32::from(rank))
            .wrapping_mul(0xc2b2_ae35)
    };
    (0..u32::from(elements)).map(|i| mix(i) as i32).collect()
}

pub fn contribution(world: u16, rank: u16, seq: u32) -> Vec<u8> {
    packet(&header(world, rank, seq, ELEMENTS), &values(rank, seq, ELEMENTS))
}

/// The sum of all workers' values, made in another way: in 64 bits, then cut.
pub fn reference(world: u16, seq: u32, elements: u16) -> Vec<i32> {
    let all: Vec<Vec<i32>> = (0..world).map(|rank| values(rank, seq, elements)).collect();
    (0..usize::from(elements)).map(|i| all.iter().map(|v| i64::from(v[i])).sum::<i64>() as i32).collect()
}

pub fn elements(packet: &[u8]) -> Vec<i32> {
    packet[HEADER_LEN..].chunks(4).map(|bytes| i32::from_be_bytes(bytes.try_into().unwrap())).collect()
}

pub fn read(packet: &[u8]) -> Header {
    Header::read(packet, 0, packet.len()).unwrap()
}
