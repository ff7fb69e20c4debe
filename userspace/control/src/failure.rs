//! The reasons that a worker does not get into a job, or that a running job ended for all of its workers.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A reason for programs and for people.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Reason<K> {
    pub kind: K,
    /// Names who or what is at fault, with the remedy.
    pub message: String,
    /// The rank at fault, or the ranks that it concerns.
    pub ranks: Vec<u16>,
}

/// A refused join.
pub type Refusal = Reason<RefusalKind>;
/// The end of a running job.
pub type JobFailure = Reason<FailureKind>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalKind {
    /// A parameter that no job can have.
    Invalid,
    Missing,
    RankTaken,
    /// The same, and its worker may be dead: nothing comes from it. The rank is free soon, or taken.
    RankSilent,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// A rank stopped answering, or does not do what all wait for.
    Silent,
    /// A rank gave up, and stated why.
    Left,
    StateLost,
    PlaneDown,
    Stopped,
    /// All ranks have submitted an operation that does not end.
    NoProgress,
    /// Ranks have different operations, or one that no job can have.
    Mismatch,
    Rack,
    ParameterHost,
    /// The control plane does not answer this worker (found by the worker itself).
    AggregatorSilent,
    NoMember,
}

impl<K> Reason<K> {
    pub(crate) fn new(kind: K, ranks: &[u16], message: impl Into<String>) -> Reason<K> {
        Reason { kind, message: message.into(), ranks: ranks.to_vec() }
    }
}

impl JobFailure {
    #[must_use]
    pub fn culprit(&self) -> Option<u16> {
        match self.ranks[..] {
            [rank] => Some(rank),
            _ => None,
        }
    }

    pub fn state_lost(before: u64, after: u64) -> JobFailure {
        let message = format!("aggregator lost its state (instance {before:x} -> {after:x})");
        JobFailure::new(FailureKind::StateLost, &[], message)
    }

    pub fn mismatch(ranks: &[u16], message: String) -> JobFailure {
        JobFailure::new(FailureKind::Mismatch, ranks, message)
    }

    pub(crate) fn plane(what: &str) -> JobFailure {
        JobFailure::new(FailureKind::PlaneDown, &[], format!("the aggregator's data plane failed: {what}"))
    }

    pub(crate) fn journal(why: &str) -> JobFailure {
        JobFailure::new(FailureKind::Stopped, &[], format!("the job's new terms are not on the disk: {why}"))
    }

    pub(crate) fn no_member(message: impl Into<String>) -> JobFailure {
        JobFailure::new(FailureKind::NoMember, &[], message)
    }
}

/// The most holders of slots that a refusal names.
const NAMED_HOLDERS: usize = 8;
/// A remark for messages that name an option with which an aggregator has more.
pub(crate) const COMPILED_IN: &str = "those of a switch are compiled into its program";

pub(crate) fn invalid<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(RefusalKind::Invalid, &[], message))
}

impl Refusal {
    /// `is_longest`: the workers asked for a longer wait than the control plane has.
    pub(crate) fn missing(job: &str, ranks: &[u16], waited: Duration, is_longest: bool) -> Refusal {
        let (limit, longer) = match is_longest {
            true => (", the longest wait of this control plane,", "raise `sumac-agg serve --longest-wait`"),
            false => ("", "give a longer deadline"),
        };
        let message = format!(
            "job `{job}`: after {waited:?}{limit} still waiting for ranks {ranks:?}; start them, or {longer}"
        );
        Refusal::new(RefusalKind::Missing, ranks, message)
    }

    /// The job's earlier incarnation is not over.
    pub(crate) fn held(job: &str, ranks: &[u16]) -> Refusal {
        let message = format!(
            "job `{job}` is still being run by ranks {ranks:?}; wait until they have left, or take another \
            name"
        );
        Refusal::new(RefusalKind::RankTaken, ranks, message)
    }

    /// `holders` have the slots that are not free.
    pub(crate) fn pool_full(
        wanted: u32,
        [free, largest, total]: [u32; 3],
        holders: &[(String, u32)],
    ) -> Refusal {
        let named = holders.iter().take(NAMED_HOLDERS);
        let mut named: Vec<_> = named.map(|(job, slots)| format!("`{job}` {slots}")).collect();
        if holders.len() > NAMED_HOLDERS {
            named.push(format!("{} more", holders.len() - NAMED_HOLDERS));
        }
        let taken =
            if named.is_empty() { String::new() } else { format!(" (taken by {})", named.join(", ")) };
        let message = format!(
            "{wanted} slots are not free: {free} of {total} are, at most {largest} together{taken}; ask for \
            fewer, wait for a job to end, or give the aggregator more --slots ({COMPILED_IN})"
        );
        Refusal::new(RefusalKind::PoolFull, &[], message)
    }

    /// `holders`: who has most of them.
    pub(crate) fn too_many_jobs(max: u16, holders: &str) -> Refusal {
        let message = format!(
            "the aggregator runs {max} jobs already, which is all it can ({holders}); wait until one ends"
        );
        Refusal::new(RefusalKind::TooManyJobs, &[], message)
    }

    /// A host has as many workers as one may have, in jobs that run and in jobs that wait.
    pub(crate) fn too_many_of_host(host: &str, max: usize) -> Refusal {
        let message = format!(
            "{host} is a worker of {max} jobs already, which is all that one host may be: wait until one ends"
        );
        Refusal::new(RefusalKind::TooManyJobs, &[], message)
    }

    /// A holder would have more than its share. `held`: the holder and its jobs.
    pub(crate) fn over_share(kind: RefusalKind, held: String, share: String) -> Refusal {
        let message = format!(
            "{held}, and has a share of {share}: wait until one of its jobs ends, or raise `sumac-agg serve \
             --share`"
        );
        Refusal::new(kind, &[], message)
    }

    /// All job numbers have had all epochs.
    pub(crate) fn spent() -> Refusal {
        let what = "its slots have seen as many jobs as they can tell apart; `sumac-agg detach` and attach \
        it anew, or restart the switch, then start `sumac-agg serve` again";
        Refusal::plane(what)
    }

    pub(crate) fn no_aggregator() -> Refusal {
        let message = "this control plane has no aggregator (`--plane none`): open the job with mode \
        dynamic, or join where there is one";
        Refusal::new(RefusalKind::Plane, &[], message)
    }

    pub(crate) fn plane(what: &str) -> Refusal {
        Refusal::new(RefusalKind::Plane, &[], format!("the aggregator could not take the job: {what}"))
    }

    pub(crate) fn journal(why: &str) -> Refusal {
        Refusal::plane(why)
    }

    /// `why` names the worker's stated address, that of its connection, and the remedy.
    pub(crate) fn foreign_address(rank: u16, why: &dyn std::fmt::Display) -> Refusal {
        Refusal::new(RefusalKind::Invalid, &[rank], format!("rank {rank}: {why}"))
    }

    pub(crate) fn stopping() -> Refusal {
        let message = "the aggregator's control plane is being stopped; join again when it is back";
        Refusal::new(RefusalKind::Stopping, &[], message)
    }
}
