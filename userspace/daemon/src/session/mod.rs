//! A trainer's connection: a thread that executes its commands, keeps its handles and sends it events.
//!
//! No other thread waits for a trainer, and this one does not wait for it to read: a message that does not fit the
//! socket's buffer ends the session, and with it the trainer's jobs.

mod commands;
mod completion_event;
mod completion_word;
mod handover;
mod memory;
mod notifications;
mod outstanding;
mod tensor;
mod transfers;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sumac_api::{Channel, Code, Failure, FrameError, Inbound, Limits, MAX_MESSAGE, Outbound, Request};

use self::completion_event::CompletionEvent;
use self::outstanding::Operations;
use crate::access::Credentials;
use crate::daemon::DaemonState;
use crate::job::JobHandle;
use crate::operations::{ClientId, JobOperations};
use crate::pace::thread_time;
use crate::quotas::Reservation;
use crate::wake_queue::WakeQueue;

pub(crate) use self::completion_word::{CompletionWord, WordPlace};
pub(crate) use self::handover::{SessionDescriptors, SessionState};
pub(crate) use self::memory::Region;
pub(crate) use self::notifications::{Notification, OpenedJob};
pub(crate) use self::outstanding::Outcome;
pub(crate) use self::tensor::{BufferPlace, LeasedBuffer};

/// The limits of a connection. That of operations depends on its socket, see [`operations_that_fit`].
const LIMITS: Limits = Limits {
    message_bytes: MAX_MESSAGE as u64,
    regions: 256,
    region_bytes: 1 << 36,
    jobs: 16,
    operations: 1024,
    finished: 1024,
};

/// The bytes that the kernel charges a socket's buffer for a message of up to 1,728 bytes: 2,048 for the text, and its own
/// header. A completion is not longer, since [`crate::explain::MESSAGE_LEN`] bounds the message of its error.
const MESSAGE_COST: usize = 2304;
/// The size of a socket's buffer that is requested: the completions of all operations.
/// The kernel doubles what it is asked for.
const BUFFER: usize = LIMITS.operations as usize * MESSAGE_COST / 2;

/// Returns the number of operations whose completions fit the socket's buffer beside some replies: a trainer that waits
/// for the last of them before it reads loses none.
fn operations_that_fit(channel: &Channel) -> u32 {
    use nix::sys::socket::{getsockopt, setsockopt, sockopt};

    // The privileged form may exceed the system's maximum. Without either the default remains.
    if setsockopt(channel, sockopt::SndBufForce, &BUFFER).is_err() {
        let _ = setsockopt(channel, sockopt::SndBuf, &BUFFER);
    }
    let buffer = getsockopt(channel, sockopt::SndBuf).unwrap_or(0);
    u32::try_from(buffer / MESSAGE_COST).unwrap_or(u32::MAX).clamp(16, LIMITS.operations)
}

/// The interval of looking for leases that have not ended when a connection has.
const LEASE_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct SessionJob {
    /// `None` for a job that this connection has attached to.
    job: Option<JobHandle>,
    completion: CompletionEvent,
    state: JobState,
    /// One of the jobs in the user's share.
    _reserved: Arc<Reservation>,
}

#[derive(Debug)]
enum JobState {
    /// Not all workers have joined yet.
    Opening,
    Open {
        operations: Arc<JobOperations>,
        client: ClientId,
    },
    /// Ended; only `close` remains.
    Failed(Failure),
    /// `request` is answered once the control plane has been notified.
    Closing {
        request: u64,
    },
}

/// An operation whose memory was checked, and counted.
#[derive(Debug)]
struct Admitted {
    op: u64,
    from: Arc<Region>,
    to: Arc<Region>,
    held: Reservation,
}

/// The reason why a session ends, as other workers read it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("went away")]
    Gone,
    #[error("does not read its messages")]
    Overrun,
    #[error("was cut off because its daemon is stopping")]
    Stopping,
    #[error("cannot be reached any more: {0}")]
    Broken(FrameError),
    #[error("goes on in another daemon")]
    HandedOver,
}

