//! The limits of what trainers hold in the daemon: in all, and for each user, so that none takes all of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sumac_api::{Code, Failure};
use sumac_job::{JobTerms, Mode, NonFinitePolicy};
use sumac_transport::KEPT_SUMS;

/// The part of a limit that one user may hold: a half.
const USERS_SHARE: u64 = 2;
/// Connections: each has a thread. A user's half has one for every job of an aggregator.
const CONNECTIONS: u64 = 2048;
/// Jobs that are opened or attached to: each has an eventfd, and those that are opened a connection to a
/// control plane.
const JOBS: u64 = 2048;
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
/// The chunks whose result is recorded in a byte. The bits' table may have twice the room that it needs. A
/// byte has one chunk that may be left to the client: a bit in the engine, another in the operation, and a
/// digit in the message.
const CHUNKS_PER_BYTE: u64 = 4;

/// The bytes with which a fragment of several ranks is added.
const SCRATCH_BYTES: u64 = 64 << 10;

/// Returns the bytes that the daemon holds for a job.
pub(crate) fn job_bytes(terms: &JobTerms) -> u64 {
    let chunks = u64::from(if terms.mode == Mode::Static { terms.slots } else { terms.window });
    JOB_BYTES + u64::from(terms.lanes()) * chunks * CHUNK_BYTES
}

/// Returns the bytes that the daemon holds for an operation of this many chunks in a job.
pub(crate) fn operation_bytes(chunks: u64, terms: &JobTerms) -> u64 {
    let shards = u64::from(terms.shards);
    let fixed = OPERATION_BYTES + shards * FRAGMENT_BYTES + sum_bytes(chunks, terms);
    if terms.is_direct() {
        // Of each worker's transfers a bit for a chunk, and the numbers of those that are missing.
        return fixed
            + u64::from(terms.world) * FRAGMENT_BYTES
            + chunks * (MISSING_BYTES + u64::from(terms.world).div_ceil(8));
    }
    let leaves = terms.mode == Mode::Static && terms.not_finite == NonFinitePolicy::Raw;
    fixed + chunks.div_ceil(if leaves { 1 } else { CHUNKS_PER_BYTE })
}

/// Returns a rank's part of the bytes of the sums of a worker's ranks: of a direct job the whole tensor, else
/// the chunks in flight, and what adding them takes.
fn sum_bytes(chunks: u64, terms: &JobTerms) -> u64 {
    if terms.local_world < 2 {
        return 0;
    }
    let chunk = 4 * u64::from(terms.elements);
    let sums = if terms.is_direct() {
        chunks * chunk
    } else {
        let shards = u64::from(terms.shards);
        chunks.min(shards * KEPT_SUMS as u64) * chunk + shards * SCRATCH_BYTES
    };
    sums / u64::from(terms.local_world)
}

/// A limited resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    Connections,
    Jobs,
    Regions,
    /// Bytes of trainers' memory that are mapped here. Their pages are the trainers'.
    Mapped,
    /// Bytes that the daemon allocates itself for connections, jobs and queued operations.
    Held,
    /// File descriptors of the daemon, which connections, jobs and regions take.
    Descriptors,
}

impl Quota {
    /// The descriptors of one connection (its socket, an eventfd, the process), job (an eventfd, its
    /// membership's socket, and another while that connects anew) or region (its file).
    fn descriptors(self) -> u64 {
        match self {
            Quota::Connections | Quota::Jobs => 3,
            Quota::Regions => 1,
            Quota::Mapped | Quota::Held | Quota::Descriptors => 0,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Quota::Connections => "connections",
            Quota::Jobs => "jobs",
            Quota::Regions => "regions",
            Quota::Mapped => "bytes of regions",
            Quota::Held => "bytes of the daemon's memory for trainers",
            Quota::Descriptors => "file descriptors for connections, jobs and regions",
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Quota::Connections | Quota::Jobs => "close some first",
            Quota::Regions => "put several tensors into one region",
            Quota::Mapped => "register less, or raise memory_mib in the daemon's configuration",
            Quota::Held => {
                "use fewer connections and operations, larger packets, or raise buffers_mib in the daemon's \
                configuration"
            }
            Quota::Descriptors => {
                "put several tensors into a region, or allow the daemon more files (LimitNOFILE=, ulimit -n)"
            }
        }
    }
}

