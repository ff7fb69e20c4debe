//! A simulated host: its core, the engines of its jobs, its memberships; a live upgrade in place.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_control::coordinator::{Coordinator, Grant, Join, MemberId};
use sumac_control::events::Post;
use sumac_control::message::{End, JoinRequest, Status, WorkerHost};
use sumac_control::plane::WorkerInstall;
use sumac_host::quotas::QuotaLimits;
use sumac_host::terms::lane_params;
use sumac_host::{
    EndedFragment, FragmentKey, FragmentOutcome, FragmentTimes, Host, HostConfig, JobEnd, JobId, Message,
    NameRefusal, Observed, Output, RankSum, explain,
};
use sumac_job::{JobSpec, ResumePoint};
use sumac_transport::{CompletionQueue, Engine, JobError, JobState, OpId, PeerTable, Time};

use super::memory::Handles;
use crate::events::{MILLI, Nanos};

/// The aggregator's address.
pub const AGGREGATOR: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 48700);

/// A lane of a job.
pub(super) struct Lane {
    pub(super) engine: Engine,
    pub(super) keys: BTreeMap<OpId, FragmentKey>,
    pub(super) ended: CompletionQueue,
}

/// A job's membership in its control plane.
pub(super) struct Membership {
    pub(super) spec: JobSpec,
    pub(super) member: Option<MemberId>,
    /// The time until which the job's name, and then the other ranks, are waited for.
    pub(super) deadline: Nanos,
    pub(super) grant: Option<Grant>,
    pub(super) is_open: bool,
    received: u64,
    /// All reports, of which a restarted control plane may lack the last ones.
    posts: Vec<Post>,
    /// Whether the control plane was restarted, and does not know this connection.
    pub(super) is_stale: bool,
    departed: Vec<u16>,
    /// Its end, while other ranks of the host go on.
    pub(super) end: Option<JobEnd>,
    pub(super) lanes: Vec<Lane>,
}

/// See the module.
pub struct SimHost {
    pub ip: Ipv4Addr,
    pub core: Host,
    pub handles: Handles,
    pub(super) memberships: BTreeMap<JobId, Membership>,
    /// Messages to its trainers, in order.
    pub outbox: VecDeque<(u64, Message)>,
    pub upgrades: u32,
    /// The sums of ranks of this host, which its threads have not begun.
    pub(super) sums: Vec<RankSum>,
    last_tick: Nanos,
}

pub(super) fn config() -> HostConfig {
    HostConfig {
        quotas: QuotaLimits { mapped: 64 << 20, held: 256 << 20, descriptors: 1 << 16 },
        backend: "sim".into(),
        daemon: "sumac".into(),
        has_spans: false,
        sum_threads: 2,
    }
}

impl SimHost {
    #[must_use]
    pub fn new(ip: Ipv4Addr) -> SimHost {
        SimHost {
            ip,
            core: Host::new(config()),
            handles: Handles::default(),
            memberships: BTreeMap::new(),
            outbox: VecDeque::new(),
            upgrades: 0,
            sums: Vec::new(),
            last_tick: 0,
        }
    }

    /// Calls the core, and executes its outputs.
    pub fn call<T>(
        &mut self,
        now: Nanos,
        call: impl FnOnce(&mut Host, &mut Handles, &mut Vec<Output>) -> T,
    ) -> T {
        let mut outputs = Vec::new();
        let result = call(&mut self.core, &mut self.handles, &mut outputs);
        for output in outputs {
            self.execute(now, output);
        }
        result
    }

