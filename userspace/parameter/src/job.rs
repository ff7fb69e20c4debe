//! A job that is to be summed for, and what is wrong with it.

use std::net::SocketAddrV4;

use sumac_wire::{MAX_ELEMENTS, MAX_LANES, MAX_WORKERS, dynamic::host::MAX_RACKS};
use thiserror::Error;

/// The largest window: two of them are kept of each lane.
pub const MAX_WINDOW: u32 = 1 << 16;
/// Most aggregators that a parameter host hears from: as many as there are racks.
pub const MAX_UPSTREAM: usize = MAX_RACKS;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostJob {
    pub job: u16,
    pub epoch: u16,
    pub token: u64,
    /// Most 32-bit words in a chunk.
    pub elements: u16,
    /// Chunks that a worker may be ahead of its first without a result: a power of two.
    pub window: u32,
    /// Slots of each shard that its chunks may take at its aggregators; zero: there is no aggregator.
    pub slots: u32,
    pub lanes: u16,
    /// UDP ports of the lanes: lane `l` uses that of shard `l % shards`.
    pub shards: u16,
    /// Whether results carry a UDP checksum, where the kernel does not write one anyway.
    pub checksum: bool,
    /// Whether workers yield to congestion; only then results may be marked.
    pub congestion_control: bool,
    pub workers: Vec<Worker>,
    /// The aggregators whose sums arrive here and which results return to; with the port of shard 0.
    pub upstream: Vec<SocketAddrV4>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its address, with its port of shard 0.
    pub address: SocketAddrV4,
    /// Its bit at the second level: its rack's, or its own where it has none. 0 in a job of one level.
    pub rack: u8,
    /// Its bit at the first level.
    pub bit: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HostError {
    #[error("{0} is no job number; they begin with 1")]
    Number(u16),
    #[error("job {0} is here already; remove it first")]
    Taken(u16),
    #[error("job {0} is not here, and cannot be renewed; install it")]
    Unknown(u16),
    #[error("job {job} has {given} workers; a parameter host sums for 1 to {most}")]
    World { job: u16, given: usize, most: usize },
    #[error("worker {rank} of job {job} cannot have bit {bit} of rack {rack}: it is taken, or beyond 31")]
    Place { job: u16, rank: usize, rack: u8, bit: u8 },
    #[error("job {job} is renewed with other places than it has; end it and open another")]
    Places { job: u16 },
    #[error("job {job} has {given} aggregators before its parameter host; there may be {MAX_UPSTREAM}")]
    Upstream { job: u16, given: usize },
    #[error("chunks of {elements} elements in job {job}; choose 1 to {MAX_ELEMENTS}")]
    Elements { job: u16, elements: u16 },
    #[error("a window of {window} chunks in job {job}; choose a power of two up to {MAX_WINDOW}")]
    Window { job: u16, window: u32 },
    #[error(
        "job {job} has {lanes} lanes in {shards} shards; there are up to {MAX_LANES}, as many in each shard"
    )]
    Lanes { job: u16, lanes: u16, shards: u16 },
    #[error(
        "job {job} takes up to {needed} bytes at its parameter host, which has {free} to give; choose a \
        smaller window or smaller chunks, or end another job"
    )]
    Memory { job: u16, needed: u64, free: u64 },
}

impl HostJob {
    /// Refuses what no control plane could have handed out.
    pub(crate) fn check(&self) -> Result<(), HostError> {
        let HostJob { job, elements, window, lanes, shards, .. } = *self;
        if job == 0 {
            return Err(HostError::Number(job));
        }
        if elements == 0 || usize::from(elements) > MAX_ELEMENTS {
            return Err(HostError::Elements { job, elements });
        }
        if !window.is_power_of_two() || window > MAX_WINDOW {
            return Err(HostError::Window { job, window });
        }
        if lanes == 0 || usize::from(lanes) > MAX_LANES || shards == 0 || !lanes.is_multiple_of(shards) {
            return Err(HostError::Lanes { job, lanes, shards });
        }
        if self.upstream.len() > MAX_UPSTREAM {
            return Err(HostError::Upstream { job, given: self.upstream.len() });
        }
        let most = MAX_WORKERS * MAX_RACKS;
        match self.workers.len() {
            given @ 1.. if given <= most => Ok(()),
            given => Err(HostError::World { job, given, most }),
        }
    }

    /// Chunks that are kept of each lane.
    pub(crate) fn kept(&self) -> u32 {
        2 * self.window
    }

    /// Chunks of a lane that have room for every worker's floats at once.
    pub(crate) fn float_chunks(&self) -> usize {
        /// Enough for a window of 8 workers' chunks of 2,048 bytes.
        const BYTES: usize = 16 << 20;
        let chunk = self.workers.len() * usize::from(self.elements) * size_of::<f32>();
        (BYTES / chunk.max(1)).clamp(1, self.window as usize)
    }
}
