//! Workers that take the places of dead ones in a running dynamic job (ATP appendix A.3): under another epoch, from the
//! first chunks that are not summed.

use super::{
    Action, Coordinator, Door, End, JoinRequest, MemberId, RackId, RunId, Time,
    restore::Gap,
    run::{Phase, Run},
};
use crate::{failure::JobFailure, refusal::Refusal};

/// A dead worker's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vacancy {
    /// The job fails if nobody takes it by then.
    until: Time,
    /// What it fails of.
    failure: JobFailure,
}

/// What came of going on with another worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Renewed {
    /// Where each rank sends to, by rank; none where its aggregator did not answer, which changes nothing for it.
    pub doors: Vec<Option<Door>>,
    /// Of each lane the first chunk that is not summed.
    pub resume: Vec<u32>,
    /// Aggregators that have the job no more.
    pub lost: Vec<Option<RackId>>,
}

impl Coordinator {
    /// A dead worker's place in a dynamic job stays open for so long; the job fails when nobody takes it. Not in jobs whose
    /// order is by name: what the dead one has announced cannot be told from what the new one announces again.
    #[must_use]
    pub fn with_rejoin_grace(mut self, grace: Time) -> Coordinator {
        self.rejoin_grace = grace;
        self
    }

    /// Leaves a rank's place open, if its job goes on without it for a while. `false`: it does not.
    pub(super) fn open_place(&mut self, id: RunId, rank: u16, failure: &JobFailure) -> bool {
        let until = self.last_tick + self.rejoin_grace;
        let Some(run) =
            self.runs.get_mut(&id).filter(|run| !self.rejoin_grace.is_zero() && run.can_be_renewed())
        else {
            return false;
        };
        let Some(seat) = run.seats.get_mut(&rank) else { return false };
        if seat.vacant.is_none() {
            tracing::warn!(name = run.name, job = run.job, %failure, grace = ?self.rejoin_grace, "place open for a new worker");
            seat.vacant = Some(Vacancy { until, failure: failure.clone() });
        }
        true
    }

    /// Ends a job whose open place nobody has taken.
    pub(super) fn expire_places(&mut self, now: Time, id: RunId) {
        let Some(run) = self.runs.get(&id).filter(|run| run.is_live()) else { return };
        let overdue = run.seats.iter().find_map(|(rank, seat)| {
            let vacancy = seat.vacant.as_ref().filter(|vacancy| now >= vacancy.until)?;
            Some((*rank, vacancy.failure.clone()))
        });
        if let Some((rank, failure)) = overdue {
            self.end(id, End::Failed(failure));
            self.vacate(id, rank);
        }
    }

    /// The running job whose open place a request is for.
    pub(super) fn open_place_of(&self, request: &JoinRequest) -> Option<RunId> {
        let id = self.names.get(&request.job)?.current?;
        let run = self.runs.get(&id).filter(|run| run.can_be_renewed())?;
        run.seats.get(&request.rank)?.vacant.as_ref().map(|_| id)
    }

    /// Whether a worker may take an open place of a running job.
    pub(super) fn check_place(&self, id: RunId, request: &JoinRequest) -> Result<(), Refusal> {
        let (Some(run), rank) = (self.runs.get(&id), request.rank) else { return Ok(()) };
        let invalid = |what: String| Err(Refusal::Invalid { what });
        if run.renewing.is_some() {
            return Err(Refusal::Held { job: run.name.clone(), ranks: run.present() });
        }
        if let Some(refusal) = run.mismatch(rank, &request.wishes) {
            return Err(refusal);
        }
        let (Some(terms), Some(seat)) = (&run.terms, run.seats.get(&rank)) else { return Ok(()) };
        if request.wishes.max_elements < terms.elements || request.wishes.max_shards < terms.shards {
            return invalid(format!(
                "rank {rank} can have {} elements and {} shards; the running job has {} and {}",
                request.wishes.max_elements, request.wishes.max_shards, terms.elements, terms.shards
            ));
        }
        if request.rack != seat.rack {
            return invalid(format!(
                "rank {rank} joined at another aggregator before; let it join there again"
            ));
        }
        if self.names.is_spent(run.job) {
            return Err(super::Names::spent());
        }
        Ok(())
    }

    /// Gives an open place to another worker: all planes go on under another epoch.
    pub(super) fn renew(&mut self, now: Time, id: RunId, request: &JoinRequest) -> Option<MemberId> {
        let member = self.new_member();
        let epoch = self.names.next_epoch(self.runs.get(&id)?.job);
        let run = self.runs.get_mut(&id)?;
        let mut seat = super::Seat::new(now, member, request, request.deadline);
        (seat.heard, seat.since, seat.is_new) = (run.log.end(), run.log.end(), true);
        let before = run.seats.insert(request.rank, seat)?;
        run.renewing = Some(epoch);
        // What was to be installed again is installed with this.
        run.shared.iter_mut().for_each(|shared| shared.gaps.clear());
        let order = run.order(false).map(|mut order| {
            order.install.epoch = epoch;
            order
        });
        tracing::info!(
            name = run.name,
            job = run.job,
            rank = request.rank,
            epoch,
            "a new worker takes a dead one's place"
        );
        self.forget(before.member);
        self.members.insert(member, (id, request.rank));
        self.actions.retain(|action| !matches!(action, Action::Restore { run, .. } if *run == id));
        self.actions.extend(order.map(|order| Action::Renew(id, order)));
        Some(member)
    }

    /// All planes go on under the epoch that was ordered, or the parameter hosts do not.
    pub fn on_renewed(&mut self, now: Time, id: RunId, result: Result<Renewed, String>) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.is_live()) else { return };
        let Some(epoch) = run.renewing.take() else { return };
        let renewed = match result {
            Ok(renewed) => renewed,
            Err(what) => return self.end(id, End::Failed(JobFailure::plane(&what))),
        };
        run.epoch = epoch;
        if let Phase::Running(doors) = &mut run.phase {
            for (known, door) in doors.iter_mut().zip(renewed.doors) {
                *known = door.unwrap_or(*known);
            }
        }
        if let Some(shared) = &mut run.shared {
            shared.resume = renewed.resume;
            // A rack that has entered anew meanwhile has a gap already, under its new number.
            let racks = &shared.racks;
            let lost = renewed.lost.into_iter().filter(|at| at.is_none_or(|rack| racks.contains_key(&rack)));
            shared.gaps.extend(lost.map(|at| (at, Gap::Due(now))));
        }
        for seat in run.seats.values_mut() {
            seat.is_new = false;
        }
        tracing::info!(name = run.name, job = run.job, epoch, "job goes on");
        run.revision += 1;
    }
}

impl Run {
    /// Whether a dead worker can be replaced.
    fn can_be_renewed(&self) -> bool {
        matches!(self.phase, Phase::Running(_)) && self.outlives_control()
    }
}
