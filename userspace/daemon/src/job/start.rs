//! The start of a job: it takes its name, joins the workers, and probes and measures its path.

use std::time::Duration;

use sumac_api::{Code, Failure, Mode};
use sumac_control::events::Event;
use sumac_control::{Endpoint, Grant, JoinRequest, Member, WorkerHost};
use sumac_datapath::monotonic_ns;
use sumac_host::{NameRefusal, explain, is_valid};
use sumac_job::{PathMeasure, ResumePoint};
use sumac_wire::PAGE_ELEMENTS;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout, timeout_at};

use super::task::{JobContext, JobTask, blocking};
use crate::backend::{Followed, InUse};
use crate::job_events::TaskEvent;
use crate::path;
use crate::watch;

/// The time that an open waits for the end of a job of the same name, which may be leaving its coordinator.
const NAME_TIMEOUT: Duration = Duration::from_secs(3);

/// The timeout of the handshake. The engine's own is shorter.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time to wait for the position at which a replacement continues.
const RESUME_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Channels {
    pub(super) events: UnboundedReceiver<Event>,
    /// The job's next epochs, each with a replaced worker (ATP appendix A.3).
    pub(super) renewed: UnboundedReceiver<Grant>,
}

impl Channels {
    /// Waits for another worker's report of the position at which this one continues, which replaces a dead
    /// one. Meanwhile another may be replaced, and there is a later epoch. `None`: no report will come.
    pub(super) async fn resume_point(&mut self, mut grant: Grant) -> Option<(Grant, ResumePoint)> {
        // The last report, with its epoch: it may come before the grant of that epoch.
        let mut reported: Option<(u16, ResumePoint)> = None;
        loop {
            let terms = &grant.terms;
            let fits = |point: &ResumePoint| is_valid(point, terms.lanes().into(), terms.shards.into());
            let current = reported.as_ref().filter(|(epoch, point)| *epoch == terms.epoch && fits(point));
            if let Some((_, point)) = current {
                let point = point.clone();
                return Some((grant, point));
            }
            tokio::select! {
                // A later epoch that is known already counts before a report about this one.
                biased;
                Some(next) = self.renewed.recv() => grant = next,
                Some(event) = self.events.recv() => {
                    if let Event::ResumePoint { epoch, point } = event {
                        reported = Some((epoch, point));
                    }
                }
                else => return None,
            }
        }
    }
}

impl JobTask {
    /// Takes the job's name, and joins the other workers, with the backend that is to be had now.
    pub(super) async fn join(&self, endpoint: &Endpoint) -> Result<(Member, InUse), Failure> {
        self.take_name().await?;
        let in_use = self.take_backend().await?;
        let mut spec = self.plan.spec.clone();
        // It may have waited in another daemon.
        let waited = self.context.core.call(|host, _, _| host.waited(monotonic_ns(), self.id));
        spec.timeout_s = spec.timeout_s.map(|timeout| (timeout - waited.as_secs_f64()).max(0.0));
        let backend = &self.context.backend;
        let local = backend.local();
        let mut max_elements = path::words_to(endpoint.address).min(backend.most_words());
        if spec.mode == Some(Mode::Dynamic) {
            // The limit of a shared slot.
            max_elements = max_elements.min(PAGE_ELEMENTS as u16);
        }
        let host = WorkerHost {
            data_ip: local.ip,
            data_port: local.port,
            mac: local.mac,
            max_elements,
            max_shards: backend.datapath().shards,
            checksum: self.plan.checksum,
            paths: backend.datapath().paths,
            has_udp: backend.has_udp(),
            user: self.plan.user,
        };
        let joined = sumac_control::join(endpoint, JoinRequest::new(spec, host)).await;
        let joined = joined.map_err(|error| explain::join_error(&error, self.plan.order()));
        joined.map(|member| (member, in_use)).map_err(|failure| backend.explain(failure))
    }

    /// Makes the choice of `auto` again, keeps the backend, and has it use the interface's present address.
    async fn take_backend(&self) -> Result<InUse, Failure> {
        let JobContext { core, backend, .. } = &self.context;
        watch::choose_again(core, backend).await?;
        let in_use = backend.in_use().await;
        match watch::follow(core, backend, Some(self.id)).await? {
            Ok(Followed::NoAddress(reason)) => Err(Failure::new(Code::Unreachable, reason)
                .hint("see `ip address`; the daemon takes the interface's next address by itself")),
            Ok(_) | Err(_) => Ok(in_use),
        }
    }

    /// Takes the job's name. Waits for the end of a job that has it: a restarted trainer may meet its former
    /// job.
    pub(super) async fn take_name(&self) -> Result<(), Failure> {
        let (core, name) = (&self.context.core, &self.plan.spec.job);
        let deadline = Instant::now() + NAME_TIMEOUT;
        loop {
            // Before the attempt, so that no release is missed.
            let mut released = std::pin::pin!(core.released.notified());
            released.as_mut().enable();
            let holder = match core.call(|host, arena, out| host.take_name(self.id, arena, out)) {
                Ok(()) => return Ok(()),
                Err(NameRefusal::Refused(failure)) => return Err(failure),
                Err(NameRefusal::Held(holder)) => holder,
            };
            if timeout_at(deadline, released).await.is_err() {
                return Err(Failure::new(
                    Code::RankTaken,
                    format!("job {name:?} is open on this daemon already, as rank {holder}"),
                )
                .hint(
                    "a daemon is one rank of a job, or with `local_world` so many; attach to it, or close \
                    it before it is opened again",
                )
                .ranks([holder]));
            }
        }
    }

