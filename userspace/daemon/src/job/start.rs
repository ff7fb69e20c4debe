//! The start of a job: it reserves its name, joins the workers, and probes and measures its path.

use std::net::SocketAddr;
use std::time::Duration;

use sumac_api::{Code, Failure, Mode, OpenReply};
use sumac_control::{Grant, JoinRequest, Member, WorkerHost};
use sumac_job::ResumePoint;
use sumac_transport::PathMeasure;
use sumac_wire::PAGE_ELEMENTS;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use super::channels::Channels;
use super::{Job, blocking};
use crate::explain;
use crate::job_event::JobEvent;
use crate::jobs::NameReservation;
use crate::path;

/// The timeout of the handshake. The engine's own is shorter.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time to wait for the position at which a replacement continues.
const RESUME_TIMEOUT: Duration = Duration::from_secs(30);

impl Job {
    /// Joins the other workers.
    pub(super) async fn join(&self) -> Result<(NameReservation, Member), Failure> {
        let name = self.daemon.jobs.reserve(&self.plan.spec.job, self.plan.spec.rank).await?;
        let (spec, endpoint) = (self.plan.spec.clone(), &self.plan.endpoint);
        let local = self.daemon.backend.local();
        let mut max_elements = path::words(mtu(endpoint.address)).min(self.daemon.backend.most_words());
        if spec.mode == Some(Mode::Dynamic) {
            // The limit of a shared slot.
            max_elements = max_elements.min(PAGE_ELEMENTS as u16);
        }
        let host = WorkerHost {
            data_ip: local.ip,
            data_port: local.port,
            mac: local.mac,
            max_elements,
            max_shards: self.daemon.backend.shards(),
            checksum: self.plan.checksum,
        };
        let member = sumac_control::join(endpoint, JoinRequest { spec, host })
            .await
            .map_err(|error| explain::join_error(&error, self.plan.order()))?;
        Ok((name, member))
    }

    /// Returns this worker's grant, and its first operation: a worker that replaces another one receives it from the other
    /// workers. A single worker starts anew.
    pub(super) async fn resume_point(
        &self,
        member: &Member,
        channels: &mut Channels,
        events: &mut UnboundedReceiver<JobEvent>,
    ) -> Result<(Grant, ResumePoint), Failure> {
        let grant = member.grant().clone();
        if grant.terms.resume.is_empty() || grant.terms.world < 2 {
            return Ok((grant, ResumePoint::default()));
        }
        tokio::select! {
            biased;
            failure = member.failed() => Err(self.failure(&failure)),
            event = events.recv() => Err(interruption(event)),
            point = timeout(RESUME_TIMEOUT, channels.resume_point(grant)) => point.ok().flatten().ok_or_else(|| {
                Failure::new(Code::Handshake, "no other worker reports the position at which to continue")
                    .hint("open the job anew, on all workers")
            }),
        }
    }

    /// Admits the job's packets, probes the path, and measures it unless a number of slots was requested.
    pub(super) async fn begin(
        &self,
        member: &Member,
        grant: Grant,
        reply: &mut OpenReply,
        events: &mut UnboundedReceiver<JobEvent>,
    ) -> Result<(), Failure> {
        let daemon = self.daemon.clone();
        blocking(move || daemon.backend.add_job(&grant)).await??;
        tokio::select! {
            biased;
            failure = member.failed() => Err(self.failure(&failure)),
            begun = self.handshake(member, reply, events) => begun,
        }
    }

    async fn handshake(
        &self,
        member: &Member,
        reply: &mut OpenReply,
        events: &mut UnboundedReceiver<JobEvent>,
    ) -> Result<(), Failure> {
        loop {
            match timeout(HANDSHAKE_TIMEOUT, events.recv()).await {
                Ok(Some(JobEvent::Ready)) => return Ok(()),
                Ok(Some(JobEvent::Measured(measure))) => {
                    self.tune(member, measure, reply, events).await?;
                }
                Ok(event) => return Err(interruption(event)),
                Err(_) => {
                    return Err(Failure::new(Code::Handshake, "the data path does not finish the handshake")
                        .hint("see the daemon's log, and `sumac doctor`"));
                }
            }
        }
    }

    /// Sets the number of slots that the coordinator chooses by all workers' measurements.
    async fn tune(
        &self,
        member: &Member,
        measure: PathMeasure,
        reply: &mut OpenReply,
        events: &mut UnboundedReceiver<JobEvent>,
    ) -> Result<(), Failure> {
        let (slots, reason) = tokio::select! {
            biased;
            tuned = member.tune(measure) => tuned.map_err(|failure| self.failure(&failure))?,
            // While the slowest worker measures, this one's trainer may disconnect.
            event = events.recv() => return Err(interruption(event)),
        };
        tracing::info!(job = self.plan.spec.job, slots, reason, "the window is chosen");
        (reply.slots, reply.slots_reason) = (slots, reason);
        self.daemon.jobs.set_slots(reply.wire_job, reply.slots, &reply.slots_reason);
        let (daemon, job, slots) = (self.daemon.clone(), reply.wire_job, reply.slots);
        blocking(move || daemon.backend.start_job(job, slots)).await??;
        Ok(())
    }
}

/// Returns the error of a start that an event has ended.
fn interruption(event: Option<JobEvent>) -> Failure {
    match event {
        Some(JobEvent::Failed(error)) => explain::job_error(&error),
        _ => Failure::new(Code::JobFailed, "its trainer went away"),
    }
}

/// Returns the MTU of the path to an aggregator.
fn mtu(endpoint: SocketAddr) -> usize {
    let SocketAddr::V4(endpoint) = endpoint else { return path::DEFAULT_MTU };
    path::mtu(*endpoint.ip()).unwrap_or_else(|error| {
        tracing::warn!(%endpoint, %error, "the kernel has no MTU for the path to the aggregator; assuming {}", path::DEFAULT_MTU);
        path::DEFAULT_MTU
    })
}
