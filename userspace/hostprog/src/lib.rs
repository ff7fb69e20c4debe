//! The XDP program of a worker's host: attachment, the handle on it, its status, and the checks of `sumac
//! doctor`.
//!
//! Loading, pins and attachment are [`sumac_loader`]'s. Everything the program needs is pinned below a
//! directory for each interface (see [`pins`]), so that it outlives the process that attached it: a daemon
//! opens it with
//! [`Attached::open`] and writes its AF_XDP sockets and jobs into its maps.
//!
//! | module | content |
//! | --- | --- |
//! | [`mod@attach`] | attaches the program to an interface, or replaces it there |
//! | [`attached`] | the handle on an attached program: sockets, jobs, counters |
//! | [`remove`], [`mod@inventory`] | detaches one interface, or cleans the whole machine; what that would remove |
//! | [`mod@status`] | the programs that are attached, by the kernel's account |
//! | [`doctor`] | frequent faults, with their remedies |
//! | [`program`], [`pins`], [`mode`], [`queues`] | object and variants; names of pins; options |
#![forbid(unsafe_code)]

pub mod attach;
pub mod attached;
pub mod doctor;
pub mod inventory;
pub mod mode;
pub mod pins;
pub mod program;
pub mod queues;
pub mod remove;
pub mod status;

pub use attach::{AttachError, AttachOptions, attach};
pub use attached::{Attached, MapError, OpenError};
pub use inventory::inventory;
pub use mode::HostMode;
pub use queues::Queues;
pub use remove::{RemoveError, clean, detach, detach_all};
