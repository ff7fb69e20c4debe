//! The life of a job of this host from its opening on: late ranks are named, the end of one rank is that of
//! all.

use sumac_control::{FailureKind, JobFailure, Outcome};

use crate::explain::bounded;
use crate::host::Host;
use crate::job::{Job, JobPhase};
use crate::job_end::JobEnd;
use crate::operation::{Operation, OperationPhase};
use crate::{JobId, Nanos, OperationKey, Output, SECOND};

/// The age from which an operation is reported that other ranks have not submitted.
const LATE: Nanos = 3 * SECOND;

impl Host {
    /// The jobs of all ranks, by rank.
    pub(super) fn members(&self, name: &str) -> Vec<JobId> {
        let local = self.state.local_jobs.get(name);
        local.map_or(Vec::new(), |local| local.members.values().copied().collect())
    }

    /// Looks at an open job of this host, some ten times a second.
    pub fn tick_locally(&mut self, now: Nanos, id: JobId, out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get(&id) else { return };
        let Some(local) = self.state.local_jobs.get(&job.name) else { return };
        let departed = local.departed.clone();
        let late = local.rounds.oldest_of(job.rank).filter(|round| now.saturating_sub(round.since) >= LATE);
        let late = late.map(|round| {
            let ranks = (0..local.spec.world).filter(|rank| !round.submitted.contains_key(rank));
            (round.descriptor.to_string(), ranks.collect::<Vec<u16>>())
        });
        self.report_late(id, late, out);
        let own = self.state.operations.iter().filter(|(_, operation)| operation.job == id);
        let unposted = own.filter(|(_, operation)| operation.phase == OperationPhase::Named);
        let unposted: Vec<OperationKey> = unposted.map(|(key, _)| *key).collect();
        self.check_transfers(now, id, &unposted, out);
        self.check_departed(now, id, &departed, out);
    }

    fn report_late(&mut self, id: JobId, late: Option<(String, Vec<u16>)>, out: &mut Vec<Output>) {
        let Some(running) = self.running_mut(id) else { return };
        match late {
            None => running.watch.is_wait_reported = false,
            Some(_) if running.watch.is_wait_reported => {}
            Some((text, ranks)) => {
                let message = format!(
                    "{text} waits for ranks {ranks:?}: they have not submitted it, or are not as far"
                );
                self.report_waiting(id, &message, &ranks, out);
            }
        }
    }

    /// Has the other ranks of a job of this host learn of a rank's end.
    pub(crate) fn end_others(&mut self, id: JobId, end: &JobEnd, out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get(&id) else { return };
        let (name, rank) = (job.name.clone(), job.rank);
        let Some(local) = self.state.local_jobs.get_mut(&name).filter(|local| local.is_open) else { return };
        let reason = match end {
            JobEnd::Closed { .. } => return local.departed.push(rank),
            JobEnd::Failed { outcome: Some(Outcome::Died(reason) | Outcome::Failed(reason)), .. } => reason,
            // The others have it already.
            JobEnd::Failed { .. } => return local.is_over = true,
        };
        local.is_over = true;
        let message = bounded(format!("rank {rank} left: {reason}"));
        let failure = JobFailure { kind: FailureKind::Left, message, ranks: vec![rank] };
        for other in self.members(&name).into_iter().filter(|other| *other != id) {
            self.membership_failed(other, &failure, out);
        }
    }

    /// Removes a rank that is gone.
    pub(crate) fn leave_locally(&mut self, job: &Job, id: JobId) {
        let Some(local) = self.state.local_jobs.get_mut(&job.name) else { return };
        local.members.retain(|_, member| *member != id);
        if local.members.is_empty() {
            self.state.local_jobs.remove(&job.name);
        }
    }

    /// Returns the open jobs whose ranks are all on this host, one for each rank.
    #[must_use]
    pub fn open_local_jobs(&self) -> Vec<JobId> {
        let is_open = |job: &Job| job.is_local() && job.phase == JobPhase::Open;
        self.state.jobs.iter().filter(|(_, job)| is_open(job)).map(|(id, _)| *id).collect()
    }

    /// Whether values of a job of this host are being summed: its memory is in use.
    #[must_use]
    pub fn is_summing(&self, id: JobId) -> bool {
        let mut own = self.state.operations.values().filter(|operation| operation.job == id);
        own.any(Operation::is_in_flight)
    }

    /// Whether values of any job of this host are being summed.
    #[must_use]
    pub fn is_summing_any(&self) -> bool {
        let is_local = |id: &JobId| self.state.jobs.get(id).is_some_and(Job::is_local);
        let mut in_flight = self.state.operations.values().filter(|operation| operation.is_in_flight());
        in_flight.any(|operation| is_local(&operation.job))
    }
}
