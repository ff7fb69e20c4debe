//! The records of a job, each defined once: the local API, the control channel, the coordinator's journal,
//! the engine and the aggregators use these types and their field names.
//!
//! | module | record |
//! | --- | --- |
//! | [`spec`] | [`JobSpec`]: the parameters that a worker asks for |
//! | [`terms`] | [`JobTerms`]: the parameters that the coordinator granted, and each worker's [`Placement`] |
//! | [`options`] | the options that both have: [`Mode`], [`Scale`], [`WireFormat`], [`NonFinitePolicy`], [`OperationOrder`], [`Topology`] |
//! | [`limits`] | the limits of a job's parameters |
//! | `names` | the options' and operations' names in JSON |
//! | [`path_measure`] | [`PathMeasure`]: what a worker measured of its path |
//! | [`token`] | the token in results, made from the one in contributions |
//! | [`counters`] | the declaration of a counter, with its metric |
//! | [`operation`] | [`OperationDescriptor`], [`OperationId`], [`DType`], [`Reduction`], [`CollectiveKind`] |
#![forbid(unsafe_code)]

pub mod counters;
pub mod limits;
mod names;
pub mod operation;
pub mod options;
pub mod path_measure;
pub mod spec;
pub mod terms;
pub mod token;

pub use operation::{
    CollectiveKind, DType, Importance, LossBound, OperationDescriptor, OperationId, Reduction, ResumePoint,
};
pub use options::{Mode, NonFinitePolicy, OperationOrder, Scale, Topology, WireFormat};
pub use path_measure::PathMeasure;
pub use spec::JobSpec;
pub use sumac_wire::tos::layer_priority;
pub use terms::{AggregatorKind, JobTerms, LONGEST_OUTAGE_S, Placement};
pub use token::{PacketKey, result_token};
