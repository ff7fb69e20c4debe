//! The reason that a worker did not get into a job, with what to do about it.

use std::{net::Ipv4Addr, time::Duration};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The subject of a [`Refusal`], for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalKind {
    /// A parameter that no job can have.
    Invalid,
    /// The deadline passed before all ranks had joined.
    Missing,
    /// The rank has joined already.
    RankTaken,
    /// Two ranks want different jobs under one name.
    Mismatch,
    /// The aggregator has not as many slots left.
    PoolFull,
    /// The chunk is larger than the aggregator's slots.
    TooManyElements,
    /// The aggregator has no job number left.
    TooManyJobs,
    /// There are not as many parameter hosts as a dynamic job needs.
    Hosts,
    /// The aggregator's data plane did not take the job.
    Plane,
    /// The control plane is being stopped.
    Stopping,
}

/// A refused join, with the facts.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Refusal {
    /// See [`RefusalKind::Invalid`].
    #[error("{what}")]
    Invalid {
        /// The problem and its remedy.
        what: String,
    },
    /// See [`RefusalKind::Missing`].
    #[error(
        "job `{job}`: after {waited:?} still waiting for ranks {ranks:?}; start them, or give a longer deadline"
    )]
    Missing {
        /// The job's name.
        job: String,
        /// The ranks that have not joined.
        ranks: Vec<u16>,
        /// The deadline that passed.
        waited: Duration,
    },
    /// See [`RefusalKind::RankTaken`].
    #[error(
        "job `{job}`: rank {rank} has joined already, from {holder}; give every worker a rank of its own \
         (a dead worker's rank is free 2 s after its last message)"
    )]
    RankTaken {
        /// The job's name.
        job: String,
        /// The rank.
        rank: u16,
        /// The address that has it.
        holder: Ipv4Addr,
    },
    /// The job's earlier incarnation is not over.
    #[error(
        "job `{job}` is still being run by ranks {ranks:?}; wait until they have left, or take another name"
    )]
    Held {
        /// The job's name.
        job: String,
        /// The ranks that are still in it.
        ranks: Vec<u16>,
    },
    /// See [`RefusalKind::Mismatch`].
    #[error("job `{job}`: rank {} wants {what} {}, rank {} wants {}; give all workers the same", ranks[0], values[0], ranks[1], values[1])]
    Mismatch {
        /// The job's name.
        job: String,
        /// The parameter.
        what: &'static str,
        /// The two ranks.
        ranks: [u16; 2],
        /// The value that each of them wants.
        values: [String; 2],
    },
    /// See [`RefusalKind::PoolFull`].
    #[error(
        "{wanted} slots are not free: {free} of {total} are, at most {largest} together{}; ask for fewer, wait for \
         a job to end, or attach the aggregator with more",
        held(holders)
    )]
    PoolFull {
        /// Slots asked for.
        wanted: u32,
        /// Slots that no job has.
        free: u32,
        /// The largest range that could be given.
        largest: u32,
        /// All slots.
        total: u32,
        /// The jobs that have the rest, with how many.
        holders: Vec<(String, u32)>,
    },
    /// See [`RefusalKind::TooManyElements`].
    #[error(
        "chunks of {wanted} elements are too large: the aggregator takes at most {max}, {}", limit(narrowest.as_deref())
    )]
    TooManyElements {
        /// Elements asked for.
        wanted: u16,
        /// The plane's maximum.
        max: u16,
        /// The port whose MTU carries no more; none: the slots hold no more.
        narrowest: Option<String>,
    },
    /// See [`RefusalKind::TooManyJobs`].
    #[error("the aggregator runs {max} jobs already, which is all it can; wait until one ends")]
    TooManyJobs {
        /// The most that it can run.
        max: usize,
    },
    /// See [`RefusalKind::Hosts`].
    #[error(
        "a dynamic job needs {wanted} parameter hosts, and {registered} that can sum for it are registered here: start `sumac \
         daemon --parameter-host` on a host for it (not on its workers below racks), or ask for fewer"
    )]
    Hosts {
        /// The number that it needs.
        wanted: u16,
        /// The number that can take it.
        registered: usize,
    },
    /// There is no aggregator for a static job; of the kind [`RefusalKind::Plane`].
    #[error(
        "this control plane has no aggregator (`--plane none`): open the job with mode dynamic, or join where there is one"
    )]
    NoAggregator,
    /// See [`RefusalKind::Plane`].
    #[error("the aggregator could not take the job: {what}")]
    Plane {
        /// The plane's own message.
        what: String,
    },
    /// See [`RefusalKind::Stopping`].
    #[error("the aggregator's control plane is being stopped; join again when it is back")]
    Stopping,
}

/// The place of the limit on a chunk.
fn limit(narrowest: Option<&str>) -> String {
    match narrowest {
        Some(port) => format!("since its port {port} carries no more; ask for fewer, or raise the MTU there"),
        None => "which its slots hold; ask for fewer, or attach it with larger --elements".into(),
    }
}

/// The jobs that have the slots that are not free.
fn held(holders: &[(String, u32)]) -> String {
    if holders.is_empty() {
        return String::new();
    }
    let holders: Vec<_> = holders.iter().map(|(job, slots)| format!("`{job}` {slots}")).collect();
    format!(" (taken by {})", holders.join(", "))
}

impl Refusal {
    /// Its subject.
    pub fn kind(&self) -> RefusalKind {
        match self {
            Refusal::Invalid { .. } => RefusalKind::Invalid,
            Refusal::Missing { .. } => RefusalKind::Missing,
            Refusal::RankTaken { .. } | Refusal::Held { .. } => RefusalKind::RankTaken,
            Refusal::Mismatch { .. } => RefusalKind::Mismatch,
            Refusal::PoolFull { .. } => RefusalKind::PoolFull,
            Refusal::TooManyElements { .. } => RefusalKind::TooManyElements,
            Refusal::TooManyJobs { .. } => RefusalKind::TooManyJobs,
            Refusal::Hosts { .. } => RefusalKind::Hosts,
            Refusal::Plane { .. } | Refusal::NoAggregator => RefusalKind::Plane,
            Refusal::Stopping => RefusalKind::Stopping,
        }
    }

    /// The ranks that it concerns.
    pub fn ranks(&self) -> Vec<u16> {
        match self {
            Refusal::Missing { ranks, .. } | Refusal::Held { ranks, .. } => ranks.clone(),
            Refusal::RankTaken { rank, .. } => vec![*rank],
            Refusal::Mismatch { ranks, .. } => ranks.to_vec(),
            _ => Vec::new(),
        }
    }
}

/// A [`Refusal`] as it arrives at a client.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Refused {
    /// For programs.
    pub kind: RefusalKind,
    /// For people.
    pub message: String,
    /// The ranks that it concerns.
    pub ranks: Vec<u16>,
}

impl From<&Refusal> for Refused {
    fn from(refusal: &Refusal) -> Refused {
        Refused { kind: refusal.kind(), message: refusal.to_string(), ranks: refusal.ranks() }
    }
}
