//! The event loop of an open job: events of its clients, the data path and the control plane, until one of them ends it.

use std::time::Duration;

use sumac_control::events::{Event, Post};
use sumac_control::{Grant, Member, MemberState, Outcome, SuspendedMember};
use sumac_job::OperationId;
use sumac_transport::JobError;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::faults::PendingFaults;
use super::start::Channels;
use super::{End, Freeze, FrozenJob, HandedOver, Job, JobEvent, blocking};
use crate::explain;
use crate::operations::{JobOperations, UnpostedTransfers};

const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The time for results on their way when a worker has left, which had received all of them.
const DEPARTURE_GRACE: Duration = Duration::from_secs(3);
/// The duration after which the oldest operation is reported. The coordinator only compares it with the other workers'.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// The time to wait for the coordinator's diagnosis of a mismatch, while it is connected.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(4);
/// The time to wait for the reason for which the control plane has removed the job, while it is connected.
const REASON_TIMEOUT: Duration = Duration::from_secs(3);
/// The time to wait for a diagnosis in all. A static job's membership fails before, if the connection is not made anew.
const UNDIAGNOSED_TIMEOUT: Duration = Duration::from_secs(15);
/// The interval between two looks at the number of results, and the time without one after which it is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time without a result and without a word of the coordinator after which trainers are told.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(8);

/// The age from which a transfer is reported whose other end is not posted.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) struct EventLoop<'a> {
    job: &'a Job,
    operations: &'a JobOperations,
    member: Member,
    /// The membership while the job stands still.
    suspended: Option<SuspendedMember>,
    faults: PendingFaults,
    undiagnosed: Option<Undiagnosed>,
    /// The time since which operations wait for workers that have left.
    deserted: Option<Instant>,
    /// The oldest operation, the time since which it is the oldest, and whether it was reported.
    oldest: Option<(OperationId, Instant, bool)>,
    progress: Progress,
    transfers: TransferWatch,
    /// The workers that the data path knows to have left.
    departed: Vec<u16>,
}

/// The end of a failed job, unless the coordinator's diagnosis, which says more, comes in time.
struct Undiagnosed {
    end: End,
    /// The time that the coordinator has, from now or from when it is connected again.
    timeout: Duration,
    by: Instant,
    /// The time by which the job ends, connected or not.
    latest: Instant,
}

impl Undiagnosed {
    fn new(end: End, timeout: Duration) -> Undiagnosed {
        let now = Instant::now();
        Undiagnosed { end, timeout, by: now + timeout, latest: now + UNDIAGNOSED_TIMEOUT }
    }

    fn is_due(&mut self, now: Instant, is_connected: bool) -> bool {
        if !is_connected {
            self.by = now + self.timeout;
        }
        now >= self.by.min(self.latest)
    }
}

/// The transfers that wait for their other end, of a direct job.
#[derive(Debug, Default)]
struct TransferWatch {
    looked: Option<Instant>,
    /// The transfers that trainers were told of.
    told: Vec<u64>,
}

/// The results of the job, while its oldest operation does not end.
#[derive(Debug)]
struct Progress {
    results: Option<u64>,
    /// The time of the last new result, and of the last look.
    since: Instant,
    looked: Instant,
    /// The operation that was reported to be without a result.
    idle: Option<OperationId>,
    /// Whether the trainers know what it waits for.
    is_told: bool,
}

