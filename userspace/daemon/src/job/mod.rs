//! The task of a job on this host, from joining to leaving: the job's membership in its control plane, and
//! its installation in the data path. The core decides what becomes of it.

mod live;
mod local;
mod start;
mod task;

use sumac_api::Failure;
use sumac_control::{Grant, JobFailure, Member, Outcome, SuspendedMember};
use sumac_datapath::monotonic_ns;
use sumac_host::{JobEnd, JobId};
use tokio::sync::mpsc::UnboundedReceiver;

use self::local::wait_for_sums;
use self::start::Channels;
pub(crate) use self::task::{JobContext, JobTask, blocking};
use crate::job_events::{Freeze, HandedOver, TaskEvent};
use crate::spans::JobSpans;

/// Starts the tasks of jobs as they are opened.
pub(crate) async fn spawn(context: JobContext, mut starts: UnboundedReceiver<JobId>) {
    while let Some(id) = starts.recv().await {
        if let Some((job, events)) = JobTask::new(&context, id) {
            tokio::spawn(job.run(events));
        }
    }
}

impl JobTask {
    /// Returns the task of a job that the core has, and its events.
    pub(crate) fn new(context: &JobContext, id: JobId) -> Option<(JobTask, UnboundedReceiver<TaskEvent>)> {
        let found = context.core.call(|_, arena, _| {
            let task = arena.tasks.get_mut(&id)?;
            Some((task.unstarted.take()?, task.plan.clone(), task.wake.clone()))
        });
        let (events, plan, wake) = found?;
        Some((JobTask { context: context.clone(), id, plan, wake }, events))
    }

    async fn run(self, mut events: UnboundedReceiver<TaskEvent>) {
        let Some(endpoint) = self.plan.endpoint.clone() else { return self.run_locally(events).await };
        if self.plan.spec.ranks_per_worker() > 1 {
            match self.gathered(&mut events).await {
                Some(Ok(())) => {}
                Some(Err(failure)) => return self.not_opened(failure),
                None => return,
            }
        }
        let core = &self.context.core;
        let opened = loop {
            tokio::select! {
                opened = self.join(&endpoint) => break opened,
                // Before the handshake its trainer may disconnect, or withdraw it. The membership ends with
                // the future that joins.
                failure = self.interrupted() => return self.given_up(failure),
                // The rank is free while the job stands still; whoever goes on joins anew.
                Some(TaskEvent::Freeze(Freeze { frozen, release })) = events.recv() => {
                    let _ = frozen.send(Ok(None));
                    if let Ok(HandedOver) = release.await {
                        return;
                    }
                }
            }
        };
        // Until the end: the backend stays.
        let (mut member, _in_use) = match opened {
            Ok(joined) => joined,
            Err(failure) => return self.not_opened(failure),
        };
        let mut channels = Channels { events: member.events(), renewed: member.renewed() };
        let (grant, point) = match self.resume_point(&member, &mut channels).await {
            Ok(begins) => begins,
            Err(failure) => return self.abort(member, failure).await,
        };
        let (id, connected) = (self.id, *member.connected().borrow());
        let joined = core.call(|host, _, _| {
            host.set_connected(id, connected);
            host.joined(id, &grant, &point)
        });
        if let Err(failure) = joined {
            return self.abort(member, failure).await;
        }
        let (name, job, epoch) = (&self.plan.spec.job, grant.terms.job, grant.terms.epoch);
        log_limited!(info, job = name, wire_job = job, epoch, "all workers have joined");
        self.trace(&grant);
        if let Err(failure) = self.begin(&member, grant, &mut events).await {
            self.clear(job).await;
            return self.abort(member, self.context.backend.explain(failure)).await;
        }
        if let Err(failure) = core.call(|host, _, out| host.opened(id, out)) {
            self.clear(job).await;
            return self.abort(member, failure).await;
        }
        self.context.opens.count(&Ok::<_, Failure>(()));
        self.live(job, member, events, channels).await;
    }

    /// Has the operations' spans describe the job.
    pub(crate) fn trace(&self, grant: &Grant) {
        let spec = &self.plan.spec;
        let spans = JobSpans::new(&self.context.spans, &spec.job, spec.rank, &grant.terms);
        self.context.core.call(|_, arena, _| {
            if let Some(task) = arena.tasks.get_mut(&self.id) {
                task.spans = Some(spans);
            }
        });
    }

