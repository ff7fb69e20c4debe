//! Loads, attaches, pins and observes eBPF programs.
//!
//! The host program, the aggregator and the lab have this in common. A program's maps, variants and settings
//! belong to the crate that loads it.
//!
//! | module | content |
//! | --- | --- |
//! | [`mod@preflight`] | capabilities, kernel release and bpffs, checked before anything is loaded |
//! | [`mod@interface`] | index, MTU, queues, driver features and XDP programs of a network interface |
//! | [`mod@program`] | loading into the kernel, with the verifier's last lines on failure |
//! | [`mod@attach`] | attachment, replacement under traffic, change of mode with rollback |
//! | [`mod@pins`] | directories of pins on a bpffs: locks, removal, the version of the maps |
//! | [`mod@replace`], [`mod@recover`] | replacement of several pins at once; its completion or undoing after a crash |
//! | [`mod@owner`] | the lock of the one process that has an attachment for itself |
//! | [`mod@map`] | typed access to array maps |
//! | [`mod@log`] | a program's log messages, forwarded to `tracing` |
//! | [`mod@mode`], [`mod@namespace`], [`mod@mounts`] | XDP modes; network namespaces; bpffs mounts that end with a process |
//! | [`mod@netlink`], [`mod@chain`] | one netlink request; messages of errors with their causes |
#![forbid(unsafe_code)]

pub mod attach;
pub mod chain;
pub mod interface;
pub mod log;
pub mod map;
pub mod mode;
pub mod mounts;
pub mod namespace;
pub mod netlink;
pub mod owner;
pub mod pins;
pub mod preflight;
pub mod program;
pub mod recover;
pub mod replace;

pub use attach::{AttachError, Bound, XdpAttachment};
pub use chain::chain;
pub use interface::Interface;
pub use mode::{BoundXdpMode, XdpMode};
pub use pins::{DEFAULT_PIN_ROOT, PinDirectory, PinError};
pub use program::{LoadError, Variant};
