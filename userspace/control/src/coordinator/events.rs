//! What happens to runs after the joins: starts, silence, leaves, the plane's answers, the end.

use super::{
    Action, Coordinator, Door, End, HELD_UP, Hold, MEASURE_PATIENCE, MemberId, Outcome, PLANE_PATIENCE,
    Phase, Refusal, RunId, SILENCE, Time,
    hosts::HOST_PATIENCE,
    layout::Layout,
    names::Names,
    run::{Slots, Tuning},
    terms::{Limits, Terms},
};
use crate::{
    failure::JobFailure,
    plane::{PlaneInfo, PlaneKind},
    pool::{Pool, Range},
};

/// Slots of a lane while the workers measure: the most that they may turn out to need. The second: less is not tried.
const PROVISIONAL: [u32; 2] = [512, 16];
/// How long members are taken for alive when their rack's control plane, by which they could be heard, is gone.
const UNHEARD: Time = Time::from_secs(24 * 3600);
/// How long until a job that the plane would not give up is removed again.
const RETRY: Time = Time::from_secs(1);

impl Coordinator {
    /// A worker leaves.
    pub fn leave(&mut self, member: MemberId, outcome: &Outcome) {
        let Some((id, rank)) = self.members.get(&member).copied() else { return };
        self.forget(member);
        let Some(run) = self.runs.get_mut(&id) else { return };
        tracing::info!(name = run.name, rank, ?outcome, "worker left");
        if !run.is_live() {
            self.vacate(id, rank);
            return;
        }
        match outcome {
            Outcome::Died(reason) | Outcome::Failed(reason) => {
                let failure = JobFailure::left(rank, run.ip_of(rank), reason);
                if matches!(outcome, Outcome::Died(_)) && self.open_place(id, rank, &failure) {
                    return;
                }
                let Some(run) = self.runs.get_mut(&id) else { return };
                run.seats.remove(&rank);
                self.end(id, End::Failed(failure));
            }
            Outcome::Mismatch(message) => {
                run.seats.remove(&rank);
                self.end(id, End::Failed(JobFailure::mismatch(None, message.clone())));
            }
            Outcome::Done => {
                if let Some(seat) = run.seats.get_mut(&rank) {
                    seat.departed = true;
                }
                run.revision += 1;
                if run.present().is_empty() {
                    self.end(id, End::Finished);
                } else {
                    // It may be the one whose measure was waited for.
                    self.tune(id);
                }
            }
        }
    }

