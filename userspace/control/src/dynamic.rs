//! Jobs whose slots are shared and whose sums are completed at parameter hosts (ATP, NSDI 2021): what their workers ask
//! for and get, and what planes and parameter hosts are told of them.

use std::net::SocketAddrV4;

/// How many chunks of a lane may be ahead of the first without a result, unless workers ask for another number.
pub const DEFAULT_WINDOW: u32 = 256;

/// How a job's chunks find slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A range of the pool is the job's own (SwitchML).
    #[default]
    Static,
    /// Chunks share slots with those of other jobs, first come, first served; parameter hosts add what finds none (ATP).
    Dynamic(DynamicWishes),
}

/// What a worker asks of a dynamic job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicWishes {
    /// How many chunks of a lane may be ahead of the first without a result, a power of two; `None`: [`DEFAULT_WINDOW`].
    pub window: Option<u32>,
    /// Slots of each shard that the job's chunks may take; `None`: all that every aggregator shares out.
    pub slots: Option<u32>,
    /// Parameter hosts, 1 to 4; `None`: as many as there are and as there are shards.
    pub hosts: Option<u16>,
    /// Whether chunks take slots in their order, and keep to them when those are taken (ATP figure 14 compares this).
    pub linear: bool,
    /// Whether workers adapt to the network's load.
    pub congestion: bool,
}

impl Default for DynamicWishes {
    fn default() -> DynamicWishes {
        DynamicWishes { window: None, slots: None, hosts: None, linear: false, congestion: true }
    }
}

/// What a worker of a dynamic job got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicTerms {
    /// Slots of each shard that the job's chunks may take, at every aggregator; 0: there is no aggregator.
    pub slots: u32,
    /// How many chunks of a lane may be ahead of the first without a result, a power of two.
    pub window: u32,
    /// Where parameter hosts take contributions of shard 0. Shard s is that of `hosts[s % hosts.len()]`.
    pub hosts: Vec<SocketAddrV4>,
    /// Whether chunks take slots in their order.
    pub linear: bool,
    /// Whether workers adapt to the network's load.
    pub congestion: bool,
    /// How many racks, and workers beside them, are below the root; 0 where there is one level.
    pub fan_in_1: u8,
    /// The bit of the worker's rack, or its own when it is beside the racks; 0 where there is one level.
    pub bitmap_1: u32,
    /// Whether the worker's aggregator is the root of two levels.
    pub beside_root: bool,
    /// Of each lane the first chunk that was not summed when a worker was replaced; empty when none was.
    pub resume: Vec<u32>,
}

/// What a plane is told of a dynamic job beside what it is told of any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicInstall {
    /// Slots of each shard that the job's chunks may take, counted from the first that is shared; 0: no aggregator.
    pub slots: u32,
    /// How many chunks of a lane may be ahead of the first without a result, a power of two.
    pub window: u32,
    /// Whether chunks take slots in their order.
    pub linear: bool,
    /// The job's parameter hosts, with their ports for shard 0. Shard s is that of `hosts[s % hosts.len()]`.
    pub hosts: Vec<SocketAddrV4>,
    /// How many racks, and workers beside them, are below the root; 0 where there is one level.
    pub fan_in_1: u8,
    /// For a parameter host: the workers' bits, by rank. Empty for aggregators.
    pub places: Vec<Place>,
    /// For a parameter host: the aggregators that it hears from and answers, with their ports for shard 0; none where
    /// workers send to it. Empty for aggregators.
    pub upstream: Vec<SocketAddrV4>,
}

/// A worker's bits in contributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its bit at the second level: its rack's, or its own when it is beside the racks; 0 where there is one level.
    pub rack: u8,
    /// Its bit at the first level.
    pub bit: u8,
}
