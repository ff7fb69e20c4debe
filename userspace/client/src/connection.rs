//! One connection shared by threads: requests out, replies and completions back to whoever waits for them.
//!
//! There is no reading thread. Whoever waits and finds nobody reading reads for all, files what it gets, and stops
//! when its own answer has come. So an answer costs no switch between threads where only one thread waits.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::Value;
use sumac_api::{
    Channel, Code, Command, Event, Failure, FrameError, Inbound, MAX_MESSAGE, Outbound, Request, Unregister,
};

use crate::ClientError;

/// How an operation ended, and its duration.
pub(crate) type Outcome = Result<Done, Failure>;

/// How an operation ended well.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) duration: Duration,
    /// Elements that were not written: ranges.
    pub(crate) missed: Vec<(u64, u64)>,
}

/// The body of a reply and the descriptor that came with it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) fds: Vec<OwnedFd>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    replies: HashMap<u64, Result<Answer, Failure>>,
    /// Requests to give a region back, whose reply nobody waits for, with the region.
    unregistering: HashMap<u64, u64>,
    /// Regions that were still busy when they were given back.
    busy_regions: Vec<u64>,
    finished: HashMap<u64, Outcome>,
    /// Operations whose end nobody waits for.
    abandoned: HashSet<u64>,
    /// Jobs that ended with an error.
    failed: HashMap<u64, Failure>,
    lost: Option<String>,
    /// Somebody is reading for all.
    reading: bool,
}

impl State {
    fn file_reply(&mut self, id: u64, result: Result<Answer, Failure>) {
        match self.unregistering.remove(&id) {
            Some(region) => {
                if result.is_err_and(|failure| failure.code == Code::RegionBusy) {
                    self.busy_regions.push(region);
                }
            }
            None => {
                self.replies.insert(id, result);
            }
        }
    }
}

pub(crate) struct Connection {
    channel: Channel,
    state: Mutex<State>,
    changed: Condvar,
    /// Locked by whoever is reading.
    buffer: Mutex<Vec<u8>>,
}

impl Connection {
    pub(crate) fn connect(path: &Path) -> Result<Connection, ClientError> {
        Ok(Connection {
            channel: Channel::connect(path)?,
            state: Mutex::default(),
            changed: Condvar::new(),
            buffer: Mutex::new(vec![0; MAX_MESSAGE]),
        })
    }

