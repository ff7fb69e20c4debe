//! Jobs that do not go on. Of workers whose operations differ, the coordinator collects those that have not
//! ended, and all receive the same diagnosis. Of an operation without progress the ranks that it waits for
//! are named; one that waits for none ends its job.

use std::collections::BTreeMap;

use super::{
    Coordinator,
    ids::RunId,
    mismatch::Mismatch,
    run::{Phase, Run},
    time::Time,
};
use crate::{
    events::{Event, OperationReport, REPORTED_OPERATIONS, ReportedOperation, TEXT_LEN, printable},
    failure::{FailureKind, JobFailure},
    message::End,
};

const REPORT_TIMEOUT: Time = Time::from_secs(1);
/// Time from a report until ranks are named: the others' reports are on their way.
pub(super) const NAMING_DELAY: Time = Time::from_secs(1);
/// Time beyond the longest outage from the last report until a job ends in which all ranks wait. A rank
/// reports after one to two seconds without a result; a lost path is found by its engine earlier, the longest
/// outage and a second after the last one.
const NO_PROGRESS_MARGIN: Time = Time::from_secs(2);

impl Run {
    /// The oldest operation of a rank does not end: another rank may have another under its number, in lanes
    /// that never meet.
    pub(super) fn on_stalled(
        &mut self,
        now: Time,
        rank: u16,
        operation: ReportedOperation,
    ) -> Result<(), JobFailure> {
        let differs = |other: &ReportedOperation| {
            other.operation == operation.operation && other.signature != operation.signature
        };
        let is_mismatch = self.stalled.values().any(differs);
        self.stalled.insert(rank, operation);
        if is_mismatch { self.begin_mismatch(now) } else { Ok(()) }
    }

    pub(super) fn on_operations(
        &mut self,
        now: Time,
        rank: u16,
        mut report: OperationReport,
    ) -> Result<(), JobFailure> {
        report.operations.truncate(REPORTED_OPERATIONS);
        self.begin_mismatch(now)?;
        if let Some(mismatch) = &mut self.mismatch {
            mismatch.reports.insert(rank, report);
        }
        Ok(())
    }

    fn begin_mismatch(&mut self, now: Time) -> Result<(), JobFailure> {
        if self.mismatch.is_some() {
            return Ok(());
        }
        tracing::warn!(name = self.name, job = self.job, "the workers' operations differ");
        self.mismatch = Some(Mismatch { until: now + REPORT_TIMEOUT, reports: BTreeMap::new() });
        self.tell(Event::ReportOperations)
    }
}

impl Coordinator {
    pub(super) fn expire_mismatch(&mut self, now: Time, id: RunId) {
        let Some(run) = self.runs.get(&id).filter(|run| run.phase == Phase::Running) else { return };
        let Some(mismatch) = &run.mismatch else { return };
        let has_all = run.present().iter().all(|rank| mismatch.reports.contains_key(rank));
        if has_all || now >= mismatch.until {
            let failure = mismatch.diagnosis();
            self.end(id, End::Failed(failure));
        }
    }
}

impl Run {
    /// A rank has had no result of its oldest operation for a second; `None`: it has one again.
    pub(super) fn on_idle(&mut self, now: Time, rank: u16, operation: Option<ReportedOperation>) {
        match operation {
            Some(operation) => drop(self.standstill.idle.insert(rank, (operation, now))),
            None => drop(self.standstill.idle.remove(&rank)),
        }
        if self.standstill.idle.is_empty() {
            self.standstill.told = None;
        }
    }

    /// An operation that does not end, and the first ranks of the members that it waits for: those that do
    /// not wait themselves.
    fn waited_for(&self, now: Time) -> Option<(String, Vec<u16>)> {
        let idle = &self.standstill.idle;
        let (operation, since) = idle.values().min_by_key(|(_, since)| *since)?;
        if now < *since + NAMING_DELAY {
            return None;
        }
        let ranks = self.present().into_iter().filter(|rank| !idle.contains_key(rank));
        Some((printable(&operation.text, TEXT_LEN), ranks.collect()))
    }

    /// The end of a job whose ranks all wait. The earliest of their operations has been submitted by all:
    /// those that wait for a later one have it already.
    fn no_progress(&self, now: Time, longest_outage: Time) -> Option<JobFailure> {
        let idle = self.standstill.idle.values();
        let last = idle.clone().map(|(_, since)| *since).max()?;
        let limit = longest_outage + NO_PROGRESS_MARGIN;
        if now < last + limit {
            return None;
        }
        let operations = || idle.clone().map(|(operation, _)| operation);
        let base = operations().next()?.operation;
        // Numbers wrap; those of one job are close together.
        let earliest = operations().min_by_key(|operation| operation.operation.since(base) as i32)?;
        let message = format!(
            "no result for {limit:?}, though all ranks have submitted {}; `sumac-agg status` \
            counts what the aggregator refuses",
            printable(&earliest.text, TEXT_LEN)
        );
        Some(JobFailure::new(FailureKind::NoProgress, &[], message))
    }

    fn name_ranks(&mut self, what: &str, ranks: Vec<u16>) -> Result<(), JobFailure> {
        let message =
            format!("{what} waits for ranks {ranks:?}: they have not submitted it, or are not as far");
        let event = Event::Waiting { message, ranks };
        if self.standstill.told.as_ref() == Some(&event) {
            return Ok(());
        }
        tracing::warn!(name = self.name, job = self.job, "{what} waits for other ranks");
        self.standstill.told = Some(event.clone());
        self.tell(event)
    }
}

impl Coordinator {
    pub(super) fn expire_standstill(&mut self, now: Time, id: RunId) {
        let longest_outage = self.longest_outage;
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.phase == Phase::Running) else { return };
        let waited_for = run.waited_for(now).or_else(|| run.naming.overdue(now, run.first_ranks()));
        let Some((what, first)) = waited_for else { return };
        let ranks = run.all_ranks(first);
        let failure = match ranks.is_empty() {
            true => run.no_progress(now, longest_outage),
            false => run.name_ranks(&what, ranks).err(),
        };
        if let Some(failure) = failure {
            self.end(id, End::Failed(failure));
        }
    }
}
