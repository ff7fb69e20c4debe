//! The data path: ports that move packets, and a thread for each, which drives its lanes' engines over it.
//!
//! A lane of a job is on one thread, with its slots, its engine and its queue: packets share no state between threads.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`port`] | what a thread needs of a way to move packets |
//! | [`xdp`] | the AF_XDP socket of one queue of an interface |
//! | [`udp`] | an ordinary UDP socket |
//! | [`command`] | what the threads are told, and what they tell |
//! | [`stats`] | what they report |
//! | `lane` | one lane of a job |
//! | `engines` | the lanes on one thread, without input and output |
//! | `hosted` | the jobs that this host is a parameter host of, on one thread |
//! | `ways` | whom a job's packets go to |
//! | `worker` | the loop: receive, transmit, kick, wait |
//! | `links` | how threads reach each other |
//! | `progress` | one event of what a job's lanes tell |
//! | [`handle`] | the threads as the rest of the daemon sees them |
//!
//! A tensor's way, which is all the copies there are: the engine reads the trainer's registered memory and writes
//! converted elements straight into a frame of the UMEM ([`port::Port::transmit`] lends it the frame's bytes); on the
//! way back it reads the received frame in place ([`port::Port::receive`]) and writes converted elements into
//! the trainer's memory. The UDP port has one buffer per datagram in the UMEM's stead.

pub mod command;
mod engines;
pub mod handle;
mod hosted;
mod lane;
mod links;
pub mod port;
mod progress;
pub mod stats;
pub mod udp;
pub mod wait;
mod ways;
mod worker;
pub mod xdp;

pub use command::{AddError, Event, HostPlan, HostingError, JobPlan, Sink};
pub use handle::Datapath;
pub use port::{Peer, Port, PortReport};
pub use stats::{DatapathStats, JobStats};
pub use udp::UdpPort;
pub use xdp::{XdpConfig, XdpError, XdpPort};
