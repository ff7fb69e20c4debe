//! What happened elsewhere, as a session tells its trainer.

use std::os::fd::AsFd;
use std::sync::Arc;

use sumac_api::{Code, Event, Failure, OpenReply, Outbound, WaitReply};

use super::{End, JobState, Session};
use crate::operations::Outcome;
use crate::stream::{ClientId, Stream};

/// A client's way into a job that is open.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) stream: Arc<Stream>,
    pub(crate) client: ClientId,
    /// What the client is told, but for the handle, which is the session's.
    pub(crate) reply: OpenReply,
}

/// Something that a session must know.
#[derive(Debug)]
pub(crate) enum Note {
    /// A job is ready, or is not to be had.
    Opened { request: u64, job: u64, result: Result<Box<Entered>, Failure> },
    /// An operation has ended; its memory has been given back.
    Completed { op: u64, outcome: Outcome },
    /// A job that was open has ended, and its outstanding operations with it; their memory has been given back.
    JobFailed { job: u64, failure: Failure },
    /// A job was left.
    Closed { request: u64, job: u64, result: Result<(), Failure> },
    /// The daemon is stopping.
    Stop,
}

impl Session {
    pub(super) fn note(&mut self, note: Note) -> Result<(), End> {
        match note {
            Note::Opened { request, job, result } => self.opened(request, job, result),
            Note::Completed { op, outcome } => self.completed(op, &outcome),
            Note::JobFailed { job, failure } => self.job_failed(job, failure),
            Note::Closed { request, job, result } => self.closed(request, job, result),
            Note::Stop => {
                self.stopping();
                Err(End::Stopping)
            }
        }
    }

    fn opened(
        &mut self,
        request: u64,
        handle: u64,
        result: Result<Box<Entered>, Failure>,
    ) -> Result<(), End> {
        match result {
            Ok(entered) => {
                let Entered { stream, client, reply } = *entered;
                let Some(job) = self.jobs.get_mut(&handle) else { return Ok(()) };
                job.state = JobState::Open { stream, client };
                let Some(job) = self.jobs.get(&handle) else { return Ok(()) };
                let reply = OpenReply { job: handle, ..reply };
                self.send_with(&Outbound::ok(request, &reply), &[job.bell.as_fd()])
            }
            Err(failure) => {
                self.jobs.remove(&handle);
                self.refuse(Some(request), failure)
            }
        }
    }

    fn completed(&mut self, op: u64, outcome: &Outcome) -> Result<(), End> {
        let Some((running, requests)) = self.operations.finish(op, outcome) else {
            return Ok(());
        };
        for request in requests {
            self.send(&wait_reply(request, op, outcome.clone()))?;
        }
        self.send(&Outbound::Event(Event::Completed {
            op,
            job: running.job,
            duration_ns: outcome.duration_ns,
            missed: outcome.missed.clone(),
            error: outcome.error.clone(),
        }))?;
        // The message first: whom the bell wakes finds it there.
        if let Some(job) = self.jobs.get(&running.job) {
            job.bell.ring();
        }
        Ok(())
    }

    fn job_failed(&mut self, handle: u64, failure: Failure) -> Result<(), End> {
        for (op, since) in self.operations.of_job(handle) {
            let duration_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.completed(op, &Outcome { duration_ns, error: Some(failure.clone()), missed: Vec::new() })?;
        }
        let Some(job) = self.jobs.get_mut(&handle) else { return Ok(()) };
        let before = std::mem::replace(&mut job.state, JobState::Failed(failure.clone()));
        self.send(&Outbound::Event(Event::JobFailed { job: handle, error: failure }))?;
        match before {
            // The end came first: the close finds a job that is over, and lets go of it as of any such.
            JobState::Closing { request } => self.closed(request, handle, Ok(())),
            _ => Ok(()),
        }
    }

    fn closed(&mut self, request: u64, job: u64, result: Result<(), Failure>) -> Result<(), End> {
        self.jobs.remove(&job);
        match result {
            Ok(()) => self.send(&Outbound::ok(request, &serde_json::Map::new())),
            Err(failure) => self.refuse(Some(request), failure),
        }
    }

    /// Says goodbye where there is something to say; whether it arrives does not matter any more.
    fn stopping(&self) {
        for handle in self.jobs.keys() {
            let error = Failure::new(Code::ShuttingDown, "this host's daemon is being stopped")
                .hint("connect again when it is back, and open the job again on all workers");
            let _ = self.send(&Outbound::Event(Event::JobFailed { job: *handle, error }));
        }
    }
}

/// The answer to a `wait` for an operation that has ended.
pub(super) fn wait_reply(request: u64, op: u64, outcome: Outcome) -> Outbound {
    match outcome.error {
        None => {
            let Outcome { duration_ns, missed, .. } = outcome;
            Outbound::ok(request, &WaitReply { op, duration_ns, missed })
        }
        Some(failure) => Outbound::failed(Some(request), failure),
    }
}
