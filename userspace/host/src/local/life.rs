//! The life of the ranks of a job on this host from its opening on: late ranks are named, the end of one is
//! that of all.

use sumac_api::{Code, Failure};
use sumac_control::{FailureKind, JobFailure, Outcome};
use sumac_transport::JobError;

use crate::explain::bounded;
use crate::host::Host;
use crate::job::{Job, JobPhase};
use crate::job_end::JobEnd;
use crate::operation::OperationPhase;
use crate::{JobId, Nanos, OperationKey, Output, Resources, SECOND, explain};

/// The age from which an operation is reported that other ranks have not submitted.
const LATE: Nanos = 3 * SECOND;

impl Host {
    /// The jobs of all ranks, by rank.
    pub(super) fn members(&self, name: &str) -> Vec<JobId> {
        let local = self.state.local_jobs.get(name);
        local.map_or(Vec::new(), |local| local.members.values().copied().collect())
    }

    /// The job of the rank that has the membership and the data path: the same, unless there are other ranks.
    pub(crate) fn leader_of(&self, id: JobId) -> JobId {
        let Some(job) = self.state.jobs.get(&id).filter(|job| job.is_follower()) else { return id };
        let local = self.state.local_jobs.get(&job.name);
        local.and_then(|local| local.members.get(&local.ranks().start)).copied().unwrap_or(id)
    }

    /// The jobs of all ranks of this host: the same alone, unless there are other ranks.
    pub(crate) fn ranks_of(&self, id: JobId) -> Vec<JobId> {
        match self.state.jobs.get(&id) {
            Some(job) if job.is_shared() => self.members(&job.name),
            _ => vec![id],
        }
    }

    /// Whether the job has other ranks on this host that have not left.
    #[must_use]
    pub fn has_other_ranks(&self, id: JobId) -> bool {
        self.ranks_of(id).iter().any(|other| *other != id)
    }

    /// The report to the control plane about a job that its rank has closed.
    #[must_use]
    pub fn outcome_of_ranks(&self, id: JobId) -> Outcome {
        if self.is_over(id) {
            Outcome::Failed("a rank of this host has failed".into())
        } else {
            Outcome::Done
        }
    }

    /// Looks at an open job with several ranks on this host, as [`Host::tick`] does.
    pub fn tick_locally(&mut self, now: Nanos, id: JobId, out: &mut Vec<Output>) {
        let leader = self.leader_of(id);
        let elsewhere = self.state.jobs.get(&leader).and_then(|job| job.running.as_ref());
        let elsewhere = elsewhere.filter(|_| leader != id).map(|running| running.watch.departed.clone());
        let Some(job) = self.state.jobs.get(&id) else { return };
        let Some(local) = self.state.local_jobs.get(&job.name) else { return };
        let departed = [&local.departed[..], &elsewhere.unwrap_or_default()].concat();
        let unposted_elsewhere = local.unposted.clone();
        let late = local.rounds.oldest_of(job.rank).filter(|round| now.saturating_sub(round.since) >= LATE);
        let late = late.map(|round| {
            let ranks = local.ranks().filter(|rank| !round.submitted.contains_key(rank));
            (round.common.descriptor.to_string(), ranks.collect::<Vec<u16>>())
        });
        self.report_late(id, late, out);
        let own = self.state.operations.of_job(id);
        let unposted = own.filter(|(_, operation)| operation.phase == OperationPhase::Named);
        let unposted = unposted.map(|(key, _)| *key).chain(unposted_elsewhere);
        let unposted: Vec<OperationKey> = unposted.collect();
        self.check_transfers(now, id, &unposted, out);
        if leader != id || self.state.jobs.get(&id).is_some_and(Job::is_local) {
            self.check_departed(now, id, &departed, out);
        }
    }

    /// The ranks of this host that have left the job.
    pub(crate) fn departed_here(&self, id: JobId) -> Vec<u16> {
        let local = self.state.jobs.get(&id).and_then(|job| self.state.local_jobs.get(&job.name));
        local.map_or(Vec::new(), |local| local.departed.clone())
    }

    /// Records the transfers to other hosts that are not posted there.
    pub(crate) fn set_unposted(&mut self, id: JobId, keys: &[OperationKey]) {
        let Some(job) = self.state.jobs.get(&id) else { return };
        if let Some(local) = self.state.local_jobs.get_mut(&job.name) {
            local.unposted = keys.to_vec();
        }
    }

    fn report_late(&mut self, id: JobId, late: Option<(String, Vec<u16>)>, out: &mut Vec<Output>) {
        let Some(running) = self.running_mut(id) else { return };
        match late {
            None => running.watch.is_late_reported = false,
            Some(_) if running.watch.is_late_reported => {}
            Some((text, ranks)) => {
                running.watch.is_late_reported = true;
                let message = format!(
                    "{text} waits for ranks {ranks:?}: they have not submitted it, or are not as far"
                );
                self.notify_waiting(id, &message, &ranks, out);
                out.push(Output::Warn { job: id, message, ranks });
            }
        }
    }

