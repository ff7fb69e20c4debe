//! The client of a host's daemon for trainers: shared tensors, and collective operations on them.
//!
//! ```no_run
//! use sumac_client::{Client, JobOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("/run/sumac/sumac.sock")?;
//! let job = client.open(&JobOptions::new("digits", 0, 4))?;
//! let mut gradient = client.tensor::<f32>(1_000)?;
//! gradient.fill(0.5);
//! let sum = job.allreduce(gradient)?.wait()?;
//! assert_eq!(sum[0], 2.0);
//! job.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! A tensor is in memory that the daemon maps too, so it is not copied. [`Job::allreduce`] takes its
//! ownership and
//! [`Pending::wait`] returns it; in between no code can access it.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[doc(hidden)]
pub mod boundary;
mod client;
mod connection;
mod error;
mod failed;
mod job;
mod memory;
mod opening;
mod options;
mod place;
mod segments;
mod tensor;

pub use client::Client;
pub use error::ClientError;
pub use failed::Failed;
pub use half::{bf16, f16};
pub use job::{Job, Pending, Submitted};
pub use memory::{Location, Memory, Operand, Operation};
pub use opening::Opening;
pub use options::{JobOptions, OpOptions, RecvOptions, SendOptions};
pub use segments::{PendingSegments, Segment, SubmittedSegments};
pub use sumac_api::{
    Code, CollectiveKind, DType, DynamicReply, Failure, HelloReply, Importance, JobSpec, JobStats,
    LeftPackets, Limits, Loss, MissingValues, Mode, NonFinitePolicy, OpenReply, OperationOrder, Reduction,
    Scale, Secret, StatsReply, Timing, Topology, TransferCompletion, WireFormat, layer_priority,
};
pub use tensor::{Element, SharedTensor, Tensor};
