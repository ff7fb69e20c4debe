//! One trainer's connection: a thread that reads its commands, keeps its handles, and tells it what happened.
//!
//! Everything a trainer can do wrong ends here. Its thread is the only one that waits for it, and nothing waits for it
//! to read: a message that does not fit the socket's buffer ends the session, and with it the trainer's jobs.

mod collective;
mod commands;
mod notes;
mod tensors;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sumac_api::{
    Channel, Code, Failure, FrameError, Inbound, Limits, MAX_MESSAGE, Message, Outbound, Request,
};
use sumac_memory::SharedRegion;

use crate::bell::Bell;
use crate::hub::Hub;
use crate::inbox::Inbox;
use crate::line::JobLine;
use crate::memory::Share;
use crate::operations::Operations;
use crate::stream::{ClientId, Stream};

pub(crate) use notes::{Entered, Note};

/// What any connection may hold; its operations depend on its socket, see [`operations_that_fit`].
const LIMITS: Limits = Limits {
    message_bytes: MAX_MESSAGE as u64,
    regions: 256,
    region_bytes: 1 << 36,
    jobs: 16,
    operations: 1024,
    finished: 1024,
};

/// What the kernel charges a socket's buffer for a message of up to 1,728 bytes: 2,048 for the text, and its own header. The
/// completions of operations are no longer, since [`crate::explain::MESSAGE_LEN`] bounds what is said of an error.
const MESSAGE_COST: usize = 2304;
/// What is asked for as a socket's buffer, for the completions of all operations.
const BUFFER: usize = LIMITS.operations as usize * MESSAGE_COST;

/// How many operations may be outstanding, so that their completions fit the socket's buffer beside some replies:
/// a trainer who waits for the last of them before it reads loses none.
fn operations_that_fit(channel: &Channel) -> u32 {
    use nix::sys::socket::{getsockopt, setsockopt, sockopt};

    // The privileged form goes above the system's maximum. Without either the default has to do.
    if setsockopt(channel, sockopt::SndBufForce, &BUFFER).is_err() {
        let _ = setsockopt(channel, sockopt::SndBuf, &BUFFER);
    }
    let buffer = getsockopt(channel, sockopt::SndBuf).unwrap_or(0);
    u32::try_from(buffer / MESSAGE_COST).unwrap_or(u32::MAX).clamp(16, LIMITS.operations)
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} of user {}", self.pid, self.uid)
    }
}

/// A job as its trainer's session knows it.
#[derive(Debug)]
pub(crate) struct SessionJob {
    /// Of the job that was opened here; none of one that this connection has attached to.
    line: Option<JobLine>,
    bell: Bell,
    state: JobState,
}

#[derive(Debug)]
enum JobState {
    /// The others have not all joined yet.
    Opening,
    /// Ready, and this session one of its clients.
    Open { stream: Arc<Stream>, client: ClientId },
    /// Over; nothing is left to do but `close`.
    Failed(Failure),
    /// The request that closes it waits for the aggregator.
    Closing { request: u64 },
}

/// A region, and what it takes of the host's memory.
#[derive(Debug)]
pub(crate) struct Registered {
    region: SharedRegion,
    /// Held for its drop.
    _share: Share,
}

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("went away")]
    Gone,
    #[error("does not read its messages")]
    Deaf,
    #[error("was cut off because its daemon is stopping")]
    Stopping,
    #[error("cannot be reached any more: {0}")]
    Broken(FrameError),
}

/// A connection's state. All of it dies with its thread.
#[derive(Debug)]
pub(crate) struct Session {
    hub: Arc<Hub>,
    channel: Channel,
    peer: Peer,
    inbox: Arc<Inbox<Note>>,
    limits: Limits,
    greeted: bool,
    handles: u64,
    regions: HashMap<u64, Registered>,
    jobs: HashMap<u64, SessionJob>,
    operations: Operations,
}

impl Session {
    pub(crate) fn new(hub: Arc<Hub>, channel: Channel, peer: Peer, inbox: Arc<Inbox<Note>>) -> Session {
        let limits = Limits { operations: operations_that_fit(&channel), ..LIMITS };
        Session {
            limits,
            hub,
            channel,
            peer,
            inbox,
            greeted: false,
            handles: 0,
            regions: HashMap::new(),
            jobs: HashMap::new(),
            operations: Operations::new(LIMITS.finished as usize),
        }
    }

