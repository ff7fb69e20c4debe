//! Attaches the eBPF aggregator, installs its jobs, and shows its status.
//!
//! Programs, links and maps are pinned in a directory for each network namespace ([`pins`]), so that they
//! outlive the process that attached them: the aggregator works without any process of its own.
//!
//! | module | content |
//! | --- | --- |
//! | [`mod@attach`] | attaches the programs to interfaces, or replaces them there |
//! | [`mod@detach`] | detaches the programs, and removes the maps |
//! | [`aggregator`] | the handle on an attached aggregator |
//! | [`job`] | adds, resizes and removes jobs |
//! | [`pool`] | the pools of slots |
//! | [`tables`] | typed access to the maps |
//! | [`status`] | its status, and that of any plane as text |
//! | [`plane`] | the data plane of `sumac-agg serve` |
//! | [`control_status`] | the status of the control plane |
//! | [`metrics`] | the metrics of `sumac-agg serve` |
//! | [`local`] | requests to a running `sumac-agg serve` |
//! | [`preflight`] | requirements for attaching |
//! | [`program`], [`pins`] | the object file; the names of pins |
#![forbid(unsafe_code)]

pub mod aggregator;
pub mod attach;
pub mod control_status;
pub mod detach;
mod drops;
pub mod job;
pub mod local;
pub mod metrics;
pub mod pins;
pub mod plane;
pub mod pool;
pub mod preflight;
pub mod program;
mod recover;
pub mod status;
pub mod tables;

pub use aggregator::Aggregator;
pub use attach::{AttachError, AttachOptions, attach};
pub use detach::{clean, detach};
pub use job::AddJobError;
pub use tables::OpenError;

/// A P4 switch, by P4Runtime or BFRuntime.
pub type SwitchPlane = sumac_agg_p4::SwitchPlane<Box<dyn sumac_agg_p4::target::Target>>;
