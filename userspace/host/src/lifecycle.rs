//! The life of a job, from the name that it takes to its removal.

use std::collections::{BTreeSet, VecDeque};

use sumac_api::{Code, DynamicReply, Failure, OpenReply, Outbound, Scale};
use sumac_control::events::Post;
use sumac_control::{Grant, Outcome};
use sumac_job::{JobTerms, ResumePoint, WireFormat};
use sumac_transport::JobError;

use crate::connection::ConnectionJobState;
use crate::host::Host;
use crate::job::{Job, JobPhase, JobSummary, RunningJob};
use crate::job_end::JobEnd;
use crate::quotas::{Quota, job_bytes};
use crate::{Attached, JobId, Message, Nanos, Output, Resources};

impl Host {
    /// Returns the rank of the job that has a name.
    pub(crate) fn holder(&self, name: &str) -> Option<u16> {
        let has_it = |job: &&Job| job.name == name && job.phase != JobPhase::AwaitsName;
        self.state.jobs.values().find(has_it).map(|job| job.rank)
    }

    /// Records that all workers have joined. `point`: the position at which a worker that replaces another
    /// one continues.
    ///
    /// # Errors
    /// The user's share is exceeded, or this host is a worker of the job already.
    pub fn joined(&mut self, id: JobId, grant: &Grant, point: &ResumePoint) -> Result<OpenReply, Failure> {
        // Each control plane counts its jobs from 1. The token, which is random, distinguishes equal ones.
        let (number, token) = (grant.terms.job, grant.terms.token);
        let is_same = |running: &RunningJob| (running.terms.job, running.terms.token) == (number, token);
        let is_taken = self.running().any(|(_, running)| is_same(running));
        let Some(job) = self.state.jobs.get_mut(&id) else {
            return Err(Failure::new(Code::JobFailed, "its trainer went away"));
        };
        let held = job_bytes(&grant.terms);
        self.state.quotas.reserve(&self.config.quotas, job.uid, &[(Quota::Held, held)])?;
        if is_taken {
            self.state.quotas.release(job.uid, Quota::Held, held);
            let message = format!("job number {number} with the same token is on this host already");
            return Err(Failure::new(Code::Refused, message).hint("a daemon is one worker of a job"));
        }
        let plane = grant.placement.aggregator.name();
        let reply = open_reply(job, &grant.terms, point, (&self.config.backend, plane));
        let running = RunningJob::new(grant.terms.clone(), reply.clone(), held, point);
        job.running = Some(Box::new(RunningJob { clients: BTreeSet::from([job.opener]), ..running }));
        Ok(reply)
    }

    /// Records whether the control plane of a job answers.
    pub fn set_connected(&mut self, job: JobId, is_connected: bool) {
        if let Some(job) = self.state.jobs.get_mut(&job) {
            job.is_connected = is_connected;
        }
    }

    /// Records the slots and the backend that the coordinator has chosen by all workers' measurements.
    pub fn set_measured(&mut self, job: JobId, terms: &JobTerms) {
        if let Some(running) = self.running_mut(job) {
            let reply = &mut running.reply;
            (reply.slots, reply.slots_reason) = (terms.slots, terms.slots_reason.clone());
            if terms.over_udp {
                "udp".clone_into(&mut reply.backend);
            }
        }
    }

    /// Answers the `open` of a job that is ready, and lets others attach. The host's other ranks follow.
    ///
    /// # Errors
    /// It was withdrawn, or has failed, meanwhile.
    pub fn opened(&mut self, id: JobId, out: &mut Vec<Output>) -> Result<(), Failure> {
        let Some(job) = self.state.jobs.get_mut(&id) else { return Ok(()) };
        if let (Some(JobEnd::Failed { failure, .. }), true) = (&job.end, job.has_handle) {
            return Err(failure.clone());
        }
        job.phase = JobPhase::Open;
        if job.is_shared() && !job.is_local() && !job.is_follower() {
            self.open_followers(id, out);
        }
        let Some(job) = self.state.jobs.get(&id) else { return Ok(()) };
        let (Some(running), (connection, handle)) = (&job.running, job.opener) else { return Ok(()) };
        let reply = Outbound::ok(job.request, &OpenReply { job: handle, ..running.reply.clone() });
        if let Some(own) = self.handle_mut(connection, handle) {
            own.state = ConnectionJobState::Open;
            let message = Message { attached: Some(Attached::Event(handle)), ..Message::new(reply) };
            out.push(Output::Send { connection, message: Box::new(message) });
        }
        Ok(())
    }

    /// Answers the `open` of a job that cannot be opened, and removes it.
    pub fn not_opened(
        &mut self,
        id: JobId,
        failure: Failure,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(job) = self.state.jobs.get(&id) else { return };
        let ((connection, handle), request) = (job.opener, job.request);
        self.not_joined(id, &failure, out);
        if self.handle_mut(connection, handle).is_some() {
            self.remove_handle(connection, handle, resources);
            self.send(connection, Outbound::failed(Some(request), failure), out);
        }
        self.remove_job(id, resources);
    }

    /// Records a further epoch, in which another worker was replaced, and reports the position for that one.
    pub fn renewed(&mut self, id: JobId, epoch: u16, resume: &[u32], out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let Some(running) = &mut job.running else { return };
        running.reply.epoch = epoch;
        let end = running.lanes.position(running.next);
        if let Some(point) = running.log.resume_point(end, resume) {
            job.post(id, Post::ResumePoint { epoch, point }, out);
        }
    }

    /// Takes the reports for the job's control plane.
    pub fn take_posts(&mut self, job: JobId) -> VecDeque<Post> {
        self.state.jobs.get_mut(&job).map(|job| std::mem::take(&mut job.posts)).unwrap_or_default()
    }

