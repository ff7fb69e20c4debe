//! The host program's table of jobs: the packets that it passes to the sockets.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sumac_hostprog::{Attached, MapError};
use sumac_wire::tables::HostJobEntry;

/// A role of this host in a job. It may have both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It sends contributions and receives results.
    Worker,
    /// It receives contributions and sums.
    ParameterHost,
}

/// Reasons that a job is not admitted.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdmissionError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(
        "job number {0} is another control plane's on this host already; let worker and parameter host have the same one"
    )]
    Taken(u16),
}

/// The entries of a job by role; the epoch is the later of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entries {
    worker: Option<HostJobEntry>,
    host: Option<HostJobEntry>,
    epoch: u16,
}

impl Entries {
    fn entry_of(&mut self, role: Role) -> &mut Option<HostJobEntry> {
        match role {
            Role::Worker => &mut self.worker,
            Role::ParameterHost => &mut self.host,
        }
    }

    /// Returns the entry that admits the packets of both roles.
    fn entry(&self) -> Option<HostJobEntry> {
        let (one, other) = match (self.worker, self.host) {
            (Some(worker), Some(host)) => (worker, host),
            (Some(one), None) | (None, Some(one)) => (one, one),
            (None, None) => return None,
        };
        // The addresses are the worker's.
        Some(HostJobEntry { epoch: self.epoch, flags: one.flags | other.flags, ..one })
    }
}

/// The attached program, and the entries of its jobs.
#[derive(Debug)]
pub(super) struct AdmittedJobs {
    pub(super) program: Attached,
    jobs: HashMap<u16, Entries>,
}

impl AdmittedJobs {
    /// `program`: one whose table of jobs is empty.
    pub(super) fn new(program: Attached) -> AdmittedJobs {
        AdmittedJobs { program, jobs: HashMap::new() }
    }

    pub(super) fn lock(admitted: &Mutex<AdmittedJobs>) -> MutexGuard<'_, AdmittedJobs> {
        // After a panic the next change of a job writes its entry again.
        admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the entry of a role of a job.
    pub(super) fn admit(&mut self, job: u16, role: Role, entry: HostJobEntry) -> Result<(), AdmissionError> {
        let mut entries = self.jobs.get(&job).copied().unwrap_or_default();
        *entries.entry_of(role) = None;
        let other = entries.entry();
        if other.is_some_and(|other| other.token != entry.token) {
            return Err(AdmissionError::Taken(job));
        }
        *entries.entry_of(role) = Some(entry);
        // The other role may have a later epoch already.
        entries.epoch = other.map_or(entry.epoch, |other| other.epoch.max(entry.epoch));
        if let Some(entry) = entries.entry() {
            self.program.add_job(job, entry)?;
        }
        self.jobs.insert(job, entries);
        Ok(())
    }

    /// Removes the entry of a role of a job.
    pub(super) fn dismiss(&mut self, job: u16, role: Role) -> Result<(), MapError> {
        let mut entries = self.jobs.get(&job).copied().unwrap_or_default();
        *entries.entry_of(role) = None;
        match entries.entry() {
            Some(entry) => {
                self.jobs.insert(job, entries);
                self.program.add_job(job, entry)
            }
            None => {
                self.jobs.remove(&job);
                self.program.remove_job(job)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumac_wire::tables::job_flag;

    #[test]
    fn both_parts_of_a_job_are_let_in() {
        let worker = HostJobEntry { token: 1, aggregator_ip: 7, epoch: 3, ..HostJobEntry::default() };
        let host = HostJobEntry { aggregator_ip: 0, flags: job_flag::PARAMETER, ..worker };
        let mut entries = Entries { epoch: 3, ..Entries::default() };
        assert_eq!(entries.entry(), None);
        entries.worker = Some(worker);
        assert_eq!(entries.entry(), Some(worker));
        entries.host = Some(host);
        assert_eq!(entries.entry(), Some(HostJobEntry { flags: job_flag::PARAMETER, ..worker }));
        // The parameter host learns a new epoch first.
        entries.epoch = 4;
        entries.worker = None;
        assert_eq!(entries.entry(), Some(HostJobEntry { epoch: 4, ..host }));
    }
}
