//! The life of runs after the joins: starts, silence, leaves, the planes' answers, the end.

use super::{
    Coordinator, MAX_MISSED_FAILURES,
    agreement::Limits,
    holder::Holder,
    hosts::HOSTS_TIMEOUT,
    ids::{MemberId, RunId},
    layout::Layout,
    membership::Outcome,
    orders::{Action, InstalledJob},
    record::Record,
    run::{InstallState, Member, Phase, Run},
    time::{HELD_UP, MEASURE_TIMEOUT, PLANE_TIMEOUT, RECONNECT_GRACE, Time},
};
use crate::{
    failure::{FailureKind, JobFailure, Refusal},
    message::{End, JoinRequest},
    plane::{LastEpoch, PlaneInfo, PlaneKind},
    pool::{Pool, Range},
};
use std::{collections::BTreeMap, net::SocketAddrV4};
use sumac_job::{JobTerms, Mode, OperationOrder};

/// Slots of a lane while the workers measure: the most that they may turn out to need. The second: less is
/// not tried.
const PROVISIONAL: [u32; 2] = [512, 16];
/// Time until a job that a plane did not remove is removed again.
const RETRY: Time = Time::from_secs(1);

impl Run {
    /// Whether it goes on without this control plane, when that is stopped: names are ordered here.
    pub fn outlives_control(&self) -> bool {
        let by_submission = |terms: &JobTerms| terms.order == OperationOrder::Submission;
        self.outlives_aggregators() && self.terms.as_ref().is_some_and(by_submission)
    }
}

impl Coordinator {
    pub fn leave(&mut self, id: MemberId, outcome: &Outcome) {
        let Some((run_id, rank)) = self.members.remove(&id) else { return };
        let Some(run) = self.runs.get_mut(&run_id) else { return };
        tracing::info!(name = run.name, rank, ?outcome, "worker left");
        // It may have another connection, which ends.
        run.wake();
        if !run.is_live() {
            return self.vacate(run_id, rank);
        }
        match outcome {
            Outcome::Died(reason) | Outcome::Failed(reason) => {
                let failure = run.blame(FailureKind::Left, rank, &format!("left: {reason}"));
                if matches!(outcome, Outcome::Died(_)) && self.offer_rank(run_id, rank, &failure) {
                    return;
                }
                let Some(run) = self.runs.get_mut(&run_id) else { return };
                run.members.remove(&rank);
                self.end(run_id, End::Failed(failure));
            }
            Outcome::Done => {
                if let Some(member) = run.members.get_mut(&rank) {
                    member.departed = true;
                }
                run.changed();
                if run.present().is_empty() {
                    self.end(run_id, End::Finished);
                } else {
                    // It may be the one whose measure, or report, was waited for.
                    self.tune(run_id);
                }
            }
        }
    }

    pub fn on_installed(&mut self, id: RunId, result: Result<InstalledJob, String>) {
        let now = self.last_tick;
        let Some(run) = self.runs.get_mut(&id) else { return };
        match result {
            Ok(installed) if run.phase == Phase::Installing => {
                tracing::info!(name = run.name, job = run.job, epoch = run.epoch(), "job runs");
                run.measured_by = now + MEASURE_TIMEOUT;
                (run.placements, run.parents) = (installed.placements, installed.parents);
                run.enter(Phase::Running);
            }
            // It ended while the planes were at work.
            Ok(_) => self.remove(id),
            Err(what) => {
                self.end(id, End::Refused(Refusal::plane(&what)));
                self.remove(id);
            }
        }
    }

