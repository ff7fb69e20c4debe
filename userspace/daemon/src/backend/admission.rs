//! The host program's table of jobs: the packets that it passes to the sockets.

use std::collections::HashMap;
use std::net::{Ipv4Addr, UdpSocket};

use sumac_host::JobId;
use sumac_hostprog::{Attached, MapError};
use sumac_loader::log::{Follower, ProgramLog};
use sumac_wire::tables::HostJobEntry;

/// A role of this host in a job. It may have both.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// It sends contributions and receives results.
    Worker(JobId),
    /// It receives contributions and sums, of the job with this number in the parameter host's control plane.
    ParameterHost(u16),
}

/// The entries of a job by role; the epoch is the later of both.
#[derive(Clone, Copy, Debug, Default)]
struct Entries {
    worker: Option<(JobId, HostJobEntry)>,
    host: Option<HostJobEntry>,
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
        let roles = [self.worker.map(|(_, entry)| entry), self.host];
        let entry = roles.into_iter().flatten().reduce(merge)?;
        Some(HostJobEntry { epoch: self.epoch, ..entry })
    }

    fn set(&mut self, role: Role, entry: HostJobEntry) {
        match role {
            Role::Worker(id) => self.worker = Some((id, entry)),
            Role::ParameterHost(_) => self.host = Some(entry),
        }
    }

    fn clear(&mut self, role: Role) {
        match role {
            Role::Worker(_) => self.worker = None,
            Role::ParameterHost(_) => self.host = None,
        }
    }

    fn has(&self, number: u16, role: Role) -> bool {
        match role {
            Role::Worker(id) => self.worker.is_some_and(|(own, _)| own == id),
            Role::ParameterHost(own) => own == number && self.host.is_some(),
        }
    }
}

/// The memberships of the multicast groups of jobs' results, by job. The frames arrive through AF_XDP; the
/// NIC's filter and the switches require the membership.
#[derive(Debug, Default)]
pub(super) struct GroupMemberships(HashMap<JobId, UdpSocket>);

impl GroupMemberships {
    /// Joins a job's group on the interface with the address `ip`.
    pub(super) fn join(&mut self, job: JobId, group: Ipv4Addr, ip: Ipv4Addr) -> std::io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.join_multicast_v4(&group, &ip)?;
        self.0.insert(job, socket);
        Ok(())
    }

    pub(super) fn leave(&mut self, job: JobId) {
        self.0.remove(&job);
    }
}

pub(super) struct AdmittedJobs {
    pub(super) program: Attached,
    pub(super) groups: GroupMemberships,
    /// By number and token: the control planes of this host assign the same numbers.
    jobs: HashMap<(u16, u64), Entries>,
    log: Option<ProgramLog>,
    /// Logs the program's messages until it is dropped.
    messages: Option<Follower>,
}

impl AdmittedJobs {
    /// `program`: one whose table of jobs is empty.
    pub(super) fn new(program: Attached, log: Option<ProgramLog>) -> AdmittedJobs {
        AdmittedJobs {
            program,
            groups: GroupMemberships::default(),
            jobs: HashMap::new(),
            log,
            messages: None,
        }
    }

    /// Starts the thread that logs the program's messages.
    pub(super) fn follow_log(&mut self) {
        self.messages = self.log.take().and_then(|log| match log.follow() {
            Ok(messages) => Some(messages),
            Err(error) => {
                tracing::warn!(%error,
                    "the host program's messages will be missing here; see `sumac events`");
                None
            }
        });
    }

    /// Continues with another program, of the interface that was made anew: it gets the jobs.
    pub(super) fn replace(&mut self, new: AdmittedJobs) -> Result<(), MapError> {
        (self.program, self.log) = (new.program, new.log);
        self.follow_log();
        for ((job, _), entries) in &self.jobs {
            entries.entry().map_or(Ok(()), |entry| self.program.add_job(*job, entry))?;
        }
        Ok(())
    }

    pub(super) fn admit(&mut self, number: u16, role: Role, entry: HostJobEntry) -> Result<(), MapError> {
        let key = (number, entry.token);
        let mut entries = self.jobs.get(&key).copied().unwrap_or_default();
        entries.clear(role);
        // The other role may have a later epoch already.
        entries.epoch = entries.entry().map_or(entry.epoch, |other| other.epoch.max(entry.epoch));
        entries.set(role, entry);
        if let Some(entry) = entries.entry() {
            self.program.add_job(number, entry)?;
        }
        self.jobs.insert(key, entries);
        Ok(())
    }

    pub(super) fn dismiss(&mut self, role: Role) -> Result<(), MapError> {
        let found = self.jobs.iter().find(|((number, _), entries)| entries.has(*number, role));
        let Some((&(number, token), &entries)) = found else { return Ok(()) };
        self.jobs.remove(&(number, token));
        let mut rest = entries;
        rest.clear(role);
        let Some(entry) = rest.entry() else { return self.program.remove_job(number, token) };
        self.jobs.insert((number, token), rest);
        self.program.add_job(number, entry)
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
        entries.set(Role::Worker(9), worker);
        assert_eq!(entries.entry(), Some(worker));
        entries.set(Role::ParameterHost(1), host);
        assert!(entries.has(1, Role::Worker(9)) && !entries.has(1, Role::Worker(8)));
        assert!(entries.has(1, Role::ParameterHost(1)) && !entries.has(1, Role::ParameterHost(2)));
        assert_eq!(entries.entry(), Some(HostJobEntry { flags: job_flag::PARAMETER, ..worker }));
        // The parameter host learns a new epoch first.
        entries.epoch = 4;
        entries.clear(Role::Worker(9));
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
        let mut groups = GroupMemberships::default();
        groups.join(1, group, Ipv4Addr::LOCALHOST).unwrap();
        assert!(has_joined(group));
        groups.leave(1);
        assert!(!has_joined(group));
        assert!(groups.join(1, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST).is_err(), "no group");
    }
}
