//! One job of one trainer, from joining to leaving: the only place where its three parties meet.
//!
//! The clients ask, the data path carries, the control plane decides with the other hosts. A task per job listens to
//! all of them and keeps the order: all workers join, then results are let in, then the path is probed and measured, and
//! only then is the trainer told. At the end operations fail first, then their memory is free, then the clients are told.

mod channels;
mod faults;
mod live;
mod mode;
mod plan;
mod start;

use std::sync::Arc;

use sumac_api::{Code, DynamicReply, Failure, OpenReply, Scale};
use sumac_control::{Grant, JobFailure, Member, Outcome};
use sumac_transport::JobError;
use sumac_wire::CLASSES;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::explain;
use crate::hub::{Door, Hub};
use crate::line::Order;
use crate::routes::Route;
use crate::session::{Entered, Note};
use crate::stream::{Client, ClientId, Shape, Stand, Stream};

use self::channels::Channels;
pub(crate) use self::plan::Plan;

/// A job's task.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) hub: Arc<Hub>,
    pub(crate) plan: Plan,
    /// Who opens it.
    pub(crate) client: Client,
    pub(crate) request: u64,
    pub(crate) orders: tokio::sync::mpsc::UnboundedSender<Order>,
}

/// How a job came to its end.
enum End {
    Closed {
        request: u64,
    },
    /// For all workers, by this host: what the engine says, what the control plane hears, what the trainer is told.
    Ours {
        error: JobError,
        outcome: Outcome,
        failure: Failure,
    },
    /// For all workers, by somebody else.
    Theirs {
        error: JobError,
        failure: Failure,
    },
}

impl End {
    /// An end that comes from this host.
    fn ours(error: JobError) -> End {
        End::Ours {
            outcome: Outcome::Failed(explain::spoken(&error)),
            failure: explain::job_error(&error),
            error,
        }
    }

    /// The end of a job whose trainer is gone. In a dynamic job another may take its place, and the others' goes on.
    fn died(reason: String) -> End {
        let error = JobError::Ended { reason: reason.clone() };
        End::Ours { outcome: Outcome::Died(reason), failure: explain::job_error(&error), error }
    }
}

impl Job {
    /// Joins, runs and leaves.
    pub(crate) async fn run(self, mut orders: UnboundedReceiver<Order>) {
        let opened = tokio::select! {
            opened = self.join() => opened,
            // Before the handshake begins the only order is that the trainer is gone; the place falls free by itself.
            _ = orders.recv() => return,
        };
        // The place falls free at the very end.
        let (_place, mut member) = match opened {
            Ok(joined) => joined,
            Err(failure) => return self.tell_opened(Err(failure)),
        };
        let mut channels = Channels::of(&mut member);
        let (grant, stand) = match self.resume_point(&member, &mut channels, &mut orders).await {
            Ok(begins) => begins,
            Err(failure) => return self.give_up(member, failure).await,
        };
        let (name, wire_job, epoch) = (&self.plan.spec.job, grant.terms.job, grant.terms.epoch);
        tracing::info!(job = name, wire_job, epoch, "all workers have joined");
        let mut reply = self.reply(&grant, &stand);
        let stream = Arc::new(Stream::new(
            self.shape(&grant),
            self.orders.clone(),
            self.client.clone(),
            &grant.terms.resume,
            &stand,
        ));
        if let Err(failure) = self.route(&stream, &reply) {
            return self.give_up(member, failure).await;
        }
        match self.begin(&member, grant, &mut reply, &mut orders).await {
            Ok(()) => {
                self.greet(&stream, reply);
                let end = live::EventLoop::new(&self, &stream, &member).run(orders, channels).await;
                self.finish(member, &stream, end).await;
            }
            Err(failure) => {
                self.clear(wire_job).await;
                self.give_up(member, failure).await;
            }
        }
    }

    /// What the control plane says, for the trainer.
    fn told(&self, failure: &JobFailure) -> Failure {
        explain::job_failure(failure, self.plan.order())
    }

    /// An end that the control plane tells of.
    fn theirs(&self, failure: &JobFailure) -> End {
        End::Theirs { error: explain::engine_error(failure), failure: self.told(failure) }
    }

    /// Tells the trainer that the job is open, and lets others attach.
    fn greet(&self, stream: &Arc<Stream>, reply: OpenReply) {
        let door = Door {
            stream: stream.clone(),
            secret: self.plan.endpoint.secret.clone(),
            uid: self.client.peer.uid,
            reply: reply.clone(),
        };
        self.hub.unlock(&self.plan.spec.job, door);
        let entered = Entered { stream: stream.clone(), client: ClientId::OPENER, reply };
        self.tell_opened(Ok(Box::new(entered)));
    }

