//! Loads, feeds and shows the eBPF aggregator.
//!
//! Programs, links and maps are pinned in a directory per network namespace ([`pins`]), so that they
//! outlive the process that attached them: the aggregator goes on without any process of its own.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`mod@attach`] | puts the programs on ports, or replaces them there |
//! | [`aggregator`] | the handle on an attached aggregator |
//! | [`mod@detach`] | takes the programs off, and the memory away |
//! | [`job`] | adds and removes jobs |
//! | [`drops`] | drops on purpose |
//! | `port` | one port: whose program is on it, and how ours is bound |
//! | `steering` | rules in the ports' NICs that lead each shard's packets to one queue |
//! | [`status`] | what is bound, counted and installed |
//! | [`plane`] | jobs of remote daemons, by the control plane |
//! | [`host_status`] | the same of a host aggregator |
//! | [`control_status`] | what the control plane knows |
//! | [`local`] | how a running `sumac-agg serve` is asked |
//! | [`tables`] | typed access to the maps |
//! | [`program`] | the object, and how it is loaded |
//! | [`preflight`] | what attaching needs from the system, checked before |
//! | [`measure`] | nanoseconds per frame |
//! | [`log`], [`mode`], [`pins`] | the programs' messages, modes, places |
#![forbid(unsafe_code)]

pub mod aggregator;
pub mod attach;
pub mod control_status;
pub mod detach;
pub mod drops;
pub mod host_status;
pub mod job;
pub mod local;
pub mod log;
pub mod measure;
pub mod mode;
pub mod pins;
pub mod plane;
mod port;
pub mod preflight;
pub mod program;
pub mod status;
mod steering;
pub mod tables;

pub use aggregator::{Aggregator, OpenError};
pub use attach::{AttachError, AttachOptions, attach};
pub use detach::{DetachError, clean, detach};
pub use job::{JobError, Level, NewDynamic, NewJob, NewWorker};
pub use mode::Mode;
