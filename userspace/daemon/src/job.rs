//! One job of one trainer, from joining to leaving: the only place where its three parties meet.
//!
//! The session asks, the data path carries, the control plane decides with the other hosts. A task per job listens to
//! all of them and keeps the order: all workers join, then results are let in, then the path is probed, and only then
//! is the trainer told. At the end operations fail first, then their memory is free, then the trainer is told.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sumac_api::{Code, Failure, Open, OpenReply};
use sumac_control::{Assignment, JOB_NAME_LEN, JobFailure, JoinSpec, Member, MemberState, Outcome, Secret};
use sumac_transport::JobError;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, timeout};

use crate::config::Config;
use crate::explain;
use crate::hub::{Hub, Place};
use crate::inbox::Inbox;
use crate::line::Order;
use crate::routes::Route;
use crate::session::Note;

/// The engine gives its probes up earlier; this is for a data path that says nothing at all.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// How long results may still be on their way when a worker has left: it had all of them when it did.
const DEPARTURE_GRACE: Duration = Duration::from_secs(3);
/// How often a job looks whether it waits for a worker that has left.
const DEPARTURE_LOOK: Duration = Duration::from_millis(250);
/// How long sums may stand still before the log says so. No error: another worker may still be computing.
const STANDSTILL: Duration = Duration::from_secs(10);

/// What is asked of the control plane, checked.
#[derive(Debug)]
pub(crate) struct Plan {
    endpoint: SocketAddr,
    spec: JoinSpec,
}

impl Plan {
    pub(crate) fn new(config: &Config, open: &Open) -> Result<Plan, Failure> {
        let bad = |problem: String| Failure::new(Code::BadField, format!("open: {problem}"));
        if open.job.is_empty() || open.job.len() > JOB_NAME_LEN || open.job.contains(char::is_control) {
            return Err(bad(format!(
                "the job's name must have 1 to {JOB_NAME_LEN} bytes and no control characters"
            )));
        }
        if open.world == 0 || usize::from(open.world) > sumac_wire::MAX_WORKERS {
            return Err(bad(format!(
                "world {} is not between 1 and {}",
                open.world,
                sumac_wire::MAX_WORKERS
            )));
        }
        if open.rank >= open.world {
            return Err(bad(format!("rank {} is not below world {}", open.rank, open.world)));
        }
        let scale = open.scale.unwrap_or(config.scale);
        if !scale.is_normal() || scale < 0.0 {
            return Err(bad(format!("scale {scale} is not a positive number")));
        }
        let deadline = match open.timeout_s {
            None => config.join_timeout(),
            Some(seconds) => Duration::try_from_secs_f64(seconds)
                .map_err(|_| bad(format!("timeout_s {seconds} is no time in seconds")))?,
        };
        let spec = JoinSpec {
            job: open.job.clone(),
            world: open.world,
            rank: open.rank,
            secret: secret(config, open)?,
            data_ip: Ipv4Addr::UNSPECIFIED,
            data_port: 0,
            mac: [0; 6],
            elements: open.elements.unwrap_or(config.elements),
            slots: open.slots.or(config.slots),
            scale,
            checksum: config.checksum,
            deadline,
        };
        Ok(Plan { endpoint: endpoint(config, open)?, spec })
    }
}

fn secret(config: &Config, open: &Open) -> Result<Secret, Failure> {
    let secret = match &open.secret {
        Some(secret) => Secret::new(secret.0.as_bytes()).map(Some),
        None => config.default_secret(),
    };
    match secret {
        Ok(Some(secret)) => Ok(secret),
        Ok(None) => Err(Failure::new(Code::BadField, "open: neither the job nor the daemon has a secret")
            .hint("give `secret`, or secret_file in the daemon's configuration")),
        Err(error) => Err(Failure::new(Code::BadField, format!("open: {error}"))),
    }
}

fn endpoint(config: &Config, open: &Open) -> Result<SocketAddr, Failure> {
    match &open.aggregator {
        Some(text) => text.parse().map_err(|_| {
            Failure::new(Code::BadField, format!("open: aggregator {text:?} is not address:port"))
                .hint("write it like 10.77.0.1:48600")
        }),
        None => config.aggregator.ok_or_else(|| {
            Failure::new(Code::BadField, "open: neither the job nor the daemon has an aggregator")
                .hint("give `aggregator`, or set it in the daemon's configuration")
        }),
    }
}

