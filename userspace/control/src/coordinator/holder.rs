//! Whoever a job's ranks count for.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use serde::{Deserialize, Serialize};

/// The parts into which a number or slot is divided among ranks.
pub(super) const PARTS: u64 = 1 << 20;

/// Whoever a rank's part of a job counts for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Holder {
    /// The host that a worker's control connection comes from.
    Host(Ipv4Addr),
    /// A user id, as the worker's daemon has it. The same on all hosts.
    User(u32),
    /// A user of one host.
    UserOf(Ipv4Addr, u32),
    /// The secret of one job, or (`None`) that of all others. There is no such holder without other secrets.
    Secret(Option<String>),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Host(ip) => write!(f, "host {ip}"),
            Holder::User(uid) => write!(f, "user {uid}"),
            Holder::UserOf(host, uid) => write!(f, "user {uid} of host {host}"),
            Holder::Secret(Some(job)) => write!(f, "the secret of job `{job}`"),
            Holder::Secret(None) => write!(f, "the secret of all jobs without one of their own"),
        }
    }
}

/// Returns the parts of a job of `world` ranks that count for the holders of some of its ranks.
pub(super) fn parts<'a>(holders: impl IntoIterator<Item = &'a Holder>, world: u16) -> BTreeMap<Holder, u64> {
    let mut parts = BTreeMap::new();
    for holder in holders {
        *parts.entry(holder.clone()).or_default() += PARTS / u64::from(world.max(1));
    }
    parts
}
