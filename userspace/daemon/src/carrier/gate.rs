//! What the host's XDP program lets in: the packets of the jobs that this host has a part in.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sumac_hostprog::{Attached, MapError};
use sumac_wire::tables::HostJobEntry;

/// A part that this host has in a job. It may have both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It sends contributions, and results come back.
    Worker,
    /// Contributions and sums come to it.
    ParameterHost,
}

/// Why the program does not let a job's packets in.
#[derive(Debug, thiserror::Error)]
pub(super) enum GateError {
    /// The program's tables.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Two control planes have given out one number.
    #[error(
        "job number {0} is another control plane's on this host already; let worker and parameter host have the same one"
    )]
    Taken(u16),
}

/// What the parts of a job need, by part; of one epoch at a time, the later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Parts {
    worker: Option<HostJobEntry>,
    host: Option<HostJobEntry>,
    epoch: u16,
}

impl Parts {
    fn place(&mut self, part: Part) -> &mut Option<HostJobEntry> {
        match part {
            Part::Worker => &mut self.worker,
            Part::ParameterHost => &mut self.host,
        }
    }

    /// The entry that lets in what either needs; `None`: nothing.
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

/// The attached program, and what it has been told of each job.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) program: Attached,
    jobs: HashMap<u16, Parts>,
}

impl Gate {
    /// The gate of a program whose table of jobs is empty.
    pub(super) fn new(program: Attached) -> Gate {
        Gate { program, jobs: HashMap::new() }
    }

    pub(super) fn lock(gate: &Mutex<Gate>) -> MutexGuard<'_, Gate> {
        // The kernel's tables stay as they were at a panic, and are written again with the next change of a job.
        gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets in what a part of a job needs, in place of what was said of that part before.
    pub(super) fn admit(&mut self, job: u16, part: Part, entry: HostJobEntry) -> Result<(), GateError> {
        let mut parts = self.jobs.get(&job).copied().unwrap_or_default();
        *parts.place(part) = None;
        let other = parts.entry();
        if other.is_some_and(|other| other.token != entry.token) {
            return Err(GateError::Taken(job));
        }
        *parts.place(part) = Some(entry);
        // The other part may have been told of a later one already.
        parts.epoch = other.map_or(entry.epoch, |other| other.epoch.max(entry.epoch));
        if let Some(entry) = parts.entry() {
            self.program.add_job(job, entry)?;
        }
        self.jobs.insert(job, parts);
        Ok(())
    }

    /// Lets in no more what only that part of a job needs.
    pub(super) fn dismiss(&mut self, job: u16, part: Part) -> Result<(), MapError> {
        let mut parts = self.jobs.get(&job).copied().unwrap_or_default();
        *parts.place(part) = None;
        match parts.entry() {
            Some(entry) => {
                self.jobs.insert(job, parts);
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
        let mut parts = Parts { epoch: 3, ..Parts::default() };
        assert_eq!(parts.entry(), None);
        parts.worker = Some(worker);
        assert_eq!(parts.entry(), Some(worker));
        parts.host = Some(host);
        assert_eq!(parts.entry(), Some(HostJobEntry { flags: job_flag::PARAMETER, ..worker }));
        // The parameter host is the first to be told of a new epoch.
        parts.epoch = 4;
        parts.worker = None;
        assert_eq!(parts.entry(), Some(HostJobEntry { epoch: 4, ..host }));
    }
}
