//! Running dynamic jobs that have lost an aggregator and get it back: workers do without meanwhile, as they
//! find out by themselves (fate sharing, ATP section 3.7). And workers that take the ranks of dead ones (ATP
//! appendix A.3): under another epoch, from the first chunks that are not summed.

use super::{
    Coordinator,
    ids::{MemberId, RackId, RunId},
    orders::{Action, Replaced},
    rack::Rack,
    record::Record,
    run::{InstallState, Join, Member, Phase, Restoration, Run, Vacated},
    time::Time,
};
use crate::{
    failure::{JobFailure, Refusal, invalid},
    message::End,
    plane::{LastEpoch, PlaneInfo},
};

/// Time until an aggregator that did not take a job back is asked again.
const RETRY: Time = Time::from_secs(1);

impl Coordinator {
    /// Vacates a rank, if its job goes on without it for a while. `false`: it does not.
    pub(super) fn offer_rank(&mut self, id: RunId, rank: u16, failure: &JobFailure) -> bool {
        let (grace, until) = (self.rejoin_grace, self.last_tick + self.rejoin_grace);
        let Some(run) = self.runs.get_mut(&id).filter(|run| !grace.is_zero() && run.is_replaceable()) else {
            return false;
        };
        let Some(member) = run.members.get_mut(&rank) else { return false };
        if member.vacated.is_none() {
            tracing::warn!(name = run.name, job = run.job, %failure, ?grace, "rank open for a new worker");
            member.vacated = Some(Vacated { until, failure: failure.clone() });
        }
        true
    }

    pub(super) fn expire_vacated(&mut self, now: Time, id: RunId) {
        let Some(run) = self.runs.get(&id).filter(|run| run.is_live()) else { return };
        let overdue = run.members.iter().find_map(|(rank, member)| {
            let vacated = member.vacated.as_ref().filter(|vacated| now >= vacated.until)?;
            Some((*rank, vacated.failure.clone()))
        });
        if let Some((rank, failure)) = overdue {
            self.end(id, End::Failed(failure));
            self.vacate(id, rank);
        }
    }

    /// The running job whose vacated rank a request is for.
    pub(super) fn vacated_run(&self, request: &Join) -> Option<RunId> {
        let id = self.names.get(&request.asked.spec.job)?.current?;
        let run = self.runs.get(&id).filter(|run| run.is_replaceable())?;
        run.members.get(&request.rank())?.vacated.as_ref().map(|_| id)
    }

    pub(super) fn check_vacated(&self, id: RunId, request: &Join) -> Result<(), Refusal> {
        let (Some(run), rank) = (self.runs.get(&id), request.rank()) else { return Ok(()) };
        // After a restart its parameter hosts may not have entered again yet.
        if run.next_epoch.is_some() || !self.has_hosts(run) {
            return Err(Refusal::held(&run.name, &run.present()));
        }
        if let Some(refusal) = run.mismatch(rank, &request.asked) {
            return Err(refusal);
        }
        let (Some(terms), Some(member)) = (&run.terms, run.members.get(&rank)) else { return Ok(()) };
        let host = &request.asked.host;
        if host.max_elements < terms.elements || host.max_shards < terms.shards {
            return invalid(format!(
                "rank {rank} can have {} elements and {} shards; the running job has {} and {}",
                host.max_elements, host.max_shards, terms.elements, terms.shards
            ));
        }
        if request.rack != member.rack {
            return invalid(format!(
                "rank {rank} joined at another aggregator before; let it join there again"
            ));
        }
        if self.names.is_spent(run.job) { Err(Refusal::spent()) } else { Ok(()) }
    }

    pub(super) fn replace(&mut self, now: Time, id: RunId, request: &Join) -> Option<MemberId> {
        let (new, rank) = (self.new_member(), request.rank());
        let job = self.runs.get(&id)?.job;
        let epoch = self.names.next_epoch(job);
        self.records.push(Record::Epochs(vec![LastEpoch { job, epoch }]));
        let run = self.runs.get_mut(&id)?;
        let mut member = Member::new(now, new, request, now);
        (member.received, member.first_event, member.is_new) = (run.log.end(), run.log.end(), true);
        let before = run.members.insert(rank, member)?;
        self.members.remove(&before.id);
        self.members.insert(new, (id, rank));
        run.predecessor = Some((rank, Box::new(before)));
        (run.next_epoch, run.is_renewal_due) = (Some(epoch), true);
        run.is_changed = true;
        // The former member's connection ends.
        run.wake();
        tracing::info!(name = run.name, job, rank, epoch, "a new worker takes a dead one's rank");
        self.order_renewal(id);
        Some(new)
    }

    fn has_hosts(&self, run: &Run) -> bool {
        let is_there = |host: &RackId| self.racks.get(host).is_some_and(Rack::is_in_service);
        run.shared.as_ref().is_some_and(|shared| shared.hosts.iter().all(is_there))
    }

    pub(super) fn order_renewal(&mut self, id: RunId) {
        let Some(run) = self.runs.get(&id).filter(|run| run.is_renewal_due && self.has_hosts(run)) else {
            return;
        };
        let Some(epoch) = run.next_epoch else { return };
        let is_unfit =
            |at: &Option<RackId>| self.in_service(*at).is_some_and(|plane| !self.fits(run, *at, plane));
        let unfit: Vec<_> = run.layout.aggregators().filter(is_unfit).collect();
        let Some(run) = self.runs.get_mut(&id) else { return };
        run.is_renewal_due = false;
        // A return to an aggregator comes with this.
        run.shared.iter_mut().for_each(|shared| shared.missing_at.clear());
        let order = run.order(false).map(|mut order| {
            order.terms.epoch = epoch;
            order.unfit = unfit;
            order
        });
        self.actions.retain(|action| !matches!(action, Action::Restore { run, .. } if *run == id));
        self.actions.extend(order.map(|order| Action::Renew(id, order)));
    }

