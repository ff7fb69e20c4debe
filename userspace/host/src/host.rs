//! The core of a host: its state, its connections, and the look-ups that its parts share.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sumac_api::{Code, Event, Failure, Limits, Outbound};

use crate::access::Credentials;
use crate::connection::{Connection, ConnectionJob, ConnectionJobState};
use crate::job::{Job, JobPhase};
use crate::job_end::JobEnd;
use crate::local::LocalJob;
use crate::operations::Operations;
use crate::pace::CommandPace;
use crate::quotas::{CONNECTION_BYTES, Quota, QuotaLimits, Quotas};
use crate::region::Region;
use crate::{
    ConnectionId, FragmentKey, JobId, LeaseRequest, MILLISECOND, Message, Nanos, OperationKey, Output,
    RegionId, Resources, SECOND, WordPlace,
};

/// The CPU time that a connection takes before its first command.
const ACCEPT_COST: Nanos = MILLISECOND / 10;
/// The longest delay of a connection's first command; beyond it the connection is refused.
const MAX_DELAY: Nanos = 5 * SECOND;

/// The settings that the core needs.
#[derive(Clone, Debug)]
pub struct HostConfig {
    pub quotas: QuotaLimits,
    /// The backend's name in replies: `xdp` or `udp`.
    pub backend: String,
    /// The daemon's program and release.
    pub daemon: String,
    /// Whether the times of all operations' steps are taken, for spans.
    pub has_spans: bool,
    /// The threads that sum the tensors of jobs whose ranks are all on this host.
    pub sum_threads: u16,
}

/// All state of a host that a live upgrade hands over, besides the engines' and the handles.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostState {
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    pub(crate) regions: BTreeMap<RegionId, Region>,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    /// The jobs whose ranks are all on this host, by name.
    pub(crate) local_jobs: BTreeMap<String, LocalJob>,
    /// All operations that have not ended.
    pub(crate) operations: Operations,
    pub(crate) quotas: Quotas,
    pub(crate) pace: CommandPace,
    last_connection: ConnectionId,
    pub(crate) last_region: RegionId,
    pub(crate) last_job: JobId,
}

/// Counts of a host's parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTotals {
    pub connections: usize,
    pub regions: usize,
    pub jobs: usize,
    pub operations: usize,
    /// Whether no user holds a part of any limit.
    pub are_quotas_free: bool,
}

/// See the crate.
#[derive(Debug)]
pub struct Host {
    pub(crate) config: HostConfig,
    pub(crate) state: HostState,
}

impl Host {
    #[must_use]
    pub fn new(config: HostConfig) -> Host {
        Host::resume(config, HostState::default())
    }

    /// Continues with the state of another daemon.
    #[must_use]
    pub fn resume(config: HostConfig, state: HostState) -> Host {
        Host { config, state }
    }

    /// Sets the backend's name in replies.
    pub fn set_backend(&mut self, name: &str) {
        name.clone_into(&mut self.config.backend);
    }

    #[must_use]
    pub fn state(&self) -> &HostState {
        &self.state
    }

    #[must_use]
    pub fn totals(&self) -> HostTotals {
        let HostState { connections, regions, jobs, operations, quotas, .. } = &self.state;
        HostTotals {
            connections: connections.len(),
            regions: regions.len(),
            jobs: jobs.len(),
            operations: operations.len(),
            are_quotas_free: quotas.is_empty(),
        }
    }

    /// Adds a connection that may have so many operations outstanding.
    ///
    /// # Errors
    /// The user's share is exceeded, or its commands take too much time.
    pub fn connect(
        &mut self,
        now: Nanos,
        credentials: Credentials,
        operations: u32,
    ) -> Result<ConnectionId, Failure> {
        let uid = credentials.uid;
        let resume = self.state.pace.charge(uid, ACCEPT_COST, now);
        if resume.is_some_and(|resume| resume > now + MAX_DELAY) {
            let message =
                format!("the commands and connections of user {uid} take too much of this daemon's time");
            return Err(Failure::new(Code::Limit, message).hint("connect again later, and less often"));
        }
        let amounts = [(Quota::Connections, 1), (Quota::Held, CONNECTION_BYTES)];
        self.state.quotas.reserve(&self.config.quotas, uid, &amounts)?;
        self.state.last_connection += 1;
        let connection = Connection { resume, ..Connection::new(credentials, operations) };
        self.state.connections.insert(self.state.last_connection, connection);
        Ok(self.state.last_connection)
    }

