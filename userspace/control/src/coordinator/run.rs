//! One incarnation of a job: its members, and the phases from the first join to the last leave.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
};

use serde::{Deserialize, Serialize};
use sumac_job::PathMeasure;
use sumac_job::{JobTerms, Placement};
use tokio::sync::watch;

use super::{
    holder::Holder,
    ids::{ConnectionNumber, MemberId, RackId},
    layout::Layout,
    log::EventLog,
    membership::Grant,
    mismatch::Mismatch,
    naming::Naming,
    orders::JobOrder,
    standstill::Standstill,
    time::Time,
};
use crate::{
    events::{Event, ReportedOperation},
    failure::{FailureKind, JobFailure, Refusal, RefusalKind},
    message::{End, JoinRequest},
    plane::{KnownJob, WorkerInstall},
    pool::Range,
};

#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    pub asked: JoinRequest,
    pub worker: WorkerInstall,
    /// The rack through which it joins; `None`: at this aggregator itself.
    pub rack: Option<RackId>,
    /// Its part of the job counts for them.
    pub holders: Vec<Holder>,
}

impl Join {
    pub(super) fn rank(&self) -> u16 {
        self.asked.spec.rank
    }
}

/// The aggregators that a running job is not installed at any more: racks, or (`None`) the root.
pub(super) type MissingAt = BTreeMap<Option<RackId>, Restoration>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restoration {
    /// It is to be ordered from this moment on, once the aggregator is in service.
    Due(Time),
    Ordered,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vacated {
    /// The job fails if nobody takes it by then.
    pub until: Time,
    pub failure: JobFailure,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Member {
    pub id: MemberId,
    pub asked: JoinRequest,
    pub worker: WorkerInstall,
    /// The rack that its aggregator is of; none: this aggregator itself.
    pub rack: Option<RackId>,
    /// Of a job that waits; see [`Run::holders`].
    #[serde(skip)]
    pub holders: Vec<Holder>,
    #[serde(skip)]
    pub waits_until: Time,
    #[serde(skip)]
    pub seen: Time,
    /// Its connection, until it ends it.
    #[serde(skip)]
    pub connection: Option<ConnectionNumber>,
    /// It has left because its work is done.
    pub departed: bool,
    pub received: u64,
    pub posted: u64,
    /// Of its own backend, then of UDP.
    #[serde(default)]
    pub measures: Vec<PathMeasure>,
    /// The worker is dead, and another may take its rank.
    #[serde(skip)]
    pub vacated: Option<Vacated>,
    /// The worker has taken a dead one's rank, and the planes have not confirmed it yet.
    pub is_new: bool,
    /// Events that were before its time.
    pub first_event: u64,
}

impl Member {
    pub fn new(now: Time, id: MemberId, request: &Join, waits_until: Time) -> Member {
        Member {
            id,
            asked: request.asked.clone(),
            worker: request.worker.clone(),
            rack: request.rack,
            holders: request.holders.clone(),
            waits_until,
            seen: now,
            connection: None,
            departed: false,
            received: 0,
            posted: 0,
            measures: Vec::new(),
            vacated: None,
            is_new: false,
            first_event: 0,
        }
    }

    pub fn is_connected(&self) -> bool {
        !self.departed && self.vacated.is_none()
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Phase {
    #[default]
    Gathering,
    /// All are there; the planes still have an earlier incarnation, or parameter hosts are missing.
    Ready,
    Installing,
    Running,
    /// Over; members are kept until each has received it or is gone.
    Over(End),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum InstallState {
    #[default]
    Absent,
    /// From the command to install until the job is known to be removed.
    Installed,
    Removing,
    RetryAt(Time),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shared {
    /// The parameter hosts, in the order of [`JobTerms::parameter_hosts`].
    pub hosts: Vec<RackId>,
    pub root_port: u16,
    #[serde(skip)]
    pub missing_at: MissingAt,
}

/// One incarnation of a job. What is serialized is journaled.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Run {
    pub name: String,
    /// Its number; 0 before it starts.
    pub job: u16,
    pub token: u64,
    /// Its ranks.
    pub world: u16,
    /// Ranks of each member.
    #[serde(default)]
    pub local_world: u16,
    /// By their first ranks.
    pub members: BTreeMap<u16, Member>,
    #[serde(skip)]
    pub phase: Phase,
    #[serde(skip)]
    pub install: InstallState,
    pub terms: Option<JobTerms>,
    /// The address to which each rank sends; known once it runs.
    pub placements: Vec<Placement>,
    pub range: Option<Range>,
    /// The parts of its number and slots that count for each holder, from the start on.
    #[serde(default)]
    pub holders: Vec<(Holder, u64)>,
    /// The planes are giving it the number of slots that was measured.
    #[serde(skip)]
    pub is_resizing: bool,
    /// Its workers will use UDP from then on.
    #[serde(skip)]
    pub is_faster_over_udp: bool,
    pub layout: Layout,
    /// The racks that it was started with, and the addresses from which the root expects their sums.
    pub racks: BTreeMap<RackId, SocketAddrV4>,
    /// The root's address for each of its children; empty without racks.
    pub parents: Vec<SocketAddrV4>,
    pub shared: Option<Shared>,
    /// Until when a run with all of its ranks waits for parameter hosts.
    #[serde(skip)]
    pub hosts_by: Time,
    pub next_epoch: Option<u16>,
    /// They are yet to be ordered to.
    #[serde(skip)]
    pub is_renewal_due: bool,
    /// Until when workers may measure.
    #[serde(skip)]
    pub measured_by: Time,
    pub naming: Naming,
    pub log: EventLog,
    #[serde(skip)]
    pub stalled: BTreeMap<u16, ReportedOperation>,
    #[serde(skip)]
    pub mismatch: Option<Mismatch>,
    #[serde(skip)]
    pub standstill: Standstill,
    #[serde(skip)]
    pub revision: u64,
    /// Wakes its members' connections, and no other job's.
    #[serde(skip)]
    pub listeners: watch::Sender<()>,
    /// The journal's record of it is to be written again.
    #[serde(skip)]
    pub is_changed: bool,
    /// It was to be written, and may not be on the disk.
    #[serde(skip)]
    pub is_unrecorded: bool,
    /// The terms in the journal.
    #[serde(skip)]
    pub recorded: Option<JobTerms>,
    /// The dead worker whose rank another has taken, until that is in the journal.
    #[serde(skip)]
    pub predecessor: Option<(u16, Box<Member>)>,
}

impl Run {
    pub fn new(request: &Join, token: u64) -> Run {
        let JoinRequest { spec, .. } = &request.asked;
        let (world, local_world) = (spec.world, spec.ranks_per_worker());
        Run { name: spec.job.clone(), token, world, local_world, revision: 1, ..Run::default() }
    }

    /// The first ranks of all members.
    pub fn first_ranks(&self) -> impl Iterator<Item = u16> + use<> {
        (0..self.world).step_by(self.local_world.max(1).into())
    }

    /// The number of members when all are there.
    pub fn workers(&self) -> u16 {
        self.world / self.local_world.max(1)
    }

    /// All ranks of the members with these first ranks.
    pub fn all_ranks(&self, first: impl IntoIterator<Item = u16>) -> Vec<u16> {
        let local = self.local_world.max(1);
        first.into_iter().flat_map(|first| first..first.saturating_add(local)).collect()
    }

    pub fn epoch(&self) -> u16 {
        self.terms.as_ref().map_or(0, |terms| terms.epoch)
    }

    pub fn missing(&self) -> Vec<u16> {
        self.all_ranks(self.first_ranks().filter(|rank| !self.members.contains_key(rank)))
    }

    pub fn departed(&self) -> Vec<u16> {
        self.all_ranks(self.ranks(|member| member.departed))
    }

    /// The first ranks of the members that have not left.
    pub fn present(&self) -> Vec<u16> {
        self.ranks(|member| !member.departed)
    }

    pub fn ranks(&self, is: impl Fn(&Member) -> bool) -> Vec<u16> {
        self.members.iter().filter(|(_, member)| is(member)).map(|(rank, _)| *rank).collect()
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Gathering | Phase::Ready)
    }

    /// Whether the loss of a worker ends it.
    pub fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Installing | Phase::Running)
    }

    /// Whether its workers measure their paths.
    pub fn is_measuring(&self) -> bool {
        !self.is_resizing && self.terms.as_ref().is_some_and(|terms| !terms.is_measured)
    }

    /// The number of measures that each worker is to report: of its own backend, and then of UDP.
    pub fn wanted_measures(&self) -> usize {
        self.terms
            .as_ref()
            .filter(|terms| !terms.is_measured)
            .map_or(0, |terms| 1 + usize::from(terms.over_udp))
    }

    /// Whether its workers can change from AF_XDP to UDP. The measurement's answers come to each worker; a
    /// packet filter may pass them and drop what comes to the group of its results.
    pub fn has_both_backends(&self) -> bool {
        let mut hosts = self.members.values().map(|member| &member.asked.host);
        hosts.clone().all(|host| host.has_udp)
            && hosts.any(|host| host.mac != [0; 6])
            && self.placements.iter().all(|placement| placement.result_group.is_none())
    }

    pub fn outlives_aggregators(&self) -> bool {
        (self.shared.is_some() || self.is_direct()) && self.phase == Phase::Running
    }

    /// Whether its tensors go from worker to worker.
    pub fn is_direct(&self) -> bool {
        self.terms.as_ref().is_some_and(JobTerms::is_direct)
    }

    /// Whether another worker may take the rank of one that died.
    pub fn is_replaceable(&self) -> bool {
        self.outlives_control() && !self.is_direct()
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    pub fn is_below(&self, rack: RackId) -> bool {
        self.layout.is_middle(rack) || self.members.values().any(|member| member.rack == Some(rack))
    }

    pub fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.changed();
    }

    /// Its members' status is another, and its record too.
    pub fn changed(&mut self) {
        self.revise();
        self.is_changed = true;
    }

    /// Its members' status is another.
    pub fn revise(&mut self) {
        self.revision += 1;
        self.wake();
    }

    pub fn wake(&self) {
        self.listeners.send_replace(());
    }

    pub fn mismatch(&self, rank: u16, asked: &JoinRequest) -> Option<Refusal> {
        let differs = |(other, member): (&u16, &Member)| Some((*other, member.asked.difference(asked)?));
        let (other, (what, values)) = self.members.iter().find_map(differs)?;
        let (job, [value, others]) = (&self.name, values);
        let message = format!(
            "job `{job}`: rank {other} wants {what} {value}, rank {rank} wants {others}; give all workers \
            the same"
        );
        Some(Refusal::new(RefusalKind::Mismatch, &[other, rank], message))
    }

    pub fn order(&self, stealing: bool) -> Option<JobOrder> {
        Some(JobOrder {
            terms: self.terms.clone()?,
            first_slot: self.range.map_or(0, |range| range.first),
            stealing: stealing && self.shared.is_none(),
            workers: self.members.values().map(|member| member.worker.clone()).collect(),
            layout: self.layout.clone(),
            hosts: self.shared.iter().flat_map(|shared| shared.hosts.iter().copied()).collect(),
            racks: self.racks.clone(),
            parents: self.parents.clone(),
            uplinks: BTreeMap::new(),
            unfit: Vec::new(),
        })
    }

    pub fn grant(&self, rank: u16) -> Option<Grant> {
        let placement = *self.placements.get(usize::from(rank / self.local_world.max(1)))?;
        Some(Grant { terms: self.terms.clone()?, placement })
    }

    pub fn known(&self) -> Option<KnownJob> {
        let epoch = self.terms.as_ref()?.epoch;
        Some(KnownJob { job: self.job, epoch, token: self.token, next_epoch: self.next_epoch })
    }

    /// Adds an event for all members. An error: one of them does not receive.
    pub fn tell(&mut self, event: Event) -> Result<(), JobFailure> {
        let connected = || self.members.iter().filter(|(_, member)| member.is_connected());
        let received = connected().map(|(_, member)| member.received.max(member.first_event)).min();
        let slowest = connected().min_by_key(|(_, member)| member.received).map(|(rank, _)| *rank);
        self.log.forget(received.unwrap_or(u64::MAX));
        if self.log.push(event) {
            self.wake();
            return Ok(());
        }
        let what = "does not keep up with the job's events";
        Err(self.blame(FailureKind::Silent, slowest.unwrap_or_default(), what))
    }

    /// The failure that a member causes.
    pub fn blame(&self, kind: FailureKind, rank: u16, what: &str) -> JobFailure {
        let ip = self.members.get(&rank).map_or(Ipv4Addr::UNSPECIFIED, |member| member.worker.ip);
        let ranks = self.all_ranks([rank]);
        let who = match ranks.last() {
            Some(last) if *last != rank => format!("ranks {rank} to {last}"),
            _ => format!("rank {rank}"),
        };
        JobFailure::new(kind, &ranks, format!("{who} ({ip}) {what}"))
    }
}
