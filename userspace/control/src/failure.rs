//! The reason that a running job ended for all of its workers.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// A rank stopped answering, or does not do what all wait for.
    Silent,
    /// A rank gave up, and stated why.
    Left,
    StateLost,
    PlaneDown,
    Stopped,
    /// Ranks have different operations, or one that no job can have.
    Mismatch,
    Rack,
    ParameterHost,
    /// The control plane does not answer this worker (found by the worker itself).
    AggregatorSilent,
    NoMember,
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct JobFailure {
    pub kind: FailureKind,
    /// For people; names who or what is at fault.
    pub message: String,
    /// The rank at fault, or the ranks that differ.
    pub ranks: Vec<u16>,
}

impl JobFailure {
    fn new(kind: FailureKind, ranks: &[u16], message: String) -> JobFailure {
        JobFailure { kind, message, ranks: ranks.to_vec() }
    }

    #[must_use]
    pub fn culprit(&self) -> Option<u16> {
        match self.ranks[..] {
            [rank] => Some(rank),
            _ => None,
        }
    }

    pub(crate) fn silent(rank: u16, ip: Ipv4Addr) -> JobFailure {
        JobFailure::new(FailureKind::Silent, &[rank], format!("rank {rank} ({ip}) stopped answering"))
    }

    /// A rank is alive, and does not receive its events.
    pub(crate) fn lagging(rank: u16, ip: Ipv4Addr) -> JobFailure {
        let message = format!("rank {rank} ({ip}) does not keep up with the job's events");
        JobFailure::new(FailureKind::Silent, &[rank], message)
    }

    pub(crate) fn unmeasured(rank: u16, ip: Ipv4Addr, timeout: Duration) -> JobFailure {
        let message = format!(
            "rank {rank} ({ip}) has not measured its path within {timeout:?}: see its log, or give the number of slots"
        );
        JobFailure::new(FailureKind::Silent, &[rank], message)
    }

    pub(crate) fn left(rank: u16, ip: Ipv4Addr, reason: &str) -> JobFailure {
        JobFailure::new(FailureKind::Left, &[rank], format!("rank {rank} ({ip}) left: {reason}"))
    }

    pub fn state_lost(before: u64, after: u64) -> JobFailure {
        let message = format!("aggregator lost its state (instance {before:x} -> {after:x})");
        JobFailure::new(FailureKind::StateLost, &[], message)
    }

    pub(crate) fn plane_down(since: Duration, why: &str) -> JobFailure {
        JobFailure::new(
            FailureKind::PlaneDown,
            &[],
            format!("aggregator out of service for {since:.1?}: {why}"),
        )
    }

    pub fn mismatch(ranks: &[u16], message: String) -> JobFailure {
        JobFailure::new(FailureKind::Mismatch, ranks, message)
    }

    pub(crate) fn rack(name: &str, ip: Ipv4Addr, what: &str) -> JobFailure {
        JobFailure::new(FailureKind::Rack, &[], format!("the aggregator of rack `{name}` ({ip}) {what}"))
    }

    pub(crate) fn parameter_host(name: &str, ip: Ipv4Addr, what: &str) -> JobFailure {
        JobFailure::new(FailureKind::ParameterHost, &[], format!("the parameter host `{name}` ({ip}) {what}"))
    }

    pub(crate) fn plane(what: &str) -> JobFailure {
        JobFailure::new(FailureKind::PlaneDown, &[], format!("the aggregator's data plane failed: {what}"))
    }

    pub(crate) fn stopped() -> JobFailure {
        JobFailure::new(FailureKind::Stopped, &[], "the aggregator's control plane was stopped".into())
    }

    pub(crate) fn aggregator_silent(endpoint: SocketAddr, since: Duration, last: &str) -> JobFailure {
        let message = format!("aggregator {endpoint} stopped answering {since:.1?} ago ({last})");
        JobFailure::new(FailureKind::AggregatorSilent, &[], message)
    }

    pub(crate) fn no_member(message: impl Into<String>) -> JobFailure {
        JobFailure::new(FailureKind::NoMember, &[], message.into())
    }
}