#[derive(Debug)]
pub(crate) struct Session {
    daemon: Arc<DaemonState>,
    channel: Channel,
    /// The connection's number.
    connection: u64,
    credentials: Credentials,
    notes: Arc<WakeQueue<Notification>>,
    limits: Limits,
    greeted: bool,
    handles: u64,
    regions: HashMap<u64, Arc<Region>>,
    jobs: HashMap<u64, SessionJob>,
    operations: Operations,
    /// The time from which the next command is read; see [`crate::pace`].
    resume: Option<Instant>,
    /// Executes no command: another daemon is about to take it over.
    is_frozen: bool,
}

impl Session {
    pub(crate) fn new(
        daemon: Arc<DaemonState>,
        channel: Channel,
        connection: u64,
        credentials: Credentials,
        notes: Arc<WakeQueue<Notification>>,
        resume: Option<Instant>,
    ) -> Session {
        let limits = Limits { operations: operations_that_fit(&channel), ..LIMITS };
        Session {
            limits,
            daemon,
            channel,
            connection,
            credentials,
            notes,
            greeted: false,
            handles: 0,
            regions: HashMap::new(),
            jobs: HashMap::new(),
            operations: Operations::new(LIMITS.finished as usize),
            resume,
            is_frozen: false,
        }
    }

    /// Serves the connection until it ends, then releases the trainer's resources.
    pub(crate) fn run(mut self) {
        tracing::debug!(peer = %self.credentials, "a trainer has connected");
        let mut buffer = vec![0; MAX_MESSAGE];
        let end = loop {
            if let Err(end) = self.step(&mut buffer) {
                break end;
            }
        };
        self.finish(&end);
    }

    fn step(&mut self, buffer: &mut [u8]) -> Result<(), End> {
        let (is_notified, is_readable) = self.wait_for_input()?;
        if is_notified {
            for note in self.notes.take() {
                self.handle(note)?;
            }
        }
        if self.is_frozen {
            return Ok(());
        }
        for (op, request) in self.operations.expire(Instant::now()) {
            let failure = Failure::new(Code::Timeout, format!("operation {op} has not finished yet"))
                .hint("it goes on; wait again, or cancel it");
            self.refuse(Some(request), failure)?;
        }
        if !is_readable {
            return Ok(());
        }
        // A client that polls may send a command before this session wakes up for the end of its operation.
        for note in self.notes.look() {
            self.handle(note)?;
        }
        if self.is_frozen {
            return Ok(());
        }
        let before = thread_time();
        let is_free = self.receive(buffer)?;
        if !is_free {
            let cost = thread_time().saturating_sub(before);
            self.resume = self.daemon.pace.charge(self.credentials.uid, cost, Instant::now());
        }
        Ok(())
    }

    /// Sleeps until a notification, a message or a deadline. Returns whether there are notifications, and a message.
    fn wait_for_input(&mut self) -> Result<(bool, bool), End> {
        if self.is_frozen {
            let mut poll = [PollFd::new(&self.notes.wake, PollFlags::IN)];
            return match rustix::event::poll(&mut poll, None) {
                Ok(_) => Ok((true, false)),
                Err(Errno::INTR) => Ok((false, false)),
                Err(errno) => {
                    Err(End::Broken(FrameError::System { doing: "wait for", source: errno.into() }))
                }
            };
        }
        let now = Instant::now();
        self.resume.take_if(|resume| *resume <= now);
        let timeout = self.operations.deadline().into_iter().chain(self.resume).min().and_then(|deadline| {
            // Rounded up, so that the deadline has passed when the sleep ends.
            let left = deadline.saturating_duration_since(now) + Duration::from_micros(50);
            Timespec::try_from(left).ok()
        });
        // A connection that is to wait is still watched for its end.
        let (is_paused, commands) = match self.resume {
            Some(_) => (true, PollFlags::RDHUP),
            None => (false, PollFlags::IN),
        };
        let mut poll = [PollFd::new(&self.notes.wake, PollFlags::IN), PollFd::new(&self.channel, commands)];
        match rustix::event::poll(&mut poll, timeout.as_ref()) {
            Ok(_) if is_paused && !poll[1].revents().is_empty() => Err(End::Gone),
            // After an error or a hang-up the read fails.
            Ok(_) => Ok((!poll[0].revents().is_empty(), !poll[1].revents().is_empty())),
            Err(Errno::INTR) => Ok((false, false)),
            Err(errno) => Err(End::Broken(FrameError::System { doing: "wait for", source: errno.into() })),
        }
    }

