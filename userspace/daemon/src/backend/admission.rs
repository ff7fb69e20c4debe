//! The host program's table of jobs: the packets that it passes to the sockets.

use std::collections::HashMap;
use std::net::{Ipv4Addr, UdpSocket};

use sumac_hostprog::{Attached, MapError};
use sumac_loader::log::{Follower, ProgramLog};
use sumac_wire::tables::HostJobEntry;

/// A role of this host in a job. It may have both.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// It sends contributions and receives results.
    Worker,
    /// It receives contributions and sums.
    ParameterHost,
}

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
#[derive(Clone, Copy, Debug, Default)]
struct Entries {
    roles: [Option<HostJobEntry>; 2],
    epoch: u16,
}

impl Entries {
    /// Returns the entry that admits the packets of both roles.
    fn entry(&self) -> Option<HostJobEntry> {
        // The addresses are the worker's.
        let merge = |worker: HostJobEntry, host: HostJobEntry| HostJobEntry {
            flags: worker.flags | host.flags,
            ..worker
        };
        let entry = self.roles.into_iter().flatten().reduce(merge)?;
        Some(HostJobEntry { epoch: self.epoch, ..entry })
    }
}

/// The memberships of the multicast groups of jobs' results, by job. The frames arrive through AF_XDP; the
/// NIC's filter and the switches require the membership.
#[derive(Debug, Default)]
pub(super) struct Groups(HashMap<u16, UdpSocket>);

impl Groups {
    /// Joins a job's group on the interface with the address `ip`.
    pub(super) fn join(&mut self, job: u16, group: Ipv4Addr, ip: Ipv4Addr) -> std::io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.join_multicast_v4(&group, &ip)?;
        self.0.insert(job, socket);
        Ok(())
    }

    pub(super) fn leave(&mut self, job: u16) {
        self.0.remove(&job);
    }
}

pub(super) struct AdmittedJobs {
    pub(super) program: Attached,
    pub(super) groups: Groups,
    jobs: HashMap<u16, Entries>,
    log: Option<ProgramLog>,
    /// Logs the program's messages until it is dropped.
    messages: Option<Follower>,
}

impl AdmittedJobs {
    /// `program`: one whose table of jobs is empty.
    pub(super) fn new(program: Attached, log: Option<ProgramLog>) -> AdmittedJobs {
        AdmittedJobs { program, groups: Groups::default(), jobs: HashMap::new(), log, messages: None }
    }

    /// Starts the thread that logs the program's messages.
    pub(super) fn follow_log(&mut self) {
        self.messages = self.log.take().and_then(|log| match log.follow() {
            Ok(messages) => Some(messages),
            Err(error) => {
                tracing::warn!(%error, "the host program's messages will be missing here; see `sumac events`");
                None
            }
        });
    }

    /// Continues with another program, of the interface that was made anew: it gets the jobs.
    pub(super) fn replace(&mut self, new: AdmittedJobs) -> Result<(), MapError> {
        (self.program, self.log) = (new.program, new.log);
        self.follow_log();
        for (job, entries) in &self.jobs {
            entries.entry().map_or(Ok(()), |entry| self.program.add_job(*job, entry))?;
        }
        Ok(())
    }

    pub(super) fn admit(&mut self, job: u16, role: Role, entry: HostJobEntry) -> Result<(), AdmissionError> {
        let mut entries = self.jobs.get(&job).copied().unwrap_or_default();
        entries.roles[role as usize] = None;
        let other = entries.entry();
        if other.is_some_and(|other| other.token != entry.token) {
            return Err(AdmissionError::Taken(job));
        }
        entries.roles[role as usize] = Some(entry);
        // The other role may have a later epoch already.
        entries.epoch = other.map_or(entry.epoch, |other| other.epoch.max(entry.epoch));
        if let Some(entry) = entries.entry() {
            self.program.add_job(job, entry)?;
        }
        self.jobs.insert(job, entries);
        Ok(())
    }

    pub(super) fn dismiss(&mut self, job: u16, role: Role) -> Result<(), MapError> {
        let mut entries = self.jobs.remove(&job).unwrap_or_default();
        entries.roles[role as usize] = None;
        let Some(entry) = entries.entry() else { return self.program.remove_job(job) };
        self.jobs.insert(job, entries);
        self.program.add_job(job, entry)
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
        entries.roles[Role::Worker as usize] = Some(worker);
        assert_eq!(entries.entry(), Some(worker));
        entries.roles[Role::ParameterHost as usize] = Some(host);
        assert_eq!(entries.entry(), Some(HostJobEntry { flags: job_flag::PARAMETER, ..worker }));
        // The parameter host learns a new epoch first.
        entries.epoch = 4;
        entries.roles[Role::Worker as usize] = None;
        assert_eq!(entries.entry(), Some(HostJobEntry { epoch: 4, ..host }));
    }

    /// Returns whether this network namespace has joined a group on any interface.
    fn has_joined(group: Ipv4Addr) -> bool {
        let little_endian = format!("{:08X}", u32::from_le_bytes(group.octets()));
        std::fs::read_to_string("/proc/self/net/igmp").is_ok_and(|table| table.contains(&little_endian))
    }

    #[test]
    fn a_job_is_in_its_group_until_it_leaves() {
        // Unique to this process: the groups of a namespace are shared.
        let group = Ipv4Addr::from(0xef4d_0000 | std::process::id() & 0xffff);
        let mut groups = Groups::default();
        groups.join(1, group, Ipv4Addr::LOCALHOST).unwrap();
        assert!(has_joined(group));
        groups.leave(1);
        assert!(!has_joined(group));
        assert!(groups.join(1, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST).is_err(), "no group");
    }
}