    /// Has the other ranks of this host learn that a job does not open, for which all of them had come.
    pub(crate) fn not_joined(&mut self, id: JobId, failure: &Failure, out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get(&id) else { return };
        let (name, rank) = (job.name.clone(), job.rank);
        let Some(local) = self.state.local_jobs.get(&name) else { return };
        let is_one = local.members.get(&rank) == Some(&id);
        if is_one && local.is_open {
            // It was withdrawn at the moment of opening.
            let reason = failure.message.to_string();
            let (error, failure) = (JobError::Ended { reason: reason.clone() }, failure.clone());
            let end = JobEnd::Failed { error, failure, outcome: Some(Outcome::Failed(reason)) };
            return self.end_others(id, &end, out);
        }
        if !is_one || !local.is_complete() {
            return;
        }
        let mut failure = failure.clone();
        if failure.ranks.is_empty() {
            failure.message = bounded(format!("rank {rank}: {}", failure.message)).into();
            failure.ranks = vec![rank];
        }
        self.refuse_members(&name, &failure, out);
    }

    /// Ends a job. Where its rank has closed it, the host's other ranks may still use its data path: then
    /// theirs.
    pub(crate) fn end_job(&mut self, id: JobId, end: JobEnd, out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let is_closed = job.is_shared() && job.phase == JobPhase::Leaving;
        job.end_with(id, end.clone(), out);
        if is_closed {
            self.end_others(id, &end, out);
        }
    }

    /// Answers a rank that closes a job whose data path other ranks still use.
    pub fn close_rank(
        &mut self,
        id: JobId,
        request: u64,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let opener = job.opener;
        let Some(running) = &mut job.running else { return };
        let failure = Failure::new(Code::JobFailed, "the client that opened the job has closed it");
        running.closed.get_or_insert_with(|| failure.clone());
        for (connection, handle) in std::mem::take(&mut running.clients) {
            if (connection, handle) != opener {
                self.job_failed_at(connection, handle, &failure, resources, out);
            }
        }
        self.closed(id, request, resources, out);
    }

    /// Whether a rank of this host has ended the job for all of them.
    #[must_use]
    pub fn is_over(&self, id: JobId) -> bool {
        let local = self.state.jobs.get(&id).and_then(|job| self.state.local_jobs.get(&job.name));
        local.is_some_and(|local| local.is_over)
    }

    /// Has the other ranks of this host learn of a rank's end.
    pub(crate) fn end_others(&mut self, id: JobId, end: &JobEnd, out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get(&id) else { return };
        let (name, rank) = (job.name.clone(), job.rank);
        let Some(local) = self.state.local_jobs.get_mut(&name).filter(|local| local.is_open) else { return };
        // One that has closed it waits for the others.
        out.extend(local.members.values().map(|member| Output::Wake { job: *member }));
        let outcome = match end {
            JobEnd::Closed { .. } => return local.departed.push(rank),
            JobEnd::Failed { outcome: Some(outcome), .. } => outcome,
            JobEnd::Failed { .. } => {
                local.is_over = true;
                for other in local.members.values().filter(|other| **other != id) {
                    if let Some(job) = self.state.jobs.get_mut(other) {
                        job.end_with(*other, end.clone(), out);
                    }
                }
                return;
            }
        };
        local.is_over = true;
        let message = |reason: &str| bounded(format!("rank {rank} left: {reason}"));
        let (message, outcome) = match outcome {
            Outcome::Died(reason) => (message(reason), Outcome::Died(message(reason))),
            Outcome::Failed(reason) => (message(reason), Outcome::Failed(message(reason))),
            Outcome::Done => return,
        };
        let failure = JobFailure { kind: FailureKind::Left, message, ranks: vec![rank] };
        for other in self.members(&name).into_iter().filter(|other| *other != id) {
            self.end_rank(other, &failure, &outcome, out);
        }
    }

    /// Ends a rank's job for a reason of this host. The leader reports it to the control plane.
    pub(super) fn end_rank(
        &mut self,
        id: JobId,
        failure: &JobFailure,
        outcome: &Outcome,
        out: &mut Vec<Output>,
    ) {
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let has_membership = !job.is_local() && !job.is_follower();
        let outcome = has_membership.then(|| outcome.clone());
        let (error, failure) = (explain::engine_error(failure), explain::job_failure(failure, job.order));
        job.end_with(id, JobEnd::Failed { error, failure, outcome }, out);
    }

    /// Removes a rank that is gone.
    pub(crate) fn leave_locally(&mut self, job: &Job, id: JobId, resources: &mut dyn Resources) {
        let Some(local) = self.state.local_jobs.get_mut(&job.name) else { return };
        local.members.retain(|_, member| *member != id);
        if local.members.is_empty()
            && let Some(local) = self.state.local_jobs.remove(&job.name)
        {
            local.shares.into_iter().for_each(|share| self.unregister_region(share.region, resources));
        }
    }

    /// Returns the open jobs without a membership of their own, one for each rank: those of one host, and of
    /// ranks that have a leader.
    #[must_use]
    pub fn open_local_jobs(&self) -> Vec<JobId> {
        let is_open = |job: &Job| (job.is_local() || job.is_follower()) && job.phase == JobPhase::Open;
        self.state.jobs.iter().filter(|(_, job)| is_open(job)).map(|(id, _)| *id).collect()
    }

    /// Whether values of a rank are being summed: its memory is in use.
    #[must_use]
    pub fn is_summing(&self, id: JobId) -> bool {
        self.state.operations.of_job(id).any(|(_, operation)| operation.is_in_flight())
    }

    /// Whether values of any job of this host are being summed.
    #[must_use]
    pub fn is_summing_any(&self) -> bool {
        let is_local = |id: &JobId| self.state.jobs.get(id).is_some_and(Job::is_local);
        let mut in_flight = self.state.operations.iter().filter(|(_, operation)| operation.is_in_flight());
        in_flight.any(|(_, operation)| is_local(&operation.job))
    }
}
