//! The data path: a thread for each AF_XDP queue or UDP socket, which drives the engines of its lanes.
//!
//! A lane of a job is on one thread, with its slots, its engine and its queue: threads share no state per
//! packet.
//!
//! A tensor is copied by no other pass than these: the engine reads the trainer's registered memory and
//! writes converted elements into a frame of the UMEM ([`frame_io::FrameIo::transmit`]), and it reads a
//! received frame in place ([`frame_io::FrameIo::receive`]) and writes converted elements into the trainer's
//! memory.

#![forbid(unsafe_code)]

mod clock;
mod engines;
pub mod frame_io;
mod groups;
pub mod handle;
mod handoff;
mod handover;
pub mod job;
mod lane;
mod links;
mod parameter;
mod ports;
mod progress;
mod schedule;
mod snapshot;
pub mod stats;
mod thread;
pub mod udp;
pub mod xdp;

pub use clock::monotonic_ns;
pub use frame_io::{FrameIo, Identity, IoReport, Outgoing, Peer, Route, SocketReport, Transmitted};
pub use groups::ResultGroup;
pub use handle::Datapath;
pub use handover::{LaneSnapshot, ResumedLane};
pub use job::{Event, EventSink, InstallError, ParameterJob, Rejection, WorkerJob};
pub use parameter::host_memory;
pub use stats::{DatapathStats, JobStats};
pub use udp::UdpFrameIo;
pub use xdp::{XdpConfig, XdpError, XdpFrameIo};
