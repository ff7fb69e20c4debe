//! The aggregator as a host process, for where XDP is not to be had: the same packets, the same
//! admission and slot decisions (`sumac-wire`), the same counters as the eBPF aggregator's.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`aggregator`] | the sans-IO core: a packet in, its answer and whom it is for out |
//! | `pool` | the memory of slots that jobs have of their own |
//! | `shared` | slots that dynamic jobs share, and what contributions do to them |
//! | [`job`] | a job that is to be aggregated for |
//! | [`watch`] | counters, times, stragglers, and what is lost on purpose |
//! | [`udp`] | sockets and threads around the core |
//! | [`plane`] | the control plane's view: install and remove jobs while it runs |
//!
//! One difference is the kernel's: it verifies UDP checksums before a socket sees the packet, and a
//! socket cannot see whether there was one.
#![forbid(unsafe_code)]

pub mod aggregator;
pub mod job;
pub mod plane;
mod pool;
mod shared;
pub mod udp;
pub mod watch;

pub use aggregator::{Answer, HostAggregator, JobError, NewJob, NoMemory};
pub use plane::HostDataPlane;
