//! The clients of a job on this host: the connection that has opened it, and those that attached.

use sumac_api::{Attach, Code, Event, Failure, OpenReply, Outbound};
use sumac_transport::JobError;

use crate::access::Credentials;
use crate::connection::{ConnectionJob, ConnectionJobState, LIMITS};
use crate::host::Host;
use crate::job::{Job, JobPhase};
use crate::job_end::JobEnd;
use crate::quotas::Quota;
use crate::refusals::{gone, limit};
use crate::{Attached, ConnectionId, JobId, Message, Output, Resources};

impl Host {
    /// Adds a handle of a job to a connection, with its eventfd.
    pub(crate) fn add_handle(
        &mut self,
        connection: ConnectionId,
        job: ConnectionJob,
        resources: &mut dyn Resources,
    ) -> Result<u64, Failure> {
        let Some(found) = self.state.connections.get_mut(&connection) else { return Err(gone()) };
        if found.jobs.len() >= LIMITS.jobs as usize {
            return Err(limit("jobs", LIMITS.jobs, "close one first"));
        }
        let uid = found.credentials.uid;
        self.state.quotas.reserve(&self.config.quotas, uid, &[(Quota::Jobs, 1)])?;
        let handle = found.next_handle();
        if let Err(failure) = resources.create_event(connection, handle) {
            self.state.quotas.release(uid, Quota::Jobs, 1);
            return Err(failure);
        }
        found.jobs.insert(handle, job);
        Ok(handle)
    }

    /// Attaches a connection to a job of this host.
    pub(crate) fn attach(
        &mut self,
        connection: ConnectionId,
        id: u64,
        attach: &Attach,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let job = self.find_open(attach)?;
        self.check_attach(connection, job, attach, resources)?;
        if let Some(failure) = self.running_mut(job).and_then(|running| running.closed.clone()) {
            return Err(failure);
        }
        let state = ConnectionJobState::Open;
        let handle =
            self.add_handle(connection, ConnectionJob { job, is_opener: false, state }, resources)?;
        let Some(running) = self.running_mut(job) else { return Ok(()) };
        running.clients.insert((connection, handle));
        let reply = Outbound::ok(id, &OpenReply { job: handle, ..running.reply.clone() });
        let message = Message { attached: Some(Attached::Event(handle)), ..Message::new(reply) };
        out.push(Output::Send { connection, message: Box::new(message) });
        Ok(())
    }

    fn find_open(&self, attach: &Attach) -> Result<JobId, Failure> {
        let (name, wanted) = (&attach.job, attach.rank);
        let is_open = |job: &&Job| job.name == *name && job.phase == JobPhase::Open;
        let ranks: Vec<u16> = self.state.jobs.values().filter(is_open).map(|job| job.rank).collect();
        let mut open = self.state.jobs.iter().filter(|(_, job)| is_open(job));
        match (wanted, &ranks[..]) {
            (None, [_, _, ..]) => {
                let message = format!("ranks {ranks:?} of job {name:?} are on this host");
                Err(Failure::new(Code::BadField, message).hint("name one of them with `rank`").ranks(ranks))
            }
            (None, [_]) | (Some(_), _) if wanted.is_none_or(|wanted| ranks.contains(&wanted)) => {
                let found = open.find(|(_, job)| wanted.is_none_or(|wanted| job.rank == wanted));
                found.map(|(id, _)| *id).ok_or_else(gone)
            }
            _ => {
                let which = wanted.map_or_else(String::new, |rank| format!("rank {rank} of "));
                let message = format!("{which}job {name:?} is not open on this host");
                Err(Failure::new(Code::UnknownJob, message).hint(
                    "one client opens it as this host's rank; others attach when all ranks have joined",
                ))
            }
        }
    }

    fn check_attach(
        &self,
        connection: ConnectionId,
        job: JobId,
        attach: &Attach,
        resources: &dyn Resources,
    ) -> Result<(), Failure> {
        let denied = |problem: String| {
            let message = format!("job {:?}: {problem}", attach.job);
            Err(Failure::new(Code::Denied, message)
                .hint("attach as the user who opened it, or with its secret"))
        };
        let users = self.state.connections.get(&connection).zip(self.state.jobs.get(&job));
        let Some((uid, owner)) = users.map(|(own, job)| (own.credentials.uid, job.uid)) else {
            return Err(gone());
        };
        match &attach.secret {
            Some(secret) if resources.is_secret(job, &secret.0) => Ok(()),
            Some(_) => denied("this is not its secret".into()),
            None if uid == owner => Ok(()),
            None => denied(format!("user {owner} has opened it, not user {uid}")),
        }
    }

    /// Removes a client. The job fails if operations of it are outstanding: the other workers wait for them.
    pub(crate) fn detach(
        &mut self,
        id: JobId,
        client: (ConnectionId, u64),
        credentials: &Credentials,
        how: &str,
        out: &mut Vec<Output>,
    ) {
        let (connection, handle) = client;
        let own = self.state.operations.of_connection(connection);
        let outstanding = own.filter(|(_, operation)| operation.handle == handle).count();
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let Some(running) = &mut job.running else { return };
        if running.clients.remove(&client) && outstanding > 0 && running.closed.is_none() {
            let reason = format!(
                "a client of its job ({credentials}) {how}, with {outstanding} operations outstanding"
            );
            job.end_with(id, JobEnd::died(reason), out);
        }
    }

    /// Notifies the clients that an operation waits for these ranks; none: they are not known.
    pub(crate) fn notify_waiting(&self, job: JobId, message: &str, ranks: &[u16], out: &mut Vec<Output>) {
        let Some(running) = self.state.jobs.get(&job).and_then(|job| job.running.as_ref()) else { return };
        for (connection, handle) in &running.clients {
            let (message, ranks) = (message.to_owned(), ranks.to_vec());
            let event = Outbound::Event(Event::Waiting { job: *handle, message, ranks });
            let message = Message { is_optional: true, ..Message::new(event) };
            out.push(Output::Send { connection: *connection, message: Box::new(message) });
        }
    }

    /// Cancels a job's operations, and with them the job on all workers.
    pub(crate) fn cancel_job(&mut self, id: JobId, out: &mut Vec<Output>) {
        let Some(job) = self.state.jobs.get_mut(&id) else { return };
        let rank = job.rank;
        let is_first =
            job.running.as_mut().is_some_and(|running| !std::mem::replace(&mut running.is_cancelled, true));
        if is_first {
            let error = JobError::Cancelled { by: format!("the trainer of rank {rank}") };
            job.end_with(id, JobEnd::ours(error), out);
        }
    }

    /// Notifies a client that its job has ended, and answers a `close` that waits.
    pub(crate) fn job_failed_at(
        &mut self,
        connection: ConnectionId,
        handle: u64,
        failure: &Failure,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let Some(own) = self.handle_mut(connection, handle) else { return };
        let before = std::mem::replace(&mut own.state, ConnectionJobState::Failed(failure.clone()));
        let event = Event::JobFailed { job: handle, error: failure.clone() };
        self.send(connection, Outbound::Event(event), out);
        if let ConnectionJobState::Closing { request } = before {
            // The job ended before it was closed; the close succeeds as for any failed job.
            self.remove_handle(connection, handle, resources);
            self.send(connection, Outbound::ok(request, &serde_json::Map::new()), out);
        }
    }
}
