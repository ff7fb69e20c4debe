//! The entries of a job, by the control blocks of the program (p4/common), and a job reconstructed from its entries.
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
pub mod own;
mod recall;
pub mod ways;

use sumac_agg_job::NewJob;

pub use recall::{HeldJob, recall};

use crate::{
    sizes::Sizes,
    target::{Entry, Group},
};

/// A job's table, written last: with its entry the job begins.
pub const JOBS: &str = "jobs";
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

/// The number of a worker, or of a rack at a root, in tables and as a copy's replication id.
pub fn worker(rank: usize) -> u64 {
    1 + rank as u64
}

/// The number of a parent: the root, or a parameter host.
pub fn parent(number: usize) -> u64 {
    33 + number as u64
}

/// Returns all entries of a job, for a program of these sizes.
pub fn entries(new: &NewJob, program: Sizes) -> Vec<Entry> {
    [ways::entries(new), admission::entries(new, program)].concat()
}

pub fn group(new: &NewJob) -> Group {
    groups::of_job(new)
}

fn mac(bytes: [u8; 6]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
