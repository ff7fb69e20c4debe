//! The decisions of a host's daemon: connections of trainers, jobs, operations, their order and lanes,
//! transfers, quotas, access.
//!
//! It is sans-IO: no sockets, threads, descriptors or clock. Each input goes in with the time, in nanoseconds
//! of `CLOCK_MONOTONIC`; what is to be done comes out as [`Output`]s, in order.
//!
//! ```text
//!  trainers' commands ---> |      | ---> messages to connections
//!  ends of fragments  ---> | Host | ---> fragments to lanes, peers that left
//!  control events     ---> |      | ---> posts to the control plane, the end of a job
//!  ticks              ---> |      | <--> Resources: leases, completion words, eventfds (handles beside the state)
//! ```
//!
//! [`HostState`] is plain data keyed by ids. It is also the format in which a live upgrade hands a daemon's
//! state over.
#![forbid(unsafe_code)]

/// Returns from the caller with an error unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $error:expr) => {
        if !$condition {
            return Err($error);
        }
    };
}

pub mod access;
mod checks;
mod clients;
mod commands;
mod connection;
mod ends;
pub mod explain;
mod finished;
mod fragment;
mod fragment_end;
mod host;
mod ids;
mod job;
mod job_end;
mod job_pattern;
mod lanes;
mod late;
mod lifecycle;
mod local;
mod log;
mod membership;
mod named;
mod operation;
mod operations;
mod output;
mod pace;
pub mod plan;
pub mod quotas;
mod ranges;
mod refusals;
mod region;
mod submit;
mod tensor;
pub mod terms;
mod tick;
mod transfer;
mod watch;
mod withdraw;

pub use access::{AccessRule, AccessRules, Credentials};
pub use commands::Handled;
pub use connection::{LIMITS, MESSAGE_COST};
pub use finished::Outcome;
pub use host::{Host, HostConfig, HostState, HostTotals};
pub use job::JobSummary;
pub use job_end::JobEnd;
pub use job_pattern::{JobPattern, PatternError};
pub use lanes::is_valid;
pub use local::NameRefusal;
pub use operation::{EndedFragment, FragmentOutcome, FragmentTimes};
pub use output::{Attached, LeaseRequest, Message, Output, RankSum, Resources, Span, WordPlace};
pub use watch::{Observed, Tick};

pub use ids::{ConnectionId, FragmentKey, JobId, Nanos, OperationKey, RegionId};
use ids::{MILLISECOND, SECOND};