/// The limits of the configuration, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct QuotaLimits {
    pub mapped: u64,
    pub held: u64,
    /// The file descriptors that the daemon can have open for trainers.
    pub descriptors: u64,
}

impl QuotaLimits {
    fn of(&self, quota: Quota) -> u64 {
        match quota {
            Quota::Connections => CONNECTIONS,
            Quota::Jobs => JOBS,
            Quota::Regions => REGIONS,
            Quota::Mapped => self.mapped,
            Quota::Held => self.held,
            Quota::Descriptors => self.descriptors,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Usage {
    sum: u64,
    /// The users who hold some.
    by_user: BTreeMap<u32, u64>,
}

/// The amounts in use. Each is charged when something begins and released with the last use of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotas {
    connections: Usage,
    jobs: Usage,
    regions: Usage,
    mapped: Usage,
    held: Usage,
    descriptors: Usage,
}

impl Quotas {
    fn usage(&mut self, quota: Quota) -> &mut Usage {
        match quota {
            Quota::Connections => &mut self.connections,
            Quota::Jobs => &mut self.jobs,
            Quota::Regions => &mut self.regions,
            Quota::Mapped => &mut self.mapped,
            Quota::Held => &mut self.held,
            Quota::Descriptors => &mut self.descriptors,
        }
    }

    /// Whether nothing is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Quotas::default()
    }

    /// Charges a user with all of these amounts and their descriptors, or with nothing.
    ///
    /// # Errors
    /// The limit that would be exceeded.
    pub(crate) fn reserve(
        &mut self,
        limits: &QuotaLimits,
        uid: u32,
        amounts: &[(Quota, u64)],
    ) -> Result<(), Failure> {
        for (at, (quota, amount)) in amounts.iter().enumerate() {
            let files = amount.saturating_mul(quota.descriptors());
            let reserved = self.reserve_one(limits, uid, *quota, *amount).and_then(|()| {
                let reserved = self.reserve_one(limits, uid, Quota::Descriptors, files);
                reserved.inspect_err(|_| self.release_one(uid, *quota, *amount))
            });
            if let Err(failure) = reserved {
                amounts[..at].iter().for_each(|(quota, amount)| self.release(uid, *quota, *amount));
                return Err(failure);
            }
        }
        Ok(())
    }

    fn reserve_one(
        &mut self,
        limits: &QuotaLimits,
        uid: u32,
        quota: Quota,
        amount: u64,
    ) -> Result<(), Failure> {
        if amount == 0 {
            return Ok(());
        }
        let limit = limits.of(quota);
        let (most, what) = (limit.div_ceil(USERS_SHARE), quota.name());
        let used = self.usage(quota);
        let users = used.by_user.get(&uid).copied().unwrap_or(0);
        let sums = users.checked_add(amount).zip(used.sum.checked_add(amount));
        let failure = match sums {
            Some((users, sum)) if users <= most && sum <= limit => {
                used.sum = sum;
                if users > 0 {
                    used.by_user.insert(uid, users);
                }
                return Ok(());
            }
            Some((users, _)) if users <= most => {
                format!("all users together have {} of {limit} {what}; {amount} more exceed them", used.sum)
            }
            _ => format!("user {uid} has {users} of {most} {what}, a user's share; {amount} more exceed it"),
        };
        Err(Failure::new(Code::Limit, failure).hint(quota.hint()))
    }

    pub(crate) fn release(&mut self, uid: u32, quota: Quota, amount: u64) {
        self.release_one(uid, quota, amount);
        self.release_one(uid, Quota::Descriptors, amount.saturating_mul(quota.descriptors()));
    }

    fn release_one(&mut self, uid: u32, quota: Quota, amount: u64) {
        let used = self.usage(quota);
        used.sum = used.sum.saturating_sub(amount);
        if let Some(users) = used.by_user.get_mut(&uid) {
            *users = users.saturating_sub(amount);
            if *users == 0 {
                used.by_user.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: QuotaLimits = QuotaLimits { mapped: 200, held: 7, descriptors: 20 };

    /// docs/api.md, Limits.
    #[test]
    fn what_is_charged_covers_the_tables_and_is_documented() {
        let entry = size_of::<(crate::OperationKey, crate::JobId)>();
        let table = size_of::<crate::operation::Operation>() + 2 * entry;
        // A node of a B-tree may be half empty.
        let operation = 2 * table + crate::log::tests::ENTRY_BYTES;
        let fragment = 2 * size_of::<crate::operation::FragmentRecord>();
        assert!(operation as u64 <= OPERATION_BYTES, "{operation} bytes of an operation");
        assert!(fragment as u64 <= FRAGMENT_BYTES, "{fragment} bytes of a fragment");
        let page = include_str!("../../../docs/api.md");
        let (mib, kib) = (1 << 20, 1 << 10);
        let documented = format!(
            "{} MiB for a connection; {} MiB for a job, and {CHUNK_BYTES} bytes for each of its packets that \
            may be in flight; {} KiB for a queued operation, and a byte for four of its packets",
            CONNECTION_BYTES / mib,
            JOB_BYTES / mib,
            OPERATION_BYTES / kib,
        );
        assert!(page.contains(&documented), "docs/api.md lacks: {documented}");
        assert_eq!(CHUNKS_PER_BYTE, 4);
    }

    #[test]
    fn released_amounts_can_be_reserved_again() {
        let mut quotas = Quotas::default();
        let reserve = |quotas: &mut Quotas, amount| quotas.reserve(&LIMITS, 1, &[(Quota::Mapped, amount)]);
        reserve(&mut quotas, 60).unwrap();
        assert!(reserve(&mut quotas, 41).is_err());
        assert!(reserve(&mut quotas, u64::MAX).is_err());
        reserve(&mut quotas, 40).unwrap();
        quotas.release(1, Quota::Mapped, 60);
        reserve(&mut quotas, 60).unwrap();
        quotas.release(1, Quota::Mapped, 100);
        assert!(quotas.is_empty());
    }

    #[test]
    fn no_user_takes_all() {
        let mut quotas = Quotas::default();
        let reserve = |quotas: &mut Quotas, uid| quotas.reserve(&LIMITS, uid, &[(Quota::Held, 1)]);
        (0..4).for_each(|_| reserve(&mut quotas, 1).unwrap());
        let refused = reserve(&mut quotas, 1).unwrap_err();
        assert!(refused.message.contains("user 1 has 4 of 4 bytes"), "{refused}");
        (2..5).for_each(|uid| reserve(&mut quotas, uid).unwrap());
        let refused = reserve(&mut quotas, 6).unwrap_err();
        assert!(refused.message.contains("all users together have 7 of 7"), "{refused}");
        quotas.release(1, Quota::Held, 4);
        reserve(&mut quotas, 6).unwrap();
    }

    #[test]
    fn descriptors_belong_to_the_users_shares() {
        let mut quotas = Quotas::default();
        let reserve = |quotas: &mut Quotas, uid, quota| quotas.reserve(&LIMITS, uid, &[(quota, 1)]);
        reserve(&mut quotas, 1, Quota::Connections).unwrap();
        reserve(&mut quotas, 1, Quota::Jobs).unwrap();
        (0..4).for_each(|_| reserve(&mut quotas, 1, Quota::Regions).unwrap());
        let refused = reserve(&mut quotas, 1, Quota::Regions).unwrap_err();
        assert!(refused.message.contains("user 1 has 10 of 10 file descriptors"), "{refused}");
        reserve(&mut quotas, 2, Quota::Connections).unwrap();
        quotas.release(1, Quota::Jobs, 1);
        reserve(&mut quotas, 1, Quota::Regions).unwrap();
        quotas.release(1, Quota::Regions, 5);
        quotas.release(1, Quota::Connections, 1);
        quotas.release(2, Quota::Connections, 1);
        assert!(quotas.is_empty());
    }

    #[test]
    fn amounts_are_reserved_together_or_not_at_all() {
        let mut quotas = Quotas::default();
        let both = [(Quota::Mapped, 100), (Quota::Held, 5)];
        assert!(quotas.reserve(&LIMITS, 1, &both).is_err());
        assert!(quotas.is_empty());
    }
}
