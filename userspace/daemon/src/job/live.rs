//! A job while it is open: the messages of its clients, the data path and the control plane, until one of them ends it.

use std::convert::Infallible;
use std::time::Duration;

use sumac_control::events::{Announcement, Event, Fault, OperationReport, Post, REPORTED_OPERATIONS};
use sumac_control::{Grant, Member, MemberState, Outcome};
use sumac_job::{OperationId, ResumePoint};
use sumac_transport::JobError;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::channels::Channels;
use super::faults::PendingFaults;
use super::{End, Job, blocking};
use crate::explain;
use crate::line::Order;
use crate::stream::{Announced, Stream};

/// How often a job looks at its deadlines.
const LOOK: Duration = Duration::from_millis(100);
/// How long results may still be on their way when a worker has left: it had all of them when it did.
const DEPARTURE_GRACE: Duration = Duration::from_secs(3);
/// How long the oldest operation may last before it is reported. The coordinator only compares it with those of the
/// others, so that one that is merely long does no harm.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the coordinator's diagnosis of a mismatch is waited for.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(4);
/// How long sums may stand still before the log says so. No error: another worker may still be computing.
const STANDSTILL_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct EventLoop<'a> {
    job: &'a Job,
    stream: &'a Stream,
    member: &'a Member,
    faults: PendingFaults,
    /// Since when the workers' operations are known to differ.
    mismatched: Option<Instant>,
    /// Since when operations wait for workers that have left.
    deserted: Option<Instant>,
    /// The oldest operation, since when it is, and whether it was reported.
    oldest: Option<(u32, Instant, bool)>,
}

