//! The task of a job on this host, from joining to leaving.
//!
//! It handles the events of the clients, the data path and the control plane in order: all workers join, results are
//! admitted, the path is probed and measured, and the trainer's `open` is answered. At the end the operations fail, their
//! memory is released, and the clients are notified.

mod faults;
mod handover;
mod live;
mod plan;
mod start;

use std::sync::Arc;

use sumac_api::{Code, DynamicReply, Failure, Open, OpenReply, Scale};
use sumac_control::events::Post;
use sumac_control::{Grant, JobFailure, Member, Outcome};
use sumac_job::ResumePoint;
use sumac_transport::{JobError, PathMeasure};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::daemon::DaemonState;
use crate::explain;
use crate::jobs::ActiveJob;
use crate::operations::{Client, ClientId, JobOperations, UnattributedFault};
use crate::quotas::{Reservation, job_bytes};
use crate::session::{Notification, OpenedJob};
use crate::spans::JobSpans;

pub(crate) use self::handover::{Freeze, FrozenJob, HandedOver, JobState, ResumedJob};
pub(crate) use self::plan::Plan;
use self::start::Channels;

/// An event of a job, from its clients, its operations or the data path.
#[derive(Debug)]
pub(crate) enum JobEvent {
    Measured(PathMeasure),
    Ready,
    Failed(JobError),
    Close {
        request: u64,
    },
    Cancel {
        by: String,
    },
    /// The client that opened the job has disconnected, or one with outstanding operations.
    Abandon {
        reason: String,
    },
    /// A report of the operations to the control plane.
    Post(Post),
    /// A value of another worker could not be sent.
    Unattributed(Box<UnattributedFault>),
    /// Another daemon is about to take the job over.
    Freeze(Freeze),
}

/// The handle of a job at the session that opened it. The job ends with it.
#[derive(Debug)]
pub(crate) struct JobHandle(pub(crate) UnboundedSender<JobEvent>);

impl JobHandle {
    pub(crate) fn close(&self, request: u64) {
        self.send(JobEvent::Close { request });
    }

    /// Ends the job on all workers, because the client that opened it has disconnected.
    pub(crate) fn abandon(&self, reason: String) {
        self.send(JobEvent::Abandon { reason });
    }

    fn send(&self, event: JobEvent) {
        // Fails when the job has ended, of which the session is notified.
        let _ = self.0.send(event);
    }
}

impl Drop for JobHandle {
    fn drop(&mut self) {
        // A job does not outlive its session, whatever ends it. A job that has ended ignores this.
        self.abandon("its trainer's session ended".into());
    }
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) daemon: Arc<DaemonState>,
    /// The client's request.
    pub(crate) open: Open,
    pub(crate) plan: Plan,
    pub(crate) client: Client,
    pub(crate) request: u64,
    pub(crate) events: UnboundedSender<JobEvent>,
    /// One of the jobs in its user's share: the task may outlast the session.
    pub(crate) _reserved: Arc<Reservation>,
}

enum End {
    Closed {
        request: u64,
    },
    /// The errors for the engine and the trainers, and the report to the control plane unless that has ended the job.
    Failed {
        error: JobError,
        failure: Failure,
        outcome: Option<Outcome>,
    },
    /// It goes on in another daemon.
    HandedOver,
}

impl End {
    fn ours(error: JobError) -> End {
        let (outcome, failure) = (Outcome::Failed(explain::spoken(&error)), explain::job_error(&error));
        End::Failed { error, failure, outcome: Some(outcome) }
    }

    /// Returns the end of a job whose trainer has died. In a dynamic job another worker may replace this one.
    fn died(reason: String) -> End {
        let error = JobError::Ended { reason: reason.clone() };
        End::Failed { failure: explain::job_error(&error), error, outcome: Some(Outcome::Died(reason)) }
    }
}

impl Job {
    pub(crate) async fn run(self, mut events: UnboundedReceiver<JobEvent>) {
        let opened = tokio::select! {
            opened = self.join() => opened,
            // Before the handshake the only event is that the trainer has disconnected.
            _ = events.recv() => return,
        };
        // The name is released at the end.
        let (_name, mut member) = match opened {
            Ok(joined) => joined,
            Err(failure) => return self.notify_opened(Err(failure)),
        };
        let mut channels = Channels { events: member.events(), renewed: member.renewed() };
        let (grant, point) = match self.resume_point(&member, &mut channels, &mut events).await {
            Ok(begins) => begins,
            Err(failure) => return self.abort(member, failure).await,
        };
        let uid = self.client.credentials.uid;
        let _held = match self.daemon.quotas.held.reserve(uid, job_bytes(&grant.terms)) {
            Ok(held) => held,
            Err(failure) => return self.abort(member, failure).await,
        };
        let (name, wire_job, epoch) = (&self.plan.spec.job, grant.terms.job, grant.terms.epoch);
        log_limited!(info, job = name, wire_job, epoch, "all workers have joined");
        let mut reply = self.reply(&grant, &point);
        let operations = Arc::new(JobOperations::new(
            grant.terms.clone(),
            self.plan.spec.rank,
            self.events.clone(),
            self.client.clone(),
            &point,
            JobSpans::new(&self.daemon.spans, &self.plan.spec.job, self.plan.spec.rank, &grant.terms),
        ));
        if let Err(failure) = self.route(&member, &operations, &reply) {
            return self.abort(member, failure).await;
        }
        match self.begin(&member, grant, &mut reply, &mut events).await {
            Ok(()) => {
                self.open(&operations, reply);
                let running = live::EventLoop::new(&self, &operations, member);
                let (end, member) = running.run(events, channels).await;
                self.finish(member, &operations, end).await;
            }
            Err(failure) => {
                self.clear(wire_job).await;
                self.abort(member, failure).await;
            }
        }
    }

