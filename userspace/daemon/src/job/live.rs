//! The event loop of an open job: events of its clients, the data path and the control plane, until one of them ends it.

use std::convert::Infallible;
use std::time::Duration;

use sumac_control::events::{Event, OperationReport, Post, REPORTED_OPERATIONS};
use sumac_control::{Grant, Member, MemberState, Outcome};
use sumac_job::OperationId;
use sumac_transport::JobError;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::faults::PendingFaults;
use super::start::Channels;
use super::{End, Job, JobEvent, blocking};
use crate::explain;
use crate::operations::JobOperations;

const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The time for results on their way when a worker has left, which had received all of them.
const DEPARTURE_GRACE: Duration = Duration::from_secs(3);
/// The duration after which the oldest operation is reported. The coordinator only compares it with the other workers'.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// The time to wait for the coordinator's diagnosis of a mismatch.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(4);
/// The interval without results after which a warning is logged. It is no error: another worker may still be computing.
const STANDSTILL_LOG_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct EventLoop<'a> {
    job: &'a Job,
    operations: &'a JobOperations,
    member: &'a Member,
    faults: PendingFaults,
    /// The time since which the workers' operations are known to differ.
    mismatched: Option<Instant>,
    /// The time since which operations wait for workers that have left.
    deserted: Option<Instant>,
    /// The oldest operation, the time since which it is the oldest, and whether it was reported.
    oldest: Option<(OperationId, Instant, bool)>,
}

