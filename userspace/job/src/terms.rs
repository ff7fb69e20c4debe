//! The parameters that the coordinator granted.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sumac_wire::CLASSES;

use crate::{Mode, NonFinitePolicy, OperationOrder, Scale, Topology, WireFormat};

/// The default of [`JobTerms::longest_outage_s`]: a link that a NIC negotiates anew is back by then.
pub const LONGEST_OUTAGE_S: u16 = 10;

fn one() -> u16 {
    1
}

fn default_outage_s() -> u16 {
    LONGEST_OUTAGE_S
}

/// The parameters of a job as the coordinator granted them, the same for all of its workers, aggregators and
/// parameter hosts. [`Placement`] has each worker's own part.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct JobTerms {
    /// The job's number, from 1.
    pub job: u16,
    /// The job's incarnation; packets of another one are dropped.
    pub epoch: u16,
    /// The secret number in all of the job's packets.
    pub token: u64,
    /// The number of the job's workers.
    pub world: u16,
    /// Ranks of each worker: consecutive ones, on one host.
    #[serde(default = "one")]
    pub local_world: u16,
    /// Use of the aggregators' slots.
    pub mode: Mode,
    /// 32-bit words in a chunk.
    pub elements: u16,
    /// Shards, each on a UDP port of its own; lane `l` belongs to shard `l % shards`.
    pub shards: u16,
    /// Static mode: slots of each lane, a power of two; while `is_measured` is false the most that it can
    /// become. Dynamic mode: shared slots of each shard that the job's chunks may take, 0 without an
    /// aggregator.
    pub slots: u32,
    /// The reason for the number of slots, for people; empty while `is_measured` is false.
    pub slots_reason: String,
    /// Whether `slots` is final; false while the workers measure their paths.
    pub is_measured: bool,
    /// Whether all workers use UDP sockets, also those that have AF_XDP. While `is_measured` is false: to
    /// measure them too.
    #[serde(default)]
    pub over_udp: bool,
    /// Whether packets carry UDP checksums.
    pub checksum: bool,
    /// Dynamic mode: whether each worker's values leave room for the sum of all, since an aggregator of the
    /// job does not mark the sums that it clamps.
    #[serde(default)]
    pub headroom: bool,
    /// Static mode: whether every sum holds all workers, since an aggregator of the job leaves none out. Such
    /// an aggregator takes no contributions without values either.
    #[serde(default)]
    pub whole: bool,
    /// The factor for floats.
    pub scale: Scale,
    /// The format of floats in packets.
    pub wire: WireFormat,
    /// Treatment of NaN and infinity.
    pub not_finite: NonFinitePolicy,
    /// The longest outage of a worker's network that the job survives, in seconds.
    #[serde(default = "default_outage_s")]
    pub longest_outage_s: u16,
    /// The rule by which the workers' operations are matched.
    pub order: OperationOrder,
    /// Dynamic mode: chunks of a lane that may be ahead of the first without a result, a power of two. Direct
    /// mode: packets in flight to one worker. Else 0.
    pub window: u32,
    /// Static and dynamic mode: whether workers yield to congestion.
    pub congestion_control: bool,
    /// Dynamic mode: the parameter hosts' addresses, with their ports for shard 0. Shard `s` is that of
    /// `parameter_hosts[s % parameter_hosts.len()]`.
    pub parameter_hosts: Vec<SocketAddrV4>,
    /// Direct mode: the workers' addresses by rank, with their ports for shard 0.
    pub workers: Vec<SocketAddrV4>,
    /// Direct mode: the way of the values.
    pub topology: Topology,
    /// Direct mode: workers that own blocks, from rank 0 on.
    pub owners: u16,
    /// Direct mode: ranks that are parameter servers, from rank 0 on: they own all blocks, and contribute
    /// nothing.
    #[serde(default)]
    pub servers: u16,
    /// The number of racks, and workers beside them, below the root; 0 where there is one level.
    pub fan_in_1: u8,
    /// Of each lane the first chunk that was not summed when a worker was replaced; empty when none was.
    pub resume: Vec<u32>,
}

