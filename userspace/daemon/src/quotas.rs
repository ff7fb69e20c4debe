//! The limits of what trainers hold in the daemon: in all, and for each user, so that none takes all of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sumac_api::{Code, Failure};
use sumac_job::{JobTerms, Mode};

use crate::config::Config;

/// The part of a limit that one user may hold: a half.
const USERS_SHARE: u64 = 2;
/// Connections: each has a thread and two descriptors.
const CONNECTIONS: u64 = 512;
/// Jobs that are opened or attached to: each has an eventfd, and those that are opened a connection to a control plane.
const JOBS: u64 = 512;
/// Registered regions. The kernel permits 65,530 mappings in a process (`vm.max_map_count`).
const REGIONS: u64 = 32_768;

/// The bytes of a connection: its socket's buffer, its thread, the messages and outcomes that it keeps.
pub(crate) const CONNECTION_BYTES: u64 = 4 << 20;
/// The bytes of a job beside its chunks in flight: the log of its operations above all.
const JOB_BYTES: u64 = 2 << 20;
/// The bytes of a chunk that may be in flight, in the tables of its lane.
const CHUNK_BYTES: u64 = 256;
/// The bytes of a queued operation, and of each of its fragments.
const OPERATION_BYTES: u64 = 2048;
const FRAGMENT_BYTES: u64 = 512;
/// The number of a missing chunk, in a queue that may have twice the room that it needs.
const MISSING_BYTES: u64 = 8;
/// The chunks whose result is recorded in a byte. The bits' table may have twice the room that it needs.
const CHUNKS_PER_BYTE: u64 = 4;

/// Returns the bytes that the daemon holds for a job.
pub(crate) fn job_bytes(terms: &JobTerms) -> u64 {
    let chunks = u64::from(if terms.mode == Mode::Static { terms.slots } else { terms.window });
    JOB_BYTES + u64::from(terms.lanes()) * chunks * CHUNK_BYTES
}

/// Returns the bytes that the daemon holds for an operation of this many chunks in a job.
pub(crate) fn operation_bytes(chunks: u64, terms: &JobTerms) -> u64 {
    let fixed = OPERATION_BYTES + u64::from(terms.shards) * FRAGMENT_BYTES;
    if terms.is_direct() {
        // Of each worker's transfers a bit for a chunk, and the numbers of those that are missing.
        return fixed
            + u64::from(terms.world) * FRAGMENT_BYTES
            + chunks * (MISSING_BYTES + u64::from(terms.world).div_ceil(8));
    }
    fixed + chunks.div_ceil(CHUNKS_PER_BYTE)
}

/// All limits. Each is charged when something begins and released with the last use of it.
#[derive(Debug)]
pub(crate) struct Quotas {
    pub(crate) connections: Arc<Quota>,
    pub(crate) jobs: Arc<Quota>,
    pub(crate) regions: Arc<Quota>,
    /// Bytes of trainers' memory that are mapped here. Their pages are the trainers'.
    pub(crate) mapped: Arc<Quota>,
    /// Bytes that the daemon allocates itself for connections, jobs and queued operations.
    pub(crate) held: Arc<Quota>,
}

impl Quotas {
    pub(crate) fn new(config: &Config) -> Quotas {
        let fewer = "close some first";
        Quotas {
            connections: Quota::new("connections", CONNECTIONS, fewer),
            jobs: Quota::new("jobs", JOBS, fewer),
            regions: Quota::new("regions", REGIONS, "put several tensors into one region"),
            mapped: Quota::new(
                "bytes of regions",
                config.memory_bytes(),
                "register less, or raise memory_mib in the daemon's configuration",
            ),
            held: Quota::new(
                "bytes of the daemon's memory for trainers",
                config.buffer_bytes(),
                "use fewer connections and operations, larger packets, or raise buffers_mib in the daemon's configuration",
            ),
        }
    }
}

/// One limit, in all and for each user.
#[derive(Debug)]
pub(crate) struct Quota {
    what: &'static str,
    limit: u64,
    hint: &'static str,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    sum: u64,
    /// The users who hold some.
    by_user: HashMap<u32, u64>,
}

/// A part of a limit, returned when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    quota: Arc<Quota>,
    uid: u32,
    amount: u64,
}

impl Quota {
    pub(crate) fn new(what: &'static str, limit: u64, hint: &'static str) -> Arc<Quota> {
        Arc::new(Quota { what, limit, hint, used: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        // The sums are changed together at the end of each function.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reserve(self: &Arc<Quota>, uid: u32, amount: u64) -> Result<Reservation, Failure> {
        let mut used = self.lock();
        let users = used.by_user.get(&uid).copied().unwrap_or(0);
        let (most, what, limit) = (self.limit.div_ceil(USERS_SHARE), self.what, self.limit);
        let sums = users.checked_add(amount).zip(used.sum.checked_add(amount));
        let failure = match sums {
            Some((users, sum)) if users <= most && sum <= limit => {
                used.sum = sum;
                used.by_user.insert(uid, users);
                return Ok(Reservation { quota: self.clone(), uid, amount });
            }
            Some((users, _)) if users <= most => {
                format!("all users together have {} of {limit} {what}; {amount} more exceed them", used.sum)
            }
            _ => format!("user {uid} has {users} of {most} {what}, a user's share; {amount} more exceed it"),
        };
        Err(Failure::new(Code::Limit, failure).hint(self.hint))
    }
}

impl Reservation {
    /// Returns the user and the amount.
    pub(crate) fn share(&self) -> (u32, u64) {
        (self.uid, self.amount)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut used = self.quota.lock();
        used.sum = used.sum.saturating_sub(self.amount);
        if let Entry::Occupied(mut users) = used.by_user.entry(self.uid) {
            match users.get().saturating_sub(self.amount) {
                0 => drop(users.remove()),
                rest => *users.get_mut() = rest,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_amounts_return_when_dropped() {
        let quota = Quota::new("bytes", 200, "");
        let first = quota.reserve(1, 60).unwrap();
        assert!(quota.reserve(1, 41).is_err());
        assert!(quota.reserve(1, u64::MAX).is_err());
        let rest = quota.reserve(1, 40).unwrap();
        drop(first);
        let again = quota.reserve(1, 60).unwrap();
        drop((rest, again));
        assert!(quota.lock().by_user.is_empty() && quota.lock().sum == 0);
    }

    #[test]
    fn no_user_takes_all() {
        let quota = Quota::new("connections", 7, "close some");
        let reserve = |uid| quota.reserve(uid, 1);
        let first: Vec<_> = (0..4).map(|_| reserve(1).unwrap()).collect();
        let refused = reserve(1).unwrap_err();
        assert!(refused.message.contains("user 1 has 4 of 4 connections"), "{refused}");
        let others: Vec<_> = (2..5).map(|uid| reserve(uid).unwrap()).collect();
        let refused = reserve(6).unwrap_err();
        assert!(refused.message.contains("all users together have 7 of 7"), "{refused}");
        drop(first);
        reserve(6).unwrap();
        drop(others);
    }
}
