//! Whole hosts in one simulated world: the host core, its engines, the coordinator and the aggregator as they
//! are; trainers, the network, memory, time and faults come from a seed.
//!
//! ```text
//!  trainers - host core - engines == lossy network == aggregator
//!                 |                                      |
//!                 +---- posts, events, status ---- coordinator
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | [`memory`] | the handles of a host: regions, leases, completion words |
//! | [`host`], `engines`, `local` | a host: core, memberships, engines, ranks that have another as leader |
//! | `upgrade` | its live upgrade |
//! | [`client`] | a trainer: honest, lying, hanging, or dying |
//! | [`cluster`] | the event loop, the network, coordinator and aggregator |

#![expect(clippy::expect_used, clippy::panic, reason = "an inconsistent world ends the run with its seed")]

pub mod client;
pub mod cluster;
mod control;
mod engines;
mod host;
mod local;
pub mod memory;
mod upgrade;