    fn execute(&mut self, now: Nanos, output: Output) {
        match output {
            Output::Send { connection, message } => self.outbox.push_back((connection, *message)),
            Output::Submit { job, lane, key, mut operation, ranks } => {
                if let Some(memory) = self.handles.buffer(key, ranks.map(|ranks| *ranks)) {
                    operation.buffer = memory;
                }
                let found = self.memberships.get_mut(&job);
                let lane = found.and_then(|found| found.lanes.get_mut(usize::from(lane)));
                let refused = match lane {
                    Some(lane) => match lane.engine.submit(Time(now), *operation) {
                        Ok(number) => {
                            lane.keys.insert(number, key);
                            None
                        }
                        Err((error, _)) => Some(FragmentOutcome::Refused(error.to_string())),
                    },
                    None => Some(FragmentOutcome::JobEnded),
                };
                if let Some(outcome) = refused {
                    let times = FragmentTimes::default();
                    self.fragment_ended(
                        now,
                        key,
                        EndedFragment { outcome, times, loss: None, left: Vec::new() },
                    );
                }
            }
            Output::Start { job } => {
                let open = self.core.jobs().find(|(id, ..)| *id == job).map(|(_, _, open)| open.clone());
                let Some(open) = open else { return };
                let timeout = open.spec.timeout_s.unwrap_or(5.0);
                self.memberships.insert(
                    job,
                    Membership {
                        spec: open.spec,
                        member: None,
                        deadline: now + (timeout * 1e9) as Nanos,
                        grant: None,
                        is_open: false,
                        received: 0,
                        posts: Vec::new(),
                        is_stale: false,
                        departed: Vec::new(),
                        end: None,
                        lanes: Vec::new(),
                    },
                );
            }
            Output::Sum(ranks) => self.sums.push(*ranks),
            // The cluster looks after each event.
            Output::Wake { .. } | Output::PeerLeft { .. } | Output::Span { .. } | Output::Warn { .. } => {}
        }
    }

    pub(super) fn fragment_ended(&mut self, now: Nanos, key: FragmentKey, ended: EndedFragment) {
        self.call(now, |host, handles, out| host.fragment_ended(now, key, ended, handles, out));
    }

    /// Exchanges everything with the control plane. Returns whether something has changed.
    pub fn synchronize(&mut self, now: Nanos, coordinator: &mut Coordinator, is_connected: bool) -> bool {
        let ids: Vec<JobId> = self.memberships.keys().copied().collect();
        let mut has_changed = self.run_sums(now);
        for id in ids {
            has_changed |= self.synchronize_job(now, id, coordinator, is_connected);
        }
        has_changed
    }

    fn synchronize_job(
        &mut self,
        now: Nanos,
        id: JobId,
        coordinator: &mut Coordinator,
        is_connected: bool,
    ) -> bool {
        let Some(found) = self.memberships.get(&id) else { return false };
        if found.spec.is_local() || found.spec.is_follower() {
            return self.synchronize_local(now, id);
        }
        if found.is_open {
            return self.synchronize_open(now, id, coordinator, is_connected);
        }
        if let Some(failure) = self.core.interruption(id) {
            self.abort(now, id, coordinator, failure);
            return true;
        }
        if !is_connected {
            return false;
        }
        match found.member {
            // The control plane was restarted meanwhile.
            None if found.is_stale => {
                let failure =
                    sumac_api::Failure::new(sumac_api::Code::Unreachable, "the connection was lost");
                self.abort(now, id, coordinator, failure);
                true
            }
            None => self.join(now, id, coordinator),
            Some(member) => self.start(now, id, member, coordinator),
        }
    }