    /// Leaves a job that could not start, for all workers.
    async fn give_up(&self, member: Member, failure: Failure) {
        leave(member, Outcome::Failed(format!("its start failed: {}", failure.message))).await;
        self.tell_opened(Err(failure));
    }

    /// Has the data path's news of the job sent here.
    fn route(&self, stream: &Arc<Stream>, reply: &OpenReply) -> Result<(), Failure> {
        let route = Route {
            orders: self.orders.clone(),
            stream: stream.clone(),
            name: self.plan.spec.job.clone(),
            reply: reply.clone(),
        };
        if self.hub.routes.add(reply.wire_job, route) {
            return Ok(());
        }
        let message =
            format!("the aggregator gave out number {}, which another job of this host has", reply.wire_job);
        Err(Failure::new(Code::Refused, message).hint("use one aggregator per daemon"))
    }

    fn shape(&self, Grant { terms, .. }: &Grant) -> Shape {
        Shape {
            wire_job: terms.job,
            rank: self.plan.spec.rank,
            world: terms.world,
            classes: CLASSES,
            shards: terms.shards,
            elements: terms.elements,
            is_short: terms.wire == sumac_api::WireFormat::Int16,
            by_name: terms.order == sumac_api::OperationOrder::Name,
        }
    }

    async fn finish(&self, member: Member, stream: &Stream, end: End) {
        let job = stream.shape().wire_job;
        let name = &self.plan.spec.job;
        match end {
            End::Closed { request } => {
                self.clear(job).await;
                let failure = Failure::new(Code::JobFailed, "the client that opened the job has closed it");
                stream.end(&failure, |client| client != ClientId::OPENER);
                leave(member, Outcome::Done).await;
                tracing::info!(job = name, wire_job = job, "closed");
                self.client.tell(Note::Closed { request, job: self.client.handle, result: Ok(()) });
            }
            End::Ours { error, outcome, failure } => {
                tracing::warn!(job = name, wire_job = job, %failure, "ended by this host");
                self.hub.carrier.fail_job(job, error);
                self.clear(job).await;
                leave(member, outcome).await;
                stream.end(&failure, |_| true);
            }
            End::Theirs { error, failure } => {
                tracing::warn!(job = name, wire_job = job, %failure, "ended for all workers");
                self.hub.carrier.fail_job(job, error);
                self.clear(job).await;
                stream.end(&failure, |_| true);
            }
        }
    }

    /// Takes the job off the data path; its last completions are delivered before this returns.
    async fn clear(&self, job: u16) {
        let hub = self.hub.clone();
        let cleared = blocking(move || hub.carrier.remove_job(job)).await;
        self.hub.routes.remove(job);
        if let Err(failure) = cleared {
            tracing::error!(%failure, wire_job = job, "cannot take a job off the data path");
        }
    }

    /// The reply to the trainer's `open`.
    fn reply(&self, Grant { terms, placement }: &Grant, stand: &Stand) -> OpenReply {
        let is_dynamic = terms.is_dynamic();
        // A dynamic job sees whether a sum overflows, and needs no room for it.
        let max_int = i32::MAX / if is_dynamic { 1 } else { i32::from(terms.world) };
        let max_float = match terms.scale {
            // What does not fit goes as floats in a dynamic job.
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
                first_operation: stand.number,
            }),
            shards: terms.shards,
            elements: terms.elements,
            scale: terms.scale,
            wire: terms.wire,
            not_finite: terms.not_finite,
            order: terms.order,
            max_int,
            max_float,
            backend: self.hub.carrier.backend().to_owned(),
            plane: placement.aggregator.name().to_owned(),
        }
    }

    fn tell_opened(&self, result: Result<Box<Entered>, Failure>) {
        if let Err(failure) = &result {
            tracing::warn!(job = self.plan.spec.job, rank = self.plan.spec.rank, %failure, "cannot open a job");
        }
        self.client.tell(Note::Opened { request: self.request, job: self.client.handle, result });
    }
}

async fn leave(member: Member, outcome: Outcome) {
    if let Err(error) = member.leave(outcome).await {
        // It finds out by itself, when the heartbeats stop.
        tracing::warn!(%error, "the aggregator was not told");
    }
}

/// Runs what waits for the kernel or the data path beside the asynchronous threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::new(Code::Internal, format!("a part of the daemon has failed: {error}")))
}
