//! One incarnation of a job: its seats, and the phases from the first join to the last leave.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
};

use sumac_transport::PathMeasure;

use super::{
    Door, JobOrder, JoinRequest, MemberId, Time,
    layout::Layout,
    log::{Event, Log},
    naming::Naming,
    racks::RackId,
    renewal::Vacancy,
    restore::{Gaps, Known},
    terms::{Terms, Wishes},
};
use crate::{
    assignment::Assignment,
    dynamic::{DynamicInstall, DynamicTerms},
    failure::JobFailure,
    plane::{JobInstall, Level, WorkerInstall},
    pool::Range,
    post::OperationOrder,
    refusal::Refusal,
};

/// A rank's place.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub member: MemberId,
    pub wishes: Wishes,
    pub worker: WorkerInstall,
    /// The rack that its aggregator is of; none: this aggregator itself.
    pub rack: Option<RackId>,
    /// When the rank gives up waiting for the others.
    pub gives_up: Time,
    /// How long that is from its join.
    pub patience: Time,
    /// Last sign of life.
    pub seen: Time,
    /// It has left because its work is done.
    pub departed: bool,
    /// Events that it knows.
    pub heard: u64,
    /// Posts of it that were taken.
    pub posted: u64,
    /// What it measured of its path.
    pub measure: Option<PathMeasure>,
    /// The worker is dead, and another may take its place.
    pub vacant: Option<Vacancy>,
    /// The worker has taken a dead one's place, and the planes are not told yet.
    pub is_new: bool,
    /// Events that were before its time.
    pub since: u64,
    /// What the worker got from an earlier control plane, until this one has taken the run up.
    pub had: Option<Assignment>,
}

impl Seat {
    /// A place that was just taken.
    pub fn new(now: Time, member: MemberId, request: &JoinRequest, patience: Time) -> Seat {
        Seat {
            member,
            wishes: request.wishes.clone(),
            worker: request.worker.clone(),
            rack: request.rack,
            gives_up: now + patience,
            patience,
            seen: now,
            departed: false,
            heard: 0,
            posted: 0,
            measure: None,
            vacant: None,
            is_new: false,
            since: 0,
            had: request.resumes.clone(),
        }
    }

    /// Whether somebody is there who takes part and is heard.
    pub fn is_manned(&self) -> bool {
        !self.departed && self.vacant.is_none()
    }
}

/// Why a run is over.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// It never started.
    Refused(Refusal),
    /// It was running.
    Failed(JobFailure),
    /// All have left.
    Finished,
}

/// Where a run stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    /// Ranks are missing.
    Gathering,
    /// All are there; the plane still has an earlier incarnation.
    Ready,
    /// The plane is taking the job.
    Installing,
    /// Workers may send; where each sends to, by rank.
    Running(Vec<Door>),
    /// Over; seats are kept until each rank has been told or is gone.
    Over(End),
}

/// What the plane holds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Nothing,
    /// From the order to install until it is known to be removed.
    Installed,
    /// The order to remove is on its way.
    Removing,
    /// Removing failed; it is tried again then.
    RetryAt(Time),
}

/// How many slots each lane has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub lane: u32,
    pub reason: String,
    pub state: Tuning,
}

impl Slots {
    /// None of its own, but so many of each shard that it shares.
    pub fn shared(slots: u32) -> Slots {
        let reason = match slots {
            0 => "there is no aggregator".into(),
            _ => format!("up to {slots} of each shard, shared with other jobs"),
        };
        Slots { lane: 0, reason, state: Tuning::Done }
    }
}

/// How final that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tuning {
    /// The workers measure their paths.
    Measuring,
    /// The plane is told of the new number.
    Resizing,
    Done,
}

