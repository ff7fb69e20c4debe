//! The control plane between daemons and an aggregator: who takes part in which job, with which
//! slots, and who has stopped answering.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`client`] | [`join`]: take part in a job, stay in it by heartbeats, [`Member::leave`] |
//! | [`coordinator`] | the server's state machine, without sockets, clock or threads |
//! | [`server`] | the gRPC service around it |
//! | [`rack`] | the aggregator of a rack: relays its workers' calls to a root, and takes the root's orders |
//! | [`dynamic`] | what dynamic jobs (ATP) have beside the others: parameter hosts, shared slots |
//! | [`plane`] | what the server needs of an aggregator: [`DataPlane`] |
//! | [`neighbour`] | which interface and MAC address lead to an IPv4 address |
//! | [`post`] | what members tell each other: notices, announcements of operations by name |
//! | `tune` | how many slots a measured path asks for |
//! | `seal`, `gate` | mutual authentication with the job's shared secret; replays are refused |
//!
//! The messages are in `proto/control.proto`.
#![forbid(unsafe_code)]

mod assignment;
pub mod client;
mod convert;
pub mod coordinator;
pub mod dynamic;
mod failure;
mod gate;
pub mod neighbour;
mod none;
pub mod plane;
mod pool;
pub mod post;
pub mod rack;
mod refusal;
mod seal;
mod secret;
pub mod server;
mod tune;

/// The generated messages and stubs.
pub(crate) mod rpc {
    #![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "generated from control.proto")]
    tonic::include_proto!("sumac.control.v1");
}

pub use assignment::{Assignment, Tuned};
pub use client::{DenialKind, JoinError, JoinSpec, LeaveError, Member, MemberState, join};
pub use coordinator::Outcome;
pub use dynamic::{DynamicTerms, DynamicWishes, Mode};
pub use failure::{FailureKind, JobFailure};
pub use gate::{JOB_NAME_LEN, Secrets};
pub use none::NoPlane;
pub use plane::{DataPlane, PlaneKind};
pub use post::{Announcement, NOTICE_LEN, Notice, OperationOrder};
pub use refusal::{Refusal, RefusalKind, Refused};
pub use secret::{Secret, SecretError};

/// The version of the control protocol that this build speaks.
pub const PROTOCOL_VERSION: u32 = 5;