    /// Removes a connection; `how` it ended, as other workers read it. Its jobs that were not closed fail on
    /// all workers. Its memory stays mapped until the operations on it have ended.
    pub fn disconnect(
        &mut self,
        connection: ConnectionId,
        how: &str,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(gone) = self.state.connections.remove(&connection) else { return };
        let Connection { credentials, jobs, regions, .. } = gone;
        for (handle, ConnectionJob { job: id, is_opener, state }) in jobs {
            resources.close_event(connection, handle);
            match (self.state.jobs.get_mut(&id), state) {
                (Some(job), _) if is_opener => {
                    job.has_handle = false;
                    job.end_with(id, JobEnd::died(format!("its trainer ({credentials}) {how}")), out);
                    continue;
                }
                (Some(_), ConnectionJobState::Open) => {
                    self.detach(id, (connection, handle), &credentials, how, out);
                }
                _ => {}
            }
            self.state.quotas.release(credentials.uid, Quota::Jobs, 1);
        }
        regions.into_values().for_each(|region| self.unregister_region(region, resources));
        self.state.quotas.release(credentials.uid, Quota::Connections, 1);
        self.state.quotas.release(credentials.uid, Quota::Held, CONNECTION_BYTES);
    }

    /// Notifies a connection that the daemon stops.
    pub fn shut_down(&self, connection: ConnectionId, out: &mut Vec<Output>) {
        let Some(found) = self.state.connections.get(&connection) else { return };
        for handle in found.jobs.keys() {
            let error = Failure::new(Code::ShuttingDown, "this host's daemon is being stopped")
                .hint("connect again when it is back, and open the job again on all workers");
            self.send(connection, Outbound::Event(Event::JobFailed { job: *handle, error }), out);
        }
    }

    /// Charges a connection's user with the CPU time of a command. Commands are read again from
    /// [`Host::paused_until`] on.
    pub fn charge(&mut self, now: Nanos, connection: ConnectionId, cost: Nanos) {
        if let Some(found) = self.state.connections.get_mut(&connection) {
            found.resume = self.state.pace.charge(found.credentials.uid, cost, now);
        }
    }

    /// Returns the moment until which no command of a connection is read.
    pub fn paused_until(&mut self, now: Nanos, connection: ConnectionId) -> Option<Nanos> {
        let found = self.state.connections.get_mut(&connection)?;
        found.resume.take_if(|resume| *resume <= now);
        found.resume
    }

    /// Returns the moment at which the first waiting request of a connection expires.
    #[must_use]
    pub fn deadline(&self, connection: ConnectionId) -> Option<Nanos> {
        self.state.connections.get(&connection)?.finished.deadline()
    }

    /// Answers the waiting requests of a connection that have expired.
    pub fn expire(&mut self, now: Nanos, connection: ConnectionId, out: &mut Vec<Output>) {
        let Some(found) = self.state.connections.get_mut(&connection) else { return };
        for (op, request) in found.finished.expire(now) {
            let failure = Failure::new(Code::Timeout, format!("operation {op} has not finished yet"))
                .hint("it goes on; wait again, or cancel it");
            self.send(connection, Outbound::failed(Some(request), failure), out);
        }
    }

    /// Returns the connections, with their users.
    pub fn connections(&self) -> impl Iterator<Item = (ConnectionId, &Credentials, Limits)> {
        self.state.connections.iter().map(|(id, found)| (*id, &found.credentials, found.limits))
    }

    /// Returns the handles of jobs that a connection has.
    pub fn handles(&self, connection: ConnectionId) -> impl Iterator<Item = u64> {
        self.state.connections.get(&connection).into_iter().flat_map(|found| found.jobs.keys().copied())
    }

