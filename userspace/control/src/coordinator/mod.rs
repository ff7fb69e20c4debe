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
mod names;
mod run;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::Ipv4Addr,
    time::Duration,
};

use rand::RngCore;
use sumac_wire::{MAX_ELEMENTS, MAX_WORKERS};

use self::{
    names::Names,
    run::{End, Hold, Phase, Run, Seat, Shape},
};
use crate::{
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
/// The longest that a join may wait for the other ranks.
const LONGEST_DEADLINE: Duration = Duration::from_secs(24 * 3600);
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
    /// How many workers the job has.
    pub world: u16,
    /// Most elements in a chunk.
    pub elements: u16,
    /// Slots, a power of two; `None` leaves them to the aggregator.
    pub slots: Option<u32>,
    /// The factor between the trainer's floats and the integers on the wire.
    pub scale: f32,
    /// Whether packets carry UDP checksums.
    pub checksum: bool,
    /// Where the worker is.
    pub worker: WorkerInstall,
    /// How long to wait for the other ranks.
    pub deadline: Duration,
}

/// How a worker leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its work is done. The others may go on.
    Done,
    /// It gives up: the job fails on all others with this reason.
    Failed(String),
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

/// What a job got.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each is documented at `client::Assignment`")]
pub struct Grant {
    pub job: u16,
    pub epoch: u16,
    pub token: u64,
    pub slots: u32,
    pub elements: u16,
    pub scale: f32,
    pub aggregator_ip: Ipv4Addr,
    pub base_port: u16,
    pub shards: u16,
    pub plane: PlaneKind,
    pub result_group: Option<Ipv4Addr>,
    pub departed: Vec<u16>,
}

/// What is to be done outside, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Install a job; answer with [`Coordinator::on_installed`].
    Install(RunId, JobInstall),
    /// Remove a job; answer with [`Coordinator::on_removed`].
    Remove(RunId, u16),
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
    actions: VecDeque<Action>,
    random: Box<dyn RngCore + Send>,
    next_run: u64,
    instance: u64,
    plane_down: Option<(Time, String)>,
    last_tick: Time,
    stopping: bool,
}

impl Coordinator {
    /// Nobody has joined yet. `random` makes tokens: it must not be guessable outside of tests.
    pub fn new(
        now: Time,
        plane: PlaneInfo,
        instance: u64,
        last_epochs: &[LastEpoch],
        random: Box<dyn RngCore + Send>,
    ) -> Coordinator {
        Coordinator {
            plane,
            pool: Pool::new(plane.slots),
            names: Names::new(last_epochs),
            runs: BTreeMap::new(),
            members: HashMap::new(),
            actions: VecDeque::new(),
            random,
            next_run: 0,
            instance,
            plane_down: None,
            last_tick: now,
            stopping: false,
        }
    }

    /// A worker joins. The answer comes with [`Coordinator::status`].
    pub fn join(&mut self, now: Time, request: &JoinRequest) -> Result<MemberId, Refusal> {
        self.check(request)?;
        let run = match self.open_run(request)? {
            Some(run) => run,
            None => self.new_run(request)?,
        };
        let member = self.new_member();
        let patience = request.deadline.min(LONGEST_DEADLINE);
        let seat = Seat {
            member,
            worker: request.worker.clone(),
            gives_up: now + patience,
            patience,
            seen: now,
            departed: false,
        };
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
        if request.world == 0 || usize::from(request.world) > MAX_WORKERS {
            return invalid(format!(
                "a world of {}: an aggregator takes 1 to {MAX_WORKERS} workers",
                request.world
            ));
        }
        if request.rank >= request.world {
            return invalid(format!(
                "rank {} in a world of {}: ranks count from 0",
                request.rank, request.world
            ));
        }
        if request.elements == 0 {
            return invalid("chunks of 0 elements: give at least 1".into());
        }
        let max = self.plane.max_elements.min(MAX_ELEMENTS as u16);
        if request.elements > max {
            return Err(Refusal::TooManyElements { wanted: request.elements, max });
        }
        if !(request.scale.is_finite() && request.scale > 0.0) {
            return invalid(format!("a scale of {}: it must be finite and above 0", request.scale));
        }
        if request.worker.port == 0 || request.worker.ip.is_unspecified() {
            return invalid("the worker's data address is missing".into());
        }
        match request.slots {
            Some(slots) if !slots.is_power_of_two() => invalid(format!(
                "{slots} slots: give a power of two, such as {}",
                slots.max(1).next_power_of_two()
            )),
            Some(slots) if slots > self.pool.total() => Err(self.pool.full(slots)),
            _ if self.members.len() >= MOST_MEMBERS => {
                invalid("too many workers at once; try again later".into())
            }
            _ => Ok(()),
        }
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
            None if run.is_live() => Err(Refusal::Held { job, ranks: run.present() }),
            None => match run.mismatch(request.rank, &Shape::of(request)) {
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
        let (job, epoch) = self.names.begin(&request.job, id)?;
        self.next_run += 1;
        let run = Run {
            name: request.job.clone(),
            job,
            epoch,
            token: self.random.next_u64(),
            shape: Shape::of(request),
            seats: BTreeMap::new(),
            phase: Phase::Gathering,
            hold: Hold::Nothing,
            range: None,
            revision: 1,
        };
        tracing::info!(name = run.name, job, epoch, world = run.shape.world, "job opened");
        self.runs.insert(id, run);
        Ok(id)
    }

    /// Refuses early what cannot be had even when the job's own earlier incarnation is gone.
    fn check_room(&self, request: &JoinRequest) -> Result<(), Refusal> {
        let Some(wanted) = request.slots else { return Ok(()) };
        let earlier = self.names.get(&request.job).and_then(|name| name.on_plane);
        let own = earlier.and_then(|run| self.runs.get(&run)).and_then(|run| run.range);
        let is_enough = self.pool.largest() >= wanted || own.is_some_and(|range| range.slots >= wanted);
        if is_enough { Ok(()) } else { Err(self.pool.full(wanted)) }
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
            Phase::Running(installed) => Status::Running(Grant {
                job: run.job,
                epoch: run.epoch,
                token: run.token,
                slots: run.range.map_or(0, |range| range.slots),
                elements: run.shape.elements,
                scale: run.shape.scale,
                aggregator_ip: *installed.aggregator_ips.get(usize::from(*rank))?,
                base_port: self.plane.base_port,
                shards: self.plane.shards,
                plane: self.plane.kind,
                result_group: installed.result_group,
                departed: run.departed(),
            }),
            Phase::Over(End::Refused(refusal)) => Status::Refused(refusal.clone()),
            Phase::Over(End::Failed(failure)) => Status::Failed(failure.clone()),
            Phase::Over(End::Finished) => Status::Left,
        };
        Some((run.revision, status))
    }

    /// The next thing to do outside.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether nobody is in any job and the plane has none.
    pub fn is_idle(&self) -> bool {
        self.runs.values().all(|run| run.is_over() && run.hold == Hold::Nothing)
    }
}