    pub fn on_replaced(&mut self, now: Time, id: RunId, result: Result<Replaced, String>) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.phase == Phase::Running) else { return };
        let Some(epoch) = run.next_epoch.take() else { return };
        let replaced = match result {
            Ok(replaced) => replaced,
            Err(what) => return self.end(id, End::Failed(JobFailure::plane(&what))),
        };
        for (known, placement) in run.placements.iter_mut().zip(replaced.placements) {
            *known = placement.unwrap_or(*known);
        }
        if let Some(terms) = &mut run.terms {
            (terms.epoch, terms.resume) = (epoch, replaced.resume);
        }
        if let Some(shared) = &mut run.shared {
            shared.missing_at.extend(replaced.lost.into_iter().map(|at| (at, Restoration::Due(now))));
        }
        run.members.values_mut().for_each(|member| member.is_new = false);
        tracing::info!(name = run.name, job = run.job, epoch, "job goes on");
        run.changed();
    }

    pub(super) fn mark_missing(&mut self, now: Time, at: Option<RackId>) {
        self.runs_with(|_| true).into_iter().for_each(|id| self.mark_run_missing(now, id, at));
    }

    pub(super) fn mark_run_missing(&mut self, now: Time, id: RunId, at: Option<RackId>) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.outlives_aggregators()) else { return };
        if let Some(rack) = at
            && !run.is_below(rack)
        {
            return;
        }
        let Some(shared) = &mut run.shared else { return };
        if run.terms.as_ref().is_some_and(|terms| terms.slots > 0) {
            shared.missing_at.insert(at, Restoration::Due(now));
        }
    }

    pub(super) fn restore_missing(&mut self, now: Time, id: RunId) {
        while let Some(at) = self.due(now, id) {
            let plane = self.in_service(at);
            let fits = self.runs.get(&id).zip(plane).is_some_and(|(run, plane)| self.fits(run, at, plane));
            let Some(run) = self.runs.get_mut(&id) else { return };
            let order = run.order(self.stealing);
            let Some(shared) = &mut run.shared else { return };
            match order.filter(|_| fits) {
                Some(order) => {
                    shared.missing_at.insert(at, Restoration::Ordered);
                    self.actions.push_back(Action::Restore { run: id, order, at });
                }
                None => {
                    tracing::warn!(
                        name = run.name,
                        "the aggregator is another than before; the job goes on without it"
                    );
                    shared.missing_at.remove(&at);
                }
            }
        }
    }

    fn due(&self, now: Time, id: RunId) -> Option<Option<RackId>> {
        let can_return = |run: &&Run| {
            run.outlives_aggregators() && run.next_epoch.is_none() && run.install == InstallState::Installed
        };
        let run = self.runs.get(&id).filter(can_return)?;
        let is_due = |state: &Restoration| matches!(state, Restoration::Due(at) if *at <= now);
        let mut missing = run.shared.as_ref()?.missing_at.iter();
        missing.find(|(at, state)| is_due(state) && self.in_service(**at).is_some()).map(|(at, _)| *at)
    }

    pub fn on_restored(&mut self, now: Time, id: RunId, at: Option<RackId>, result: Result<(), String>) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let Some(shared) = &mut run.shared else { return };
        let (name, job) = (&run.name, run.job);
        match result {
            Ok(()) => {
                tracing::info!(name, job, "the aggregator has the job again");
                // Unless it has lost the job again meanwhile.
                if shared.missing_at.get(&at) == Some(&Restoration::Ordered) {
                    shared.missing_at.remove(&at);
                }
            }
            Err(error) => {
                tracing::warn!(name, job, error, "the aggregator does not take the job back yet");
                shared.missing_at.insert(at, Restoration::Due(now + RETRY));
            }
        }
    }

    fn in_service(&self, at: Option<RackId>) -> Option<&PlaneInfo> {
        match at {
            None => self.plane_down.is_none().then_some(&self.plane),
            Some(rack) => self.racks.get(&rack).filter(|rack| rack.is_in_service()).map(|rack| &rack.plane),
        }
    }

    /// Whether an aggregator can have this run as its workers know it: the root expects a rack's sums from
    /// where it was.
    fn fits(&self, run: &Run, at: Option<RackId>, plane: &PlaneInfo) -> bool {
        let (Some(shared), Some(terms)) = (&run.shared, &run.terms) else { return false };
        let is_where_it_was = match at {
            None => shared.root_port == plane.base_port,
            Some(id) => {
                let is_below_root = self.racks.get(&id).is_some_and(|rack| rack.above.is_none());
                is_below_root && run.racks.get(&id).copied() == self.address_of(id)
            }
        };
        is_where_it_was
            && plane.jobs >= run.job
            && plane.dynamic_slots >= terms.slots
            && plane.most_elements(terms.mode) >= terms.elements
            && plane.shards >= terms.shards
            && (plane.verifies_checksums || !terms.checksum)
            && (plane.marks_overflow || terms.headroom || !terms.is_dynamic())
    }
}