/// What a dynamic run has instead of slots of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// Slots of each shard that its chunks may take; 0: there is no aggregator.
    pub slots: u32,
    /// Chunks of a lane that may be ahead of the first without a result.
    pub window: u32,
    pub linear: bool,
    pub congestion: bool,
    pub hosts: Vec<RackId>,
    /// Where those take contributions of shard 0.
    pub addresses: Vec<SocketAddrV4>,
    /// The racks that it began with, by the numbers that they have now.
    pub racks: BTreeMap<RackId, Known>,
    /// The root's port for shard 0.
    pub root_port: u16,
    pub gaps: Gaps,
    /// Of each lane the first chunk that was not summed when a worker was replaced; empty when none was.
    pub resume: Vec<u32>,
}

/// One incarnation of a job.
#[derive(Debug)]
pub(super) struct Run {
    pub name: String,
    pub job: u16,
    /// 0 before the plane takes it.
    pub epoch: u16,
    pub token: u64,
    pub world: u16,
    pub seats: BTreeMap<u16, Seat>,
    pub phase: Phase,
    pub hold: Hold,
    /// Known once all ranks are there.
    pub terms: Option<Terms>,
    pub range: Option<Range>,
    pub slots: Slots,
    /// Which workers are below which aggregator; known with the terms.
    pub layout: Layout,
    /// What only a dynamic run has; known with the terms.
    pub shared: Option<Shared>,
    /// Until when a run that has all of its ranks waits for parameter hosts.
    pub hosts_by: Time,
    /// The epoch that the planes are being told, since a worker was replaced.
    pub renewing: Option<u16>,
    /// It was an earlier control plane's.
    pub is_claimed: bool,
    /// Until when workers may measure.
    pub measured_by: Time,
    pub naming: Naming,
    pub log: Log,
    pub revision: u64,
}

impl Run {
    /// Nobody is in it yet.
    pub fn new(request: &JoinRequest, job: u16, token: u64) -> Run {
        Run {
            name: request.job.clone(),
            job,
            epoch: 0,
            token,
            world: request.wishes.world,
            seats: BTreeMap::new(),
            phase: Phase::Gathering,
            hold: Hold::Nothing,
            terms: None,
            range: None,
            slots: Slots { lane: 0, reason: String::new(), state: Tuning::Done },
            layout: Layout::new(&[], true),
            shared: None,
            hosts_by: Time::MAX,
            renewing: None,
            is_claimed: false,
            measured_by: Time::MAX,
            naming: Naming::default(),
            log: Log::default(),
            revision: 1,
        }
    }

    /// Ranks without a worker.
    pub fn missing(&self) -> Vec<u16> {
        (0..self.world).filter(|rank| !self.seats.contains_key(rank)).collect()
    }

    /// Ranks that have left because their work is done.
    pub fn departed(&self) -> Vec<u16> {
        self.seats.iter().filter(|(_, seat)| seat.departed).map(|(rank, _)| *rank).collect()
    }

    /// Ranks that are still in it.
    pub fn present(&self) -> Vec<u16> {
        self.seats.iter().filter(|(_, seat)| !seat.departed).map(|(rank, _)| *rank).collect()
    }

