//! The server's state machine: sans-IO. Time comes in with every call, orders for the data plane come
//! out of [`Coordinator::poll_action`], and their outcome goes back in.
//!
//! ```text
//!            all ranks joined      the plane is free          installed
//! Gathering ----------------> Ready ------------> Installing ----------> Running
//!     |  deadline, mismatch     |                     |  a rank is silent  |
//!     +-------------------------+----------> Over <---+--------------------+
//! ```

mod events;
mod hosts;
mod layout;
mod log;
mod names;
mod naming;
pub mod overview;
mod posts;
mod racks;
mod renewal;
mod restore;
mod resume;
mod run;
mod terms;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::Ipv4Addr,
    time::Duration,
};

use rand::RngCore;
use sumac_wire::{CLASSES, MAX_WORKERS};

pub use self::{
    layout::{Child, Layout},
    log::Event,
    posts::Post,
    racks::{RACK_NAME_LEN, RackEntry, RackId},
    renewal::Renewed,
    terms::Wishes,
};
use self::{
    names::Names,
    racks::Rack,
    run::{End, Hold, Phase, Run, Seat},
    terms::Limits,
};
use crate::{
    assignment::Assignment,
    dynamic::Mode,
    failure::JobFailure,
    gate::JOB_NAME_LEN,
    plane::{JobInstall, LastEpoch, PlaneInfo, PlaneKind, WorkerInstall},
    pool::Pool,
    refusal::Refusal,
};

/// Time since some fixed moment.
pub type Time = Duration;

/// A worker without a sign of life for this long is dead.
pub const SILENCE: Duration = Duration::from_secs(2);
/// A data plane may be away for this long before its jobs fail.
pub const PLANE_PATIENCE: Duration = Duration::from_secs(10);
/// How long the workers of a job may measure their paths; each has its answer, or gives up, within seconds.
const MEASURE_PATIENCE: Duration = Duration::from_secs(30);
/// The longest that a join may wait for the other ranks.
pub(crate) const LONGEST_DEADLINE: Duration = Duration::from_secs(24 * 3600);
/// When [`Coordinator::tick`] comes later than this, the server itself was held up, and the workers'
/// silence means nothing.
const HELD_UP: Duration = Duration::from_millis(700);
/// Members at once, those of finished jobs that were not told yet among them.
const MOST_MEMBERS: usize = 4096;

/// Names one worker's membership. Random, so that nobody guesses another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub u64);

/// Names one incarnation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub u64);

/// Who wants to join which job.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinRequest {
    /// The job's name.
    pub job: String,
    /// The worker's rank.
    pub rank: u16,
    /// What it wants of the job.
    pub wishes: Wishes,
    /// Where the worker is.
    pub worker: WorkerInstall,
    /// The rack through which it joins; `None`: at this aggregator itself.
    pub rack: Option<RackId>,
    /// How long to wait for the other ranks.
    pub deadline: Duration,
    /// What it got of a running dynamic job from a control plane that is no more; `None`: it comes to a job that is yet to
    /// start, or to an open place.
    pub resumes: Option<Assignment>,
}

/// How a worker leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its work is done. The others may go on.
    Done,
    /// It gives up: the job fails on all others with this reason.
    Failed(String),
    /// Whom it works for has died: as [`Outcome::Failed`], but that another worker may take its place in a dynamic job
    /// (ATP appendix A.3).
    Died(String),
    /// The ranks do not want the same: the job fails on all others with exactly this text, which names both sides.
    Mismatch(String),
}

/// What a member is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    /// These ranks have not joined yet.
    Waiting(Vec<u16>),
    /// Go.
    Running(Grant),
    /// It will not start.
    Refused(Refusal),
    /// It has ended.
    Failed(JobFailure),
    /// The member has left.
    Left,
}

/// What a job got, and who has left it.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// What it got.
    pub assignment: Assignment,
    /// Ranks that have left because their work is done.
    pub departed: Vec<u16>,
}

