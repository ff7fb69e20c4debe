//! The reason that a worker did not get into a job, with what to do about it.

use std::{net::Ipv4Addr, time::Duration};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The subject of a [`Refusal`], for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalKind {
    /// A parameter that no job can have.
    Invalid,
    Missing,
    RankTaken,
    /// Two ranks want different jobs under one name.
    Mismatch,
    PoolFull,
    TooManyElements,
    TooManyJobs,
    /// There are not as many parameter hosts as a dynamic job needs.
    Hosts,
    /// There is no data plane, or it did not take the job.
    Plane,
    Stopping,
}

/// A refused join.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Refusal {
    pub kind: RefusalKind,
    /// For people, with the remedy.
    pub message: String,
    /// The ranks that it concerns.
    pub ranks: Vec<u16>,
}

pub(crate) fn invalid<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(RefusalKind::Invalid, &[], message.into()))
}

impl Refusal {
    fn new(kind: RefusalKind, ranks: &[u16], message: String) -> Refusal {
        Refusal { kind, message, ranks: ranks.to_vec() }
    }

    pub(crate) fn missing(job: &str, ranks: &[u16], waited: Duration) -> Refusal {
        let message = format!(
            "job `{job}`: after {waited:?} still waiting for ranks {ranks:?}; start them, or give a longer deadline"
        );
        Refusal::new(RefusalKind::Missing, ranks, message)
    }

    pub(crate) fn rank_taken(job: &str, rank: u16, holder: Ipv4Addr) -> Refusal {
        let message = format!(
            "job `{job}`: rank {rank} has joined already, from {holder}; give every worker a rank of its own \
             (a dead worker's rank is free 2 s after its last message)"
        );
        Refusal::new(RefusalKind::RankTaken, &[rank], message)
    }

    /// The job's earlier incarnation is not over.
    pub(crate) fn held(job: &str, ranks: &[u16]) -> Refusal {
        let message = format!(
            "job `{job}` is still being run by ranks {ranks:?}; wait until they have left, or take another name"
        );
        Refusal::new(RefusalKind::RankTaken, ranks, message)
    }

    pub(crate) fn mismatch(job: &str, what: &str, ranks: [u16; 2], values: &[String; 2]) -> Refusal {
        let ([rank, other], [value, others]) = (ranks, values);
        let message = format!(
            "job `{job}`: rank {rank} wants {what} {value}, rank {other} wants {others}; give all workers the same"
        );
        Refusal::new(RefusalKind::Mismatch, &ranks, message)
    }

    /// `holders` have the slots that are not free.
    pub(crate) fn pool_full(
        wanted: u32,
        [free, largest, total]: [u32; 3],
        holders: &[(String, u32)],
    ) -> Refusal {
        let holders: Vec<_> = holders.iter().map(|(job, slots)| format!("`{job}` {slots}")).collect();
        let taken =
            if holders.is_empty() { String::new() } else { format!(" (taken by {})", holders.join(", ")) };
        let message = format!(
            "{wanted} slots are not free: {free} of {total} are, at most {largest} together{taken}; ask for fewer, wait \
             for a job to end, or attach the aggregator with more"
        );
        Refusal::new(RefusalKind::PoolFull, &[], message)
    }

    /// `narrowest` is the port whose MTU carries no more than `max`; none: the slots hold no more.
    pub(crate) fn too_many_elements(wanted: u16, max: u16, narrowest: Option<&str>) -> Refusal {
        let limit = match narrowest {
            Some(port) => {
                format!("since its port {port} carries no more; ask for fewer, or raise the MTU there")
            }
            None => "which its slots hold; ask for fewer, or attach it with larger --elements".into(),
        };
        let message =
            format!("chunks of {wanted} elements are too large: the aggregator takes at most {max}, {limit}");
        Refusal::new(RefusalKind::TooManyElements, &[], message)
    }

    pub(crate) fn too_many_jobs(max: usize) -> Refusal {
        let message =
            format!("the aggregator runs {max} jobs already, which is all it can; wait until one ends");
        Refusal::new(RefusalKind::TooManyJobs, &[], message)
    }

    pub(crate) fn hosts(wanted: u16, registered: usize) -> Refusal {
        let message = format!(
            "a dynamic job needs {wanted} parameter hosts, and {registered} that can sum for it are registered here: \
             start `sumac daemon --parameter-host` on a host for it (not on its workers below racks), or ask for fewer"
        );
        Refusal::new(RefusalKind::Hosts, &[], message)
    }

    pub(crate) fn no_aggregator() -> Refusal {
        let message = "this control plane has no aggregator (`--plane none`): open the job with mode dynamic, or join \
                       where there is one";
        Refusal::new(RefusalKind::Plane, &[], message.into())
    }

    pub(crate) fn plane(what: &str) -> Refusal {
        Refusal::new(RefusalKind::Plane, &[], format!("the aggregator could not take the job: {what}"))
    }

    pub(crate) fn stopping() -> Refusal {
        let message = "the aggregator's control plane is being stopped; join again when it is back";
        Refusal::new(RefusalKind::Stopping, &[], message.into())
    }
}
