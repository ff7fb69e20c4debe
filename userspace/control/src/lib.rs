//! The control plane between daemons and an aggregator: membership, slots and epochs of jobs, and the
//! detection of dead peers.
//!
//! | module | its concern |
//! | --- | --- |
//! | [`client`] | [`join`]: take part in a job, and stay in it until [`Member::leave`] |
//! | [`coordinator`] | the server's state machine, without sockets, clock or threads |
//! | [`journal`] | the running jobs, on disk |
//! | [`server`] | the TLS service around them |
//! | [`rack`] | the aggregator of a rack: relays its workers' messages to a root, and executes the root's commands |
//! | [`message`], [`events`] | the messages of the control channel |
//! | [`plane`] | the interface to an aggregator: [`DataPlane`] |
//! | [`release`] | the versions that `--version -v` prints |
//! | [`secret`], [`tls`] | join tokens; TLS 1.3 with a pinned key or the site's own authorities |
//! | `frames` | JSON messages in frames, in each direction of a TLS stream |
//! | `tune` | the number of slots for a measured path |
//! | [`wake_times`] | times at which tasks wake together |
#![forbid(unsafe_code)]

pub mod client;
pub mod coordinator;
pub mod events;
mod failure;
mod frames;
mod host_port;
pub mod journal;
pub mod message;
pub mod plane;
mod pool;
pub mod rack;
mod rate_limiter;
pub mod release;
pub mod secret;
pub mod server;
pub mod state_dir;
pub mod tls;
mod tune;
pub mod wake_times;

pub use client::{Endpoint, JoinError, LeaveError, Member, MemberState, SuspendedMember, join};
pub use coordinator::{Grant, JoinLimits, Outcome, difference};
pub use failure::{FailureKind, JobFailure, Refusal, RefusalKind};
pub use host_port::{HostPort, ResolveError};
pub use message::{DenialKind, JoinRequest, WorkerHost};
pub use plane::{DataPlane, NoDataPlane, PlaneKind};
pub use rate_limiter::RateLimiter;
pub use secret::{Credential, Fingerprint, JoinToken, Secret, SecretError};
pub use server::Secrets;
pub use tls::{Identity, TlsError, Trust};

/// The most workers of one host at once, each with its connection: one in each job that there can be.
pub(crate) const MAX_OF_ONE_ADDRESS: usize = sumac_wire::MAX_JOBS;
/// The longest name of a job, in bytes.
pub const JOB_NAME_LEN: usize = 64;