/// Where one worker of an installed job sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Door {
    /// The address of its aggregator.
    pub aggregator_ip: Ipv4Addr,
    /// The UDP port of shard 0.
    pub base_port: u16,
    /// What kind of aggregator it is.
    pub plane: PlaneKind,
    /// The multicast group that results are sent to, if not to each worker.
    pub result_group: Option<Ipv4Addr>,
    /// The worker among those below the same aggregator, from 0.
    pub rack_rank: u16,
    /// How many those are.
    pub rack_world: u16,
}

/// A job for one aggregator, or for those of several racks and the root above them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOrder {
    /// The job with all of its workers, by rank.
    pub install: JobInstall,
    /// Which rack each worker is below.
    pub layout: Layout,
    /// The parameter hosts of a dynamic job.
    pub hosts: Vec<RackId>,
}

/// What is to be done outside, in the order of [`Coordinator::poll_action`].
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Install a job; answer with [`Coordinator::on_installed`].
    Install(RunId, JobOrder),
    /// Leave a job so many slots in each lane; answer with [`Coordinator::on_resized`].
    Resize {
        /// The run.
        run: RunId,
        /// Its number.
        job: u16,
        /// So many.
        lane_slots: u32,
        /// Why as many, for people.
        reason: String,
    },
    /// Install a running dynamic job once more where it was lost; answer with [`Coordinator::on_restored`].
    Restore {
        /// The run.
        run: RunId,
        /// The whole job.
        order: JobOrder,
        /// Where: at a rack, or at this aggregator itself.
        at: Option<RackId>,
    },
    /// Have the parameter hosts of an earlier control plane's dynamic job go on for this one; answer with
    /// [`Coordinator::on_resumed`].
    Resume(RunId, JobOrder),
    /// Go on with a running dynamic job under another epoch; answer with [`Coordinator::on_renewed`].
    Renew(RunId, JobOrder),
    /// Remove a job everywhere; answer with [`Coordinator::on_removed`].
    Remove(RunId, u16),
    /// Remove a dynamic job from the aggregators: its parameter hosts go on without this control plane. Answer with
    /// [`Coordinator::on_removed`].
    Withdraw(RunId, u16),
    /// The member is no more: forget its session.
    Forget(MemberId),
}

/// Who takes part in which job. See the module's description.
pub struct Coordinator {
    plane: PlaneInfo,
    pool: Pool,
    names: Names,
    runs: BTreeMap<RunId, Run>,
    members: HashMap<MemberId, (RunId, u16)>,
    racks: BTreeMap<RackId, Rack>,
    lost_racks: Vec<RackId>,
    /// Tokens of the last dynamic jobs that have ended here.
    ended: VecDeque<u64>,
    stealing: bool,
    rejoin_grace: Time,
    actions: VecDeque<Action>,
    random: Box<dyn RngCore + Send>,
    next_run: u64,
    instance: u64,
    plane_down: Option<(Time, String)>,
    last_tick: Time,
    stopping: bool,
}

impl Coordinator {
    /// Nobody has joined yet. `random` makes tokens: it must not be guessable outside of tests. Jobs steal work: see
    /// [`Coordinator::without_stealing`].
    pub fn new(
        now: Time,
        plane: PlaneInfo,
        instance: u64,
        last_epochs: &[LastEpoch],
        random: Box<dyn RngCore + Send>,
    ) -> Coordinator {
        Coordinator {
            pool: Pool::new(plane.slots),
            plane,
            names: Names::new(last_epochs),
            runs: BTreeMap::new(),
            members: HashMap::new(),
            racks: BTreeMap::new(),
            lost_racks: Vec::new(),
            ended: VecDeque::new(),
            stealing: true,
            rejoin_grace: Time::ZERO,
            actions: VecDeque::new(),
            random,
            next_run: 0,
            instance,
            plane_down: None,
            last_tick: now,
            stopping: false,
        }
    }

    /// Every slot of a job takes each lane's slots-th chunk, however late it is: SwitchML as published.
    #[must_use]
    pub fn without_stealing(mut self) -> Coordinator {
        self.stealing = false;
        self
    }