impl<'a> EventLoop<'a> {
    pub(super) fn new(job: &'a Job, stream: &'a Stream, member: &'a Member) -> EventLoop<'a> {
        let faults = PendingFaults::default();
        EventLoop { job, stream, member, faults, mismatched: None, deserted: None, oldest: None }
    }

    /// Waits for the end of the job.
    pub(super) async fn run(mut self, mut orders: UnboundedReceiver<Order>, channels: Channels) -> End {
        let Channels { mut events, mut renewed } = channels;
        let mut failed = std::pin::pin!(self.member.failed());
        let mut standstill = std::pin::pin!(log_standstill(self.job, self.stream));
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = loop {
            let end = tokio::select! {
                biased;
                failure = &mut failed => Some(self.job.theirs(&failure)),
                order = orders.recv() => self.obey(order),
                Some(event) = events.recv() => {
                    self.on_event(event);
                    None
                }
                Some(grant) = renewed.recv() => self.renew(grant).await,
                _ = look.tick() => self.look(),
                never = &mut standstill => match never {},
            };
            if let Some(end) = end {
                break end;
            }
        };
        // A report that is not here yet does not come; the memory was given back long ago.
        for doubt in self.faults.expire(Instant::now() + DEPARTURE_GRACE) {
            self.stream.settle(doubt);
        }
        end
    }

    /// Goes on with a newcomer in a dead worker's rank.
    async fn renew(&self, grant: Grant) -> Option<End> {
        let (job, epoch, resume) = (grant.terms.job, grant.terms.epoch, grant.terms.resume.clone());
        let hub = self.job.hub.clone();
        let renewed = blocking(move || hub.carrier.renew_job(&grant)).await;
        match renewed.and_then(|renewed| renewed) {
            Ok(()) => {
                tracing::info!(job = self.job.plan.spec.job, epoch, "a worker was replaced; going on");
                self.job.hub.routes.renew(job, epoch);
                if let Some(stand) = self.stream.stand(&resume) {
                    let operation = OperationId(stand.number);
                    let point = ResumePoint { operation, next: stand.next, loads: stand.loads };
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

    fn obey(&mut self, order: Option<Order>) -> Option<End> {
        match order {
            // The diagnosis, which comes soon, answers the close as well, and names both sides to the clients.
            Some(Order::Close { .. }) if self.mismatched.is_some() => None,
            Some(Order::Close { request }) => Some(End::Closed { request }),
            Some(Order::Cancel { by }) => Some(End::ours(JobError::Cancelled { by })),
            Some(Order::Broken(JobError::Mismatch { lane, seq, .. })) => {
                self.report_operations(Some((lane, seq)));
                None
            }
            Some(Order::Broken(error)) => Some(End::ours(error)),
            Some(Order::Abandon { reason }) => Some(End::died(reason)),
            Some(Order::Announce(announced)) => {
                let Announced { name, signature, words, priority } = announced;
                self.member.post(Post::Announce(Announcement {
                    name,
                    signature,
                    description: words,
                    priority,
                }));
                None
            }
            Some(Order::Blame { number, failure }) => {
                let problem = explain::shortened(failure.message.to_string(), explain::MESSAGE_LEN);
                let operation = OperationId(number);
                self.member.post(Post::Fault(Fault { operation, index: failure.index, problem }));
                None
            }
            Some(Order::Doubt(doubt)) => {
                if let Some(settled) = self.faults.add(doubt) {
                    self.stream.settle(settled);
                }
                None
            }
            Some(Order::Ready | Order::Measured(_)) | None => {
                let reason = "internal error: the data path reports a handshake twice".into();
                Some(End::ours(JobError::Ended { reason }))
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Released(name) => self.stream.release(&self.job.hub.carrier, &name),
            // This worker's own operations have failed already.
            Event::Fault { rank, .. } if rank == self.stream.shape().rank => {}
            Event::Fault { rank, fault } => {
                for doubt in self.faults.report(rank, fault) {
                    self.stream.settle(doubt);
                }
            }
            // For a newcomer.
            Event::ResumePoint { .. } => {}
            Event::ReportOperations => self.report_operations(None),
        }
    }

    /// Reports this worker's operations, since the workers' operations differ; once. `noticed_at`: where the data path
    /// noticed it.
    fn report_operations(&mut self, noticed_at: Option<(u16, u32)>) {
        if self.mismatched.is_some() {
            return;
        }
        self.mismatched = Some(Instant::now());
        let noticed = noticed_at.and_then(|(lane, seq)| self.stream.at(lane, seq));
        let noticed = noticed.or_else(|| self.stream.oldest()).map(Into::into);
        let operations = self.stream.unended(REPORTED_OPERATIONS).into_iter().map(Into::into).collect();
        self.member.post(Post::Operations(OperationReport { operations, noticed_at, noticed }));
    }

    /// Does what is due.
    fn look(&mut self) -> Option<End> {
        let now = Instant::now();
        for doubt in self.faults.expire(now) {
            self.stream.settle(doubt);
        }
        self.look_at_oldest(now);
        self.look_at_mismatch(now).or_else(|| self.look_at_departed(now))
    }

    /// Reports the oldest operation when it does not come to an end.
    fn look_at_oldest(&mut self, now: Instant) {
        let Some(claim) = self.stream.oldest() else { return self.oldest = None };
        match &mut self.oldest {
            Some((number, since, reported)) if *number == claim.number => {
                if !*reported && now.duration_since(*since) >= STALL_TIMEOUT {
                    *reported = true;
                    self.member.post(Post::Stalled(claim.into()));
                }
            }
            _ => self.oldest = Some((claim.number, now, false)),
        }
    }

    /// Ends the job by itself when no diagnosis comes.
    fn look_at_mismatch(&self, now: Instant) -> Option<End> {
        if now.duration_since(self.mismatched?) < DIAGNOSIS_TIMEOUT {
            return None;
        }
        let reason =
            "the workers do not do the same, and the control plane does not report what they have".to_owned();
        let failure = explain::mismatch(reason.clone(), self.job.plan.order());
        Some(End::Ours {
            error: JobError::Ended { reason: reason.clone() },
            outcome: Outcome::Failed(reason),
            failure,
        })
    }

    /// Ends the job when operations have waited for too long for workers that have left.
    fn look_at_departed(&mut self, now: Instant) -> Option<End> {
        let departed = match &*self.member.watch().borrow() {
            MemberState::Running { departed } => departed.clone(),
            MemberState::Failed(_) => Vec::new(),
        };
        if departed.is_empty() || self.stream.outstanding() == 0 {
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
async fn log_standstill(job: &Job, stream: &Stream) -> Infallible {
    let number = stream.shape().wire_job;
    let mut before = None;
    loop {
        sleep(STANDSTILL_LOG_INTERVAL).await;
        let outstanding = stream.outstanding();
        let hub = job.hub.clone();
        let results = blocking(move || hub.carrier.results(number)).await.ok().flatten();
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
