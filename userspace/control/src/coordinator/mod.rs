//! The server's state machine: sans-IO. Time comes in with every call, commands for the data planes come
//! out of [`Coordinator::poll_action`], and their outcome goes back in. What it must not forget comes out of
//! [`Coordinator::poll_records`], and goes into [`Coordinator::restore`] after a restart.
//!
//! ```text
//!            all ranks joined      the planes are free        installed
//! Gathering ----------------> Ready ------------> Installing ----------> Running
//!     |  deadline, mismatch     |                     |  a rank is silent  |
//!     +-------------------------+----------> Over <---+--------------------+
//! ```

mod agreement;
mod diagnosis;
mod failover;
mod holder;
mod hosts;
mod ids;
mod isolation;
mod join_limits;
mod layout;
mod lifecycle;
mod log;
mod membership;
mod mismatch;
mod names;
mod naming;
mod orders;
pub mod overview;
mod posts;
mod rack;
mod racks;
mod record;
mod restore;
mod run;
mod shares;
mod silence;
mod standstill;
#[cfg(test)]
mod tests;
mod time;
mod unrecorded;

use std::collections::{BTreeMap, HashMap, VecDeque};

use rand::RngCore;
use sumac_job::Mode;
use sumac_job::limits::MAX_RANKS;
use sumac_wire::{CLASSES, MAX_WORKERS};
use tokio::sync::watch;

pub use self::{
    agreement::{DEFAULT_WINDOW, DYNAMIC_SCALE, difference},
    holder::Holder,
    ids::{ConnectionNumber, MemberId, RackId, RunId},
    join_limits::JoinLimits,
    layout::{Layout, Position, Sender},
    membership::{Grant, Outcome},
    orders::{Action, InstalledJob, JobOrder, Replaced},
    rack::{RACK_NAME_LEN, RackEntry},
    record::{Record, Restart},
    run::Join,
    time::{PLANE_TIMEOUT, SILENCE_TIMEOUT, Time},
};
use self::{
    holder::parts,
    names::{Names, NoNumber},
    rack::Rack,
    run::{InstallState, Member, Phase, Run},
    silence::SilenceClock,
    time::QUIET_TIMEOUT,
};
use crate::{
    JOB_NAME_LEN,
    failure::{FailureKind, JobFailure, Refusal, RefusalKind, invalid},
    message::{End, Status},
    plane::{PlaneInfo, PlaneKind},
    pool::Pool,
};

/// Members at once, those of finished jobs that have not received it yet among them.
const MAX_MEMBERS: usize = 8192;
/// Failures that are kept for members that were silent.
const MAX_MISSED_FAILURES: usize = 1024;

pub struct Coordinator {
    plane: PlaneInfo,
    pool: Pool,
    names: Names,
    runs: BTreeMap<RunId, Run>,
    members: HashMap<MemberId, (RunId, u16)>,
    racks: BTreeMap<RackId, Rack>,
    lost_racks: Vec<RackId>,
    /// The failures that members have not received, since they were silent when their jobs ended.
    missed_failures: VecDeque<(MemberId, JobFailure)>,
    /// Whether a completed slot takes the next chunk of its lane, however late it is; SwitchML as published
    /// does not.
    pub stealing: bool,
    /// A dead worker's rank in a dynamic job may be taken for so long; the job fails when nobody does. Not in
    /// jobs whose order is by name: what the dead one has announced cannot be distinguished from what the new
    /// one announces again.
    pub rejoin_grace: Time,
    /// The longest outage of a worker's network that jobs survive: later than that a silent worker is dead.
    pub longest_outage: Time,
    pub join_limits: JoinLimits,
    actions: VecDeque<Action>,
    records: Vec<Record>,
    random: Box<dyn RngCore + Send>,
    next_run: u64,
    next_rack: u64,
    instance: u64,
    plane_down: Option<(Time, String)>,
    last_tick: Time,
    silence: SilenceClock,
    stopping: bool,
}

