//! The data path: ports that move packets, and the thread that drives the jobs' engines over one.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`port`] | what the thread needs of a way to move packets |
//! | [`xdp`] | AF_XDP sockets on all queues of an interface |
//! | [`udp`] | an ordinary UDP socket |
//! | [`command`] | what the thread is told, and what it tells |
//! | [`stats`] | what it reports |
//! | `engines` | the jobs on one thread, without input and output |
//! | `worker` | the loop: receive, transmit, kick, wait |
//! | [`handle`] | the thread as the rest of the daemon sees it |
//!
//! A tensor's way, which is all the copies there are: the engine reads the trainer's registered memory and writes
//! converted elements straight into a frame of the UMEM ([`port::Port::transmit`] lends it the frame's bytes); on the
//! way back it reads the received frame in place ([`port::Port::receive`]) and writes converted elements into
//! the trainer's memory. The UDP port has one buffer per datagram in the UMEM's stead.

pub mod command;
mod engines;
pub mod handle;
pub mod port;
pub mod stats;
pub mod udp;
pub mod wait;
mod worker;
pub mod xdp;

pub use command::{AddError, Event, Sink};
pub use handle::Datapath;
pub use port::{Peer, Port, PortReport};
pub use stats::{DatapathStats, JobStats};
pub use udp::UdpPort;
pub use xdp::{XdpConfig, XdpError, XdpPort};
