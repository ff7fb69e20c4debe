//! Reasons for which a job is not added or changed.

use std::net::Ipv4Addr;

use sumac_agg_job::JobError;
use sumac_wire::{MAX_WORKERS, PAGE_ELEMENTS};
use thiserror::Error;

use crate::tables::{OpenError, TableError};

#[derive(Debug, Error)]
pub enum AddJobError {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("two workers have the address {ip}: it identifies a worker's contributions")]
    SameAddress { ip: Ipv4Addr },
    #[error("no {slots} free slots in a row in the pool of {pool}: remove jobs, or attach with more --slots")]
    PoolFull { slots: u32, pool: u32 },
    #[error(
        "chunks of {elements} elements: the kernel does not copy results of more than {PAGE_ELEMENTS} to \
        several interfaces; ask for shorter chunks, or put all workers behind one"
    )]
    Copies { elements: u16 },
    #[error("chunks of {elements} elements need an MTU of {needed}, but {interface} has {mtu}")]
    Mtu { elements: u16, needed: u32, interface: String, mtu: u32 },
    #[error(
        "rank {rank} ({ip}) is behind interface {ifindex}, where the aggregator is not attached; \
         attach it there: sumac-agg attach IFACE"
    )]
    NoPort { rank: usize, ip: Ipv4Addr, ifindex: u32 },
    #[error(
        "the root or parameter host {ip} is behind interface {ifindex}, where the aggregator is not attached \
        and would not receive its results; attach it there too: sumac-agg attach IFACE... UPLINK"
    )]
    NoUplink { ip: Ipv4Addr, ifindex: u32 },
    #[error("job {job} keeps its slots: rank {rank} has contributed already")]
    Held { job: u16, rank: u16 },
    #[error(
        "{world} workers, with {shared} interfaces that several share and {own} of a single one: workers and \
        shared interfaces together must be at most {MAX_WORKERS}; divide the job into racks, or give workers \
        interfaces of their own"
    )]
    Mixed { world: usize, shared: usize, own: usize },
    #[error(
        "{group}: every worker has an interface of its own, and receives its results there; give no group"
    )]
    NoneShared { group: Ipv4Addr },
    #[error(
        "ranks {ranks:?} are behind the same interface and receive their results by one multicast group: \
        they must have the same UDP port (over UDP sockets: their `base_port`), and the same address \
        of the aggregator on their side"
    )]
    GroupPorts { ranks: [usize; 2] },
    #[error("{group} is no multicast address (224.0.0.0 to 239.255.255.255)")]
    Group { group: Ipv4Addr },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Table(#[from] TableError),
}