    /// Returns this worker's grant, and its first operation: a worker that replaces another one receives it
    /// from the other workers. A single worker starts anew.
    pub(super) async fn resume_point(
        &self,
        member: &Member,
        channels: &mut Channels,
    ) -> Result<(Grant, ResumePoint), Failure> {
        let grant = member.grant().clone();
        if grant.terms.resume.is_empty() || grant.terms.world < 2 {
            return Ok((grant, ResumePoint::default()));
        }
        tokio::select! {
            biased;
            failure = member.failed() => Err(self.failure(&failure)),
            failure = self.interrupted() => Err(failure),
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
        events: &mut UnboundedReceiver<TaskEvent>,
    ) -> Result<(), Failure> {
        let (backend, id) = (&self.context.backend, self.id);
        let mut over_udp = grant.terms.over_udp;
        let adding = backend.clone();
        blocking(move || adding.add_job(id, &grant)).await??;
        loop {
            let grant = tokio::select! {
                biased;
                failure = member.failed() => return Err(self.failure(&failure)),
                failure = self.interrupted() => return Err(failure),
                grant = self.measured(member, over_udp, events) => grant?,
            };
            let Some(grant) = grant else { return Ok(()) };
            // The measurement over UDP has shorter timeouts, and it may have failed.
            let is_added_again = std::mem::replace(&mut over_udp, grant.terms.over_udp) || over_udp;
            let backend = backend.clone();
            // Whole, so that whoever removes the job finds all of it.
            blocking(move || match is_added_again {
                false => backend.start_job(id, grant.terms.slots),
                true => backend.add_job_again(id, &grant),
            })
            .await??;
        }
    }

    /// Waits for the data path, and where it has measured for the other workers. Returns the grant to go on
    /// with; `None`: the job is ready.
    async fn measured(
        &self,
        member: &Member,
        over_udp: bool,
        events: &mut UnboundedReceiver<TaskEvent>,
    ) -> Result<Option<Grant>, Failure> {
        loop {
            let event = timeout(HANDSHAKE_TIMEOUT, events.recv()).await.map_err(|_| {
                Failure::new(Code::Handshake, "the data path does not finish the handshake")
                    .hint("see the daemon's log, and `sumac doctor`")
            })?;
            let measure = match event {
                Some(TaskEvent::Ready) => return Ok(None),
                Some(TaskEvent::Measured(measure)) => measure,
                // A job that starts is not handed over.
                Some(TaskEvent::Freeze(_)) => continue,
                None => return Err(Failure::new(Code::JobFailed, "its trainer went away")),
            };
            if over_udp && measure == PathMeasure::default() {
                self.context.backend.udp_is_silent();
            }
            // The coordinator chooses the number of slots, and the backend, by all workers' measurements.
            let grant = member.tune(measure).await.map_err(|failure| self.failure(&failure))?;
            let terms = &grant.terms;
            if terms.is_measured {
                let (slots, reason) = (terms.slots, &terms.slots_reason);
                log_limited!(info, job = self.plan.spec.job, slots, reason, "the window is chosen");
                self.context.core.call(|host, _, _| host.set_measured(self.id, terms));
            }
            return Ok(Some(grant));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use sumac_job::{AggregatorKind, JobTerms, OperationId, Placement};
    use tokio::sync::mpsc::unbounded_channel;

    fn grant(epoch: u16) -> Grant {
        let terms = JobTerms { elements: 352, ..JobTerms::new(1, epoch, 1, 2) };
        let placement = Placement {
            rank: 0,
            aggregator_ip: Ipv4Addr::LOCALHOST,
            base_port: 48700,
            aggregator: AggregatorKind::Host,
            result_group: None,
            rack_rank: 0,
            rack_world: 2,
            bitmap_1: 0,
            beside_root: false,
        };
        Grant { terms, placement }
    }

    fn report(epoch: u16, number: u32) -> Event {
        let point = ResumePoint { operation: OperationId(number), next: vec![number; 2], loads: vec![0] };
        Event::ResumePoint { epoch, point }
    }

    /// Returns the outcome of these events before and these after the next epoch, if there is one.
    async fn resume_point(before: &[Event], next: Option<u16>, after: &[Event]) -> Option<(u16, u32)> {
        let ((send, events), (renew, renewed)) = (unbounded_channel(), unbounded_channel());
        let mut channels = Channels { events, renewed };
        before.iter().for_each(|event| send.send(event.clone()).unwrap());
        let waiting = tokio::spawn(async move { channels.resume_point(grant(2)).await });
        tokio::task::yield_now().await;
        next.into_iter().for_each(|epoch| renew.send(grant(epoch)).unwrap());
        after.iter().for_each(|event| send.send(event.clone()).unwrap());
        drop((send, renew));
        waiting.await.unwrap().map(|(grant, point)| (grant.terms.epoch, point.operation.0))
    }

    #[tokio::test]
    async fn a_replacement_follows_its_own_epoch() {
        let short = Event::ResumePoint { epoch: 2, point: ResumePoint::default() };
        let other = Event::ReportOperations;
        assert_eq!(
            resume_point(&[other.clone(), short, report(2, 7), report(2, 8)], None, &[]).await,
            Some((2, 7))
        );
        assert_eq!(resume_point(&[report(1, 7)], None, &[]).await, None, "an earlier one's");
        assert_eq!(resume_point(&[report(3, 7)], Some(3), &[]).await, Some((3, 7)), "it came first");
        assert_eq!(resume_point(&[other], Some(3), &[report(2, 5), report(3, 9)]).await, Some((3, 9)));
    }
}