    /// Serves the connection until it ends, then lets go of all that the trainer had.
    pub(crate) fn run(mut self) {
        tracing::debug!(peer = %self.peer, "a trainer has connected");
        let mut buffer = vec![0; MAX_MESSAGE];
        let end = loop {
            if let Err(end) = self.turn(&mut buffer) {
                break end;
            }
        };
        self.part(&end);
    }

    /// Waits for the next thing to do, and does it.
    fn turn(&mut self, buffer: &mut [u8]) -> Result<(), End> {
        let (noted, readable) = self.sleep()?;
        if noted {
            for note in self.inbox.take() {
                self.note(note)?;
            }
        }
        for (op, request) in self.operations.expire(Instant::now()) {
            let failure = Failure::new(Code::Timeout, format!("operation {op} has not finished yet"))
                .hint("it goes on; wait again, or cancel it");
            self.refuse(Some(request), failure)?;
        }
        if readable { self.receive(buffer) } else { Ok(()) }
    }

    /// Sleeps until a note or a message has come, or a wait has run out.
    fn sleep(&self) -> Result<(bool, bool), End> {
        let timeout = self.operations.deadline().and_then(|deadline| {
            // Rounded up, so that the deadline has passed when the sleep ends.
            let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_micros(50);
            Timespec::try_from(left).ok()
        });
        let mut poll = [PollFd::new(&*self.inbox, PollFlags::IN), PollFd::new(&self.channel, PollFlags::IN)];
        match rustix::event::poll(&mut poll, timeout.as_ref()) {
            // An error or a hang-up shows as readable too, and the read says which.
            Ok(_) => Ok((!poll[0].revents().is_empty(), !poll[1].revents().is_empty())),
            Err(Errno::INTR) => Ok((false, false)),
            Err(errno) => Err(End::Broken(FrameError::System { doing: "wait for", source: errno.into() })),
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), End> {
        match self.channel.try_receive(buffer) {
            Ok(Inbound::Message(message)) => self.answer(message),
            Ok(Inbound::End) | Err(FrameError::Closed) => Err(End::Gone),
            Err(FrameError::Empty) => Ok(()),
            Err(error @ FrameError::TooLarge { .. }) => {
                self.refuse(None, Failure::new(Code::TooLarge, error.to_string()))
            }
            Err(error @ FrameError::TooManyFds) => {
                self.refuse(None, Failure::new(Code::UnexpectedFd, error.to_string()))
            }
            Err(error) => Err(End::Broken(error)),
        }
    }

    fn answer(&mut self, message: Message<'_>) -> Result<(), End> {
        match Request::parse(message.bytes) {
            Ok(request) => {
                let id = request.id;
                match self.command(request, message.fds) {
                    Ok(Some(reply)) => self.send(&reply),
                    Ok(None) => Ok(()),
                    Err(failure) => self.refuse(Some(id), failure),
                }
            }
            Err(rejected) => self.refuse(rejected.id, *rejected.failure),
        }
    }

    fn refuse(&self, id: Option<u64>, failure: Failure) -> Result<(), End> {
        tracing::debug!(peer = %self.peer, %failure, "a request failed");
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
            Err(FrameError::Full) => Err(End::Deaf),
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

    /// Lets go of everything. Jobs that were not closed fail, for all their workers.
    fn part(mut self, end: &End) {
        self.inbox.close();
        self.channel.shutdown();
        let open = self.jobs.len();
        if open > 0 || matches!(end, End::Deaf | End::Broken(_)) {
            tracing::warn!(peer = %self.peer, jobs = open, "a trainer {end}");
        } else {
            tracing::debug!(peer = %self.peer, "a trainer {end}");
        }
        for (_, job) in self.jobs.drain() {
            match (job.line, job.state) {
                (Some(line), _) => line.abandon(format!("its trainer ({}) {end}", self.peer)),
                (None, JobState::Open { stream, client }) => stream.detach(client, &end.to_string()),
                // It is over.
                (None, _) => {}
            }
        }
        // Regions stay mapped until the data path has dropped the operations that borrow from them.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_of_the_longest_completions_fit_as_operations_may_be_outstanding() {
        let (ours, _theirs) = Channel::pair().unwrap();
        let message = vec![b' '; 1728];
        for number in 0..operations_that_fit(&ours) {
            ours.try_send(&message, &[]).unwrap_or_else(|error| panic!("message {number}: {error}"));
        }
    }
}
