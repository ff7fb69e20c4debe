//! The local API between a trainer and its host's daemon: messages, error codes and their framing.
//!
//! A connection is a `SOCK_SEQPACKET` Unix socket. Every message is one packet with one JSON object; file
//! descriptors travel with it (`SCM_RIGHTS`). The client sends [`Request`]s. The daemon answers each with one
//! reply that has the request's `id`, in the order of completion, and sends [`Event`]s in between.
//! `docs/api.md` describes the protocol for clients in other languages.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod channel;
mod collective;
mod failure;
mod open;
mod outbound;
mod request;
mod stats;
mod transfer;

pub use channel::{Channel, FrameError, Inbound, Message};
pub use collective::{Collective, WORD_COMPLETE, WORD_FAILED};
pub use failure::{Code, Failure};
pub use open::{Attach, Open, Secret, Withdraw};
pub use outbound::{
    CancelReply, DynamicReply, Event, HelloReply, LeftPackets, Limits, Loss, OpenReply, OperationReply,
    Outbound, RegisterReply, Timing, WaitReply, WithdrawReply, body,
};
pub use request::{
    Cancel, Close, Command, Hello, Register, Rejected, Request, ShareRegion, Unregister, Wait,
};
pub use stats::{JobStats, SandboxReply, Stats, StatsReply};
pub use sumac_job::{
    CollectiveKind, DType, Importance, JobSpec, Mode, NonFinitePolicy, OperationDescriptor, OperationOrder,
    Reduction, Scale, Topology, WireFormat, layer_priority,
};
pub use transfer::{MissingValues, PollCq, PollCqReply, PostRecv, PostSend, TransferCompletion};

/// The protocol's version.
pub const VERSION: u32 = 4;

/// The maximum length of a message in bytes, in both directions.
pub const MAX_MESSAGE: usize = 128 * 1024;

/// The maximum number of file descriptors with one message.
pub const MAX_FDS: usize = 1;

/// The daemon's default socket.
pub const DEFAULT_SOCKET: &str = "/run/sumac/sumac.sock";

/// Whether a number is zero, which messages leave out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_zero(number: &u16) -> bool {
    *number == 0
}
