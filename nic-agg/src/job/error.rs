//! Why a job is not added or changed.

use std::net::Ipv4Addr;

use sumac_wire::{MAX_HOSTS, MAX_JOBS, MAX_LANES, MAX_WORKERS, PAGE_ELEMENTS};
use thiserror::Error;

use crate::tables::TableError;

/// Why a job was not added.
#[derive(Debug, Error)]
pub enum JobError {
    /// A number outside of the table.
    #[error("job number {job}: must be 1 to {}", MAX_JOBS - 1)]
    Number {
        /// The number asked for.
        job: u16,
    },
    /// The number is in use.
    #[error("job {job} is there already (epoch {epoch}); remove it first")]
    Taken {
        /// The number.
        job: u16,
        /// The epoch of the job that is there.
        epoch: u16,
    },
    /// Its slots may remember that epoch's chunks.
    #[error("job {job} had epoch {epoch} before, and slots remember it; take a later one")]
    EpochUsed {
        /// The number.
        job: u16,
        /// The epoch asked for.
        epoch: u16,
    },
    /// Too few or too many workers.
    #[error("a job of {world} workers: must be 1 to {MAX_WORKERS}")]
    World {
        /// How many were given.
        world: usize,
    },
    /// One address, two workers.
    #[error("two workers have the address {ip}: contributions tell workers apart by it")]
    SameAddress {
        /// The address.
        ip: Ipv4Addr,
    },
    /// Not a power of two.
    #[error("{lane_slots} slots in a lane: must be a power of two")]
    Slots {
        /// How many were asked for.
        lane_slots: u32,
    },
    /// Slots, lanes and shards that do not go together.
    #[error(
        "{slots} slots in lanes of {lane_slots} over {shards} shards: must be 1 to {MAX_LANES} lanes, as many in each \
         shard, and this aggregator has {ports} shards (see attach --shards)"
    )]
    Lanes {
        /// Slots of all lanes.
        slots: u32,
        /// Slots of one.
        lane_slots: u32,
        /// Shards asked for.
        shards: u16,
        /// Shards that there are.
        ports: u16,
    },
    /// More slots for dynamic jobs than there are.
    #[error(
        "{slots} slots of each shard for a dynamic job: this aggregator shares out {pool} (see attach --dynamic-slots)"
    )]
    DynamicSlots {
        /// How many were asked for.
        slots: u32,
        /// How many there are.
        pool: u32,
    },
    /// More shards than ports.
    #[error("{shards} shards: this aggregator has {ports} (see attach --shards)")]
    Shards {
        /// How many were asked for.
        shards: u16,
        /// How many there are.
        ports: u16,
    },
    /// A dynamic job without parameter hosts, or with too many.
    #[error("{hosts} parameter hosts: a dynamic job has 1 to {MAX_HOSTS}")]
    Hosts {
        /// How many were given.
        hosts: usize,
    },
    /// A rack that its root does not have.
    #[error("rack {rack} of {racks}: a root has 1 to {MAX_WORKERS} racks, counted from 0")]
    Rack {
        /// Its number.
        rack: u16,
        /// How many there are.
        racks: u16,
    },
    /// No place in the pool.
    #[error("no {slots} free slots in a row in the pool of {pool}: remove jobs, or attach with more --slots")]
    PoolFull {
        /// How many were asked for.
        slots: u32,
        /// How many there are.
        pool: u32,
    },
    /// Chunks that do not fit.
    #[error("chunks of {elements} elements: this aggregator takes 1 to {max} (see attach --elements)")]
    Elements {
        /// How many were asked for.
        elements: u16,
        /// How many are possible.
        max: u16,
    },
    /// Results that the kernel cannot copy.
    #[error(
        "chunks of {elements} elements: the kernel does not copy results of more than {PAGE_ELEMENTS} to several \
         ports; ask for shorter chunks, or put all workers behind one port"
    )]
    Copies {
        /// How many were asked for.
        elements: u16,
    },
    /// Frames that do not fit through a port.
    #[error("chunks of {elements} elements need an MTU of {needed}, but {interface} has {mtu}")]
    Mtu {
        /// How many were asked for.
        elements: u16,
        /// Bytes of an IPv4 packet with them.
        needed: u32,
        /// The port.
        interface: String,
        /// Its MTU.
        mtu: u32,
    },
    /// The worker is not behind a port of the aggregator.
    #[error(
        "rank {rank} ({ip}) is behind interface {ifindex}, where the aggregator is not attached; \
         attach it there: sumac-agg attach IFACE"
    )]
    NoPort {
        /// The worker.
        rank: usize,
        /// Its address.
        ip: Ipv4Addr,
        /// The interface.
        ifindex: u32,
    },
    /// The way to the root or to a parameter host leads past the aggregator.
    #[error(
        "the root or parameter host {ip} is behind interface {ifindex}, where the aggregator is not attached and would not see its \
         results; attach it there too: sumac-agg attach IFACE... UPLINK"
    )]
    NoUplink {
        /// Its address.
        ip: Ipv4Addr,
        /// The interface.
        ifindex: u32,
    },
    /// A job that is not there, or has not as many slots.
    #[error("job {job} cannot be left {lane_slots} slots in each lane: it is not there, or has not as many")]
    Resize {
        /// Its number.
        job: u16,
        /// How many it was to have.
        lane_slots: u32,
    },
    /// Slots that hold something.
    #[error("job {job} keeps its slots: rank {rank} has contributed already")]
    Held {
        /// Its number.
        job: u16,
        /// The worker.
        rank: u16,
    },
    /// More ways to workers than the programs' table has room for.
    #[error(
        "{world} workers, with {shared} ports that several of them share and {own} that one has for itself: workers and \
         shared ports together must be no more than {MAX_WORKERS}; part the job in racks, or give workers ports of their own"
    )]
    Mixed {
        /// Workers.
        world: usize,
        /// Ports that several share.
        shared: usize,
        /// Ports with one worker.
        own: usize,
    },
    /// Nobody to reach by it.
    #[error("{group}: every worker has a port of its own, and gets its results there; give no group")]
    NoneShared {
        /// The group given.
        group: Ipv4Addr,
    },
    /// Multicast to different ports or from different addresses.
    #[error(
        "ranks {ranks:?} are behind the same port and get their results by one multicast group: they must have the same \
         UDP port, and the same address of the aggregator on their side"
    )]
    GroupPorts {
        /// Two that have not.
        ranks: [usize; 2],
    },
    /// Not a group.
    #[error("{group} is no multicast address (224.0.0.0 to 239.255.255.255)")]
    Group {
        /// The address given.
        group: Ipv4Addr,
    },
    /// The maps.
    #[error(transparent)]
    Table(#[from] TableError),
}
