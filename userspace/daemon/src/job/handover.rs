//! The handover of a running job to another daemon: its task stands still, and continues there, or here again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sumac_api::{Open, OpenReply};
use sumac_control::{Member, SuspendedMember};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{oneshot, watch};

use super::start::Channels;
use super::{Job, JobEvent, Plan, live};
use crate::daemon::DaemonState;
use crate::jobs::{ActiveJob, NameReservation};
use crate::operations::{Client, JobOperations, OperationsState, Restored};
use crate::quotas::{Reservation, job_bytes};
use crate::spans::JobSpans;

/// A request to a job's task to stand still.
#[derive(Debug)]
pub(crate) struct Freeze {
    /// An error names what has to end first.
    pub(crate) frozen: oneshot::Sender<Result<FrozenJob, String>>,
    /// Dropped, the task goes on.
    pub(crate) release: oneshot::Receiver<HandedOver>,
}

/// A job that stands still.
#[derive(Debug)]
pub(crate) struct FrozenJob {
    pub(crate) open: Open,
    /// The connection that has opened it, and its handle there.
    pub(crate) opener: (u64, u64),
    pub(crate) member: SuspendedMember,
}

/// The job goes on in another daemon.
#[derive(Debug)]
pub(crate) struct HandedOver;

/// A running job as one daemon hands it over to another.
#[derive(Serialize, Deserialize)]
pub(crate) struct JobState {
    pub(crate) open: Open,
    /// The connection that has opened it, and its handle there.
    pub(crate) opener: (u64, u64),
    pub(crate) member: SuspendedMember,
    pub(crate) reply: OpenReply,
    pub(crate) operations: OperationsState,
}

/// A job of another daemon that is about to go on.
pub(crate) struct ResumedJob {
    pub(crate) job: Job,
    pub(crate) operations: Arc<JobOperations>,
    events: UnboundedReceiver<JobEvent>,
    member: SuspendedMember,
    name: NameReservation,
    held: Reservation,
}

impl ResumedJob {
    /// Takes a job into this daemon's tables. `name`: its reserved name.
    pub(crate) fn new(
        daemon: &Arc<DaemonState>,
        state: JobState,
        name: NameReservation,
        (events, received): (UnboundedSender<JobEvent>, UnboundedReceiver<JobEvent>),
        (client, restored): (Client, &Restored<'_>),
    ) -> Result<ResumedJob, String> {
        let JobState { open, member, reply, operations, .. } = state;
        let failed = |problem: &dyn std::fmt::Display| format!("job {:?}: {problem}", open.spec.job);
        let plan = Plan::new(&daemon.config, &daemon.control_planes, &open, &client.credentials);
        let plan = plan.map_err(|failure| failed(&failure))?;
        let (uid, grant) = (client.credentials.uid, member.grant());
        let held = daemon.quotas.held.reserve(uid, job_bytes(&grant.terms));
        let held = held.map_err(|failure| failed(&failure))?;
        let reserved = daemon.quotas.jobs.reserve(uid, 1).map_err(|failure| failed(&failure))?;
        let rank = plan.spec.rank;
        let spans = JobSpans::new(&daemon.spans, &plan.spec.job, rank, &grant.terms);
        let terms = grant.terms.clone();
        let operations = JobOperations::resume(operations, terms, rank, events.clone(), spans, restored);
        let operations = Arc::new(operations.map_err(|problem| failed(&problem))?);
        let active = ActiveJob {
            events: events.clone(),
            operations: operations.clone(),
            secret: plan.endpoint.secret.clone(),
            uid,
            reply,
            is_open: true,
            // Until the membership goes on.
            is_connected: watch::channel(false).1,
        };
        if !daemon.jobs.add(&open.spec.job, active) {
            return Err(failed(&"another job has its number"));
        }
        let daemon = daemon.clone();
        let reserved = Arc::new(reserved);
        let job = Job { daemon, open, plan, client, request: 0, events, _reserved: reserved };
        Ok(ResumedJob { job, operations, events: received, member, name, held })
    }

    /// Runs the job until it ends.
    pub(crate) async fn run(self) {
        let ResumedJob { job, operations, events, member, name: _name, held: _held } = self;
        let mut member = Member::resume(job.plan.endpoint.clone(), &job.plan.spec, member);
        let channels = Channels { events: member.events(), renewed: member.renewed() };
        job.daemon.jobs.with(operations.terms.job, |job| job.is_connected = member.connected());
        let (end, member) = live::EventLoop::new(&job, &operations, member).run(events, channels).await;
        job.finish(member, &operations, end).await;
    }
}
