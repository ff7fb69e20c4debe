//! The daemon of a host: trainers pass tensors to it over a local socket, and it moves them through the network.
//!
//! ```text
//!   trainers --- sessions --- job task ----------- control plane (sumac-control)
//!      |             \           \
//!      |          operations     backend --- host program (sumac-hostprog)
//!      |               \           /
//!   memory ---------- data path (a thread, engines and a FrameIo for each queue) --- network
//!                       |
//!                parameter host --------- control plane
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | [`config`] | the configuration file |
//! | `server` | the socket of trainers, and its access control |
//! | `session` | the connection of a trainer |
//! | `operations` | the operations of a job: their division into fragments, and their outcomes |
//! | `job` | the task of a job, from joining to leaving |
//! | `job_event` | the events that a job's task handles |
//! | `jobs` | the jobs of this host, by name and by number |
//! | `state` | the state that all sessions share |
//! | `backend` | XDP or UDP, and the host program's table of jobs |
//! | `path` | the size of packets |
//! | `parameter` | the parameter host of dynamic jobs |
//! | [`datapath`] | packets, and the engines that send and receive them |
//! | `wake_queue` | a queue between threads with a file descriptor |
//! | `explain` | errors of other crates as errors of the local API |
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "an internal crate; names carry the meaning")]

mod backend;
pub mod config;
mod daemon;
pub mod datapath;
mod explain;
mod job;
mod job_event;
mod jobs;
mod operations;
mod parameter;
mod path;
mod server;
mod session;
mod state;
mod wake_queue;

pub use backend::BackendError;
pub use daemon::{Daemon, DaemonError};
pub use parameter::ParameterHostError;
pub use server::ServeError;
