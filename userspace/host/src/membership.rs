//! The events of a job's control plane, and the failures whose cause it may know.

use sumac_control::events::{Event, Fault, OperationReport, Post, REPORTED_OPERATIONS, ReportedOperation};
use sumac_control::{JobFailure, Outcome as LeaveOutcome};
use sumac_transport::JobError;

use crate::explain::{self, bounded};
use crate::finished::Outcome;
use crate::host::Host;
use crate::job::JobPhase;
use crate::job_end::{JobEnd, Undiagnosed};
use crate::operation::{Operation, OperationPhase};
use crate::{JobId, Nanos, OperationKey, Output, Resources, SECOND};

/// The time to wait for the coordinator's diagnosis of a mismatch, while it is connected.
const DIAGNOSIS_TIMEOUT: Nanos = 4 * SECOND;
/// The time to wait for the reason for which the control plane has removed the job, while it is connected.
const REASON_TIMEOUT: Nanos = 3 * SECOND;
/// The number of reports that are kept for operations that have not ended here yet.
const KEPT_FAULTS: usize = 64;

impl Host {
    /// Handles the failure of a job's engines.
    pub fn engine_failed(&mut self, now: Nanos, id: JobId, error: JobError, out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let error = match error {
            // The engine knows the worker, by its number.
            JobError::Worker { rank, reason } => {
                JobError::Worker { rank: rank.saturating_mul(job.open.spec.ranks_per_worker()), reason }
            }
            error => error,
        };
        match (error, &mut job.running) {
            (JobError::Mismatch { lane, seq, .. }, Some(_)) => {
                self.report_operations(now, id, Some((lane, seq)), out);
            }
            // The control plane has removed it, and knows why; where a new one has never known it, nobody
            // does.
            (error @ JobError::UnknownJob { .. }, Some(running)) if job.phase == JobPhase::Open => {
                running
                    .undiagnosed
                    .get_or_insert_with(|| Undiagnosed::new(now, JobEnd::ours(error), REASON_TIMEOUT));
            }
            (error, _) => self.end_job(id, JobEnd::ours(error), out),
        }
    }

    /// Ends a job that its control plane has ended, or that cannot go on in the control plane's next epoch.
    pub fn membership_failed(&mut self, id: JobId, failure: &JobFailure, out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let (error, failure) = (explain::engine_error(failure), explain::job_failure(failure, job.order));
        self.end_job(id, JobEnd::Failed { error, failure, outcome: None }, out);
    }

    /// Ends a job that cannot go on here, for this reason.
    pub fn fail_job(&mut self, id: JobId, reason: String, out: &mut Vec<Output>) {
        self.end_job(id, JobEnd::ours(JobError::Ended { reason }), out);
    }

    /// Handles an event of a job's control plane.
    pub fn control_event(
        &mut self,
        now: Nanos,
        id: JobId,
        event: Event,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        match event {
            Event::Released(name) => self.release(id, &name, resources, out),
            Event::Fault { rank, fault } => self.on_fault(id, rank, fault, resources, out),
            // For a replacement.
            Event::ResumePoint { .. } => {}
            Event::ReportOperations => self.report_operations(now, id, None, out),
            Event::Waiting { message, ranks } => self.report_waiting(id, &message, &ranks, out),
        }
    }

    /// Attributes the operations that were held back for another worker's report.
    fn on_fault(
        &mut self,
        id: JobId,
        rank: u16,
        fault: Fault,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        if job.is_shared_with(rank) {
            // This worker's own operations have failed already.
            return;
        }
        for (key, operation, outcome, _) in self.held_back(id) {
            if operation == Some(fault.operation) {
                self.complete(key, attributed(outcome, rank, &fault), resources, out);
            }
        }
        let Some(running) = self.running_mut(id) else { return };
        if running.faults.len() == KEPT_FAULTS {
            running.faults.pop_front();
        }
        running.faults.push_back((rank, fault));
    }