    fn failure(&self, failure: &JobFailure) -> Failure {
        explain::job_failure(failure, self.plan.order())
    }

    /// Notifies the trainer that the job is open, and lets others attach.
    fn open(&self, operations: &Arc<JobOperations>, reply: OpenReply) {
        self.daemon.jobs.with(reply.wire_job, |job| (job.reply, job.is_open) = (reply.clone(), true));
        let opened = OpenedJob { operations: operations.clone(), client: ClientId::OPENER, reply };
        self.notify_opened(Ok(Box::new(opened)));
    }

    async fn abort(&self, member: Member, failure: Failure) {
        leave(member, Outcome::Failed(format!("its start failed: {}", failure.message))).await;
        self.notify_opened(Err(failure));
    }

    /// Routes the data path's events of the job to this task.
    fn route(
        &self,
        member: &Member,
        operations: &Arc<JobOperations>,
        reply: &OpenReply,
    ) -> Result<(), Failure> {
        let job = ActiveJob {
            events: self.events.clone(),
            operations: operations.clone(),
            secret: self.plan.endpoint.secret.clone(),
            uid: self.client.credentials.uid,
            reply: reply.clone(),
            is_connected: member.connected(),
            is_open: false,
        };
        if self.daemon.jobs.add(&self.plan.spec.job, job) {
            return Ok(());
        }
        let message =
            format!("the coordinator assigned number {}, which another job of this host has", reply.wire_job);
        Err(Failure::new(Code::Refused, message).hint("use one aggregator per daemon"))
    }

    async fn finish(&self, member: Member, operations: &JobOperations, end: End) {
        let job = operations.terms.job;
        let name = &self.plan.spec.job;
        match end {
            End::HandedOver => {
                self.daemon.jobs.remove(job);
                log_limited!(info, job = name, wire_job = job, "handed over to another daemon");
            }
            End::Closed { request } => {
                self.clear(job).await;
                let failure = Failure::new(Code::JobFailed, "the client that opened the job has closed it");
                operations.end(&failure, |client| client != ClientId::OPENER);
                leave(member, Outcome::Done).await;
                log_limited!(info, job = name, wire_job = job, "closed");
                self.client.notify(Notification::Closed { request, job: self.client.handle });
            }
            End::Failed { error, failure, outcome } => {
                let by = if outcome.is_some() { "by this host" } else { "for all workers" };
                log_limited!(warn, job = name, wire_job = job, %failure, "ended {by}");
                self.daemon.backend.datapath.fail_job(job, &error);
                self.clear(job).await;
                if let Some(outcome) = outcome {
                    leave(member, outcome).await;
                }
                operations.end(&failure, |_| true);
            }
        }
    }

    /// Removes the job from the data path, which reports its last completions before this returns.
    async fn clear(&self, job: u16) {
        let daemon = self.daemon.clone();
        let cleared = blocking(move || daemon.backend.remove_job(job)).await;
        self.daemon.jobs.remove(job);
        if let Err(failure) = cleared {
            tracing::error!(%failure, wire_job = job, "cannot take a job off the data path");
        }
    }

    fn reply(&self, Grant { terms, placement }: &Grant, point: &ResumePoint) -> OpenReply {
        let is_dynamic = terms.is_dynamic();
        // A dynamic job detects overflow of sums, and mostly needs no headroom.
        let has_headroom = !is_dynamic || terms.headroom;
        let max_int = i32::MAX / if has_headroom { i32::from(terms.world) } else { 1 };
        let max_float = match terms.scale {
            // In a dynamic job values that do not fit travel as floats.
            Scale::Fixed(scale) if !is_dynamic => Some(f64::from(max_int) / f64::from(scale)),
            Scale::Fixed(_) | Scale::Block => None,
        };
        OpenReply {
            job: self.client.handle,
            wire_job: terms.job,
            epoch: terms.epoch,
            rank: self.plan.spec.rank,
            world: terms.world,
            mode: terms.mode,
            slots: terms.slots,
            slots_reason: terms.slots_reason.clone(),
            dynamic: is_dynamic.then(|| DynamicReply {
                window: terms.window,
                hosts: terms.parameter_hosts.clone(),
                congestion_control: terms.congestion_control,
                resumed: !terms.resume.is_empty(),
                first_operation: point.operation.0,
            }),
            shards: terms.shards,
            elements: terms.elements,
            scale: terms.scale,
            wire: terms.wire,
            not_finite: terms.not_finite,
            order: terms.order,
            max_int,
            max_float,
            backend: self.daemon.backend.name().to_owned(),
            plane: placement.aggregator.name().to_owned(),
        }
    }

    fn notify_opened(&self, result: Result<Box<OpenedJob>, Failure>) {
        self.daemon.opens.count(&result);
        if let Err(failure) = &result {
            log_limited!(warn, job = self.plan.spec.job, rank = self.plan.spec.rank, %failure, "cannot open a job");
        }
        self.client.notify(Notification::Opened { request: self.request, job: self.client.handle, result });
    }
}

async fn leave(member: Member, outcome: Outcome) {
    if let Err(error) = member.leave(outcome).await {
        // The coordinator detects it by the missing heartbeats.
        log_limited!(warn, %error, "cannot leave the job at its coordinator");
    }
}

/// Runs a call that waits for the kernel or the data path outside the asynchronous threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::new(Code::Internal, format!("internal error: {error}")))
}