    /// Sends a command and waits for its reply.
    pub(crate) fn call(&self, command: Command, fds: &[BorrowedFd<'_>]) -> Result<Answer, ClientError> {
        self.retry_busy_regions()?;
        let id = self.send(command, fds)?;
        let reply = self.wait_for(None, |state| state.replies.remove(&id))?;
        match reply {
            Some(reply) => Ok(reply?),
            None => Err(ClientError::Protocol("a wait without a deadline ended".into())),
        }
    }

    /// Gives a region back without waiting for the reply. An operation that nobody waited for may still use it: then
    /// it is given back again at a later call.
    pub(crate) fn unregister(&self, region: u64) -> Result<(), ClientError> {
        let id = self.next_id()?;
        // Before the request leaves: another thread may read the reply at once.
        self.state().unregistering.insert(id, region);
        self.transmit(id, Command::Unregister(Unregister { region }), &[])
    }

    fn retry_busy_regions(&self) -> Result<(), ClientError> {
        let busy = std::mem::take(&mut self.state().busy_regions);
        busy.into_iter().try_for_each(|region| self.unregister(region))
    }

    /// Waits until the operation has ended; `None` when the deadline comes first.
    pub(crate) fn finished(
        &self,
        op: u64,
        deadline: Option<Instant>,
    ) -> Result<Option<Outcome>, ClientError> {
        self.wait_for(deadline, |state| state.finished.remove(&op))
    }

    /// Forgets an operation's end, which may have come already.
    pub(crate) fn abandon(&self, op: u64) {
        let mut state = self.state();
        if state.finished.remove(&op).is_none() {
            state.abandoned.insert(op);
        }
    }

    /// Why the job ended, if the daemon has said so.
    pub(crate) fn job_failure(&self, job: u64) -> Option<Failure> {
        self.state().failed.get(&job).cloned()
    }

    /// Forgets a job that was closed.
    pub(crate) fn forget_job(&self, job: u64) {
        self.state().failed.remove(&job);
    }

    fn send(&self, command: Command, fds: &[BorrowedFd<'_>]) -> Result<u64, ClientError> {
        let id = self.next_id()?;
        self.transmit(id, command, fds)?;
        Ok(id)
    }

    fn next_id(&self) -> Result<u64, ClientError> {
        let mut state = self.state();
        if let Some(why) = &state.lost {
            return Err(ClientError::Lost(why.clone()));
        }
        state.next_id += 1;
        Ok(state.next_id)
    }

    fn transmit(&self, id: u64, command: Command, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let bytes =
            Request { id, command }.encode().map_err(|error| ClientError::Protocol(error.to_string()))?;
        match self.channel.send(&bytes, fds) {
            Ok(()) => Ok(()),
            // What the daemon said before it hung up is worth more than that it did.
            Err(FrameError::Closed) => self
                .wait_for(None, |state| state.replies.contains_key(&id).then_some(()))?
                .ok_or_else(|| ClientError::Lost("the daemon hung up".into())),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads, or lets another thread read, until `take` finds what it looks for.
    fn wait_for<T>(
        &self,
        deadline: Option<Instant>,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, ClientError> {
        let mut state = self.state();
        loop {
            if let Some(found) = take(&mut state) {
                return Ok(Some(found));
            }
            if let Some(why) = &state.lost {
                return Err(ClientError::Lost(why.clone()));
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if state.reading {
                state = self.sleep(state, left);
                continue;
            }
            state.reading = true;
            drop(state);
            let got = self.read_one(left);
            state = self.state();
            state.reading = false;
            if let Err(why) = got {
                state.lost.get_or_insert(why);
            }
            self.changed.notify_all();
        }
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>, left: Option<Duration>) -> MutexGuard<'a, State> {
        match left {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    /// Reads one message and files it; the error says why the connection is over.
    fn read_one(&self, left: Option<Duration>) -> Result<(), String> {
        if !self.readable(left)? {
            return Ok(());
        }
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let message = match self.channel.receive(&mut buffer) {
            Ok(Inbound::Message(message)) => message,
            Ok(Inbound::End) => return Err("the daemon hung up".into()),
            Err(error) => return Err(error.to_string()),
        };
        let outbound = Outbound::parse(message.bytes)
            .map_err(|error| format!("it said something that is not understood: {error}"))?;
        self.file(outbound, message.fds)
    }

    fn readable(&self, left: Option<Duration>) -> Result<bool, String> {
        let timeout = match left.map(Timespec::try_from) {
            None => None,
            Some(Ok(timeout)) => Some(timeout),
            // Longer than the clock can say is as good as for ever.
            Some(Err(_)) => None,
        };
        let mut poll = [PollFd::new(&self.channel, PollFlags::IN)];
        match rustix::event::poll(&mut poll, timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(std::io::Error::from(errno).to_string()),
        }
    }

    fn file(&self, outbound: Outbound, fds: Vec<OwnedFd>) -> Result<(), String> {
        let mut state = self.state();
        match outbound {
            Outbound::Reply { id: None, result } => {
                // Only a refusal of the whole connection has no request of ours to answer to.
                return Err(match result {
                    Err(failure) => failure.to_string(),
                    Ok(_) => "it answered a request that has no id".into(),
                });
            }
            Outbound::Reply { id: Some(id), result } => {
                state.file_reply(id, result.map(|value| Answer { value, fds }));
            }
            Outbound::Event(Event::Completed { op, duration_ns, missed, error, .. }) => {
                if !state.abandoned.remove(&op) {
                    let outcome = match error {
                        None => Ok(Done { duration: Duration::from_nanos(duration_ns), missed }),
                        Some(failure) => Err(failure),
                    };
                    state.finished.insert(op, outcome);
                }
            }
            Outbound::Event(Event::JobFailed { job, error }) => {
                state.failed.insert(job, error);
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave the maps half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the buffer: it is long and says nothing.
        f.debug_struct("Connection").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_region_is_remembered_and_one_given_back_is_not() {
        let mut state = State::default();
        state.unregistering.extend([(7, 70), (8, 80)]);
        state.file_reply(7, Err(Failure::new(Code::RegionBusy, "an operation uses it")));
        state.file_reply(8, Ok(Answer { value: Value::Null, fds: Vec::new() }));
        assert_eq!(state.busy_regions, [70]);
        assert!(state.unregistering.is_empty() && state.replies.is_empty());
        state.file_reply(9, Err(Failure::new(Code::RegionBusy, "somebody waits for this one")));
        assert!(state.replies.contains_key(&9));
    }
}