    /// Executes the next command. Returns whether it has submitted operations, or taken the ends of some: their number is
    /// limited.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool, End> {
        let refused = match self.channel.try_receive(buffer) {
            Ok(Inbound::Message(message)) => match Request::parse(message.bytes) {
                Ok(request) => {
                    let (id, submits, polled) =
                        (request.id, request.command.submits(), self.operations.polled());
                    match self.command(request, message.fds) {
                        Ok(Some(reply)) => {
                            let is_free = submits || self.operations.polled() > polled;
                            return self.send(&reply).map(|()| is_free);
                        }
                        Ok(None) => return Ok(false),
                        Err(failure) => self.refuse(Some(id), failure),
                    }
                }
                Err(rejected) => self.refuse(rejected.id, *rejected.failure),
            },
            Ok(Inbound::End) | Err(FrameError::Closed) => Err(End::Gone),
            Err(FrameError::Empty) => Ok(()),
            Err(error @ FrameError::TooLarge { .. }) => {
                self.refuse(None, Failure::new(Code::TooLarge, error.to_string()))
            }
            Err(error @ FrameError::TooManyFds) => {
                self.refuse(None, Failure::new(Code::UnexpectedFd, error.to_string()))
            }
            Err(error) => Err(End::Broken(error)),
        };
        refused.map(|()| false)
    }

    fn refuse(&self, id: Option<u64>, failure: Failure) -> Result<(), End> {
        tracing::debug!(peer = %self.credentials, %failure, "a request failed");
        self.send(&Outbound::failed(id, failure))
    }

    fn send(&self, message: &Outbound) -> Result<(), End> {
        self.send_with(message, &[])
    }

    fn send_with(&self, message: &Outbound, fds: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), End> {
        let bytes = message.encode().map_err(|error| {
            End::Broken(FrameError::System { doing: "write a message for", source: error.into() })
        })?;
        match self.channel.try_send(&bytes, fds) {
            Ok(()) => Ok(()),
            Err(FrameError::Full) => Err(End::Overrun),
            Err(FrameError::Closed) => Err(End::Gone),
            Err(error @ FrameError::TooLarge { .. }) => {
                let Outbound::Reply { id, .. } = message else {
                    return Err(End::Broken(error));
                };
                self.send(&Outbound::failed(*id, Failure::new(Code::TooLarge, error.to_string())))
            }
            Err(error) => Err(End::Broken(error)),
        }
    }

    /// Releases everything. Jobs that were not closed fail on all workers.
    fn finish(mut self, end: &End) {
        self.notes.close();
        if matches!(end, End::HandedOver) {
            // The job's tasks have ended without it.
            return;
        }
        self.channel.shutdown();
        let open = self.jobs.len();
        if open > 0 || matches!(end, End::Overrun | End::Broken(_)) {
            log_limited!(warn, peer = %self.credentials, jobs = open, "a trainer {end}");
        } else {
            tracing::debug!(peer = %self.credentials, "a trainer {end}");
        }
        for (_, job) in self.jobs.drain() {
            match (job.job, job.state) {
                (Some(job), _) => job.abandon(format!("its trainer ({}) {end}", self.credentials)),
                (None, JobState::Open { operations, client }) => operations.detach(client, &end.to_string()),
                (None, _) => {}
            }
        }
        // The data path drops the leases of operations as their jobs end. It does not unmap: that takes long.
        while self.regions.values().any(Region::is_leased) {
            std::thread::sleep(LEASE_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_completions_of_all_operations_fit_the_buffer() {
        let (ours, _theirs) = Channel::pair().unwrap();
        let message = vec![b' '; 1728];
        for number in 0..operations_that_fit(&ours) {
            ours.try_send(&message, &[]).unwrap_or_else(|error| panic!("message {number}: {error}"));
        }
    }
}