/// A job's task.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) hub: Arc<Hub>,
    pub(crate) plan: Plan,
    pub(crate) inbox: Arc<Inbox<Note>>,
    pub(crate) request: u64,
    pub(crate) handle: u64,
    pub(crate) orders: tokio::sync::mpsc::UnboundedSender<Order>,
    pub(crate) outstanding: Arc<AtomicUsize>,
}

/// How a job came to its end.
enum End {
    Closed {
        request: u64,
    },
    /// For all workers, by this host: what the engine says, what the others read, what the trainer is told.
    Ours {
        error: JobError,
        reason: String,
        failure: Failure,
    },
    /// For all workers, by somebody else.
    Theirs(JobFailure),
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
        let (_place, member) = match opened {
            Ok(joined) => joined,
            Err(failure) => return self.tell_opened(Err(failure)),
        };
        let assignment = member.assignment().clone();
        let name = &self.plan.spec.job;
        tracing::info!(
            job = name,
            wire_job = assignment.job,
            epoch = assignment.epoch,
            "all workers have joined"
        );
        if let Err(failure) = self.route(&assignment) {
            return self.give_up(member, failure).await;
        }
        match self.begin(&assignment, &mut orders).await {
            Ok(()) => {
                self.tell_opened(Ok(self.reply(&assignment)));
                let end = self.live(&member, &assignment, &mut orders).await;
                self.finish(member, &assignment, end).await;
            }
            Err(failure) => {
                self.clear(assignment.job).await;
                self.give_up(member, failure).await;
            }
        }
    }

    /// Leaves a job that could not start, for all workers.
    async fn give_up(&self, member: Member, failure: Failure) {
        leave(member, Outcome::Failed(format!("its start failed: {}", failure.message))).await;
        self.tell_opened(Err(failure));
    }

    async fn join(&self) -> Result<(Place, Member), Failure> {
        let place = self.hub.take_place(&self.plan.spec.job, self.plan.spec.rank).await?;
        let mut spec = self.plan.spec.clone();
        let endpoint = self.plan.endpoint;
        let local = self.hub.carrier.local();
        spec.data_ip = local.ip;
        spec.data_port = local.port;
        spec.mac = local.mac;
        let member =
            sumac_control::join(endpoint, spec).await.map_err(|error| explain::join_error(&error))?;
        Ok((place, member))
    }

    /// Has the data path's news of the job sent here.
    fn route(&self, assignment: &Assignment) -> Result<(), Failure> {
        let spec = &self.plan.spec;
        let route = Route {
            inbox: self.inbox.clone(),
            orders: self.orders.clone(),
            outstanding: self.outstanding.clone(),
            name: spec.job.clone(),
            epoch: assignment.epoch,
            rank: spec.rank,
            world: spec.world,
        };
        if !self.hub.routes.add(assignment.job, route) {
            return Err(Failure::new(
                Code::Refused,
                format!(
                    "the aggregator gave out number {}, which another job of this host has",
                    assignment.job
                ),
            )
            .hint("use one aggregator per daemon"));
        }
        Ok(())
    }

    /// Lets the job's packets in and probes the path.
    async fn begin(
        &self,
        assignment: &Assignment,
        orders: &mut UnboundedReceiver<Order>,
    ) -> Result<(), Failure> {
        let hub = self.hub.clone();
        let (assigned, spec) = (assignment.clone(), self.plan.spec.clone());
        blocking(move || hub.carrier.add_job(&assigned, &spec)).await??;
        match timeout(HANDSHAKE_PATIENCE, orders.recv()).await {
            Ok(Some(Order::Ready)) => Ok(()),
            Ok(Some(Order::Broken(error))) => Err(explain::job_error(&error)),
            Ok(_) => Err(Failure::new(Code::JobFailed, "its trainer went away")),
            Err(_) => Err(Failure::new(Code::Handshake, "the data path does not finish the handshake")
                .hint("see the daemon's log, and `sumac doctor`")),
        }
    }

    /// Waits for whatever ends the job.
    async fn live(
        &self,
        member: &Member,
        assignment: &Assignment,
        orders: &mut UnboundedReceiver<Order>,
    ) -> End {
        tokio::select! {
            biased;
            failure = member.failed() => End::Theirs(failure),
            order = orders.recv() => self.ended_by(order),
            departed = self.deserted(member) => {
                let rank = departed.first().copied().unwrap_or_default();
                let reason = format!("has left job {:?} while sums were outstanding here", self.plan.spec.job);
                let error = JobError::Worker { rank, reason };
                tracing::warn!(?departed, wire_job = assignment.job, "sums wait for workers that have left");
                ours(error)
            }
            never = self.complain(assignment.job) => match never {},
        }
    }

    fn ended_by(&self, order: Option<Order>) -> End {
        let rank = self.plan.spec.rank;
        match order {
            Some(Order::Close { request }) => End::Closed { request },
            Some(Order::Cancel) => ours(JobError::Cancelled { by: format!("the trainer of rank {rank}") }),
            Some(Order::Broken(error)) => ours(error),
            Some(Order::Abandon { reason }) => ours(JobError::Ended { reason }),
            Some(Order::Ready) | None => ours(JobError::Ended { reason: "the daemon lost count".into() }),
        }
    }

    /// Ready when operations have waited for too long for workers that have left.
    async fn deserted(&self, member: &Member) -> Vec<u16> {
        let watch = member.watch();
        let mut since: Option<Instant> = None;
        loop {
            sleep(DEPARTURE_LOOK).await;
            let departed = match &*watch.borrow() {
                MemberState::Running { departed } => departed.clone(),
                MemberState::Failed(_) => Vec::new(),
            };
            if departed.is_empty() || self.outstanding.load(Ordering::Relaxed) == 0 {
                since = None;
            } else if since.get_or_insert_with(Instant::now).elapsed() >= DEPARTURE_GRACE {
                return departed;
            }
        }
    }

    /// Says so in the log when operations are outstanding and nothing has come back for long.
    async fn complain(&self, job: u16) -> Infallible {
        let mut before = None;
        loop {
            sleep(STANDSTILL).await;
            let outstanding = self.outstanding.load(Ordering::Relaxed);
            let hub = self.hub.clone();
            let results = blocking(move || hub.carrier.results(job)).await.ok().flatten();
            if outstanding > 0 && results.is_some() && results == before {
                tracing::warn!(
                    job = self.plan.spec.job,
                    outstanding,
                    results,
                    "no result for {STANDSTILL:?}: has every worker handed in the same tensor? \
                     `sumac-agg status` counts what the aggregator refuses"
                );
            }
            before = results.filter(|_| outstanding > 0);
        }
    }

    async fn finish(&self, member: Member, assignment: &Assignment, end: End) {
        let job = assignment.job;
        let name = &self.plan.spec.job;
        match end {
            End::Closed { request } => {
                self.clear(job).await;
                leave(member, Outcome::Done).await;
                tracing::info!(job = name, wire_job = job, "closed");
                self.tell(Note::Closed { request, job: self.handle, result: Ok(()) });
            }
            End::Ours { error, reason, failure } => {
                tracing::warn!(job = name, wire_job = job, reason, "ended for all workers by this host");
                self.hub.carrier.fail_job(job, error);
                self.clear(job).await;
                leave(member, Outcome::Failed(reason)).await;
                self.tell(Note::JobFailed { job: self.handle, failure });
            }
            End::Theirs(failure) => {
                tracing::warn!(job = name, wire_job = job, %failure, "ended for all workers");
                self.hub.carrier.fail_job(job, explain::engine_error(&failure));
                self.clear(job).await;
                let failure = explain::job_failure(&failure);
                self.tell(Note::JobFailed { job: self.handle, failure });
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

    fn reply(&self, assignment: &Assignment) -> OpenReply {
        let spec = &self.plan.spec;
        let max_int = i32::MAX / i32::from(spec.world);
        OpenReply {
            job: self.handle,
            wire_job: assignment.job,
            epoch: assignment.epoch,
            rank: spec.rank,
            world: spec.world,
            slots: assignment.slots,
            elements: assignment.elements,
            scale: assignment.scale,
            max_int,
            max_float: f64::from(max_int) / f64::from(assignment.scale),
            backend: self.hub.carrier.backend().to_owned(),
            plane: assignment.plane.name().to_owned(),
        }
    }

    fn tell_opened(&self, result: Result<OpenReply, Failure>) {
        if let Err(failure) = &result {
            tracing::warn!(job = self.plan.spec.job, rank = self.plan.spec.rank, %failure, "cannot open a job");
        }
        self.tell(Note::Opened { request: self.request, job: self.handle, result });
    }

    fn tell(&self, note: Note) {
        // Fails when the trainer is gone, and then nobody wants to know.
        let _ = self.inbox.push(note);
    }
}

/// An end that comes from this host.
fn ours(error: JobError) -> End {
    End::Ours { reason: explain::spoken(&error), failure: explain::job_error(&error), error }
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