    /// A worker joins. The answer comes with [`Coordinator::status`].
    pub fn join(&mut self, now: Time, request: &JoinRequest) -> Result<MemberId, Refusal> {
        self.check(request)?;
        let run = if let Some(had) = &request.resumes {
            if let Some(member) = self.retake(now, request, had) {
                return Ok(member);
            }
            self.claimed_run(request, had)?
        } else if let Some(run) = self.open_place_of(request) {
            self.check_place(run, request)?;
            return self.renew(now, run, request).ok_or(Refusal::Stopping);
        } else {
            match self.open_run(request)? {
                Some(run) => run,
                None => self.new_run(request)?,
            }
        };
        let member = self.new_member();
        let patience = request.deadline.min(LONGEST_DEADLINE);
        let seat = Seat::new(now, member, request, patience);
        if let Some(state) = self.runs.get_mut(&run) {
            state.seats.insert(request.rank, seat);
            state.revision += 1;
        }
        self.members.insert(member, (run, request.rank));
        self.advance(run);
        Ok(member)
    }

    /// Refuses what no job can have.
    fn check(&self, request: &JoinRequest) -> Result<(), Refusal> {
        let invalid = |what: String| Err(Refusal::Invalid { what });
        if self.stopping {
            return Err(Refusal::Stopping);
        }
        let name = &request.job;
        if name.is_empty() || name.len() > JOB_NAME_LEN || name.chars().any(char::is_control) {
            return invalid(format!("a job's name has 1 to {JOB_NAME_LEN} bytes and no control characters"));
        }
        let world = request.wishes.world;
        let is_dynamic = matches!(request.wishes.mode, Mode::Dynamic(_));
        let is_large = is_dynamic || request.rack.is_some();
        let most = if is_large { MAX_WORKERS * MAX_WORKERS } else { MAX_WORKERS };
        if world == 0 || usize::from(world) > most {
            return invalid(format!("a world of {world}: an aggregator takes 1 to {MAX_WORKERS} workers"));
        }
        if !is_dynamic && self.plane.kind == PlaneKind::None {
            return Err(Refusal::NoAggregator);
        }
        if request.rack.is_some_and(|rack| self.racks.get(&rack).is_some_and(|rack| rack.is_host())) {
            return invalid("workers do not join through parameter hosts".into());
        }
        if request.rank >= world {
            return invalid(format!("rank {} in a world of {world}: ranks count from 0", request.rank));
        }
        request.wishes.check(&Limits::of(&self.plane))?;
        if let Some(slots) = request.wishes.lane_slots()
            && slots.saturating_mul(CLASSES.into()) > self.plane.slots
        {
            return Err(self.full(slots.saturating_mul(CLASSES.into()), u32::MAX));
        }
        if request.worker.port == 0 || request.worker.ip.is_unspecified() {
            return invalid("the worker's data address is missing".into());
        }
        if self.members.len() >= MOST_MEMBERS {
            return invalid(format!("{MOST_MEMBERS} workers are here already; wait until a job ends"));
        }
        Ok(())
    }

    /// The run that waits for this rank, if one does.
    fn open_run(&mut self, request: &JoinRequest) -> Result<Option<RunId>, Refusal> {
        let Some(id) = self.names.get(&request.job).and_then(|name| name.current) else { return Ok(None) };
        let Some(run) = self.runs.get_mut(&id) else { return Ok(None) };
        let job = request.job.clone();
        match run.seats.get(&request.rank) {
            _ if run.is_over() => Ok(None),
            Some(seat) if !seat.departed => {
                Err(Refusal::RankTaken { job, rank: request.rank, holder: seat.worker.ip })
            }
            // The rank has done its part and comes for the next incarnation.
            Some(_) => Ok(None),
            None if run.is_live() || run.is_claimed => Err(Refusal::Held { job, ranks: run.present() }),
            None => match run.mismatch(request.rank, &request.wishes) {
                None => Ok(Some(id)),
                Some(refusal) => {
                    self.end(id, End::Refused(refusal.clone()));
                    Err(refusal)
                }
            },
        }
    }

    fn new_run(&mut self, request: &JoinRequest) -> Result<RunId, Refusal> {
        self.check_room(request)?;
        let id = RunId(self.next_run);
        let job = self.names.begin(&request.job, id, &self.kept())?;
        self.next_run += 1;
        let run = Run::new(request, job, self.random.next_u64());
        tracing::info!(name = run.name, job, world = run.world, "job opened");
        self.runs.insert(id, run);
        Ok(id)
    }