impl JobTerms {
    /// A static job of one shard without slots, with the defaults for all else.
    #[must_use]
    pub fn new(job: u16, epoch: u16, token: u64, world: u16) -> JobTerms {
        JobTerms {
            job,
            epoch,
            token,
            world,
            local_world: 1,
            mode: Mode::Static,
            elements: 0,
            shards: 1,
            slots: 0,
            slots_reason: String::new(),
            is_measured: true,
            over_udp: false,
            checksum: true,
            headroom: false,
            whole: false,
            scale: Scale::Block,
            wire: WireFormat::Int32,
            not_finite: NonFinitePolicy::Error,
            longest_outage_s: LONGEST_OUTAGE_S,
            order: OperationOrder::Submission,
            window: 0,
            congestion_control: false,
            parameter_hosts: Vec::new(),
            workers: Vec::new(),
            topology: Topology::Owners,
            owners: 0,
            servers: 0,
            fan_in_1: 0,
            resume: Vec::new(),
        }
    }

    /// Returns the number of the job's ranks.
    #[must_use]
    pub const fn ranks(&self) -> u16 {
        self.world.saturating_mul(self.local_world)
    }

    /// Returns the worker that a rank belongs to.
    #[must_use]
    pub fn worker_of(&self, rank: u16) -> u16 {
        rank / self.local_world.max(1)
    }

    /// Returns the workers that contribute to reductions: all but the servers of a direct job.
    #[must_use]
    pub const fn contributors(&self) -> Range<u16> {
        self.servers..self.world
    }

    /// Returns the number of equal blocks of a tensor: one for each server, or else for each rank.
    #[must_use]
    pub const fn blocks(&self) -> u16 {
        if self.servers > 0 { self.servers } else { self.ranks() }
    }

    /// Returns the longest outage of a worker's network that the job survives.
    #[must_use]
    pub const fn longest_outage(&self) -> Duration {
        Duration::from_secs(self.longest_outage_s as u64)
    }

    /// Returns the number of the job's lanes: one for each class and shard.
    #[must_use]
    pub const fn lanes(&self) -> u16 {
        CLASSES * self.shards
    }

    /// Whether jobs share slots, and parameter hosts sum the rest.
    #[must_use]
    pub fn is_dynamic(&self) -> bool {
        self.mode == Mode::Dynamic
    }

    /// Whether tensors go from worker to worker.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.mode == Mode::Direct
    }
}

/// All but the token, which is a secret.
impl fmt::Debug for JobTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobTerms { job, epoch, world, mode, elements, shards, slots, .. } = self;
        write!(
            f,
            "JobTerms({job}.{epoch}: {}, {world} workers, {elements} elements, {shards} shards, {slots} \
            slots)",
            mode.name()
        )
    }
}

/// One worker's own part of a job's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The worker's number in the job.
    pub rank: u16,
    /// The address of the worker's aggregator; unspecified without one.
    pub aggregator_ip: Ipv4Addr,
    /// The aggregator's UDP port of shard 0.
    pub base_port: u16,
    /// The kind of the worker's aggregator.
    pub aggregator: AggregatorKind,
    /// The multicast group of results, unless they are sent to each worker's own address.
    pub result_group: Option<Ipv4Addr>,
    /// The worker's number among those below the same aggregator, from 0: `rank` where there is one
    /// aggregator.
    pub rack_rank: u16,
    /// The number of workers below the same aggregator: all where there is one.
    pub rack_world: u16,
    /// The bit of the worker's rack at the second level, or its own when it is beside the racks; 0 where
    /// there is one level.
    pub bitmap_1: u32,
    /// Whether the worker's aggregator is the root of two levels.
    pub beside_root: bool,
}

/// The kind of a data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AggregatorKind {
    /// XDP programs.
    Ebpf,
    /// A host process with UDP sockets.
    Host,
    /// A P4 program on a switch.
    P4,
    /// No aggregator: workers of dynamic jobs send to their parameter hosts.
    None,
    /// A parameter host of dynamic jobs.
    Parameter,
}
