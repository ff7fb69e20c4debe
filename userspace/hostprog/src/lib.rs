//! Loads, pins, replaces and reads the XDP program of a worker's host.
//!
//! Everything the program needs is pinned below a directory per interface (see [`pins`]), so that it outlives the
//! process that attached it: a daemon opens it with [`Attached::open`], puts its AF_XDP sockets and jobs into it,
//! and may die without the host's other traffic noticing.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`mod@attach`] | puts the program on an interface, or replaces it there |
//! | [`attached`] | the handle on an attached program: sockets, jobs, counters |
//! | [`steer`] | rules in the NIC that lead each shard's packets to its queue |
//! | [`remove`] | takes it away again: one interface, or all |
//! | [`mod@status`] | what is attached, as the kernel sees it |
//! | [`doctor`] | finds what usually goes wrong, and says how to mend it |
//! | [`preflight`] | what attaching needs from the system, checked before |
//! | [`measure`] | nanoseconds per frame |
//! | [`pins`], [`queues`], [`mode`], [`interface`], [`log`] | places, modes, interfaces, the program's messages |
#![deny(unsafe_code)]

pub mod attach;
pub mod attached;
mod bind;
pub mod doctor;
pub mod interface;
pub mod log;
pub mod measure;
pub mod mode;
mod netlink;
mod netns;
pub mod pins;
pub mod preflight;
pub mod program;
pub mod queues;
pub mod remove;
pub mod status;
pub mod steer;

pub use attach::{AttachError, AttachOptions, attach};
pub use attached::{Attached, MapError, OpenError};
pub use mode::{BoundMode, Mode};
pub use pins::DEFAULT_PIN_ROOT;
pub use queues::Queues;
pub use remove::{RemoveError, clean, detach};
pub use steer::{Steer, SteerError};