    fn join(&mut self, now: Nanos, id: JobId, coordinator: &mut Coordinator) -> bool {
        let taken = self.call(now, |host, handles, out| host.take_name(id, handles, out));
        if let Err(NameRefusal::Refused(failure)) = taken {
            self.abort(now, id, coordinator, failure);
            return true;
        }
        if let Err(NameRefusal::Held(holder)) = taken {
            let Some(found) = self.memberships.get(&id) else { return false };
            if now < found.deadline {
                return false;
            }
            let failure =
                sumac_api::Failure::new(sumac_api::Code::RankTaken, format!("rank {holder} has it"));
            self.abort(now, id, coordinator, failure);
            return true;
        }
        match self.is_gathered(now, id) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(failure) => {
                self.abort(now, id, coordinator, failure);
                return true;
            }
        }
        let Some(found) = self.memberships.get_mut(&id) else { return false };
        let host = WorkerHost {
            data_ip: self.ip,
            data_port: AGGREGATOR.port(),
            mac: [0; 6],
            max_elements: 352,
            max_shards: 2,
            checksum: false,
            paths: 1,
            has_udp: false,
            user: 0,
        };
        let worker = WorkerInstall {
            ip: self.ip,
            port: AGGREGATOR.port(),
            mac: [0; 6],
            local_ip: *AGGREGATOR.ip(),
            paths: 1,
        };
        let asked = JoinRequest::new(found.spec.clone(), host);
        match coordinator.join(
            std::time::Duration::from_nanos(now),
            &Join { asked, worker, rack: None, holders: Vec::new() },
        ) {
            Ok(member) => found.member = Some(member),
            Err(refusal) => {
                let error = sumac_control::JoinError::Refused(refusal);
                let failure = explain::join_error(&error, found.spec.order.unwrap_or_default());
                self.abort(now, id, coordinator, failure);
            }
        }
        true
    }

    /// Starts a job whose workers have joined, and opens it once its engines are ready.
    fn start(&mut self, now: Nanos, id: JobId, member: MemberId, coordinator: &mut Coordinator) -> bool {
        let status = coordinator.status(member).map(|(_, status)| status);
        let Some(found) = self.memberships.get_mut(&id) else { return false };
        let order = found.spec.order.unwrap_or_default();
        let failure = match (status, &found.grant) {
            (Some(Status::Waiting(ranks)), _) if now < found.deadline => {
                let _ = ranks;
                return false;
            }
            (Some(Status::Waiting(ranks)), _) => {
                sumac_api::Failure::new(sumac_api::Code::RanksMissing, "ranks are missing").ranks(ranks)
            }
            (Some(Status::Over(End::Failed(failure))), _) => explain::job_failure(&failure, order),
            (Some(Status::Over(End::Refused(refusal))), _) => {
                explain::join_error(&sumac_control::JoinError::Refused(refusal), order)
            }
            (Some(Status::Over(End::Finished)) | None, _) => {
                sumac_api::Failure::new(sumac_api::Code::JobFailed, "no member any more")
            }
            (Some(Status::Running { grant, departed }), None) => {
                let peers = PeerTable::of(Some(AGGREGATOR), []);
                let engine = |lane| Engine::new(lane_params(&grant, lane, 0, 1), &peers);
                let lanes = (0..grant.terms.lanes()).map(engine);
                let lane = |engine| Lane { engine, keys: BTreeMap::new(), ended: CompletionQueue::default() };
                let lanes: Result<Vec<_>, _> = lanes.map(|engine| engine.map(lane)).collect();
                found.lanes = lanes.expect("the coordinator's terms make engines");
                (found.departed, found.grant) = (departed, Some((*grant).clone()));
                match self.core.joined(id, &grant, &ResumePoint::default()) {
                    Ok(_) => return true,
                    Err(failure) => failure,
                }
            }
            (Some(Status::Running { .. }), Some(_)) => {
                let mut failed = None;
                for lane in &found.lanes {
                    match lane.engine.state() {
                        JobState::Ready => {}
                        JobState::Failed(error) => failed = Some(error.clone()),
                        JobState::Probing | JobState::Measured(_) => return false,
                    }
                }
                match failed {
                    Some(error) => explain::job_error(&error),
                    None => {
                        found.is_open = true;
                        match self.call(now, |host, _, out| host.opened(id, out)) {
                            Ok(()) => return true,
                            Err(failure) => failure,
                        }
                    }
                }
            }
        };
        self.abort(now, id, coordinator, failure);
        true
    }

    fn abort(&mut self, now: Nanos, id: JobId, coordinator: &mut Coordinator, failure: sumac_api::Failure) {
        if let Some(member) = self.memberships.remove(&id).and_then(|found| found.member) {
            let outcome = sumac_control::Outcome::Failed(format!("its start failed: {}", failure.message));
            coordinator.leave(member, &outcome);
        }
        self.call(now, |host, handles, out| host.not_opened(id, failure, handles, out));
    }

    fn synchronize_open(
        &mut self,
        now: Nanos,
        id: JobId,
        coordinator: &mut Coordinator,
        is_connected: bool,
    ) -> bool {
        if let Some(end) = self.take_end(now, id) {
            self.finish(now, id, end, coordinator);
            return true;
        }
        let Some(found) = self.memberships.get_mut(&id) else { return false };
        let (Some(member), true) = (found.member, is_connected) else { return false };
        let time = std::time::Duration::from_nanos(now);
        found.posts.extend(self.core.take_posts(id));
        if std::mem::take(&mut found.is_stale) {
            let (job, rank, received) = (found.spec.job.clone(), found.spec.rank, found.received);
            if let Err(failure) = coordinator.reconnect(time, &job, rank, member, received) {
                self.call(now, |host, _, out| host.membership_failed(id, &failure, out));
                return true;
            }
        }
        let known = coordinator.posted(member);
        let new = found.posts.get(usize::try_from(known).unwrap_or(usize::MAX)..).unwrap_or_default();
        let mut has_changed = !new.is_empty();
        if has_changed {
            coordinator.post(time, member, known, new.to_vec());
            has_changed = coordinator.posted(member) > known;
        }
        match coordinator.status(member).map(|(_, status)| status) {
            Some(Status::Over(End::Failed(failure))) => {
                self.call(now, |host, _, out| host.membership_failed(id, &failure, out));
                return true;
            }
            Some(Status::Running { departed, .. }) => found.departed = departed,
            Some(Status::Over(_) | Status::Waiting(_)) => {}
            None => {
                let failure = sumac_control::JobFailure {
                    kind: sumac_control::FailureKind::NoMember,
                    message: "this worker is no member any more".into(),
                    ranks: Vec::new(),
                };
                self.call(now, |host, _, out| host.membership_failed(id, &failure, out));
                return true;
            }
        }
        let received = found.received;
        if let Some((number, event)) = coordinator.event(member, received) {
            found.received = number + 1;
            coordinator.on_received(member, number + 1);
            self.call(now, |host, handles, out| host.control_event(now, id, event, handles, out));
            has_changed = true;
        }
        has_changed
    }

    fn finish(&mut self, now: Nanos, id: JobId, end: JobEnd, coordinator: &mut Coordinator) {
        let outcome = match &end {
            JobEnd::Closed { .. } => Some(self.core.outcome_of_ranks(id)),
            JobEnd::Failed { outcome, .. } => outcome.clone(),
        };
        let error = match &end {
            JobEnd::Failed { error, .. } => error.clone(),
            JobEnd::Closed { .. } => JobError::Ended { reason: "this worker has left it".into() },
        };
        if let Some(found) = self.memberships.get_mut(&id) {
            found.lanes.iter_mut().for_each(|lane| lane.engine.fail(error.clone()));
        }
        self.collect(now);
        let member = self.memberships.remove(&id).and_then(|found| found.member);
        if let (Some(member), Some(outcome)) = (member, outcome) {
            coordinator.leave(member, &outcome);
        }
        self.call(now, |host, handles, out| host.finish(now, id, &end, handles, out));
        if let JobEnd::Closed { request } = end {
            self.call(now, |host, handles, out| host.closed(id, request, handles, out));
        }
        self.core.remove_job(id, &mut self.handles);
    }

    /// Lets time pass: heartbeats, the periodic looks, expired requests.
    pub fn tick(&mut self, now: Nanos, coordinator: &mut Coordinator, is_connected: bool) {
        if now < self.last_tick + 100 * MILLI {
            return;
        }
        self.last_tick = now;
        let ids: Vec<JobId> = self.memberships.keys().copied().collect();
        for id in ids {
            let Some(found) = self.memberships.get(&id) else { continue };
            if let (Some(member), true) = (found.member, is_connected) {
                coordinator.heartbeat(std::time::Duration::from_nanos(now), member);
            }
            if !found.is_open {
                continue;
            }
            if found.spec.is_local() || found.spec.is_follower() {
                self.call(now, |host, _, out| host.tick_locally(now, id, out));
                continue;
            }
            let departed = found.departed.clone();
            let results = found.lanes.iter().map(|lane| lane.engine.stats().results).sum();
            let tick = self
                .call(now, |host, handles, out| host.tick(now, id, is_connected, &departed, handles, out));
            if tick.wants_results {
                let observed = Observed::Results(Some(results));
                self.call(now, |host, _, out| host.observe(now, id, observed, out));
            }
        }
        let connections: Vec<u64> = self.core.connections().map(|(id, ..)| id).collect();
        for connection in connections {
            self.call(now, |host, _, out| host.expire(now, connection, out));
        }
    }
}