    pub fn on_removed(&mut self, now: Time, id: RunId, result: Result<(), String>) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        if let Err(error) = result {
            tracing::warn!(
                name = run.name,
                job = run.job,
                error,
                "cannot remove the job yet; its slots stay taken"
            );
            run.install = InstallState::RetryAt(now + RETRY);
            return;
        }
        run.install = InstallState::Absent;
        if let Some(range) = run.range.take() {
            self.pool.give_back(range);
        }
        let next = self.names.removed(&run.name);
        self.drop_finished(id);
        if let Some(next) = next {
            self.advance(next);
        }
    }

    /// The state of this aggregator's plane. To be called about twice a second.
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
                let (since, why) = self.plane_down.get_or_insert((now, why)).clone();
                let away = now.saturating_sub(since);
                if away >= PLANE_TIMEOUT {
                    let message = format!("aggregator out of service for {away:.1?}: {why}");
                    self.end_bound(&JobFailure::new(FailureKind::PlaneDown, &[], message));
                }
            }
        }
    }

    fn on_state_lost(&mut self, now: Time, instance: u64, info: PlaneInfo) {
        tracing::warn!(before = self.instance, after = instance, "the data plane lost its state");
        self.end_bound(&JobFailure::state_lost(self.instance, instance));
        self.mark_missing(now, None);
        self.instance = instance;
        self.records.push(Record::Instance(instance));
        self.pool = Pool::new(info.slots);
        self.plane = info;
        for run in self.runs.values_mut() {
            run.range = None;
        }
    }

    /// Ends the runs that end with the aggregator's slots.
    fn end_bound(&mut self, failure: &JobFailure) {
        for id in self.runs_with(|run| run.is_live() && !run.outlives_aggregators()) {
            self.end(id, End::Failed(failure.clone()));
        }
    }

    /// Time passes. To be called several times a second.
    pub fn tick(&mut self, now: Time) {
        let held_up = now.saturating_sub(self.last_tick) > HELD_UP;
        self.last_tick = now;
        // The server's own delay, or a cut of its network, is nobody's silence.
        let is_excused = self.note_isolation(now) || held_up;
        self.expire_racks(now, is_excused);
        for id in self.runs_with(|_| true) {
            if is_excused {
                self.excuse(now, id);
            }
            self.expire_members(now, id);
            self.expire_vacated(now, id);
            self.expire_wait(now, id);
            self.expire_measures(now, id);
            self.expire_mismatch(now, id);
            self.expire_standstill(now, id);
            self.retry_removal(now, id);
            self.order_renewal(id);
            self.restore_missing(now, id);
            self.advance(id);
            self.drop_finished(id);
        }
    }

    /// Counts the silence of all from `since` on.
    fn excuse(&mut self, since: Time, id: RunId) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        for member in run.members.values_mut() {
            member.seen = member.seen.max(since);
            if let Some(vacated) = &mut member.vacated {
                vacated.until = vacated.until.max(since);
            }
        }
        run.standstill.excuse(since);
        if run.is_live() {
            run.measured_by = since + MEASURE_TIMEOUT;
        }
    }

    fn expire_members(&mut self, now: Time, id: RunId) {
        let Some(run) = self.runs.get(&id) else { return };
        let is_silent = |member: &Member| {
            // Of a run that is over nobody takes a rank any more.
            let counts = if run.is_live() { member.is_connected() } else { !member.departed };
            counts && self.is_silent(now, run, member)
        };
        for rank in run.ranks(is_silent) {
            let Some(run) = self.runs.get(&id) else { return };
            let failure = run.blame(FailureKind::Silent, rank, "stopped answering");
            if self.offer_rank(id, rank, &failure) {
                continue;
            }
            if self.runs.get(&id).is_some_and(Run::is_live) {
                self.end(id, End::Failed(failure));
            }
            self.vacate(id, rank);
        }
    }

    /// Whether a worker has sent nothing for too long. Messages of those below a rack do not arrive while the
    /// rack is away: a rack that died with its workers' streams is lost itself, and the loss of a rack does
    /// not end a job that outlives it. When the rack is back, its workers need time to reconnect.
    fn is_silent(&self, now: Time, run: &Run, member: &Member) -> bool {
        let patience = self.patience(member.connection.is_some());
        let is_silent = |since: Time| now.saturating_sub(since) >= patience;
        match member.rack.map(|rack| self.racks.get(&rack)) {
            None => is_silent(member.seen),
            Some(Some(rack)) if rack.is_connected => {
                let since = member.seen.max(rack.since);
                if run.outlives_aggregators() {
                    rack.seen.saturating_sub(since) >= patience
                } else {
                    is_silent(since) && rack.seen.saturating_sub(since) >= patience / 2
                }
            }
            Some(_) => is_silent(member.seen) && !run.outlives_aggregators(),
        }
    }

    fn expire_wait(&mut self, now: Time, id: RunId) {
        let Some(run) = self.runs.get(&id).filter(|run| run.is_waiting()) else { return };
        let Some(member) = run.members.values().find(|member| now >= member.waits_until) else { return };
        let job = run.name.clone();
        let refusal = if self.waits_for_hosts(run) {
            self.no_hosts(run)
        } else if run.phase == Phase::Ready {
            let earlier = self.names.get(&job).and_then(|name| self.runs.get(&name.on_plane?));
            match earlier.map(Run::present).unwrap_or_default() {
                ranks if ranks.is_empty() => Refusal::plane(&format!(
                    "it has not removed what ran as `{job}` before; see the log of `sumac-agg serve`"
                )),
                ranks => Refusal::held(&job, &ranks),
            }
        } else {
            let waited = self.wait(&member.asked);
            Refusal::missing(&job, &run.missing(), waited, waited < member.asked.timeout())
        };
        self.end(id, End::Refused(refusal));
    }

    /// Returns the time that a worker waits for the other ranks.
    pub(super) fn wait(&self, asked: &JoinRequest) -> Time {
        asked.timeout().min(self.join_limits.longest_wait)
    }

    fn retry_removal(&mut self, now: Time, id: RunId) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        if matches!(run.install, InstallState::RetryAt(at) if now >= at) {
            run.install = InstallState::Installed;
            self.remove(id);
        }
    }

    /// Fails every job, as the server is about to end; but for those that go on without it.
    pub fn stop(&mut self) {
        self.stopping = true;
        for id in self.runs_with(|run| !run.is_over()) {
            let Some(run) = self.runs.get(&id) else { continue };
            if run.outlives_control() {
                self.remove(id);
                continue;
            }
            let stopped = "the aggregator's control plane was stopped";
            let end = match run.is_live() {
                true => End::Failed(JobFailure::new(FailureKind::Stopped, &[], stopped)),
                false => End::Refused(Refusal::stopping()),
            };
            self.end(id, end);
        }
    }

    pub(super) fn advance(&mut self, id: RunId) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.is_waiting()) else { return };
        let phase = if run.missing().is_empty() { Phase::Ready } else { Phase::Gathering };
        if run.phase != phase {
            run.enter(phase);
            run.hosts_by = self.last_tick + HOSTS_TIMEOUT;
        }
        let Some(run) = self.runs.get(&id).filter(|run| run.phase == Phase::Ready) else { return };
        let is_free = self.names.get(&run.name).is_some_and(|name| name.on_plane.is_none());
        let waits = self.last_tick < run.hosts_by && self.waits_for_hosts(run);
        if is_free
            && !waits
            && let Err(refusal) = self.start(id)
        {
            self.end(id, End::Refused(refusal));
        }
    }

    fn start(&mut self, id: RunId) -> Result<(), Refusal> {
        let Some(run) = self.runs.get(&id) else { return Ok(()) };
        let parts = run.parts();
        self.check_numbers(&parts, None)?;
        let job = self.names.assign(&run.name, &self.withheld()).map_err(|why| self.no_number(why))?;
        let Some(run) = self.runs.get(&id) else { return Ok(()) };
        let hosts = self.choose_hosts(run)?;
        let (mut terms, limits) = self.terms(run, &hosts)?;
        let below: Vec<_> = run.members.values().map(|member| member.rack).collect();
        let layout = Layout::new(&below, self.plane.kind != PlaneKind::None);
        let layout = layout.with_uplinks(self.uplinks(below.iter().copied().flatten()));
        let racks =
            layout.all_racks().into_iter().filter_map(|id| Some((id, self.address_of(id)?))).collect();
        (terms.job, terms.token, terms.fan_in_1) = (job, run.token, layout.fan_in_1());
        let asked = run.members.values().find_map(|member| member.asked.lane_slots());
        let (shared, range) = match terms.mode {
            Mode::Dynamic => (Some(self.share(run, &mut terms, &limits, hosts)?), None),
            Mode::Static => (None, Some(self.find_room(asked, &mut terms, &limits, &parts)?)),
            Mode::Direct => {
                terms.slots_reason = "a direct job has none".into();
                let address = |member: &Member| SocketAddrV4::new(member.worker.ip, member.worker.port);
                terms.workers = run.members.values().map(address).collect();
                (None, None)
            }
        };
        terms.epoch = self.names.next_epoch(job);
        self.records.push(Record::Epochs(vec![LastEpoch { job, epoch: terms.epoch }]));
        let Some(run) = self.runs.get_mut(&id) else { return Ok(()) };
        if let Some(name) = self.names.get_mut(&run.name) {
            name.on_plane = Some(id);
        }
        (run.terms, run.range, run.layout, run.shared) = (Some(terms), range, layout, shared);
        (run.job, run.racks, run.holders) = (job, racks, parts.into_iter().collect());
        run.install = InstallState::Installed;
        run.enter(Phase::Installing);
        self.actions.extend(run.order(self.stealing).map(|order| Action::Install(id, order)));
        Ok(())
    }

    fn find_room(
        &mut self,
        asked: Option<u32>,
        terms: &mut JobTerms,
        limits: &Limits,
        parts: &BTreeMap<Holder, u64>,
    ) -> Result<Range, Refusal> {
        let lanes = u32::from(terms.lanes());
        let share = self.slots_left(parts);
        let beyond = |wanted: u32| share.as_ref().filter(|(left, _)| wanted > *left);
        if let Some(lane) = asked {
            let wanted = lane.saturating_mul(lanes);
            if let Some((_, holder)) = beyond(wanted) {
                return Err(self.over_slots(wanted, holder));
            }
            terms.slots = lane;
            terms.slots_reason = "asked for when the job was opened".into();
            return self.pool.take(wanted, limits.slots).ok_or_else(|| self.full(wanted, limits.slots));
        }
        let [most, fewest] = PROVISIONAL;
        let sizes =
            std::iter::successors(Some(most), |lane| Some(lane / 2)).take_while(|lane| *lane >= fewest);
        let found = sizes
            .filter(|lane| beyond(lane * lanes).is_none())
            .find_map(|lane| Some((lane, self.pool.take(lane * lanes, limits.slots)?)));
        if let Some((_, holder)) = beyond(fewest * lanes) {
            return Err(self.over_slots(fewest * lanes, holder));
        }
        let (lane, range) = found.ok_or_else(|| self.full(fewest * lanes, limits.slots))?;
        (terms.slots, terms.is_measured) = (lane, false);
        Ok(range)
    }

    /// Ends a run. Its members receive it with their status.
    pub(super) fn end(&mut self, id: RunId, end: End) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| !run.is_over()) else { return };
        match &end {
            End::Refused(why) => tracing::warn!(name = run.name, %why, "job refused"),
            End::Failed(why) => tracing::warn!(name = run.name, job = run.job, %why, "job failed"),
            End::Finished => tracing::info!(name = run.name, job = run.job, "job finished"),
        }
        let was_installing = run.phase == Phase::Installing;
        if run.phase == Phase::Running {
            self.records.push(Record::End(id));
        }
        run.enter(Phase::Over(end));
        self.names.end(&run.name, id);
        // While the planes are at work their answer decides.
        if !was_installing {
            self.remove(id);
        }
    }

    /// Orders the planes to remove a run, if they have it: the aggregators only, when it goes on.
    pub(super) fn remove(&mut self, id: RunId) {
        self.actions.retain(
            |action| !matches!(action, Action::Restore { run, .. } | Action::Renew(run, _) if *run == id),
        );
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.install == InstallState::Installed) else {
            return;
        };
        run.install = InstallState::Removing;
        let mut from = run.layout.all_racks();
        if run.is_over() {
            from.extend(run.shared.iter().flat_map(|shared| &shared.hosts));
        }
        self.actions.push_back(Action::Remove { run: id, job: run.job, from });
    }

    pub(super) fn vacate(&mut self, id: RunId, rank: u16) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let Some(member) = run.members.remove(&rank) else { return };
        run.revise();
        if let Phase::Over(End::Failed(failure)) = &run.phase {
            // It may only have been out of reach, and asks when it is back.
            self.missed_failures.push_back((member.id, failure.clone()));
            let excess = self.missed_failures.len().saturating_sub(MAX_MISSED_FAILURES);
            self.missed_failures.drain(..excess);
        }
        self.members.remove(&member.id);
        self.advance(id);
        let is_deserted = self.runs.get(&id).is_some_and(|run| run.is_waiting() && run.members.is_empty());
        if is_deserted {
            self.end(id, End::Finished);
        }
        self.drop_finished(id);
    }

    fn drop_finished(&mut self, id: RunId) {
        let is_done =
            |run: &Run| run.is_over() && run.install == InstallState::Absent && run.present().is_empty();
        if self.runs.get(&id).is_some_and(is_done) {
            self.runs.remove(&id);
        }
    }

    pub(super) fn await_reconnects(&mut self, now: Time) {
        let until = now + RECONNECT_GRACE;
        for run in self.runs.values_mut() {
            run.members.values_mut().for_each(|member| member.seen = until);
            run.measured_by = until + MEASURE_TIMEOUT;
        }
        self.racks.values_mut().for_each(|rack| rack.seen = until);
    }
}
