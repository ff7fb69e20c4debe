//! Sumac's sans-IO engine: what a worker sends, when it sends it again, and where results go.
//!
//! No sockets, no clock, no threads, and no allocation per packet: the caller hands in UDP payloads
//! and the time, and takes out UDP payloads, a deadline and completed operations. The same code
//! runs over AF_XDP, over a UDP socket and in the seeded simulation that tests it.
//!
//! ```text
//!   submit ──> stream of chunks ──> slots in flight ──> poll_transmit ──> network
//!                                    ^   |  timer, two later results: it asks|
//!   poll_completion <── operation <──┴───┴────────────── on_frame <──────────┘
//! ```
//!
//! | module | its one concern |
//! | --- | --- |
//! | [`engine`] | ties the others together; the only type that most callers need |
//! | [`dynamic`] | what is particular to the dynamic mode (ATP) |
//! | [`params`] | what must be known of a job, and what may be tuned |
//! | [`operation`] | a collective operation on one tensor: what goes in and what comes out |
//! | [`convert`] | tensor bytes to wire elements and back |
//! | [`measure`] | what the path can do, and so how many slots it takes |
//! | [`stats`] | what happened, in numbers |
//! | [`histogram`] | how long things took |
//! | [`error`] | what went wrong, by phase |
//!
//! Private: `pooled` and `placement` (what is particular to the static mode), `stream` and `received` (operations as one sequence of chunks), `chunk` and `words` (which of a chunk's
//! values are whose), `slots` and `queues` (what is in flight), `timer`, `silence`, `rtt` and `loss` (when to send
//! again), `handshake`.
#![deny(unsafe_code)]

mod chunk;
pub mod convert;
pub mod dynamic;
pub mod engine;
pub mod error;
mod handshake;
pub mod histogram;
mod lane;
mod loss;
pub mod measure;
pub mod operation;
mod packet;
pub mod params;
mod peer;
mod placement;
mod pooled;
mod queues;
mod received;
mod rtt;
mod silence;
mod slots;
pub mod stats;
mod stream;
mod time;
mod timer;
mod transmit;
mod words;

pub use convert::{Arithmetic, Scale, WireFormat};
pub use dynamic::DynamicParams;
pub use engine::{Engine, JobState};
pub use error::{JobError, OpError, ParamError, SubmitError};
pub use histogram::Histogram;
pub use lane::{LaneField, class_of, shard_of};
pub use measure::PathMeasure;
pub use operation::{Buffer, Completion, DType, OpId, Operation};
pub use packet::Packet;
pub use params::{JobParams, NonFinitePolicy, Tuning};
pub use peer::{Peer, PeerId, PeerRole, PeerTable};
pub use stats::EngineStats;
pub use time::Time;
pub use transmit::Transmit;
