//! The local API between a trainer and its host's daemon: messages, error codes and their framing.
//!
//! A connection is a `SOCK_SEQPACKET` Unix socket. Every message is one packet that holds one JSON object; file
//! descriptors travel beside it (`SCM_RIGHTS`). The client sends [`Request`]s, the daemon answers each with one reply
//! that carries the request's `id`, in whatever order they finish, and puts [`Event`]s in between. `docs/api.md`
//! describes the protocol for clients in other languages.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod channel;
mod collective;
mod failure;
mod mode;
mod open;
mod outbound;
mod request;

pub use channel::{Channel, FrameError, Inbound, Message};
pub use collective::Collective;
pub use failure::{Code, Failure};
pub use mode::DynamicReply;
pub use open::{Attach, Open, Secret};
pub use outbound::{
    CancelReply, Event, HelloReply, JobStats, Limits, OpenReply, OperationReply, Outbound, RegisterReply,
    StatsReply, WaitReply, body,
};
pub use request::{Cancel, Close, Command, Hello, Register, Rejected, Request, Stats, Unregister, Wait};
pub use sumac_job::{
    CollectiveKind, DType, JobSpec, Mode, NonFinitePolicy, OperationDescriptor, OperationOrder, Reduction,
    Scale, WireFormat,
};

/// The version of the protocol that this crate speaks.
pub const VERSION: u32 = 2;

/// The longest message in bytes, in both directions.
pub const MAX_MESSAGE: usize = 128 * 1024;

/// The most file descriptors that may travel with one message.
pub const MAX_FDS: usize = 1;

/// Where the daemon listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/sumac/sumac.sock";
