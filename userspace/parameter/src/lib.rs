//! The parameter host of dynamic jobs (ATP section 3.6), without sockets or clocks: packets go in, results
//! come out.
//!
//! It receives contributions of single workers and the partial and full sums of aggregators. It adds each
//! worker exactly once, by bitmap, and sends results: once to each aggregator that workers are behind, which
//! distributes them and frees its slot, and to every worker whose packets arrive directly. Without an
//! aggregator, or after its death, it is the whole system.
//!
//! [`sumac_wire::dynamic::host`] decides the effect of a packet on a chunk; the modules here are the state
//! around it:
//!
//! | module | content |
//! | --- | --- |
//! | [`job`] | a job to sum for, and the reasons to refuse it |
//! | [`host`] | all jobs of one thread: a packet in, packets out |
//! | [`stats`] | counters |
//! | `members` | the sources of packets, and the paths of results |
//! | `ring` | a lane's chunks, two windows of them |
//! | `floats` | the sums of chunks that overflowed, in rank order |
//! | `outbox` | packets to send, with their receivers |
#![forbid(unsafe_code)]

mod floats;
pub mod host;
pub mod job;
mod members;
mod outbox;
mod ring;
pub mod stats;

pub use host::ParameterHost;
pub use job::{HostError, HostJob, Worker};
pub use outbox::Sending;
pub use stats::{HostStats, JobStats};