    /// The plane has taken a job, or not.
    pub fn on_installed(&mut self, id: RunId, result: Result<Vec<Door>, String>) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        match result {
            Ok(doors) if run.phase == Phase::Installing => {
                tracing::info!(name = run.name, job = run.job, epoch = run.epoch, "job runs");
                run.measured_by = self.last_tick + MEASURE_PATIENCE;
                run.enter(Phase::Running(doors));
            }
            // It ended while the plane was at work.
            Ok(_) => self.remove(id),
            Err(what) => {
                self.end(id, End::Refused(Refusal::Plane { what }));
                self.remove(id);
            }
        }
    }

    /// The plane has given a job up, or not.
    pub fn on_removed(&mut self, now: Time, id: RunId, result: Result<(), String>) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        if let Err(error) = result {
            tracing::warn!(
                name = run.name,
                job = run.job,
                error,
                "cannot remove the job yet; its slots stay taken"
            );
            run.hold = Hold::RetryAt(now + RETRY);
            return;
        }
        run.hold = Hold::Nothing;
        if let Some(range) = run.range.take() {
            self.pool.give_back(range);
        }
        let name = run.name.clone();
        let next = self.names.get_mut(&name).and_then(|name| {
            name.on_plane = None;
            name.current
        });
        self.bury(id);
        if let Some(next) = next {
            self.advance(next);
        }
    }

    /// What the plane says of itself. To be called about twice a second.
    pub fn on_plane(&mut self, now: Time, report: Result<(u64, PlaneInfo), String>) {
        match report {
            Ok((instance, info)) => {
                if let Some((since, _)) = self.plane_down.take() {
                    tracing::info!(away = ?now.saturating_sub(since), "the data plane is back");
                }
                if instance != self.instance {
                    self.on_state_lost(now, instance, info);
                } else {
                    // Ports come, go, and change their MTU.
                    self.plane = info;
                }
            }
            Err(why) => {
                if self.plane_down.is_none() {
                    tracing::warn!(why, "the data plane is away");
                }
                let since = self.plane_down.get_or_insert((now, why)).0;
                if now.saturating_sub(since) >= PLANE_PATIENCE {
                    self.on_plane_gone(now.saturating_sub(since));
                }
            }
        }
    }

    fn on_state_lost(&mut self, now: Time, instance: u64, info: PlaneInfo) {
        tracing::warn!(before = self.instance, after = instance, "the data plane lost its state");
        for id in self.bound() {
            self.end(id, End::Failed(JobFailure::state_lost(self.instance, instance)));
        }
        self.open_gaps(now, None);
        self.instance = instance;
        self.pool = Pool::new(info.slots);
        self.plane = info;
        for run in self.runs.values_mut() {
            run.range = None;
        }
    }

    fn on_plane_gone(&mut self, away: Time) {
        let why = self.plane_down.as_ref().map(|(_, why)| why.clone()).unwrap_or_default();
        for id in self.bound() {
            self.end(id, End::Failed(JobFailure::plane_down(away, &why)));
        }
    }

    /// Time passes. To be called several times a second.
    pub fn tick(&mut self, now: Time) {
        let held_up = now.saturating_sub(self.last_tick) > HELD_UP;
        self.last_tick = now;
        self.expire_racks(now, held_up);
        let ids: Vec<RunId> = self.runs.keys().copied().collect();
        for id in ids {
            if held_up {
                self.forgive(now, id);
            }
            self.expire_seats(now, id);
            self.expire_places(now, id);
            self.expire_wait(now, id);
            self.expire_measures(now, id);
            self.retry_removal(now, id);
            self.close_gaps(now, id);
            self.advance(id);
            self.bury(id);
        }
    }

    /// Nobody's heartbeat could be heard while the server itself stood still.
    fn forgive(&mut self, now: Time, id: RunId) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        run.seats.values_mut().for_each(|seat| seat.seen = now);
        if run.is_live() {
            run.measured_by = now + MEASURE_PATIENCE;
        }
    }

    fn expire_seats(&mut self, now: Time, id: RunId) {
        let Some(run) = self.runs.get(&id) else { return };
        let is_silent = |seat: &super::Seat| {
            // Of a run that is over nobody takes a place any more.
            let counts = if run.is_live() { seat.is_manned() } else { !seat.departed };
            counts && self.is_silent(now, run, seat)
        };
        let silent: Vec<u16> =
            run.seats.iter().filter(|(_, seat)| is_silent(seat)).map(|(rank, _)| *rank).collect();
        for rank in silent {
            let Some(run) = self.runs.get(&id) else { return };
            let failure = JobFailure::silent(rank, run.ip_of(rank));
            if self.open_place(id, rank, &failure) {
                continue;
            }
            let Some(run) = self.runs.get(&id) else { return };
            if run.is_live() {
                self.end(id, End::Failed(failure));
            }
            self.vacate(id, rank);
        }
    }

    /// Whether a worker has given no sign of life for too long. Those below a rack are not heard while that is not, and
    /// the loss of a rack does not end a job that outlives it.
    fn is_silent(&self, now: Time, run: &super::Run, seat: &super::Seat) -> bool {
        let unheard = now.saturating_sub(seat.seen);
        match seat.rack.filter(|_| run.outlives_aggregators()) {
            None => unheard >= SILENCE,
            Some(rack) => match self.racks.get(&rack) {
                Some(rack) => rack.seen.saturating_sub(seat.seen) >= SILENCE,
                None => unheard >= UNHEARD,
            },
        }
    }

    fn expire_wait(&mut self, now: Time, id: RunId) {
        let Some(run) = self.runs.get(&id).filter(|run| run.is_waiting()) else { return };
        let Some(seat) = run.seats.values().find(|seat| now >= seat.gives_up) else { return };
        let job = run.name.clone();
        if run.is_claimed && run.phase == Phase::Ready {
            return self.end(id, End::Failed(run.forgotten()));
        }
        let refusal = if self.waits_for_hosts(run) {
            self.no_hosts(run)
        } else if run.phase == Phase::Ready {
            let earlier = self.names.get(&job).and_then(|name| self.runs.get(&name.on_plane?));
            match earlier.map(|run| run.present()).unwrap_or_default() {
                ranks if ranks.is_empty() => Refusal::Plane {
                    what: format!(
                        "it has not given up what ran as `{job}` before; see the log of `sumac-agg serve`"
                    ),
                },
                ranks => Refusal::Held { job, ranks },
            }
        } else {
            Refusal::Missing { job, ranks: run.missing(), waited: seat.patience }
        };
        self.end(id, End::Refused(refusal));
    }

    fn retry_removal(&mut self, now: Time, id: RunId) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        if matches!(run.hold, Hold::RetryAt(at) if now >= at) {
            run.hold = Hold::Installed;
            self.remove(id);
        }
    }

    /// Fails every job, as the server is about to end; but for those that go on without it.
    pub fn stop(&mut self) {
        self.stopping = true;
        let ids: Vec<RunId> = self.runs.iter().filter(|(_, run)| !run.is_over()).map(|(id, _)| *id).collect();
        for id in ids {
            if self.runs.get(&id).is_some_and(|run| run.outlives_control()) {
                self.remove(id);
                continue;
            }
            let live = self.runs.get(&id).is_some_and(|run| run.is_live());
            self.end(
                id,
                if live { End::Failed(JobFailure::stopped()) } else { End::Refused(Refusal::Stopping) },
            );
        }
    }

    /// Starts a run as soon as everybody and everything is there.
    pub(super) fn advance(&mut self, id: RunId) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.is_waiting()) else { return };
        let phase = if run.missing().is_empty() { Phase::Ready } else { Phase::Gathering };
        if run.phase != phase {
            run.enter(phase);
            run.hosts_by = self.last_tick + HOST_PATIENCE;
        }
        if run.is_claimed {
            return self.take_up(id);
        }
        if let Err(refusal) = self.renumber(id) {
            return self.end(id, End::Refused(refusal));
        }
        let Some(run) = self.runs.get(&id).filter(|run| run.phase == Phase::Ready) else { return };
        let is_free = self.names.get(&run.name).is_some_and(|name| name.on_plane.is_none());
        let is_patient = self.last_tick < run.hosts_by && self.waits_for_hosts(run);
        if is_free && !is_patient {
            let started = self.start(id);
            if let Err(refusal) = started {
                self.end(id, End::Refused(refusal));
            }
        }
    }

    /// Gives a run whose ranks are all there what it needs, and orders the planes to take it.
    fn start(&mut self, id: RunId) -> Result<(), Refusal> {
        let Some(run) = self.runs.get(&id) else { return Ok(()) };
        let job = run.job;
        if self.names.is_spent(job) {
            return Err(Names::spent());
        }
        let hosts = self.choose_hosts(run)?;
        let (terms, limits) = self.terms(run, &hosts)?;
        let racks: Vec<_> = run.seats.values().map(|seat| seat.rack).collect();
        let layout = Layout::new(&racks, self.plane.kind != PlaneKind::None);
        let shared =
            terms.dynamic.map(|wishes| self.share(&racks, wishes, &terms, &limits, hosts)).transpose()?;
        let (range, slots) = match &shared {
            Some(shared) => (None, Slots::shared(shared.slots)),
            None => self.find_room(&terms, limits).map(|(range, slots)| (Some(range), slots))?,
        };
        let (epoch, stealing) = (self.names.next_epoch(job), self.stealing);
        let Some(run) = self.runs.get_mut(&id) else { return Ok(()) };
        if let Some(name) = self.names.get_mut(&run.name) {
            name.on_plane = Some(id);
        }
        (run.epoch, run.terms, run.range, run.slots) = (epoch, Some(terms), range, slots);
        (run.layout, run.shared) = (layout, shared);
        run.hold = Hold::Installed;
        run.enter(Phase::Installing);
        let order = run.order(stealing);
        self.actions.extend(order.map(|order| Action::Install(id, order)));
        Ok(())
    }

    /// Takes the slots that were asked for, or as many as are to be had until the path is measured.
    fn find_room(&mut self, terms: &Terms, limits: Limits) -> Result<(Range, Slots), Refusal> {
        let lanes = u32::from(terms.lanes());
        if let Some(lane) = terms.slots {
            let wanted = lane.saturating_mul(lanes);
            let range =
                self.pool.take(wanted, limits.slots).ok_or_else(|| self.full(wanted, limits.slots))?;
            let reason = "asked for when the job was opened".into();
            return Ok((range, Slots { lane, reason, state: Tuning::Done }));
        }
        let [most, fewest] = PROVISIONAL;
        let mut sizes =
            std::iter::successors(Some(most), |lane| Some(lane / 2)).take_while(|lane| *lane >= fewest);
        let found = sizes.find_map(|lane| Some((lane, self.pool.take(lane * lanes, limits.slots)?)));
        let (lane, range) = found.ok_or_else(|| self.full(fewest * lanes, limits.slots))?;
        Ok((range, Slots { lane, reason: String::new(), state: Tuning::Measuring }))
    }

    /// Ends a run. Its members learn of it by their next heartbeat.
    pub(super) fn end(&mut self, id: RunId, end: End) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| !run.is_over()) else { return };
        match &end {
            End::Refused(why) => tracing::warn!(name = run.name, %why, "job refused"),
            End::Failed(why) => tracing::warn!(name = run.name, job = run.job, %why, "job failed"),
            End::Finished => tracing::info!(name = run.name, job = run.job, "job finished"),
        }
        let was_installing = run.phase == Phase::Installing;
        run.enter(Phase::Over(end));
        if let Some(name) = self.names.get_mut(&run.name).filter(|name| name.current == Some(id)) {
            name.current = None;
        }
        self.remember_end(id);
        // While the plane is at work its answer decides.
        if !was_installing {
            self.remove(id);
        }
    }

    /// Orders the planes to give up a run, if they have it: the aggregators only, when it goes on.
    pub(super) fn remove(&mut self, id: RunId) {
        // What was to be installed before is not, after this.
        self.actions.retain(
            |action| !matches!(action, Action::Restore { run, .. } | Action::Renew(run, _) if *run == id),
        );
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.hold == Hold::Installed) else { return };
        run.hold = Hold::Removing;
        let is_over = run.is_over();
        self.actions.push_back(if is_over {
            Action::Remove(id, run.job)
        } else {
            Action::Withdraw(id, run.job)
        });
    }

    /// Empties a seat.
    pub(super) fn vacate(&mut self, id: RunId, rank: u16) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let Some(seat) = run.seats.remove(&rank) else { return };
        run.revision += 1;
        self.forget(seat.member);
        self.advance(id);
        let is_deserted = self.runs.get(&id).is_some_and(|run| run.is_waiting() && run.seats.is_empty());
        if is_deserted {
            self.end(id, End::Finished);
        }
        self.bury(id);
    }

    pub(super) fn forget(&mut self, member: MemberId) {
        if self.members.remove(&member).is_some() {
            self.actions.push_back(Action::Forget(member));
        }
    }

    /// Drops a run that is over, that the plane has not, and that nobody asks about any more.
    fn bury(&mut self, id: RunId) {
        let is_done =
            |run: &super::Run| run.is_over() && run.hold == Hold::Nothing && run.present().is_empty();
        if self.runs.get(&id).is_some_and(is_done) {
            self.runs.remove(&id);
        }
    }

    /// The runs that end with the aggregator's slots.
    fn bound(&self) -> Vec<RunId> {
        let is_bound = |run: &super::Run| run.is_live() && !run.outlives_aggregators();
        self.runs.iter().filter(|(_, run)| is_bound(run)).map(|(id, _)| *id).collect()
    }
}