impl Coordinator {
    /// A worker joins. The answer comes with [`Coordinator::status`].
    pub fn join(&mut self, now: Time, request: &Join) -> Result<MemberId, Refusal> {
        if let Some(id) = self.join_again(now, request) {
            return Ok(id);
        }
        self.check(request)?;
        self.check_places(request)?;
        if let Some(run) = self.vacated_run(request) {
            self.check_vacated(run, request)?;
            return self.replace(now, run, request).ok_or_else(Refusal::stopping);
        }
        let run = match self.open_run(request)? {
            Some(run) => run,
            None => self.new_run(request)?,
        };
        self.silence.on_message(now);
        let id = self.new_member();
        let waits_until = now + self.wait(&request.asked);
        if let Some(state) = self.runs.get_mut(&run) {
            state.members.insert(request.rank(), Member::new(now, id, request, waits_until));
            state.revise();
        }
        self.members.insert(id, (run, request.rank()));
        self.advance(run);
        Ok(id)
    }

    /// Returns the member that an earlier attempt of this join has made: it did not get the answer. An
    /// attempt that comes after a later one, or from another place, is refused as any other join.
    fn join_again(&mut self, now: Time, request: &Join) -> Option<MemberId> {
        let attempt = request.asked.attempt?;
        let run = self.runs.get_mut(&self.names.get(&request.asked.spec.job)?.current?)?;
        let member = run.members.get_mut(&request.rank())?;
        let last = member.asked.attempt.filter(|last| last.join == attempt.join)?;
        let is_same_place = member.worker == request.worker && member.rack == request.rack;
        if member.departed || last.earlier >= attempt.earlier || !is_same_place {
            return None;
        }
        member.asked.attempt = Some(attempt);
        let id = member.id;
        self.heartbeat(now, id).then_some(id)
    }

    /// A member goes on with another connection, having received so many events. `Err`: the end of its
    /// membership.
    pub fn reconnect(
        &mut self,
        now: Time,
        job: &str,
        rank: u16,
        id: MemberId,
        received: u64,
    ) -> Result<(), JobFailure> {
        if self.heartbeat(now, id) {
            self.on_received(id, received);
            return Ok(());
        }
        if let Some((_, failure)) = self.missed_failures.iter().find(|(member, _)| *member == id) {
            return Err(failure.clone());
        }
        let run = self.names.get(job).and_then(|name| self.runs.get(&name.current?));
        let is_replaced = run.filter(|run| run.is_live()).is_some_and(|run| run.members.contains_key(&rank));
        let message = if is_replaced {
            format!(
                "job `{job}` goes on without this worker, which was silent: another is its rank {rank} now"
            )
        } else {
            format!("job `{job}` has ended meanwhile: this worker was silent; open it anew on all workers")
        };
        Err(JobFailure::new(FailureKind::NoMember, &[rank], message))
    }

    fn check(&self, request: &Join) -> Result<(), Refusal> {
        if self.stopping {
            return Err(Refusal::stopping());
        }
        let spec = &request.asked.spec;
        if spec.job.is_empty() || spec.job.len() > JOB_NAME_LEN || spec.job.chars().any(char::is_control) {
            return invalid(format!("a job's name has 1 to {JOB_NAME_LEN} bytes and no control characters"));
        }
        let (world, local, is_static) =
            (spec.world, spec.ranks_per_worker(), request.asked.mode() == Mode::Static);
        if !world.is_multiple_of(local) || !spec.rank.is_multiple_of(local) {
            return invalid(format!(
                "rank {} of {world} as the first of {local} on its host: every host has as many ranks, one \
                after the other",
                spec.rank
            ));
        }
        let is_large = !is_static || request.rack.is_some();
        let most = if is_large { MAX_WORKERS * MAX_WORKERS } else { MAX_WORKERS };
        if world > MAX_RANKS {
            return invalid(format!("a world of {world}: a job has at most {MAX_RANKS} ranks"));
        }
        let workers = spec.workers();
        if workers == 0 || usize::from(workers) > most {
            return invalid(format!("a world of {workers}: an aggregator takes 1 to {MAX_WORKERS} workers"));
        }
        if is_static && self.plane.kind == PlaneKind::None {
            return Err(Refusal::no_aggregator());
        }
        if request.rack.is_some_and(|rack| self.racks.get(&rack).is_some_and(Rack::is_host)) {
            return invalid("workers do not join through parameter hosts");
        }
        if request.asked.is_dynamic() {
            self.check_depth(spec.rank, request.rack)?;
        }
        if spec.rank >= world {
            return invalid(format!("rank {} in a world of {world}: ranks count from 0", spec.rank));
        }
        request.asked.check(&self.plane.limits(request.asked.mode()))?;
        if let Some(slots) = request.asked.lane_slots()
            && slots.saturating_mul(CLASSES.into()) > self.plane.slots
        {
            return Err(self.full(slots.saturating_mul(CLASSES.into()), u32::MAX));
        }
        if request.worker.port == 0 || request.worker.ip.is_unspecified() {
            return invalid("the worker's data address is missing");
        }
        if self.members.len() >= MAX_MEMBERS {
            return invalid(format!("{MAX_MEMBERS} workers are here already; wait until a job ends"));
        }
        Ok(())
    }