    /// Refuses early what cannot be had even when the job's own earlier incarnation is gone.
    fn check_room(&self, request: &JoinRequest) -> Result<(), Refusal> {
        let Some(lane_slots) = request.wishes.lane_slots() else { return Ok(()) };
        let shards = request.wishes.shards.unwrap_or(1);
        let wanted = lane_slots.saturating_mul(u32::from(CLASSES * shards));
        let earlier = self.names.get(&request.job).and_then(|name| name.on_plane);
        let own = earlier.and_then(|run| self.runs.get(&run)).and_then(|run| run.range);
        let is_enough =
            self.pool.largest(u32::MAX) >= wanted || own.is_some_and(|range| range.slots >= wanted);
        if is_enough { Ok(()) } else { Err(self.full(wanted, u32::MAX)) }
    }

    /// The refusal of a job for which there is no room below `limit`: says what is free, and who has the rest.
    fn full(&self, wanted: u32, limit: u32) -> Refusal {
        let held = self.runs.values().filter_map(|run| Some((run.name.clone(), run.range?.slots)));
        Refusal::PoolFull {
            wanted,
            free: self.pool.free(limit),
            largest: self.pool.largest(limit),
            total: self.pool.total(limit),
            holders: held.collect(),
        }
    }

    fn new_member(&mut self) -> MemberId {
        loop {
            let member = MemberId(self.random.next_u64());
            if !self.members.contains_key(&member) {
                return member;
            }
        }
    }

    /// A sign of life. `false`: no such member (any more).
    pub fn heartbeat(&mut self, now: Time, member: MemberId) -> bool {
        let seat =
            self.members.get(&member).and_then(|(run, rank)| self.runs.get_mut(run)?.seats.get_mut(rank));
        match seat {
            Some(seat) => {
                seat.seen = now;
                // It was not dead after all, and nobody has taken its place.
                seat.vacant = None;
                true
            }
            None => false,
        }
    }

    /// How things stand for a member, and the revision of that.
    pub fn status(&self, member: MemberId) -> Option<(u64, Status)> {
        let (id, rank) = self.members.get(&member)?;
        let run = self.runs.get(id)?;
        let status = match &run.phase {
            Phase::Gathering => Status::Waiting(run.missing()),
            Phase::Ready | Phase::Installing => Status::Waiting(Vec::new()),
            Phase::Running(_) if run.seats.get(rank).is_some_and(|seat| seat.is_new) => {
                Status::Waiting(Vec::new())
            }
            Phase::Running(_) => {
                Status::Running(Grant { assignment: run.assignment(*rank)?, departed: run.departed() })
            }
            Phase::Over(End::Refused(refusal)) => Status::Refused(refusal.clone()),
            Phase::Over(End::Failed(failure)) => Status::Failed(failure.clone()),
            Phase::Over(End::Finished) => Status::Left,
        };
        Some((run.revision, status))
    }

    /// The revision of a member's status.
    pub fn revision(&self, member: MemberId) -> Option<u64> {
        let (run, _) = self.members.get(&member)?;
        self.runs.get(run).map(|run| run.revision)
    }

    /// The next thing to do outside. Installs come last: each may take seconds, and nothing else waits for one that has not
    /// begun, as a run is removed only after its install has ended.
    pub fn poll_action(&mut self) -> Option<Action> {
        let is_slow = |action: &Action| {
            matches!(
                action,
                Action::Install(..) | Action::Restore { .. } | Action::Resume(..) | Action::Renew(..)
            )
        };
        let quick = self.actions.iter().position(|action| !is_slow(action));
        self.actions.remove(quick.unwrap_or(0))
    }

    /// Whether nobody needs this control plane any more, and the planes have no job of it.
    pub fn is_idle(&self) -> bool {
        let is_done = |run: &Run| run.is_over() || run.outlives_control();
        self.runs.values().all(|run| is_done(run) && run.hold == Hold::Nothing)
    }
}
