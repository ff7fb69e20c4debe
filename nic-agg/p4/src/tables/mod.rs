//! The entries of a job, by the control blocks of the program (p4/common), and a job reconstructed from its
//! entries.
//!
//! | module | control block |
//! | --- | --- |
//! | [`admission`] | `lookup.p4`: who may send what to which slot |
//! | [`ways`] | `ways.p4`, `egress.p4`: ports and addresses of workers and parents |
//! | [`groups`] | the traffic manager's multicast groups |
//! | [`drops`] | `drops.p4`, `egress.p4`: intentional drops |
//! | [`own`] | `own.p4`: ARP and ICMP echo |
//! | [`hosts`] | `ways.p4`: all that is not the aggregator's |

pub mod admission;
pub mod drops;
pub mod groups;
pub mod hosts;
mod numbers;
pub mod own;
mod recall;
pub mod ways;

use sumac_agg_job::NewJob;

pub use admission::JOBS;
pub use recall::{HeldJob, recall};

use crate::{
    sizes::Sizes,
    target::{Entry, Group},
};

/// All tables.
pub const ALL: [&str; 16] = [
    "hosts",
    "own",
    "drops",
    "copy_drops",
    "addresses",
    "ways",
    "lanes",
    "uplinks",
    "parent_sources",
    "parents",
    "receivers",
    "sides",
    "sources",
    "senders",
    "tokens",
    JOBS,
];

/// Returns all entries of a job, for a program of these sizes.
pub fn entries(new: &NewJob, program: Sizes) -> Vec<Entry> {
    [ways::entries(new), admission::entries(new, program)].concat()
}

pub fn group(new: &NewJob) -> Group {
    groups::of_job(new)
}
