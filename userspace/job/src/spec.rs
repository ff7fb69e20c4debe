//! The parameters that one worker asks for.

use serde::{Deserialize, Serialize};

use crate::{Mode, NonFinitePolicy, OperationOrder, Scale, Topology, WireFormat};

/// The parameters of a job as one worker asks for them. An absent value is the daemon's default, or is agreed among the
/// workers and their aggregators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The job's name, the same on all workers.
    pub job: String,
    /// This worker's number, `0..world`.
    pub rank: u16,
    /// The number of the job's workers.
    pub world: u16,
    /// 32-bit words per packet; without it what MTU and aggregator allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elements: Option<u16>,
    /// Slots of each lane of a static job, a power of two; without it as the measured path asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Use of the aggregators' slots; without it [`Mode::Static`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Packets that a lane of a dynamic job may be ahead of its oldest without result, a power of two; packets of a direct job
    /// that may be in flight to one worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Shared slots of each shard that a dynamic job may take; without it all that its aggregators have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_slots: Option<u32>,
    /// Parameter hosts of a dynamic job; without it as many as there are, up to one for each shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter_hosts: Option<u16>,
    /// The way of a direct job's values; without it [`Topology::Owners`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Workers that own blocks in a direct job, from rank 0 on; without it all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owners: Option<u16>,
    /// Whether a job yields to congestion; without it a dynamic job does and a static one does not. Direct jobs always do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<bool>,
    /// The factor for floats; without it the daemon's default: unless configured block floating point, and
    /// 1e8 in a dynamic job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
    /// The format of floats in packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<WireFormat>,
    /// Treatment of NaN and infinity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_finite: Option<NonFinitePolicy>,
    /// The rule by which the workers' operations are matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<OperationOrder>,
    /// Shards that a tensor is spread over; without it as many as all hosts and the aggregator have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u16>,
    /// Timeout for the other ranks, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
}

impl JobSpec {
    /// Worker `rank` of the `world` workers of `job`, with the defaults for all else.
    #[must_use]
    pub fn new(job: impl Into<String>, rank: u16, world: u16) -> JobSpec {
        JobSpec { job: job.into(), rank, world, ..JobSpec::default() }
    }
}