impl<'a> EventLoop<'a> {
    pub(super) fn new(job: &'a Job, operations: &'a JobOperations, member: Member) -> EventLoop<'a> {
        let faults = PendingFaults::default();
        let now = Instant::now();
        let progress = Progress { results: None, since: now, looked: now, idle: None, is_told: false };
        EventLoop {
            job,
            operations,
            member,
            suspended: None,
            faults,
            undiagnosed: None,
            deserted: None,
            oldest: None,
            progress,
            transfers: TransferWatch::default(),
            departed: Vec::new(),
        }
    }

    /// Returns the end, and the membership.
    pub(super) async fn run(
        mut self,
        mut events: UnboundedReceiver<JobEvent>,
        mut channels: Channels,
    ) -> (End, Member) {
        let mut failed = Box::pin(self.member.failed());
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = loop {
            let end = tokio::select! {
                biased;
                failure = &mut failed => {
                    let (error, failure) = (explain::engine_error(&failure), self.job.failure(&failure));
                    Some(End::Failed { error, failure, outcome: None })
                }
                event = events.recv() => match event {
                    Some(JobEvent::Freeze(freeze)) => {
                        let end = self.freeze(freeze, &mut events, &mut channels).await;
                        failed = Box::pin(self.member.failed());
                        end
                    }
                    event => self.on_job_event(event),
                },
                Some(event) = channels.events.recv() => {
                    self.on_control_event(event);
                    None
                }
                Some(grant) = channels.renewed.recv() => self.renew(grant).await,
                _ = ticks.tick() => {
                    self.check_progress().await;
                    self.check_transfers().await;
                    self.check_deadlines()
                }
            };
            if let Some(end) = end {
                break end;
            }
        };
        // Missing reports do not come; the operations' memory is released already.
        for operation in self.faults.expire(Instant::now() + DEPARTURE_GRACE) {
            self.operations.settle(operation);
        }
        (end, self.member)
    }

    /// Stands still until the job is handed over, or goes on here.
    async fn freeze(
        &mut self,
        Freeze { frozen, release }: Freeze,
        events: &mut UnboundedReceiver<JobEvent>,
        channels: &mut Channels,
    ) -> Option<End> {
        if self.undiagnosed.is_some() || !self.faults.is_settled() {
            let _ = frozen.send(Err("it is about to report an error".into()));
            return None;
        }
        let Some(suspended) = self.member.suspend().await else {
            let _ = frozen.send(Err("it has ended".into()));
            return None;
        };
        self.suspended = Some(suspended);
        let end = self.drain(events, channels).await;
        let Some(suspended) = self.suspended.take() else { return end };
        if end.is_none() && self.undiagnosed.is_none() && self.faults.is_settled() {
            let Job { open, client, .. } = self.job;
            let opener = (client.connection, client.handle);
            let _ = frozen.send(Ok(FrozenJob { open: open.clone(), opener, member: suspended.clone() }));
            if let Ok(HandedOver) = release.await {
                return Some(End::HandedOver);
            }
        } else {
            let _ = frozen.send(Err("it is ending".into()));
        }
        let plan = &self.job.plan;
        self.member = Member::resume(plan.endpoint.clone(), &plan.spec, suspended);
        *channels = Channels { events: self.member.events(), renewed: self.member.renewed() };
        let connected = self.member.connected();
        self.job.daemon.jobs.with(self.operations.terms.job, |job| job.is_connected = connected);
        end
    }

    /// Processes all events that have come.
    async fn drain(
        &mut self,
        events: &mut UnboundedReceiver<JobEvent>,
        channels: &mut Channels,
    ) -> Option<End> {
        while let Ok(event) = channels.events.try_recv() {
            self.on_control_event(event);
        }
        while let Ok(grant) = channels.renewed.try_recv() {
            if let end @ Some(_) = self.renew(grant).await {
                return end;
            }
        }
        while let Ok(event) = events.try_recv() {
            if let end @ Some(_) = self.on_job_event(Some(event)) {
                return end;
            }
        }
        None
    }

    fn post(&mut self, post: Post) {
        match &mut self.suspended {
            Some(suspended) => suspended.post(post),
            None => self.member.post(post),
        }
    }

    async fn renew(&mut self, grant: Grant) -> Option<End> {
        let (job, epoch, resume) = (grant.terms.job, grant.terms.epoch, grant.terms.resume.clone());
        let daemon = self.job.daemon.clone();
        let renewed = blocking(move || daemon.backend.renew_job(&grant)).await;
        match renewed.and_then(|renewed| renewed) {
            Ok(()) => {
                log_limited!(info, job = self.job.plan.spec.job, epoch, "a worker was replaced; continuing");
                self.job.daemon.jobs.with(job, |job| job.reply.epoch = epoch);
                if let Some(point) = self.operations.resume_point(&resume) {
                    self.post(Post::ResumePoint { epoch, point });
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
        let error = match event {
            // The diagnosis, which follows soon, also answers the close.
            Some(JobEvent::Close { .. }) if self.undiagnosed.is_some() => return None,
            Some(JobEvent::Close { request }) => return Some(End::Closed { request }),
            Some(JobEvent::Abandon { reason }) => return Some(End::died(reason)),
            Some(JobEvent::Failed(JobError::Mismatch { lane, seq, .. })) => {
                self.report_operations(Some((lane, seq)));
                return None;
            }
            // The control plane has removed it, and knows why; where a new one has never known it, nobody does.
            Some(JobEvent::Failed(error @ JobError::UnknownJob { .. })) => {
                self.undiagnosed.get_or_insert_with(|| Undiagnosed::new(End::ours(error), REASON_TIMEOUT));
                return None;
            }
            Some(JobEvent::Post(post)) => {
                self.post(post);
                return None;
            }
            Some(JobEvent::Unattributed(operation)) => {
                self.faults.add(*operation).into_iter().for_each(|settled| self.operations.settle(settled));
                return None;
            }
            // One daemon takes over at a time. The other request's sender is dropped, which refuses it.
            Some(JobEvent::Freeze(_)) => return None,
            Some(JobEvent::Cancel { by }) => JobError::Cancelled { by },
            Some(JobEvent::Failed(error)) => error,
            Some(JobEvent::Ready | JobEvent::Measured(_)) | None => {
                JobError::Ended { reason: "internal error: the data path reports a handshake twice".into() }
            }
        };
        Some(End::ours(error))
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
            Event::Waiting { message, ranks } => self.tell_waiting(&message, &ranks),
        }
    }

    /// Reports this worker's operations once, after a mismatch. `noticed_at`: the lane and chunk of the mismatch.
    fn report_operations(&mut self, noticed_at: Option<(u16, u32)>) {
        if self.undiagnosed.is_some() {
            return;
        }
        let reason =
            "the workers do not do the same, and the control plane does not report what they have".to_owned();
        let failure = explain::mismatch(reason.clone(), self.job.plan.order());
        let error = JobError::Ended { reason: reason.clone() };
        let end = End::Failed { error, failure, outcome: Some(Outcome::Failed(reason)) };
        self.undiagnosed = Some(Undiagnosed::new(end, DIAGNOSIS_TIMEOUT));
        self.post(Post::Operations(self.operations.report(noticed_at)));
    }

    fn check_deadlines(&mut self) -> Option<End> {
        let now = Instant::now();
        for operation in self.faults.expire(now) {
            self.operations.settle(operation);
        }
        self.check_oldest(now);
        let is_connected = *self.member.connected().borrow();
        let undiagnosed = self.undiagnosed.take_if(|undiagnosed| undiagnosed.is_due(now, is_connected));
        undiagnosed.map(|undiagnosed| undiagnosed.end).or_else(|| self.check_departed(now))
    }

    fn check_oldest(&mut self, now: Instant) {
        let Some(oldest) = self.operations.oldest() else { return self.oldest = None };
        match &mut self.oldest {
            Some((id, since, reported)) if *id == oldest.operation => {
                if !*reported && now.duration_since(*since) >= STALL_TIMEOUT {
                    *reported = true;
                    self.post(Post::Stalled(oldest));
                }
            }
            _ => self.oldest = Some((oldest.operation, now, false)),
        }
    }

    /// Reports an operation without results, and the return of results.
    async fn check_progress(&mut self) {
        let now = Instant::now();
        if !self.is_oldest_stalled(now) {
            return self.on_progress(now, self.progress.results);
        }
        if now.duration_since(self.progress.looked) < PROGRESS_INTERVAL {
            return;
        }
        let Some(oldest) = self.operations.oldest() else {
            return self.on_progress(now, self.progress.results);
        };
        self.progress.looked = now;
        let (daemon, number) = (self.job.daemon.clone(), self.operations.terms.job);
        let results = blocking(move || daemon.backend.results(number)).await.ok().flatten();
        if results != self.progress.results {
            return self.on_progress(now, results);
        }
        let idle = now.duration_since(self.progress.since);
        if idle >= IDLE_TIMEOUT && self.progress.idle != Some(oldest.operation) {
            self.progress.idle = Some(oldest.operation);
            self.post(Post::Idle(Some(oldest.clone())));
        }
        if idle >= SILENCE_TIMEOUT && !self.progress.is_told {
            let message = format!(
                "{} has had no result for {SILENCE_TIMEOUT:?}, and the control plane does not say for which worker it waits",
                oldest.text
            );
            self.tell_waiting(&message, &[]);
        }
    }

    /// Notifies the trainers of transfers whose other end is not posted. Only two workers know of a transfer, so it is not
    /// reported to the control plane.
    async fn check_transfers(&mut self) {
        let is_old = |since: std::time::Instant| since.elapsed() >= TRANSFER_TIMEOUT;
        if !self.operations.oldest_transfer().is_some_and(is_old) {
            return self.transfers.told.clear();
        }
        let now = Instant::now();
        if self.transfers.looked.is_some_and(|looked| now.duration_since(looked) < PROGRESS_INTERVAL) {
            return;
        }
        self.transfers.looked = Some(now);
        let (daemon, number) = (self.job.daemon.clone(), self.operations.terms.job);
        let keys = blocking(move || daemon.backend.unposted(number)).await.ok().flatten().unwrap_or_default();
        let Some(unposted) = self.operations.unposted(&keys, TRANSFER_TIMEOUT) else {
            return self.transfers.told.clear();
        };
        let UnpostedTransfers { keys, ranks, message } = unposted;
        let is_new = keys.iter().any(|key| !self.transfers.told.contains(key));
        self.transfers.told = keys;
        if is_new {
            log_limited!(warn, job = self.job.plan.spec.job, ?ranks, "{message}");
            self.operations.waits(&message, &ranks);
        }
    }

    fn is_oldest_stalled(&self, now: Instant) -> bool {
        self.oldest.is_some_and(|(_, since, _)| now.duration_since(since) >= STALL_TIMEOUT)
    }

    fn on_progress(&mut self, now: Instant, results: Option<u64>) {
        if self.progress.idle.is_some() {
            self.post(Post::Idle(None));
        }
        self.progress = Progress { results, since: now, looked: now, idle: None, is_told: false };
    }

    fn tell_waiting(&mut self, message: &str, ranks: &[u16]) {
        self.progress.is_told = true;
        log_limited!(warn, job = self.job.plan.spec.job, ?ranks, "{message}");
        self.operations.waits(message, ranks);
    }

    fn check_departed(&mut self, now: Instant) -> Option<End> {
        let departed = match &*self.member.watch().borrow() {
            MemberState::Running { departed } => departed.clone(),
            MemberState::Failed(_) => Vec::new(),
        };
        for rank in departed.iter().filter(|rank| !self.departed.contains(rank)) {
            self.job.daemon.backend.peer_left(self.operations.terms.job, *rank);
        }
        self.departed.clone_from(&departed);
        let Some(rank) = self.operations.awaited(&departed) else {
            self.deserted = None;
            return None;
        };
        let since = *self.deserted.get_or_insert(now);
        if now.duration_since(since) < DEPARTURE_GRACE {
            return None;
        }
        let reason = format!("has left job {:?} while sums were outstanding here", self.job.plan.spec.job);
        log_limited!(warn, ?departed, job = self.job.plan.spec.job, "sums wait for workers that have left");
        Some(End::ours(JobError::Worker { rank, reason }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coordinator_has_its_time_from_when_it_is_connected() {
        let mut undiagnosed = Undiagnosed::new(End::died("unknown job".into()), REASON_TIMEOUT);
        let start = undiagnosed.by - REASON_TIMEOUT;
        let mut is_due = |after_ms, is_connected| {
            undiagnosed.is_due(start + Duration::from_millis(after_ms), is_connected)
        };
        assert!(!is_due(2_900, true));
        assert!(!is_due(9_000, false));
        assert!(!is_due(11_900, true), "connected again");
        assert!(is_due(12_000, true));
        assert!(!is_due(14_900, false));
        assert!(is_due(15_100, false), "it does not come back");
    }
}
