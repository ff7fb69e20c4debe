//! Why a running job ended for all of its workers.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use thiserror::Error;

/// What a [`JobFailure`] is about, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// A rank's heartbeats stopped, or it does not do what all wait for.
    Silent,
    /// A rank gave up, and said why.
    Left,
    /// The aggregator's slots are not what they were.
    StateLost,
    /// The aggregator's data plane has been away for too long.
    PlaneDown,
    /// The aggregator's control plane was stopped.
    Stopped,
    /// Two ranks want different operations at the same place, or one what no job can have.
    Mismatch,
    /// A rack's aggregator stopped answering, or lost its state.
    Rack,
    /// A parameter host stopped answering, or lost its state.
    ParameterHost,
    /// The aggregator's control plane does not answer this worker (found by the worker itself).
    AggregatorSilent,
    /// A kind that this build does not know.
    Unknown,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct JobFailure {
    /// What it is about.
    pub kind: FailureKind,
    /// Names who or what is at fault.
    pub message: String,
    /// The rank at fault, when one is.
    pub culprit: Option<u16>,
}

impl JobFailure {
    /// A rank's heartbeats stopped.
    pub fn silent(rank: u16, ip: Ipv4Addr) -> JobFailure {
        let message = format!("rank {rank} ({ip}) stopped answering");
        JobFailure { kind: FailureKind::Silent, message, culprit: Some(rank) }
    }

    /// A rank lives, and does not take in what the others say.
    pub fn deaf(rank: u16, ip: Ipv4Addr) -> JobFailure {
        let message = format!("rank {rank} ({ip}) does not keep up with what the ranks tell each other");
        JobFailure { kind: FailureKind::Silent, message, culprit: Some(rank) }
    }

    /// A rank lives, and has not measured its path.
    pub fn unmeasured(rank: u16, ip: Ipv4Addr, patience: Duration) -> JobFailure {
        let message = format!(
            "rank {rank} ({ip}) has not measured its path within {patience:?}: see its log, or give the number of slots"
        );
        JobFailure { kind: FailureKind::Silent, message, culprit: Some(rank) }
    }

    /// A rank gave up.
    pub fn left(rank: u16, ip: Ipv4Addr, reason: &str) -> JobFailure {
        let message = format!("rank {rank} ({ip}) left: {reason}");
        JobFailure { kind: FailureKind::Left, message, culprit: Some(rank) }
    }

    /// The aggregator's instance changed.
    pub fn state_lost(before: u64, after: u64) -> JobFailure {
        let message = format!("aggregator lost its state (instance {before:x} -> {after:x})");
        JobFailure { kind: FailureKind::StateLost, message, culprit: None }
    }

    /// The aggregator's data plane has been away for `since`.
    pub fn plane_down(since: Duration, why: &str) -> JobFailure {
        let message = format!("aggregator out of service for {since:.1?}: {why}");
        JobFailure { kind: FailureKind::PlaneDown, message, culprit: None }
    }

    /// What two ranks want does not fit together; `rank` said so last.
    pub fn mismatch(rank: Option<u16>, message: String) -> JobFailure {
        JobFailure { kind: FailureKind::Mismatch, message, culprit: rank }
    }

    /// A rack's aggregator is lost.
    pub fn rack(name: &str, ip: Ipv4Addr, what: &str) -> JobFailure {
        let message = format!("the aggregator of rack `{name}` ({ip}) {what}");
        JobFailure { kind: FailureKind::Rack, message, culprit: None }
    }

    /// A parameter host is lost.
    pub fn parameter_host(name: &str, ip: Ipv4Addr, what: &str) -> JobFailure {
        let message = format!("the parameter host `{name}` ({ip}) {what}");
        JobFailure { kind: FailureKind::ParameterHost, message, culprit: None }
    }

    /// Parameter hosts at these addresses are not there since the control plane was started anew, or without the job.
    pub fn forgotten(hosts: &[String]) -> JobFailure {
        let message = format!(
            "the control plane was started anew, and the parameter hosts at {} did not come back with the job's sums",
            hosts.join(", ")
        );
        JobFailure { kind: FailureKind::ParameterHost, message, culprit: None }
    }

    /// The aggregator's data plane did not do what was asked.
    pub fn plane(what: &str) -> JobFailure {
        let message = format!("the aggregator's data plane failed: {what}");
        JobFailure { kind: FailureKind::PlaneDown, message, culprit: None }
    }

    /// The control plane was stopped.
    pub fn stopped() -> JobFailure {
        let message = "the aggregator's control plane was stopped".into();
        JobFailure { kind: FailureKind::Stopped, message, culprit: None }
    }

    /// The control plane that put a job's operations in order was started anew.
    pub fn order_lost(endpoint: SocketAddr) -> JobFailure {
        let message =
            format!("aggregator {endpoint} was started anew, and the order of the named operations is lost");
        JobFailure { kind: FailureKind::Stopped, message, culprit: None }
    }

    /// No authentic answer for `since`.
    pub fn aggregator_silent(endpoint: SocketAddr, since: Duration, last: &str) -> JobFailure {
        let message = format!("aggregator {endpoint} stopped answering {since:.1?} ago ({last})");
        JobFailure { kind: FailureKind::AggregatorSilent, message, culprit: None }
    }
}