    /// Returns the regions, with their sizes in bytes, and the connections that have them.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, u64, Vec<ConnectionId>)> {
        let mut owners: BTreeMap<RegionId, Vec<ConnectionId>> = BTreeMap::new();
        for (id, found) in &self.state.connections {
            found.regions.values().for_each(|region| owners.entry(*region).or_default().push(*id));
        }
        let regions = self.state.regions.iter();
        regions.map(move |(id, region)| (*id, region.size, owners.remove(id).unwrap_or_default()))
    }

    /// Whether all pages of a region are known to be allocated: of a trainer's since it was registered, of
    /// one that the ranks of a host share while an operation has leased it.
    pub fn is_whole(&self, region: RegionId) -> bool {
        self.state.regions.get(&region).is_some_and(|region| region.shared.is_none() || region.users > 0)
    }

    /// Returns the regions of a connection.
    pub fn regions_of(&self, connection: ConnectionId) -> impl Iterator<Item = RegionId> {
        let regions = self.state.connections.get(&connection).map(|found| found.regions.values().copied());
        regions.into_iter().flatten()
    }

    /// Returns the jobs, with the users that have opened them, if they are still connected, and the requests.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, Option<&Credentials>, &sumac_api::Open)> {
        let connections = &self.state.connections;
        let opener = |job: &Job| connections.get(&job.opener.0).map(|found| &found.credentials);
        self.state.jobs.iter().map(move |(id, job)| (*id, opener(job), &job.open))
    }

    /// Returns the leases of the operations that have not ended: of their fragments, and of their completion
    /// words.
    pub fn leases(&self) -> impl Iterator<Item = (FragmentKey, &LeaseRequest)> {
        self.state.operations.iter().flat_map(|(key, operation)| {
            let fragments = (0u16..).zip(&operation.fragments);
            fragments.map(|(fragment, record)| (FragmentKey { operation: *key, fragment }, &record.memory))
        })
    }

    /// Returns the completion words of the operations that have not ended.
    pub fn words(&self) -> impl Iterator<Item = (OperationKey, &WordPlace)> {
        self.state.operations.iter().filter_map(|(key, operation)| Some((*key, operation.word.as_ref()?)))
    }

    /// Returns the time that a job has waited for its workers until now.
    #[must_use]
    pub fn waited(&self, now: Nanos, job: JobId) -> Duration {
        let asked = self.state.jobs.get(&job).map_or(now, |job| job.asked);
        Duration::from_nanos(now.saturating_sub(asked))
    }

    /// Starts the tasks of jobs anew that wait for their workers, in a daemon that has taken them over.
    pub fn restart_opens(&self, out: &mut Vec<Output>) {
        let joining = self.state.jobs.iter().filter(|(_, job)| job.is_joining());
        out.extend(joining.map(|(job, _)| Output::Start { job: *job }));
    }

    /// Returns the names of jobs that cannot be handed over now: they end, or their workers have joined and
    /// they are not open yet, or a direct one has the sums of its ranks in this daemon's memory.
    #[must_use]
    pub fn unsettled(&self) -> Vec<String> {
        let is_open = |job: &Job| job.phase == JobPhase::Open && job.end.is_none();
        let is_settled = |job: &Job| is_open(job) || job.is_joining();
        let sums_directly = |id: &JobId, job: &Job| {
            let is_direct = job.running.as_ref().is_some_and(|running| running.terms.is_direct());
            let mut own = self.state.operations.of_job(*id);
            is_direct
                && !job.is_local()
                && own.any(|(_, own)| own.is_in_flight() && !own.followers.is_empty())
        };
        let unsettled = self.state.jobs.iter().filter(|(id, job)| !is_settled(job) || sums_directly(id, job));
        unsettled.map(|(_, job)| job.name.clone()).collect()
    }

    pub(crate) fn send(&self, connection: ConnectionId, outbound: Outbound, out: &mut Vec<Output>) {
        if self.state.connections.contains_key(&connection) {
            out.push(Output::Send { connection, message: Box::new(Message::new(outbound)) });
        }
    }

    pub(crate) fn handle_mut(&mut self, connection: ConnectionId, handle: u64) -> Option<&mut ConnectionJob> {
        self.state.connections.get_mut(&connection)?.jobs.get_mut(&handle)
    }

    /// Releases a connection's handle of a job.
    pub(crate) fn remove_handle(
        &mut self,
        connection: ConnectionId,
        handle: u64,
        resources: &mut dyn Resources,
    ) {
        let Some(found) = self.state.connections.get_mut(&connection) else { return };
        let Some(removed) = found.jobs.remove(&handle) else { return };
        resources.close_event(connection, handle);
        let uid = found.credentials.uid;
        match self.state.jobs.get_mut(&removed.job) {
            Some(job) if removed.is_opener => job.has_handle = false,
            _ => self.state.quotas.release(uid, Quota::Jobs, 1),
        }
    }

    /// Ends a connection's use of a region. It is unmapped once no other one and no operation uses it.
    pub(crate) fn unregister_region(&mut self, id: RegionId, resources: &mut dyn Resources) {
        if let Some(region) = self.state.regions.get_mut(&id) {
            region.holders = region.holders.saturating_sub(1);
        }
        self.release_region(id, 0, resources);
    }

    /// Removes `users` operations from a region.
    pub(crate) fn release_region(&mut self, id: RegionId, users: u32, resources: &mut dyn Resources) {
        let Some(region) = self.state.regions.get_mut(&id) else { return };
        region.users = region.users.saturating_sub(users);
        if region.users == 0 && region.holders == 0 {
            let (uid, size) = (region.uid, region.size);
            self.state.regions.remove(&id);
            self.state.quotas.release(uid, Quota::Regions, 1);
            self.state.quotas.release(uid, Quota::Mapped, size);
            resources.unmap(id);
        }
    }
}