    /// The run that waits for this rank, if one does.
    fn open_run(&mut self, request: &Join) -> Result<Option<RunId>, Refusal> {
        let (job, rank) = (request.asked.spec.job.clone(), request.rank());
        let Some(id) = self.names.get(&job).and_then(|name| name.current) else { return Ok(None) };
        let now = self.last_tick;
        let Some(run) = self.runs.get_mut(&id) else { return Ok(None) };
        if run.is_over() {
            return Ok(None);
        }
        // A worker that joins anew has given up the place that a restarted coordinator keeps for its return.
        if let Some(member) = run.members.get_mut(&rank)
            && member.worker.ip == request.worker.ip
        {
            member.seen = member.seen.min(now);
        }
        match run.members.get(&rank) {
            Some(member) if !member.departed => {
                let message = format!(
                    "job `{job}`: rank {rank} has joined already, from {}; give every worker a rank of its \
                    own (a dead worker's rank is free {:?} after its last message)",
                    member.worker.ip, self.longest_outage
                );
                let is_quiet = now.saturating_sub(member.seen) >= QUIET_TIMEOUT;
                let kind = if is_quiet { RefusalKind::RankSilent } else { RefusalKind::RankTaken };
                Err(Refusal::new(kind, &[rank], message))
            }
            // The rank has done its part and comes for the next incarnation.
            Some(_) => Ok(None),
            None if run.is_live() => Err(Refusal::held(&job, &run.present())),
            None => match run.mismatch(rank, &request.asked) {
                None => Ok(Some(id)),
                Some(refusal) => {
                    self.end(id, End::Refused(refusal.clone()));
                    Err(refusal)
                }
            },
        }
    }

    fn new_run(&mut self, request: &Join) -> Result<RunId, Refusal> {
        self.check_room(request)?;
        self.check_number(request)?;
        let id = RunId(self.next_run);
        self.names.begin(&request.asked.spec.job, id);
        self.next_run += 1;
        let run = Run::new(request, self.random.next_u64());
        tracing::info!(name = run.name, world = run.world, "job opened");
        self.runs.insert(id, run);
        Ok(id)
    }

    /// Refuses early what cannot be had even when the job's own earlier incarnation is gone.
    fn check_room(&self, request: &Join) -> Result<(), Refusal> {
        let Some(lane_slots) = request.asked.lane_slots() else { return Ok(()) };
        let shards = request.asked.spec.shards.unwrap_or(1);
        let wanted = lane_slots.saturating_mul(u32::from(CLASSES * shards));
        let earlier = self.names.get(&request.asked.spec.job).and_then(|name| name.on_plane);
        let own = earlier.and_then(|run| self.runs.get(&run)).and_then(|run| run.range);
        let is_enough =
            self.pool.largest(u32::MAX) >= wanted || own.is_some_and(|range| range.slots >= wanted);
        if is_enough { Ok(()) } else { Err(self.full(wanted, u32::MAX)) }
    }