    pub(crate) fn held_back(
        &self,
        job: JobId,
    ) -> Vec<(OperationKey, Option<sumac_job::OperationId>, Outcome, Nanos)> {
        let held =
            self.state.operations.held_back(job).filter_map(|(key, operation)| match &operation.phase {
                OperationPhase::HeldBack { outcome, until } => {
                    Some((*key, operation.id(), (**outcome).clone(), *until))
                }
                _ => None,
            });
        held.collect()
    }

    /// Completes the operations whose report is overdue.
    pub(crate) fn expire_held_back(
        &mut self,
        now: Nanos,
        job: JobId,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        for (key, _, outcome, until) in self.held_back(job) {
            if until <= now {
                self.complete(key, outcome, resources, out);
            }
        }
    }

    /// Reports this worker's operations once, after a mismatch. `noticed_at`: the lane and chunk of the
    /// mismatch.
    fn report_operations(
        &mut self,
        now: Nanos,
        id: JobId,
        noticed_at: Option<(u16, u32)>,
        out: &mut Vec<Output>,
    ) {
        let oldest = self.oldest(id);
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let Some(running) = job.running.as_mut().filter(|running| running.undiagnosed.is_none()) else {
            return;
        };
        let reason =
            "the workers do not do the same, and the control plane does not report what they have".to_owned();
        let failure = explain::mismatch(reason.clone(), job.order);
        let error = JobError::Ended { reason: reason.clone() };
        let end = JobEnd::Failed { error, failure, outcome: Some(LeaveOutcome::Failed(reason)) };
        running.undiagnosed = Some(Undiagnosed::new(now, end, DIAGNOSIS_TIMEOUT));
        let noticed = noticed_at.and_then(|(lane, seq)| running.log.at(lane, seq)).or(oldest);
        let operations = running.log.since_unended(REPORTED_OPERATIONS);
        job.post(id, Post::Operations(OperationReport { operations, noticed_at, noticed }), out);
    }

    /// Returns the oldest operation in the lanes.
    pub(crate) fn oldest(&self, id: JobId) -> Option<ReportedOperation> {
        let running = self.state.jobs.get(&id)?.running.as_ref()?;
        // The log keeps operations that ended with their job as not ended. None of them is in flight.
        let is_in_flight =
            |(_, operation): (_, &Operation)| operation.is_in_flight() && operation.id().is_some();
        if self.state.operations.of_job(id).any(is_in_flight) { running.log.first_unended() } else { None }
    }
}

/// Adds the worker and its value to an operation's error.
pub(crate) fn attributed(mut outcome: Outcome, rank: u16, fault: &Fault) -> Outcome {
    if let Some(failure) = &mut outcome.error {
        failure.message = bounded(format!("rank {rank}: {}", fault.problem)).into();
        failure.ranks = vec![rank];
        failure.index = fault.index.or(failure.index);
        failure.index_end = failure.index_end.filter(|_| fault.index.is_none());
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_worker_and_its_value() {
        let error = sumac_api::Failure::new(sumac_api::Code::Saturated, "another worker's value");
        let error = Some(error.elements("w", 256, Some(512)));
        let outcome = Outcome { error, ..Outcome::default() };
        let fault = |index, problem: &str| Fault {
            rank: None,
            operation: sumac_job::OperationId(3),
            index,
            problem: problem.into(),
        };
        let fault_of = |fault: &Fault| attributed(outcome.clone(), 2, fault).error.unwrap();
        let error = fault_of(&fault(Some(300), "tensor w, element 300 is NaN"));
        assert_eq!((error.ranks, error.index, error.index_end), (vec![2], Some(300), None));
        assert!(error.message.starts_with("rank 2: tensor w"));
        let long = fault_of(&fault(None, &"x".repeat(5000)));
        assert!(long.message.len() <= crate::explain::MESSAGE_LEN);
        assert_eq!((long.index, long.index_end), (Some(256), Some(512)));
    }
}
