//! The parameters that one worker asks for.

use serde::{Deserialize, Serialize};

use crate::{Mode, NonFinitePolicy, OperationOrder, Scale, Topology, WireFormat};

/// The parameters of a job as one worker asks for them. An absent value is the daemon's default, or is agreed
/// among the workers and their aggregators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct JobSpec {
    /// The job's name, the same on all workers.
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub job: String,
    /// This worker's number, `0..world`.
    #[cfg_attr(feature = "clap", arg(long))]
    pub rank: u16,
    /// The number of the job's ranks.
    #[cfg_attr(feature = "clap", arg(long))]
    pub world: u16,
    /// The job's ranks on this host: consecutive ones, and as many on every other. The daemon adds their
    /// tensors in memory, and the host is one worker of the job. Where these are all ranks, nothing is sent.
    #[cfg_attr(feature = "clap", arg(long, value_name = "RANKS"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_world: Option<u16>,
    /// 32-bit words per packet; without it what MTU and aggregator allow.
    #[cfg_attr(feature = "clap", arg(long = "chunk", visible_alias = "elements", value_name = "WORDS"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elements: Option<u16>,
    /// Slots of each lane of a static job, a power of two; without it as the measured path asks for.
    #[cfg_attr(feature = "clap", arg(long))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Use of the aggregators' slots; without it `static`.
    #[cfg_attr(feature = "clap", arg(long))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Packets that a lane of a dynamic job may be ahead of its oldest without result, a power of two;
    /// packets of a direct job that may be in flight to one worker.
    #[cfg_attr(feature = "clap", arg(long, value_name = "PACKETS"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Shared slots of each shard that a dynamic job may take; without it all that its aggregators have.
    #[cfg_attr(feature = "clap", arg(long, value_name = "SLOTS", conflicts_with = "slots"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_slots: Option<u32>,
    /// Parameter hosts of a dynamic job; without it as many as there are, up to one for each shard.
    #[cfg_attr(feature = "clap", arg(long, value_name = "HOSTS"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter_hosts: Option<u16>,
    /// The way of a direct job's values; without it `owners`.
    #[cfg_attr(feature = "clap", arg(long))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Workers that own blocks in a direct job, from rank 0 on; without it all.
    #[cfg_attr(feature = "clap", arg(long, value_name = "WORKERS"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owners: Option<u16>,
    /// Ranks of a direct job, from rank 0 on, that are parameter servers: they own all blocks and contribute
    /// nothing; without it none.
    #[cfg_attr(feature = "clap", arg(long, value_name = "RANKS", conflicts_with = "owners"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<u16>,
    /// Whether a job yields to congestion; without it a dynamic job does and a static one does not. Direct
    /// jobs always do.
    #[cfg_attr(feature = "clap", arg(long, value_name = "true|false", num_args = 0..=1))]
    #[cfg_attr(feature = "clap", arg(default_missing_value = "true", require_equals = true))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<bool>,
    /// The factor for floats, applied before they are rounded, or `block` for block floating point; without
    /// it the daemon's default: unless configured `block`, and 1e8 in a dynamic job with `int32`.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FACTOR|block"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
    /// The format of floats in packets; without it `int32`.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FORMAT"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<WireFormat>,
    /// Treatment of NaN and infinity; without it `error`.
    #[cfg_attr(feature = "clap", arg(long, value_name = "POLICY"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_finite: Option<NonFinitePolicy>,
    /// The rule by which the workers' operations are matched.
    #[cfg_attr(feature = "clap", arg(skip))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<OperationOrder>,
    /// Shards that a tensor is spread over; without it as many as all hosts and the aggregator have.
    #[cfg_attr(feature = "clap", arg(long))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u16>,
    /// Timeout for the other ranks, in seconds; without it the daemon's (60 unless configured).
    #[cfg_attr(feature = "clap", arg(long = "timeout", value_name = "SECONDS", value_parser = seconds))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
}

impl JobSpec {
    /// Worker `rank` of the `world` workers of `job`, with the defaults for all else.
    #[must_use]
    pub fn new(job: impl Into<String>, rank: u16, world: u16) -> JobSpec {
        JobSpec { job: job.into(), rank, world, ..JobSpec::default() }
    }

    /// Whether all ranks of the job are on one host.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.local_world == Some(self.world)
    }

    /// The reason for which a direct job cannot have the servers that are asked for.
    #[must_use]
    pub fn problem_of_servers(&self) -> Option<String> {
        let JobSpec { world, servers, owners, topology, .. } = *self;
        let servers = servers?;
        if servers == 0 || servers >= world {
            return Some(format!(
                "{servers} servers in a world of {world}: give at least 1, and leave a rank to contribute"
            ));
        }
        let problem = match () {
            () if owners.is_some() => "own all blocks: leave `owners` out",
            () if topology == Some(Topology::Ring) => "own blocks, and a ring has no owners: leave one out",
            () if self.ranks_per_worker() > 1 => {
                "are hosts of their own, and `local_world` makes a host of several ranks: leave one out"
            }
            () => return None,
        };
        Some(format!("servers {problem}"))
    }

    /// Returns the number of ranks of each host.
    #[must_use]
    pub fn ranks_per_worker(&self) -> u16 {
        self.local_world.unwrap_or(1).max(1)
    }

    /// Whether another rank of the same host joins the other hosts, for all of its ranks.
    #[must_use]
    pub fn is_follower(&self) -> bool {
        !self.is_local() && !self.rank.is_multiple_of(self.ranks_per_worker())
    }

    /// Returns the number of workers: hosts, whose ranks count as one.
    #[must_use]
    pub fn workers(&self) -> u16 {
        self.world / self.ranks_per_worker()
    }
}

#[cfg(feature = "clap")]
fn seconds(text: &str) -> Result<f64, String> {
    let parsed = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    match std::time::Duration::try_from_secs_f64(parsed) {
        Ok(_) => Ok(parsed),
        Err(_) => Err("expected a number of seconds, 0 or more".to_owned()),
    }
}
