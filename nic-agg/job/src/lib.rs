//! The parts of a data plane that all planes of the aggregator share: XDP programs, a process over UDP, P4 switches.
//!
//! | module | content |
//! | --- | --- |
//! | `new_job`, `error` | a job to aggregate for, and its checks |
//! | [`plane`] | jobs that a control plane takes over, reasons of their numbers of slots |
//! | [`seen`] | counters and times of jobs and workers |
#![forbid(unsafe_code)]

mod error;
mod new_job;
pub mod plane;
pub mod seen;

pub use error::JobError;
pub use new_job::{NewJob, check_range, endpoint, log2, parents, resized};
