//! The daemon of a host: trainers hand it tensors over a local socket, and it moves them through the network.
//!
//! ```text
//!   trainers --- sessions --- job ---------------- control plane (sumac-control)
//!      |             \         |  \
//!      |           stream     hub   host program (sumac-hostprog)
//!      |               \
//!   memory ----- datapath (a thread, engines and a port for each queue) --- network
//!                  |
//!                parameter host's role --------- control plane
//! ```
//!
//! | module | its one concern |
//! | --- | --- |
//! | [`config`] | the configuration file |
//! | `server`, `access` | the socket, and who may use it |
//! | `session` | one trainer's connection |
//! | `operations`, `region`, `memory`, `bell`, `inbox` | what a session is made of |
//! | `stream` | one job's operations, of all its clients, on their way into the lanes and back |
//! | `job` | one job of this host, from joining to leaving |
//! | `line`, `routes` | how session and data path reach the job, and the job them |
//! | `hub` | what all sessions share |
//! | `carrier` | the backend: XDP or UDP |
//! | `path` | how large packets may be |
//! | `parameter` | the role of a parameter host: jobs that a control plane has this daemon sum for |
//! | [`datapath`] | packets, and the engines that make and take them |
//! | `explain` | errors of other crates in the API's words |
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "an internal crate; names carry the meaning")]

mod access;
mod bell;
mod carrier;
pub mod config;
mod daemon;
pub mod datapath;
mod explain;
mod hub;
mod inbox;
mod job;
mod line;
mod memory;
mod operations;
mod parameter;
mod path;
mod region;
mod routes;
mod server;
mod session;
mod stream;

pub use carrier::CarrierError;
pub use daemon::{Daemon, DaemonError};
pub use parameter::RoleError;
pub use server::ServeError;