    /// Refuses early what would have no number when all ranks are there, but for the number of the job's own
    /// earlier incarnation.
    fn check_number(&self, request: &Join) -> Result<(), Refusal> {
        let name = &request.asked.spec.job;
        self.names.check_free(name, &self.withheld()).map_err(|why| self.no_number(why))?;
        let earlier = self.names.get(name).and_then(|name| name.on_plane);
        self.check_numbers(&parts(&request.holders, request.asked.spec.workers()), earlier)
    }

    fn no_number(&self, why: NoNumber) -> Refusal {
        match why {
            NoNumber::Spent => Refusal::spent(),
            NoNumber::Taken => Refusal::too_many_jobs(self.most_jobs(), &self.holders_of_numbers()),
        }
    }

    fn full(&self, wanted: u32, limit: u32) -> Refusal {
        let holders = self.runs.values().filter_map(|run| Some((run.name.clone(), run.range?.slots)));
        let (pool, holders) = (&self.pool, holders.collect::<Vec<_>>());
        Refusal::pool_full(wanted, [pool.free(limit), pool.largest(limit), pool.total(limit)], &holders)
    }

    fn runs_with(&self, is: impl Fn(&Run) -> bool) -> Vec<RunId> {
        self.runs.iter().filter(|(_, run)| is(run)).map(|(id, _)| *id).collect()
    }

    fn new_member(&mut self) -> MemberId {
        loop {
            let member = MemberId(self.random.next_u64());
            if !self.members.contains_key(&member) {
                return member;
            }
        }
    }

    fn member(&mut self, id: MemberId) -> Option<&mut Member> {
        let (run, rank) = self.members.get(&id)?;
        self.runs.get_mut(run)?.members.get_mut(rank)
    }

    /// A member, with its run.
    fn lookup(&self, id: MemberId) -> Option<(&Run, &Member)> {
        let (run, rank) = self.members.get(&id)?;
        let run = self.runs.get(run)?;
        Some((run, run.members.get(rank)?))
    }

    /// A member is alive. `false`: no such member (any more).
    pub fn heartbeat(&mut self, now: Time, id: MemberId) -> bool {
        self.silence.on_message(now);
        let Some(member) = self.member(id) else { return false };
        member.seen = now;
        // It was not dead after all, and no other has taken its rank.
        member.vacated = None;
        true
    }

    /// A receiver that wakes a member's connection; `None`: no such member (any more).
    pub fn listen(&self, id: MemberId) -> Option<watch::Receiver<()>> {
        let (run, _) = self.members.get(&id)?;
        Some(self.runs.get(run)?.listeners.subscribe())
    }

    /// The number of changes of a member's status.
    pub fn revision(&self, id: MemberId) -> Option<u64> {
        let (run, _) = self.members.get(&id)?;
        Some(self.runs.get(run)?.revision)
    }

    pub fn status(&self, id: MemberId) -> Option<(u64, Status)> {
        let (run, rank) = self.members.get(&id)?;
        let run = self.runs.get(run)?;
        let status = match &run.phase {
            Phase::Gathering => Status::Waiting(run.missing()),
            Phase::Ready | Phase::Installing => Status::Waiting(Vec::new()),
            Phase::Running if run.members.get(rank).is_some_and(|member| member.is_new) => {
                Status::Waiting(Vec::new())
            }
            Phase::Running => {
                Status::Running { grant: Box::new(run.grant(*rank)?), departed: run.departed() }
            }
            Phase::Over(end) => Status::Over(end.clone()),
        };
        Some((run.revision, status))
    }

    /// The next command for the planes. Installs come last: each may take seconds, and nothing else waits for
    /// one that has not begun, as a run is removed only after its install has ended.
    pub fn poll_action(&mut self) -> Option<Action> {
        let is_slow = |action: &Action| {
            matches!(action, Action::Install(..) | Action::Restore { .. } | Action::Renew(..))
        };
        let quick = self.actions.iter().position(|action| !is_slow(action));
        self.actions.remove(quick.unwrap_or(0))
    }

    /// Whether nobody needs this control plane any more, and the planes have no job of it.
    pub fn is_idle(&self) -> bool {
        let is_done = |run: &Run| run.is_over() || run.outlives_control();
        self.runs.values().all(|run| is_done(run) && run.install == InstallState::Absent)
    }
}
