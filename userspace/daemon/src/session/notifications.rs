//! Notifications from the job's tasks and the data path to a session.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use sumac_api::{Code, Event, Failure, OpenReply, Outbound, WaitReply};

use super::outstanding::Outcome;
use super::{End, JobState, Session, SessionState};
use crate::operations::{ClientId, JobOperations};

#[derive(Debug)]
pub(crate) struct OpenedJob {
    pub(crate) operations: Arc<JobOperations>,
    pub(crate) client: ClientId,
    /// The reply to the client; the session fills its handle in.
    pub(crate) reply: OpenReply,
}

#[derive(Debug)]
pub(crate) enum Notification {
    Opened {
        request: u64,
        job: u64,
        result: Result<Box<OpenedJob>, Failure>,
    },
    /// An operation has ended; its memory is released.
    Completed {
        op: u64,
        outcome: Outcome,
    },
    /// An open job has ended, and with it its outstanding operations; their memory is released.
    JobFailed {
        job: u64,
        failure: Failure,
    },
    Closed {
        request: u64,
        job: u64,
    },
    /// An operation of an open job waits for other workers.
    Waiting {
        job: u64,
        message: String,
        ranks: Vec<u16>,
    },
    Stop,
    /// Another daemon is about to take the connection over: no command is executed after the answer.
    Freeze(Sender<()>),
    /// The state of a frozen connection, after all notifications before.
    Snapshot(Sender<Result<(SessionState, Vec<OwnedFd>), String>>),
    /// It goes on here.
    Thaw,
    /// It goes on there.
    HandedOver,
}

impl Session {
    pub(super) fn handle(&mut self, note: Notification) -> Result<(), End> {
        match note {
            Notification::Opened { request, job, result } => self.opened(request, job, result),
            Notification::Completed { op, outcome } => self.completed(op, &outcome),
            Notification::JobFailed { job, failure } => self.job_failed(job, failure),
            Notification::Closed { request, job } => self.closed(request, job),
            Notification::Waiting { job, message, ranks } => {
                match self.send(&Outbound::Event(Event::Waiting { job, message, ranks })) {
                    // A trainer that reads nothing meanwhile does without.
                    Err(End::Overrun) => Ok(()),
                    sent => sent,
                }
            }
            Notification::Freeze(answer) => {
                self.is_frozen = true;
                // Whoever asked may have stopped waiting.
                let _ = answer.send(());
                Ok(())
            }
            Notification::Snapshot(answer) => {
                let _ = answer.send(self.snapshot());
                Ok(())
            }
            Notification::Thaw => {
                self.is_frozen = false;
                Ok(())
            }
            Notification::HandedOver => Err(End::HandedOver),
            Notification::Stop => {
                for handle in self.jobs.keys() {
                    let error = Failure::new(Code::ShuttingDown, "this host's daemon is being stopped")
                        .hint("connect again when it is back, and open the job again on all workers");
                    // The connection ends in any case.
                    let _ = self.send(&Outbound::Event(Event::JobFailed { job: *handle, error }));
                }
                Err(End::Stopping)
            }
        }
    }

    fn opened(
        &mut self,
        request: u64,
        handle: u64,
        result: Result<Box<OpenedJob>, Failure>,
    ) -> Result<(), End> {
        match result {
            Ok(opened) => {
                let OpenedJob { operations, client, reply } = *opened;
                let Some(job) = self.jobs.get_mut(&handle) else { return Ok(()) };
                job.state = JobState::Open { operations, client };
                let reply = Outbound::ok(request, &OpenReply { job: handle, ..reply });
                self.send_with(&reply, &[self.jobs[&handle].completion.eventfd.as_fd()])
            }
            Err(failure) => {
                self.jobs.remove(&handle);
                self.refuse(Some(request), failure)
            }
        }
    }

    fn completed(&mut self, op: u64, outcome: &Outcome) -> Result<(), End> {
        let Some((operation, requests)) = self.operations.finish(op, outcome) else {
            return Ok(());
        };
        for request in requests {
            self.send(&wait_reply(request, op, outcome.clone()))?;
        }
        self.send(&Outbound::Event(Event::Completed {
            op,
            job: operation.job,
            duration_ns: outcome.duration_ns,
            missed: outcome.missed.clone(),
            loss: outcome.loss.clone(),
            timing: outcome.timing,
            error: outcome.error.clone(),
        }))?;
        // After the message, so that a trainer that wakes up finds it.
        if let Some(job) = self.jobs.get(&operation.job) {
            job.completion.signal();
        }
        Ok(())
    }

    fn job_failed(&mut self, handle: u64, failure: Failure) -> Result<(), End> {
        for (op, submitted) in self.operations.of_job(handle) {
            let duration_ns = u64::try_from(submitted.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let error = Some(failure.clone());
            self.completed(op, &Outcome { duration_ns, error, ..Outcome::default() })?;
        }
        let Some(job) = self.jobs.get_mut(&handle) else { return Ok(()) };
        let before = std::mem::replace(&mut job.state, JobState::Failed(failure.clone()));
        self.send(&Outbound::Event(Event::JobFailed { job: handle, error: failure }))?;
        match before {
            // The job ended before it was closed; the close succeeds as for any failed job.
            JobState::Closing { request } => self.closed(request, handle),
            _ => Ok(()),
        }
    }

    fn closed(&mut self, request: u64, job: u64) -> Result<(), End> {
        self.jobs.remove(&job);
        self.send(&Outbound::ok(request, &serde_json::Map::new()))
    }
}

pub(super) fn wait_reply(request: u64, op: u64, outcome: Outcome) -> Outbound {
    match outcome.error {
        None => {
            let Outcome { duration_ns, missed, loss, timing, .. } = outcome;
            Outbound::ok(request, &WaitReply { op, duration_ns, missed, loss, timing })
        }
        Some(failure) => Outbound::failed(Some(request), failure),
    }
}
