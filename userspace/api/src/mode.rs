//! How a job uses its aggregators: slots of its own, or the pool that jobs share (ATP).

use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};

/// What a dynamic job was given, beside the slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicReply {
    /// Packets that a lane may be ahead of its oldest without result.
    pub window: u32,
    /// The parameter hosts: shard s has the one at s modulo their number, at the port of shard 0 and s.
    pub hosts: Vec<SocketAddrV4>,
    /// Whether the number of packets in flight follows losses and marks of congestion.
    pub congestion_control: bool,
    /// Whether this worker has taken a dead one's place: it submits the job's operations from `first_operation` on.
    pub resumed: bool,
    /// The number of the operation that this worker is to submit first, counted from 0: all before it are complete.
    pub first_operation: u32,
}