    /// Takes the job's end, if it has one, after which it takes no part in anything.
    pub fn take_end(&mut self, id: JobId, out: &mut Vec<Output>) -> Option<JobEnd> {
        let job = self.state.jobs.get_mut(&id)?;
        let end = job.end.take()?;
        job.phase = JobPhase::Leaving;
        if job.is_shared() {
            self.end_others(id, &end, out);
        }
        Some(end)
    }

    /// Returns the reason for which a job that starts is given up, if there is one.
    #[must_use]
    pub fn interruption(&self, job: JobId) -> Option<Failure> {
        let gone = || Failure::new(Code::JobFailed, "its trainer went away");
        match self.state.jobs.get(&job).map(|job| &job.end) {
            Some(None) => None,
            Some(Some(JobEnd::Failed { outcome: Some(Outcome::Died(_)), .. } | JobEnd::Closed { .. }))
            | None => Some(gone()),
            Some(Some(JobEnd::Failed { failure, .. })) => Some(failure.clone()),
        }
    }

    /// Ends the operations of a job and notifies its clients. The data path has returned all fragments.
    pub fn finish(
        &mut self,
        now: Nanos,
        id: JobId,
        end: &JobEnd,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let (failure, is_closed) = match end {
            JobEnd::Failed { failure, .. } => (failure.clone(), false),
            JobEnd::Closed { .. } => {
                (Failure::new(Code::JobFailed, "the client that opened the job has closed it"), true)
            }
        };
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        job.phase = JobPhase::Leaving;
        let opener = job.opener;
        let mut clients = Vec::new();
        if let Some(running) = &mut job.running {
            running.closed.get_or_insert_with(|| failure.clone());
            running.named.clear();
            clients = std::mem::take(&mut running.clients).into_iter().collect();
        }
        self.fail_operations(now, id, &failure, resources, out);
        for (connection, handle) in clients.into_iter().filter(|client| !is_closed || *client != opener) {
            self.job_failed_at(connection, handle, &failure, resources, out);
        }
    }

    /// Answers the `close` of a job that has left its control plane.
    pub fn closed(&mut self, id: JobId, request: u64, resources: &mut dyn Resources, out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get(&id) else { return };
        let (connection, handle) = job.opener;
        if self.handle_mut(connection, handle).is_some() {
            self.remove_handle(connection, handle, resources);
            self.send(connection, Outbound::ok(request, &serde_json::Map::new()), out);
        }
    }

    /// Removes a job, whose name is free from here on.
    pub fn remove_job(&mut self, id: JobId, resources: &mut dyn Resources) {
        let Some(job) = self.state.jobs.remove(&id) else { return };
        self.leave_locally(&job, id, resources);
        let held = job.running.as_ref().map_or(0, |running| running.held);
        self.state.quotas.release(job.uid, Quota::Held, held);
        if !job.has_handle {
            self.state.quotas.release(job.uid, Quota::Jobs, 1);
        }
    }

    /// Fails all jobs that use the network, except one that begins.
    pub fn fail_all(&mut self, except: Option<JobId>, error: &JobError, out: &mut Vec<Output>) {
        let jobs = self.state.jobs.iter_mut().filter(|(id, job)| Some(**id) != except && !job.is_local());
        for (id, job) in jobs {
            job.end_with(*id, JobEnd::ours(error.clone()), out);
        }
    }

    /// Returns a job as `stats` and the metrics describe it.
    #[must_use]
    pub fn summary(&self, id: JobId) -> Option<JobSummary> {
        let job = self.state.jobs.get(&id)?;
        let running = job.running.as_ref()?;
        Some(JobSummary {
            name: job.name.clone(),
            is_connected: job.is_connected,
            reply: running.reply.clone(),
            submitted: running.submitted,
            ended: running.ended,
            clients: u32::try_from(running.clients.len()).unwrap_or(u32::MAX),
        })
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = (JobId, &RunningJob)> {
        self.state.jobs.iter().filter_map(|(id, job)| Some((*id, job.running.as_deref()?)))
    }

    pub(crate) fn running_mut(&mut self, job: JobId) -> Option<&mut RunningJob> {
        self.state.jobs.get_mut(&job)?.running.as_deref_mut()
    }
}

pub(crate) fn open_reply(
    job: &Job,
    terms: &JobTerms,
    point: &ResumePoint,
    (backend, plane): (&str, &str),
) -> OpenReply {
    let is_dynamic = terms.is_dynamic();
    // A dynamic job detects overflow of sums, and mostly needs no headroom; a job of one host needs none.
    let has_headroom = !job.is_local() && (!is_dynamic || terms.headroom);
    let part = |of: i32| of / if has_headroom { i32::from(terms.ranks()) } else { 1 };
    let max_int = part(i32::MAX);
    let of_floats = match terms.wire {
        WireFormat::Int16 => part(i16::MAX.into()),
        WireFormat::Int32 | WireFormat::Auto => max_int,
    };
    let max_float = match terms.scale {
        // In a dynamic job values that do not fit travel as floats; a direct one scales none.
        Scale::Fixed(scale) if !is_dynamic && !terms.is_direct() => {
            Some(f64::from(of_floats) / f64::from(scale))
        }
        Scale::Fixed(_) | Scale::Block => None,
    };
    OpenReply {
        job: job.opener.1,
        wire_job: terms.job,
        epoch: terms.epoch,
        rank: job.rank,
        world: terms.ranks(),
        servers: terms.servers,
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
        backend: backend.to_owned(),
        plane: plane.to_owned(),
    }
}
