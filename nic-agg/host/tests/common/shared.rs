//! Packets of a job that shares slots, and an aggregator with one.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_agg_host::HostAggregator;
use sumac_agg_job::NewJob;
use sumac_wire::{
    Header, Kind,
    tables::{JobEntry, job_flag},
};

use super::{ELEMENTS, EPOCH, JOB, TOKEN, result_token, worker};

/// Slots that are shared.
pub const SLOTS: u32 = 8;
/// The job's parameter host.
pub const HOST: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 78, 0, 1), 48_500);

pub fn entry() -> JobEntry {
    JobEntry {
        token: TOKEN,
        slots: SLOTS,
        epoch: EPOCH,
        elements: ELEMENTS,
        shards: 1,
        flags: job_flag::DYNAMIC,
        ..JobEntry::default()
    }
}

pub fn job(world: u16, hosts: &[SocketAddrV4]) -> NewJob {
    let entry = JobEntry { contributors: world, ..entry() };
    NewJob::at(JOB, entry, (0..world).map(worker), hosts.iter().copied())
}

/// An aggregator with [`SLOTS`] shared slots, and beside the dynamic job place for a static one.
pub fn aggregator(world: u16) -> HostAggregator {
    let mut aggregator = empty();
    aggregator.install(&job(world, &[HOST])).unwrap();
    aggregator
}

/// One without jobs.
pub fn empty() -> HostAggregator {
    HostAggregator::new(16, 360).unwrap().with_dynamic(SLOTS).unwrap()
}

/// A contribution's header, for chunk `seq` in lane 0, in the slot that comes by its number.
pub fn header(world: u16, rank: u16, seq: u32, elements: u16) -> Header {
    Header {
        kind: Kind::Contribution as u8,
        job: JOB,
        epoch: EPOCH,
        seq,
        slot: seq % SLOTS,
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

/// The same of a full chunk.
pub fn contribution(world: u16, rank: u16, seq: u32) -> Header {
    header(world, rank, seq, ELEMENTS)
}

/// The parameter host's result that answers a packet.
pub fn result(request: &Header) -> Header {
    Header { kind: Kind::Result as u8, token: result_token(), flags: 0, bitmap_0: 0, bitmap_1: 0, ..*request }
}

/// Returns the values of worker `rank` for chunk `seq`: small enough for a sum of 32 workers.
pub fn values(rank: u16, seq: u32, elements: u16) -> Vec<i32> {
    super::values(rank, seq, elements).into_iter().map(|value| value >> 8).collect()
}

/// The sum of the first `world` workers' values.
pub fn reference(world: u16, seq: u32, elements: u16) -> Vec<i32> {
    let all: Vec<Vec<i32>> = (0..world).map(|rank| values(rank, seq, elements)).collect();
    (0..usize::from(elements)).map(|i| all.iter().map(|values| values[i]).sum()).collect()
}
