//! Hooks for checks at every packet.

use sumac_wire::{Header, Reason};

use crate::{address::NodeId, events::Nanos};

/// Receives what engines and aggregators do. Each method ignores the event unless it is implemented.
pub trait Observer {
    /// An operation was submitted to an idle lane of a worker.
    fn started(&mut self, _now: Nanos, _worker: usize, _lane: usize) {}
    /// A worker sends a packet.
    fn sent(&mut self, _worker: usize, _header: &Header) {}
    /// A packet was delivered to a lane of a worker.
    fn delivered(&mut self, _now: Nanos, _worker: usize, _lane: usize) {}
    /// An aggregator handled a packet; `added`: the sender's elements went into a slot.
    fn handled(&mut self, _node: NodeId, _header: &Header, _reason: Reason, _added: bool) {}
}
