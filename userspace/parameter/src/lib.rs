//! The parameter host of dynamic jobs (ATP section 3.6), without sockets or clocks: packets go in, results come out.
//!
//! It takes contributions of single workers and the partial and full sums of aggregators, adds each worker exactly once, by bitmap,
//! and answers with results: once to each aggregator that workers are behind, which passes them on and frees its slot, and to every
//! worker that it hears directly. So it is also the whole system where there is no aggregator, and what is left of it when one dies.
//!
//! What a packet does to a chunk is decided in [`sumac_wire::dynamic::host`]; here is what that needs around it:
//!
//! | module | what it does |
//! | --- | --- |
//! | [`job`] | a job that is to be summed for, and what is wrong with it |
//! | [`host`] | all jobs of one thread: a packet in, packets out |
//! | [`stats`] | what was counted |
//! | `members` | who a packet comes from, and which way results go |
//! | `ring` | a lane's chunks, two windows of them |
//! | `floats` | the sum of chunks that overflowed, in rank order |
//! | `outbox` | what is to be sent, and to whom |
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
