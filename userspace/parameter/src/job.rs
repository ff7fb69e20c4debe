//! A job that is to be summed for, and what is wrong with it.

use std::net::SocketAddrV4;

use sumac_wire::{MAX_ELEMENTS, MAX_LANES, MAX_WORKERS, dynamic::host::MAX_RACKS};
use thiserror::Error;

/// The largest window: two of them are kept of each lane.
pub const MAX_WINDOW: u32 = 1 << 16;
/// Most aggregators that a parameter host hears from: as many as there are racks.
pub const MAX_UPSTREAM: usize = MAX_RACKS;

/// A job as its parameter host must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostJob {
    /// Its number, from 1.
    pub job: u16,
    /// Its incarnation; packets of another one are dropped.
    pub epoch: u16,
    /// Its secret number.
    pub token: u64,
    /// Most 32-bit words in a chunk.
    pub elements: u16,
    /// Chunks that a worker may be ahead of its first without a result: a power of two.
    pub window: u32,
    /// Slots of each shard that its chunks may take at its aggregators; zero: there is no aggregator.
    pub slots: u32,
    /// Whether chunks keep the slot that they begin with, busy or not.
    pub linear: bool,
    /// Lanes of the job.
    pub lanes: u16,
    /// UDP ports that they are spread over: lane `l` uses those of shard `l % shards`.
    pub shards: u16,
    /// Whether results carry a UDP checksum, where the kernel does not write one anyway.
    pub checksum: bool,
    /// All workers, by rank.
    pub workers: Vec<Worker>,
    /// The aggregators whose sums come here, which results go back to; with the port of shard 0.
    pub upstream: Vec<SocketAddrV4>,
}

/// A worker of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its address, with its port of shard 0.
    pub address: SocketAddrV4,
    /// Its bit at the second level: its rack's, or its own where it has none. 0 in a job of one level.
    pub rack: u8,
    /// Its bit at the first level.
    pub bit: u8,
}

/// The reason that a job is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HostError {
    /// The number.
    #[error("{0} is no job number; they begin with 1")]
    Number(u16),
    /// There is such a job already.
    #[error("job {0} is here already; remove it first")]
    Taken(u16),
    /// There is no such job.
    #[error("job {0} is not here, and cannot be renewed; install it")]
    Unknown(u16),
    /// Not 1 to 1,024 workers.
    #[error("job {job} has {given} workers; a parameter host sums for 1 to {most}")]
    World {
        /// The job.
        job: u16,
        /// The number.
        given: usize,
        /// The maximum.
        most: usize,
    },
    /// Two workers share a place, or one is beyond the bitmaps.
    #[error("worker {rank} of job {job} cannot have bit {bit} of rack {rack}: it is taken, or beyond 31")]
    Place {
        /// The job.
        job: u16,
        /// The worker.
        rank: usize,
        /// Its rack.
        rack: u8,
        /// Its bit.
        bit: u8,
    },
    /// Other workers than before, in number or place.
    #[error("job {job} is renewed with other places than it has; end it and open another")]
    Places {
        /// The job.
        job: u16,
    },
    /// Too many aggregators.
    #[error("job {job} has {given} aggregators before its parameter host; there may be {MAX_UPSTREAM}")]
    Upstream {
        /// The job.
        job: u16,
        /// The number.
        given: usize,
    },
    /// A chunk without elements, or longer than a packet.
    #[error("chunks of {elements} elements in job {job}; choose 1 to {MAX_ELEMENTS}")]
    Elements {
        /// The job.
        job: u16,
        /// The elements.
        elements: u16,
    },
    /// The window.
    #[error("a window of {window} chunks in job {job}; choose a power of two up to {MAX_WINDOW}")]
    Window {
        /// The job.
        job: u16,
        /// The window.
        window: u32,
    },
    /// The lanes.
    #[error(
        "job {job} has {lanes} lanes in {shards} shards; there are up to {MAX_LANES}, as many in each shard"
    )]
    Lanes {
        /// The job.
        job: u16,
        /// The lanes.
        lanes: u16,
        /// The shards.
        shards: u16,
    },
    /// The chunks of all jobs would not fit.
    #[error(
        "job {job} takes up to {needed} bytes at its parameter host, which has {free} to give; choose a smaller window or smaller chunks, or end another job"
    )]
    Memory {
        /// The job.
        job: u16,
        /// Bytes that its chunks can take.
        needed: u64,
        /// Bytes that other jobs leave.
        free: u64,
    },
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
