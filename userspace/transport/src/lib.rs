//! Sumac's sans-IO engine: packets, timers, loss recovery and conversion of a worker.
//!
//! It has no sockets, no clock, no threads, and no allocation per packet. The caller passes in packets and
//! the time, and takes out UDP payloads, a deadline and completed operations. The same code runs over AF_XDP,
//! over a UDP socket and in the seeded simulation that tests it.
//!
//! ```text
//!   submit ──> stream of chunks ──> chunks in flight ──> poll_transmit ──> network
//!                                     ^   |  timer, reordering window         |
//!   poll_completion <── operation <───┴───┴──────────── on_packet <───────────┘
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`engine`], `engine_core` | the engine of a lane, and the state and steps that all modes share |
//! | `mode` | the trait that modes implement |
//! | `static_mode`, [`dynamic_mode`], [`direct_mode`] | SwitchML's mode, ATP's, and MLT's |
//! | [`params`], [`limits`] | the parameters of a job and their limits |
//! | `peer`, `lane`, `packet`, `transmit` | peers, lanes, received packets, packets to send and their tags |
//! | [`operation`] | a collective operation on one tensor |
//! | [`local_sum`] | the same of ranks on one host, without packets; several ranks as one worker |
//! | `stream`, `received` | operations as one sequence of chunks |
//! | `chunk`, `words`, [`convert`] | tensor bytes to wire elements and back |
//! | `in_flight`, `queues` | the chunks in flight |
//! | `bounded_loss` | the budget of an operation with a loss bound, and its use |
//! | `budget`, `congestion` | the sending budget, and the congestion window |
//! | `rtt`, `timer`, `loss`, `probe_timeout` | the round trip, retransmission timers and loss detection |
//! | `importance` | the chunks that routers should drop last |
//! | `paths`, `result_paths` | the choice among paths of a fabric, and those of results |
//! | `handover` | the state of an engine that another process continues |
//! | `handshake`, `path_check` | the probes before the first chunk, and of a running job without results |
//! | [`stats`], [`histogram`], [`error`] | counters, durations, errors |
#![deny(unsafe_code)]

mod bounded_loss;
mod budget;
mod chunk;
mod congestion;
pub mod convert;
pub mod direct_mode;
pub mod dynamic_mode;
pub mod engine;
mod engine_core;
mod engine_mode;
pub mod error;
mod exponents;
mod handover;
mod handshake;
pub mod histogram;
mod importance;
mod in_flight;
mod lane;
pub mod local_sum;
mod loss;
mod mode;
pub mod operation;
mod packet;
pub mod params;
mod path_check;
mod paths;
mod peer;
mod pending;
mod probe_timeout;
mod queues;
mod received;
mod result_paths;
mod rtt;
mod static_mode;
pub mod stats;
mod stream;
mod time;
mod timer;
mod transmit;
mod words;

pub use convert::Arithmetic;
pub use direct_mode::{DirectParams, Exchange, Pattern};
pub use dynamic_mode::DynamicParams;
pub use engine::{Engine, JobState};
pub use error::{JobError, LocalFault, OpError, ParamError, SubmitError};
pub use exponents::has_exponent_chunk;
pub use handover::{EngineState, ResumeError, SuspendedEngine};
pub use histogram::Histogram;
pub use lane::{LaneField, class_of, shard_of};
pub use local_sum::worker::{DirectWorkerBuffer, KEPT_SUMS, WorkerBuffer};
pub use local_sum::{LocalPart, LocalSum};
pub use operation::{Buffer, Completion, CompletionQueue, Loss, OpId, Operation};
pub use packet::Packet;
pub use params::{JobParams, Tuning};
pub use peer::{Peer, PeerId, PeerRole, PeerTable};
pub use stats::EngineStats;
pub use sumac_job::{DType, Importance, NonFinitePolicy, Scale, WireFormat};
pub use time::Time;
pub use transmit::Transmit;
