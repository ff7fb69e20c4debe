//! The event loop of an open job: events of its control plane and ticks go to the core, posts go to the
//! control plane, until the core ends the job.

use std::time::Duration;

use sumac_control::{Endpoint, Grant, Member, MemberState, SuspendedMember, wake_times};
use sumac_datapath::monotonic_ns;
use sumac_host::{JobEnd, Observed, Tick};
use tokio::sync::mpsc::UnboundedReceiver;

use super::start::Channels;
use super::task::{JobTask, blocking};
use crate::job_events::{Freeze, HandedOver, TaskEvent};

/// The interval of looks at a job.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The same while the job is idle. A host may have a thousand such jobs.
pub(super) const IDLE_INTERVAL: Duration = Duration::from_millis(500);

pub(super) struct EventLoop<'a> {
    task: &'a JobTask,
    endpoint: &'a Endpoint,
    member: Member,
    /// The membership while the job stands still.
    suspended: Option<SuspendedMember>,
}

impl<'a> EventLoop<'a> {
    pub(super) fn new(task: &'a JobTask, endpoint: &'a Endpoint, member: Member) -> EventLoop<'a> {
        EventLoop { task, endpoint, member, suspended: None }
    }

    /// Returns the end, and the membership. `None`: the job goes on in another daemon.
    pub(super) async fn run(
        mut self,
        mut events: UnboundedReceiver<TaskEvent>,
        mut channels: Channels,
    ) -> (Option<JobEnd>, Member) {
        let (core, id) = (self.task.context.core.clone(), self.task.id);
        let mut failed = Box::pin(self.member.failed());
        let (mut has_failed, mut ended) = (false, None);
        let mut ticks = wake_times::ticks(CHECK_INTERVAL);
        loop {
            tokio::select! {
                biased;
                failure = &mut failed, if !has_failed => {
                    has_failed = true;
                    core.call(|host, _, out| host.membership_failed(id, &failure, out));
                }
                () = self.task.wake.notified() => {}
                Some(event) = events.recv() => match event {
                    TaskEvent::Freeze(freeze) => {
                        if self.freeze(freeze, &mut channels).await {
                            return (None, self.member);
                        }
                        failed = Box::pin(self.member.failed());
                    }
                    TaskEvent::Ready | TaskEvent::Measured(_) => core.call(|host, _, out| {
                        let reason = "internal error: the data path reports a handshake twice".into();
                        host.fail_job(id, reason, out);
                    }),
                },
                Some(event) = channels.events.recv() => self.on_control_event(event),
                Some(grant) = channels.renewed.recv() => self.renew(grant).await,
                _ = ticks.tick() => if self.tick().await {
                    ticks.reset_at(wake_times::next(IDLE_INTERVAL));
                },
            }
            self.post();
            ended = ended.or_else(|| core.call(|host, _, out| host.take_end(id, out)));
            if ended.as_ref().is_some_and(|end| self.is_over(end)) {
                return (ended, self.member);
            }
        }
    }

    /// Whether nothing on this host needs the job any more. A rank that closes it is answered; the host's
    /// other ranks may go on.
    fn is_over(&self, end: &JobEnd) -> bool {
        let JobEnd::Closed { request } = end else { return true };
        let id = self.task.id;
        self.task.context.core.call(|host, arena, out| {
            let has_others = host.has_other_ranks(id) && !host.is_over(id);
            if has_others && !host.is_summing(id) {
                host.close_rank(id, *request, arena, out);
            }
            !has_others
        })
    }

    fn on_control_event(&self, event: sumac_control::events::Event) {
        let id = self.task.id;
        self.task
            .context
            .core
            .call(|host, arena, out| host.control_event(monotonic_ns(), id, event, arena, out));
    }

    /// Passes the core's reports to the control plane.
    fn post(&mut self) {
        let id = self.task.id;
        for post in self.task.context.core.call(|host, _, _| host.take_posts(id)) {
            match &mut self.suspended {
                Some(suspended) => suspended.post(post),
                None => self.member.post(post),
            }
        }
    }

    /// Stands still until the job is handed over, or goes on here. Returns whether it was handed over.
    async fn freeze(&mut self, Freeze { frozen, release }: Freeze, channels: &mut Channels) -> bool {
        let Some(suspended) = self.member.suspend().await else {
            let _ = frozen.send(Err("it has ended".into()));
            return false;
        };
        self.suspended = Some(suspended);
        // All that has come is processed here.
        while let Ok(event) = channels.events.try_recv() {
            self.on_control_event(event);
        }
        while let Ok(grant) = channels.renewed.try_recv() {
            self.renew(grant).await;
        }
        self.post();
        let Some(suspended) = self.suspended.take() else { return false };
        let _ = frozen.send(Ok(Some(suspended.clone())));
        if let Ok(HandedOver) = release.await {
            return true;
        }
        let plan = &self.task.plan;
        self.member = Member::resume(self.endpoint.clone(), &plan.spec, suspended);
        *channels = Channels { events: self.member.events(), renewed: self.member.renewed() };
        false
    }

    async fn renew(&mut self, grant: Grant) {
        let (epoch, resume) = (grant.terms.epoch, grant.terms.resume.clone());
        let (backend, id) = (self.task.context.backend.clone(), self.task.id);
        let renewed = blocking(move || backend.renew_job(id, &grant)).await;
        let core = &self.task.context.core;
        match renewed.and_then(|renewed| renewed) {
            Ok(()) => {
                log_limited!(info, job = self.task.plan.spec.job, epoch, "a worker was replaced; continuing");
                core.call(|host, _, out| host.renewed(id, epoch, &resume, out));
            }
            Err(failure) => {
                let reason = format!("a worker was replaced, and this one cannot go on: {}", failure.message);
                core.call(|host, _, out| host.fail_job(id, reason, out));
            }
        }
    }

    /// Returns whether the job is idle.
    async fn tick(&self) -> bool {
        let (context, id) = (&self.task.context, self.task.id);
        let is_connected = *self.member.connected().borrow();
        let departed = match &*self.member.watch().borrow() {
            MemberState::Running { departed } => departed.clone(),
            MemberState::Failed(_) => Vec::new(),
        };
        let Tick { wants_results, wants_unposted, is_idle } = context
            .core
            .call(|host, arena, out| host.tick(monotonic_ns(), id, is_connected, &departed, arena, out));
        let mut observed = Vec::new();
        if wants_results {
            let backend = context.backend.clone();
            observed.push(blocking(move || Observed::Results(backend.results(id))).await);
        }
        if wants_unposted {
            let backend = context.backend.clone();
            let unposted = move || Observed::Unposted(backend.unposted(id).unwrap_or_default());
            observed.push(blocking(unposted).await);
        }
        for observed in observed.into_iter().flatten() {
            context.core.call(|host, _, out| host.observe(monotonic_ns(), id, observed, out));
        }
        is_idle
    }
}
