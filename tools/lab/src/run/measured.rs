//! Times and counters of a run, from which its report is made.

use serde_json::Value;
use sumac_client::{Loss, OpenReply};

use super::contents::Comparison;
use super::jobs::JobReport;
use crate::cable::CableCounters;
use crate::clock::Span;
use crate::cpu::{CpuTime, MachineTime};
use crate::trace::Trace;

/// The measured part of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// From the first job's start to the last one's end.
    pub(crate) spans: Vec<Span>,
    pub(crate) spans_of_jobs: Vec<Vec<Span>>,
    pub(crate) trace: Option<Trace>,
    pub(crate) cpu: CpuTime,
    pub(crate) machine: MachineTime,
    pub(crate) comparison: Comparison,
    /// The missing contributions of all measured operations with a loss bound.
    pub(crate) losses: Vec<Loss>,
}

/// All counters of a run.
pub(crate) struct Counted {
    /// The terms of the first job.
    pub(crate) opened: OpenReply,
    /// The workers' daemons, by rank.
    pub(crate) stats: Vec<Value>,
    pub(crate) jobs: Vec<JobReport>,
    /// The daemons of the parameter hosts.
    pub(crate) parameter_hosts: Vec<Value>,
    /// The aggregators, the root first; null where nobody aggregates.
    pub(crate) aggregators: Vec<Value>,
    pub(crate) injected: CableCounters,
}
