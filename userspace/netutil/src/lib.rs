//! The way to an address, and the steering rules of a NIC, for the programs of hosts and aggregators.
//!
//! | module | content |
//! | --- | --- |
//! | [`changes`] | notification of changes of links, neighbours, addresses and routes |
//! | [`neighbour`] | the interface and MAC address that lead to an IPv4 address |
//! | [`steer`] | rules in the NIC that direct each shard's packets to its queue |
//!
//! One netlink request, and the facts about an interface, are [`sumac_loader`]'s.
#![deny(unsafe_code)]

pub mod changes;
pub mod neighbour;
pub mod steer;

pub use changes::Changes;
pub use neighbour::{Neighbour, ResolveError};
pub use steer::{Steer, SteerError};
