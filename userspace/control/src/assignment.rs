//! What a job gets from its aggregator, and what of it was measured.

use std::net::Ipv4Addr;

use sumac_wire::CLASSES;

use crate::{dynamic::DynamicTerms, plane::PlaneKind};

/// What a job got from its aggregator.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// The job's number.
    pub job: u16,
    /// Its incarnation.
    pub epoch: u16,
    /// The secret number for all of its packets.
    pub token: u64,
    /// Slots of each lane, a power of two. While `tune` is set: the most that it can become. 0 in a dynamic job.
    pub lane_slots: u32,
    /// Whether the slots are yet to be fixed, by [`Member::tune`](crate::Member::tune).
    pub tune: bool,
    /// Why there are so many slots, for people.
    pub slots_reason: String,
    /// 32-bit words in a chunk.
    pub elements: u16,
    /// How many shards, each on a UDP port of its own; there are [`CLASSES`] lanes to each.
    pub shards: u16,
    /// Where contributions go. Unspecified where there is no aggregator ([`PlaneKind::None`]).
    pub aggregator_ip: Ipv4Addr,
    /// UDP port of shard 0.
    pub base_port: u16,
    /// What kind of aggregator it is.
    pub plane: PlaneKind,
    /// The multicast group of results, if they do not come to each worker's own address.
    pub result_group: Option<Ipv4Addr>,
    /// This worker among those below the same aggregator, from 0: its rank where there is only one.
    pub rack_rank: u16,
    /// How many workers are below the same aggregator.
    pub rack_world: u16,
    /// What a dynamic job has beside that.
    pub dynamic: Option<DynamicTerms>,
}

impl Assignment {
    /// How many streams the job has.
    pub const fn lanes(&self) -> u16 {
        CLASSES * self.shards
    }
}

/// The slots that a measured path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuned {
    /// Slots of each lane, a power of two.
    pub slots: u32,
    /// Why so many, for people.
    pub reason: String,
}
