//! The parts that all data planes of the aggregator share: XDP programs, a process over UDP, P4 switches.
//!
//! | module | content |
//! | --- | --- |
//! | `new_job`, `error` | a job to aggregate for, and its checks |
//! | [`plane`] | the interface to a plane; the take-over of jobs; reasons of their numbers of slots |
//! | [`seen`] | counters and times of jobs and workers |
//! | [`status`] | the status of a plane, with its jobs and workers |
//! | [`drops`] | intentional drops |
#![forbid(unsafe_code)]

pub mod drops;
mod error;
mod new_job;
pub mod plane;
pub mod seen;
pub mod status;

pub use error::JobError;
pub use new_job::{NewJob, check_range, endpoint, log2, parents, resized};