    /// Continues a job that another daemon has handed over.
    pub(crate) async fn resume(self, events: UnboundedReceiver<TaskEvent>, member: SuspendedMember) {
        let job = member.grant().terms.job;
        let _in_use = self.context.backend.in_use().await;
        let Some(endpoint) = self.plan.endpoint.clone() else { return };
        let mut member = Member::resume(endpoint, &self.plan.spec, member);
        let channels = Channels { events: member.events(), renewed: member.renewed() };
        self.live(job, member, events, channels).await;
    }

    async fn live(self, job: u16, member: Member, events: UnboundedReceiver<TaskEvent>, channels: Channels) {
        let Some(endpoint) = &self.plan.endpoint else { return };
        let (end, member) = live::EventLoop::new(&self, endpoint, member).run(events, channels).await;
        match end {
            Some(end) => self.finish(member, job, end).await,
            None => {
                log_limited!(info, job = self.plan.spec.job, wire_job = job, "handed over to another daemon");
            }
        }
    }

    /// Waits until there is a reason to give a job up that starts.
    async fn interrupted(&self) -> Failure {
        loop {
            if let Some(failure) = self.context.core.call(|host, _, _| host.interruption(self.id)) {
                return failure;
            }
            self.wake.notified().await;
        }
    }

    fn failure(&self, failure: &JobFailure) -> Failure {
        sumac_host::explain::job_failure(failure, self.plan.order())
    }

    async fn abort(&self, member: Member, failure: Failure) {
        leave(member, Outcome::Failed(format!("its start failed: {}", failure.message))).await;
        self.not_opened(failure);
    }

    fn not_opened(&self, failure: Failure) {
        let spec = &self.plan.spec;
        self.context.opens.count(&Err::<(), _>(failure.clone()));
        log_limited!(warn, job = spec.job, rank = spec.rank, %failure, "cannot open a job");
        self.given_up(failure);
    }

    /// Answers the `open`, if its trainer is still there, and removes the job.
    fn given_up(&self, failure: Failure) {
        self.context.core.call(|host, arena, out| host.not_opened(self.id, failure, arena, out));
        self.context.core.remove_job(self.id);
    }

    async fn finish(&self, member: Member, job: u16, end: JobEnd) {
        let (core, name, id) = (&self.context.core, &self.plan.spec.job, self.id);
        let finish = || {
            core.call(|host, arena, out| host.finish(monotonic_ns(), id, &end, arena, out));
        };
        match &end {
            JobEnd::Closed { request } => {
                let outcome = core.call(|host, _, _| host.outcome_of_ranks(id));
                self.clear(job).await;
                self.wait_for_ranks().await;
                finish();
                leave(member, outcome).await;
                log_limited!(info, job = name, wire_job = job, "closed");
                core.call(|host, arena, out| host.closed(id, *request, arena, out));
            }
            JobEnd::Failed { error, failure, outcome } => {
                let by = if outcome.is_some() { "by this host" } else { "for all workers" };
                log_limited!(warn, job = name, wire_job = job, %failure, "ended {by}");
                self.context.backend.datapath().fail_job(id, error);
                self.clear(job).await;
                self.wait_for_ranks().await;
                if let Some(outcome) = outcome {
                    leave(member, outcome.clone()).await;
                }
                finish();
            }
        }
        core.remove_job(id);
    }

    /// Waits for copies between the host's ranks, which the data path has no part in.
    async fn wait_for_ranks(&self) {
        if self.plan.spec.ranks_per_worker() > 1 {
            wait_for_sums(&self.context.core, self.id).await;
        }
    }

    /// Removes the job from the data path, which reports its last completions before this returns.
    async fn clear(&self, number: u16) {
        let (backend, id) = (self.context.backend.clone(), self.id);
        let cleared = blocking(move || backend.remove_job(id)).await;
        if let Err(failure) = cleared {
            tracing::error!(%failure, wire_job = number, "cannot take a job off the data path");
        }
    }
}

async fn leave(member: Member, outcome: Outcome) {
    if let Err(error) = member.leave(outcome).await {
        // The coordinator detects it by the missing heartbeats.
        log_limited!(warn, %error, "cannot leave the job at its coordinator");
    }
}
