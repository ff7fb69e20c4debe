//! The aggregator as a host process, where there is no XDP: the same packets, the same admission and slot
//! decisions (`sumac-wire`), the same counters as the eBPF aggregator's.
//!
//! | module | content |
//! | --- | --- |
//! | [`aggregator`] | the sans-IO core: a packet in, its answer and destination out |
//! | `pool`, `shared` | slots of static jobs, and those that dynamic jobs share |
//! | [`watch`] | counters, times, stragglers, intentional drops |
//! | [`plane`] | the running aggregator: a data plane of the control plane |
//! | `udp` | a socket and a thread around each shard's core |
//!
//! One difference is the kernel's: it verifies UDP checksums before a socket sees the packet, and a socket
//! cannot see whether there was one.
#![forbid(unsafe_code)]

pub mod aggregator;
mod lock;
pub mod plane;
mod pool;
mod shared;
mod udp;
pub mod watch;

pub use aggregator::{Answer, HostAggregator};
pub use plane::HostDataPlane;
pub use pool::NoMemory;
pub use udp::StartError;