impl<'a> EventLoop<'a> {
    pub(super) fn new(job: &'a Job, operations: &'a JobOperations, member: &'a Member) -> EventLoop<'a> {
        let faults = PendingFaults::default();
        EventLoop { job, operations, member, faults, mismatched: None, deserted: None, oldest: None }
    }

    pub(super) async fn run(mut self, mut events: UnboundedReceiver<JobEvent>, channels: Channels) -> End {
        let Channels { events: mut control_events, mut renewed } = channels;
        let mut failed = std::pin::pin!(self.member.failed());
        let mut standstill = std::pin::pin!(log_standstill(self.job, self.operations));
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = loop {
            let end = tokio::select! {
                biased;
                failure = &mut failed => Some(self.job.theirs(&failure)),
                event = events.recv() => self.on_job_event(event),
                Some(event) = control_events.recv() => {
                    self.on_control_event(event);
                    None
                }
                Some(grant) = renewed.recv() => self.renew(grant).await,
                _ = ticks.tick() => self.check_deadlines(),
                never = &mut standstill => match never {},
            };
            if let Some(end) = end {
                break end;
            }
        };
        // Missing reports do not come; the operations' memory is released already.
        for operation in self.faults.expire(Instant::now() + DEPARTURE_GRACE) {
            self.operations.settle(operation);
        }
        end
    }

    async fn renew(&self, grant: Grant) -> Option<End> {
        let (job, epoch, resume) = (grant.terms.job, grant.terms.epoch, grant.terms.resume.clone());
        let daemon = self.job.daemon.clone();
        let renewed = blocking(move || daemon.backend.renew_job(&grant)).await;
        match renewed.and_then(|renewed| renewed) {
            Ok(()) => {
                tracing::info!(job = self.job.plan.spec.job, epoch, "a worker was replaced; continuing");
                self.job.daemon.jobs.set_epoch(job, epoch);
                if let Some(point) = self.operations.resume_point(&resume) {
                    self.member.post(Post::ResumePoint { epoch, point });
                }
                None
            }
            Err(failure) => {
                let reason = format!("a worker was replaced, and this one cannot go on: {}", failure.message);
                Some(End::ours(JobError::Ended { reason }))
            }
        }
    }

    fn on_job_event(&mut self, event: Option<JobEvent>) -> Option<End> {
        match event {
            // The diagnosis, which follows soon, also answers the close, and names both operations.
            Some(JobEvent::Close { .. }) if self.mismatched.is_some() => None,
            Some(JobEvent::Close { request }) => Some(End::Closed { request }),
            Some(JobEvent::Cancel { by }) => Some(End::ours(JobError::Cancelled { by })),
            Some(JobEvent::Failed(JobError::Mismatch { lane, seq, .. })) => {
                self.report_operations(Some((lane, seq)));
                None
            }
            Some(JobEvent::Failed(error)) => Some(End::ours(error)),
            Some(JobEvent::Abandon { reason }) => Some(End::died(reason)),
            Some(JobEvent::Post(post)) => {
                self.member.post(post);
                None
            }
            Some(JobEvent::Unattributed(operation)) => {
                if let Some(settled) = self.faults.add(operation) {
                    self.operations.settle(settled);
                }
                None
            }
            Some(JobEvent::Ready | JobEvent::Measured(_)) | None => {
                let reason = "internal error: the data path reports a handshake twice".into();
                Some(End::ours(JobError::Ended { reason }))
            }
        }
    }

    fn on_control_event(&mut self, event: Event) {
        match event {
            Event::Released(name) => self.operations.release(&self.job.daemon.backend, &name),
            // This worker's own operations have failed already.
            Event::Fault { rank, .. } if rank == self.operations.rank => {}
            Event::Fault { rank, fault } => {
                for operation in self.faults.report(rank, fault) {
                    self.operations.settle(operation);
                }
            }
            // For a replacement.
            Event::ResumePoint { .. } => {}
            Event::ReportOperations => self.report_operations(None),
        }
    }

    /// Reports this worker's operations once, after a mismatch. `noticed_at`: the lane and chunk of the mismatch.
    fn report_operations(&mut self, noticed_at: Option<(u16, u32)>) {
        if self.mismatched.is_some() {
            return;
        }
        self.mismatched = Some(Instant::now());
        let noticed = noticed_at.and_then(|(lane, seq)| self.operations.at(lane, seq));
        let noticed = noticed.or_else(|| self.operations.oldest());
        let operations = self.operations.unended(REPORTED_OPERATIONS);
        self.member.post(Post::Operations(OperationReport { operations, noticed_at, noticed }));
    }

    fn check_deadlines(&mut self) -> Option<End> {
        let now = Instant::now();
        for operation in self.faults.expire(now) {
            self.operations.settle(operation);
        }
        self.check_oldest(now);
        self.check_mismatch(now).or_else(|| self.check_departed(now))
    }

    /// Reports the oldest operation when it does not end.
    fn check_oldest(&mut self, now: Instant) {
        let Some(oldest) = self.operations.oldest() else { return self.oldest = None };
        match &mut self.oldest {
            Some((id, since, reported)) if *id == oldest.operation => {
                if !*reported && now.duration_since(*since) >= STALL_TIMEOUT {
                    *reported = true;
                    self.member.post(Post::Stalled(oldest));
                }
            }
            _ => self.oldest = Some((oldest.operation, now, false)),
        }
    }

    /// Ends the job when no diagnosis arrives.
    fn check_mismatch(&self, now: Instant) -> Option<End> {
        if now.duration_since(self.mismatched?) < DIAGNOSIS_TIMEOUT {
            return None;
        }
        let reason =
            "the workers do not do the same, and the control plane does not report what they have".to_owned();
        let failure = explain::mismatch(reason.clone(), self.job.plan.order());
        let error = JobError::Ended { reason: reason.clone() };
        Some(End::Failed { error, failure, outcome: Some(Outcome::Failed(reason)) })
    }

    /// Ends the job when operations wait too long for workers that have left.
    fn check_departed(&mut self, now: Instant) -> Option<End> {
        let departed = match &*self.member.watch().borrow() {
            MemberState::Running { departed } => departed.clone(),
            MemberState::Failed(_) => Vec::new(),
        };
        if departed.is_empty() || self.operations.outstanding() == 0 {
            self.deserted = None;
            return None;
        }
        let since = *self.deserted.get_or_insert(now);
        if now.duration_since(since) < DEPARTURE_GRACE {
            return None;
        }
        let rank = departed.first().copied().unwrap_or_default();
        let reason = format!("has left job {:?} while sums were outstanding here", self.job.plan.spec.job);
        tracing::warn!(?departed, job = self.job.plan.spec.job, "sums wait for workers that have left");
        Some(End::ours(JobError::Worker { rank, reason }))
    }
}

/// Logs when operations are outstanding and no result has come for long.
async fn log_standstill(job: &Job, operations: &JobOperations) -> Infallible {
    let number = operations.terms.job;
    let mut before = None;
    loop {
        sleep(STANDSTILL_LOG_INTERVAL).await;
        let outstanding = operations.outstanding();
        let daemon = job.daemon.clone();
        let results = blocking(move || daemon.backend.results(number)).await.ok().flatten();
        if outstanding > 0 && results.is_some() && results == before {
            tracing::warn!(
                job = job.plan.spec.job,
                outstanding,
                results,
                "no result for {STANDSTILL_LOG_INTERVAL:?}: have all workers submitted the operation? \
                 `sumac-agg status` counts what the aggregator refuses"
            );
        }
        before = results.filter(|_| outstanding > 0);
    }
}