    /// Whether workers wait for it to start.
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Gathering | Phase::Ready)
    }

    /// Whether the loss of a worker ends it.
    pub fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Installing | Phase::Running(_))
    }

    /// Whether it goes on when it loses its aggregators.
    pub fn outlives_aggregators(&self) -> bool {
        let goes_on = matches!(self.phase, Phase::Running(_)) || self.is_claimed && self.is_live();
        self.shared.is_some() && goes_on
    }

    /// Whether it goes on when it loses this control plane: one that is in order of names has that from here.
    pub fn outlives_control(&self) -> bool {
        self.outlives_aggregators()
            && self.terms.is_some_and(|terms| terms.order == OperationOrder::Submission)
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    /// Whether any of its workers is below this rack.
    pub fn is_below(&self, rack: RackId) -> bool {
        self.seats.values().any(|seat| seat.rack == Some(rack))
    }

    /// Changes the phase, and lets everybody know.
    pub fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.revision += 1;
    }

    /// Why `rank` with these wishes cannot be in this run, naming both sides.
    pub fn mismatch(&self, rank: u16, wishes: &Wishes) -> Option<Refusal> {
        let differs = |(other, seat): (&u16, &Seat)| Some((*other, seat.wishes.difference(wishes)?));
        let (other, (what, values)) = self.seats.iter().find_map(differs)?;
        Some(Refusal::Mismatch { job: self.name.clone(), what, ranks: [other, rank], values })
    }

    /// The order for the planes; none before the terms are known.
    pub fn order(&self, stealing: bool) -> Option<JobOrder> {
        let terms = self.terms.as_ref()?;
        Some(JobOrder {
            install: JobInstall {
                job: self.job,
                epoch: self.epoch,
                token: self.token,
                first_slot: self.range.map_or(0, |range| range.first),
                lane_slots: self.slots.lane,
                slots_reason: self.slots.reason.clone(),
                lanes: terms.lanes(),
                shards: terms.shards,
                elements: terms.elements,
                checksum: terms.checksum,
                stealing: stealing && self.shared.is_none(),
                level: Level::Only,
                workers: self.seats.values().map(|seat| seat.worker.clone()).collect(),
                dynamic: self.shared.as_ref().map(|shared| shared.install(&self.layout)),
            },
            layout: self.layout.clone(),
            hosts: self.shared.iter().flat_map(|shared| shared.hosts.iter().copied()).collect(),
        })
    }

    /// What a rank gets.
    pub fn assignment(&self, rank: u16) -> Option<Assignment> {
        let (Phase::Running(doors), Some(terms)) = (&self.phase, &self.terms) else { return None };
        let door = doors.get(usize::from(rank))?;
        let tune = self.slots.state != Tuning::Done;
        Some(Assignment {
            job: self.job,
            epoch: self.epoch,
            token: self.token,
            lane_slots: self.slots.lane,
            tune,
            slots_reason: if tune { String::new() } else { self.slots.reason.clone() },
            elements: terms.elements,
            shards: terms.shards,
            aggregator_ip: door.aggregator_ip,
            base_port: door.base_port,
            plane: door.plane,
            result_group: door.result_group,
            rack_rank: door.rack_rank,
            rack_world: door.rack_world,
            dynamic: self.shared.as_ref().and_then(|shared| shared.terms(&self.layout, rank)),
        })
    }

    /// Lets all hear of something. `false`: one of them does not listen.
    pub fn tell(&mut self, event: Event) -> bool {
        let heard = self.seats.values().filter(|seat| seat.is_manned()).map(|seat| seat.heard).min();
        self.log.forget(heard.unwrap_or(u64::MAX));
        self.log.push(event)
    }

    /// Who has heard least.
    pub fn deafest(&self) -> Option<u16> {
        let present = self.seats.iter().filter(|(_, seat)| seat.is_manned());
        present.min_by_key(|(_, seat)| seat.heard).map(|(rank, _)| *rank)
    }

    /// The address of a rank, for messages.
    pub fn ip_of(&self, rank: u16) -> Ipv4Addr {
        self.seats.get(&rank).map_or(Ipv4Addr::UNSPECIFIED, |seat| seat.worker.ip)
    }
}

impl Shared {
    /// What planes are told.
    fn install(&self, layout: &Layout) -> DynamicInstall {
        DynamicInstall {
            slots: self.slots,
            window: self.window,
            linear: self.linear,
            hosts: self.addresses.clone(),
            fan_in_1: layout.fan_in_1(),
            places: Vec::new(),
            upstream: Vec::new(),
        }
    }

    /// What a rank is told.
    fn terms(&self, layout: &Layout, rank: u16) -> Option<DynamicTerms> {
        let spot = layout.spot(rank.into())?;
        Some(DynamicTerms {
            slots: self.slots,
            window: self.window,
            hosts: self.addresses.clone(),
            linear: self.linear,
            congestion: self.congestion,
            fan_in_1: layout.fan_in_1(),
            bitmap_1: layout.bitmap_1(spot),
            beside_root: layout.is_beside_racks(spot),
            resume: self.resume.clone(),
        })
    }
}
