//! The data path: a thread for each AF_XDP queue or UDP socket, which drives the engines of its lanes.
//!
//! A lane of a job is on one thread, with its slots, its engine and its queue: threads share no state per packet.
//!
//! | module | content |
//! | --- | --- |
//! | [`frame_io`] | the interface to a queue or a socket |
//! | [`xdp`] | the AF_XDP socket of one queue of an interface |
//! | [`udp`] | a UDP socket |
//! | [`job`] | jobs as they are installed, errors, events |
//! | [`stats`] | reports |
//! | `lane` | one lane of a job |
//! | `engines` | the lanes of one thread |
//! | `parameter` | the parameter host of one thread |
//! | `peers` | the peers of a job |
//! | `thread` | the loop: receive, transmit, sleep |
//! | `links` | commands to threads, packets between threads |
//! | `progress` | the state of jobs over all threads |
//! | [`handle`] | starts the threads and sends them commands |
//!
//! A tensor is copied by no other pass than these: the engine reads the trainer's registered memory and writes converted
//! elements into a frame of the UMEM ([`frame_io::FrameIo::transmit`]), and it reads a received frame in place
//! ([`frame_io::FrameIo::receive`]) and writes converted elements into the trainer's memory.

mod engines;
pub mod frame_io;
pub mod handle;
pub mod job;
mod lane;
mod links;
mod parameter;
mod peers;
mod progress;
pub mod stats;
mod thread;
pub mod udp;
mod wait;
pub mod xdp;

pub use frame_io::{FrameIo, IoReport, Peer};
pub use handle::Datapath;
pub use job::{Event, EventSink, InstallError, ParameterJob, Rejection, WorkerJob};
pub(crate) use parameter::host_memory;
pub use stats::{DatapathStats, JobStats};
pub use udp::UdpFrameIo;
pub use xdp::{XdpConfig, XdpError, XdpFrameIo};
