//! One connection shared by threads: sends requests, and distributes replies and completions to the threads
//! that wait.
//!
//! There is no reader thread. Of the threads that wait, one reads messages for all until its own answer has
//! arrived. So an answer costs no context switch if only one thread waits.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::Value;
use sumac_api::{
    Channel, Code, Command, Event, Failure, FrameError, Inbound, LeftPackets, Loss, MAX_MESSAGE, Open,
    Outbound, Request, Stats, StatsReply, Timing, Unregister, Withdraw,
};

use crate::ClientError;

/// The outcome of an operation.
pub(crate) type Outcome = Result<Done, Failure>;

/// A completed operation.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) duration: Duration,
    /// Ranges of elements that were not written.
    pub(crate) missed: Vec<(u64, u64)>,
    /// The packets that were left to the clients.
    pub(crate) left: Vec<LeftPackets>,
    /// The contributions that are missing.
    pub(crate) loss: Option<Loss>,
    pub(crate) timing: Option<Timing>,
}

impl Done {
    /// The elements that were left to the clients, of an operation of `count`.
    pub(crate) fn left_ranges(&self, count: u64) -> Vec<(u64, u64)> {
        let mut ranges = Vec::new();
        self.left.iter().for_each(|left| left.append_ranges(count, &mut ranges));
        ranges
    }
}

/// The body of a reply and its file descriptor.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) fds: Vec<OwnedFd>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    replies: HashMap<u64, Result<Answer, Failure>>,
    /// Requests whose replies nobody waits for.
    discarded: HashSet<u64>,
    /// The regions of unregister requests without a waiter, by request.
    unregistering: HashMap<u64, u64>,
    /// Regions whose unregister request was refused as busy.
    busy_regions: Vec<u64>,
    finished: HashMap<u64, Outcome>,
    /// Packets that operations have left to the clients, which are about to complete.
    left: HashMap<u64, Vec<LeftPackets>>,
    /// Operations without a waiter.
    abandoned: HashSet<u64>,
    /// Jobs that ended with an error.
    failed: HashMap<u64, Failure>,
    /// Jobs with an operation that waits for other workers.
    waiting: HashMap<u64, String>,
    lost: Option<String>,
    /// Whether a thread reads messages for all.
    reading: bool,
}

impl State {
    fn store_reply(&mut self, id: u64, result: Result<Answer, Failure>) {
        match self.unregistering.remove(&id) {
            Some(region) => {
                if result.is_err_and(|failure| failure.code == Code::RegionBusy) {
                    self.busy_regions.push(region);
                }
            }
            None if self.discarded.remove(&id) => {}
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
    /// Locked by the thread that reads.
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
        Ok(reply.ok_or_else(|| ClientError::Protocol("a wait without a deadline ended".into()))??)
    }

    /// Returns the daemon's counters, or those of one job.
    pub(crate) fn stats(&self, job: Option<u64>) -> Result<StatsReply, ClientError> {
        let mut all = self.stats_page(Stats { job, after: None })?;
        while let Some(next) = all.next {
            let page = self.stats_page(Stats { job, after: Some(next) })?;
            if page.next.is_some_and(|after| after <= next) {
                return Err(ClientError::Protocol("the pages of the counters do not go on".into()));
            }
            all.append(page);
        }
        Ok(all)
    }

    fn stats_page(&self, page: Stats) -> Result<StatsReply, ClientError> {
        body(self.call(Command::Stats(page), &[])?.value)
    }

    /// Sends an `open`. Returns the request.
    pub(crate) fn begin_open(&self, open: Open) -> Result<u64, ClientError> {
        self.retry_busy_regions()?;
        self.send(Command::Open(open), &[])
    }

    /// Waits for the reply to a request; `None` at the deadline.
    pub(crate) fn answered(
        &self,
        request: u64,
        deadline: Option<Instant>,
    ) -> Result<Option<Result<Answer, Failure>>, ClientError> {
        self.wait_for(deadline, |state| state.replies.remove(&request))
    }

    /// Withdraws an `open` without waiting for the reply.
    pub(crate) fn withdraw(&self, open: u64) -> Result<(), ClientError> {
        let id = self.next_id()?;
        {
            let mut state = self.state();
            state.discarded.insert(id);
            if state.replies.remove(&open).is_none() {
                state.discarded.insert(open);
            }
        }
        self.transmit(id, Command::Withdraw(Withdraw { open }), &[])
    }

    /// Unregisters a region without waiting for the reply. If an abandoned operation still uses it, a later
    /// call repeats the request.
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

    /// Waits until the operation has ended; `None` at the deadline.
    pub(crate) fn finished(
        &self,
        op: u64,
        deadline: Option<Instant>,
    ) -> Result<Option<Outcome>, ClientError> {
        self.wait_for(deadline, |state| state.finished.remove(&op))
    }

    /// Discards the outcome of an operation, present or future.
    pub(crate) fn abandon(&self, op: u64) {
        let mut state = self.state();
        if state.finished.remove(&op).is_none() {
            state.abandoned.insert(op);
        }
    }

    /// The error of a failed job, if that message has been read.
    pub(crate) fn job_failure(&self, job: u64) -> Option<Failure> {
        self.state().failed.get(&job).cloned()
    }

    /// The message about a job's operation that waits for other workers, if it has been read.
    pub(crate) fn waiting(&self, job: u64) -> Option<String> {
        self.state().waiting.get(&job).cloned()
    }

    /// Discards the state of a closed job.
    pub(crate) fn forget_job(&self, job: u64) {
        let mut state = self.state();
        state.failed.remove(&job);
        state.waiting.remove(&job);
    }

    fn send(&self, command: Command, fds: &[BorrowedFd<'_>]) -> Result<u64, ClientError> {
        let id = self.next_id()?;
        self.transmit(id, command, fds)?;
        Ok(id)
    }

    fn next_id(&self) -> Result<u64, ClientError> {
        let mut state = self.state();
        if let Some(reason) = &state.lost {
            return Err(ClientError::Lost(reason.clone()));
        }
        state.next_id += 1;
        Ok(state.next_id)
    }

    fn transmit(&self, id: u64, command: Command, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let bytes =
            Request { id, command }.encode().map_err(|error| ClientError::Protocol(error.to_string()))?;
        match self.channel.send(&bytes, fds) {
            Ok(()) => Ok(()),
            // The daemon's last message has the reason for closing.
            Err(FrameError::Closed) => self
                .wait_for(None, |state| state.replies.contains_key(&id).then_some(()))?
                .ok_or_else(|| ClientError::Lost("the daemon closed it".into())),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads messages, or waits while another thread reads, until `take` returns a value or the deadline
    /// passes.
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
            if let Some(reason) = &state.lost {
                return Err(ClientError::Lost(reason.clone()));
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            // After the deadline too, what has arrived is read: a caller without time polls.
            if left == Some(Duration::ZERO) && (state.reading || !self.readable(left).unwrap_or(true)) {
                return Ok(None);
            }
            if state.reading {
                state = self.sleep(state, left);
                continue;
            }
            state.reading = true;
            drop(state);
            let outcome = self.read_one(left);
            state = self.state();
            state.reading = false;
            if let Err(reason) = outcome {
                state.lost.get_or_insert(reason);
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

    /// Reads and dispatches one message; the error is the reason why the connection is lost.
    fn read_one(&self, left: Option<Duration>) -> Result<(), String> {
        if !self.readable(left)? {
            return Ok(());
        }
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let message = match self.channel.receive(&mut buffer) {
            Ok(Inbound::Message(message)) if message.has_lost_fds => {
                return Err("this process may have no more files open (ulimit -n)".into());
            }
            Ok(Inbound::Message(message)) => message,
            Ok(Inbound::End) => return Err("the daemon closed it".into()),
            Err(error) => return Err(error.to_string()),
        };
        let outbound = Outbound::parse(message.bytes).map_err(|error| format!("invalid message: {error}"))?;
        self.dispatch(outbound, message.fds)
    }

    fn readable(&self, left: Option<Duration>) -> Result<bool, String> {
        // A timeout beyond the clock's range is none.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut poll = [PollFd::new(&self.channel, PollFlags::IN)];
        match rustix::event::poll(&mut poll, timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(std::io::Error::from(errno).to_string()),
        }
    }

    fn dispatch(&self, outbound: Outbound, fds: Vec<OwnedFd>) -> Result<(), String> {
        let mut state = self.state();
        match outbound {
            Outbound::Reply { id: None, result } => {
                // A reply without an id refuses the connection as a whole.
                return Err(match result {
                    Err(failure) => failure.to_string(),
                    Ok(_) => "a reply without an id".into(),
                });
            }
            Outbound::Reply { id: Some(id), result } => {
                state.store_reply(id, result.map(|value| Answer { value, fds }));
            }
            Outbound::Event(Event::Completed { op, job, duration_ns, missed, loss, timing, error }) => {
                state.waiting.remove(&job);
                let left = state.left.remove(&op).unwrap_or_default();
                if !state.abandoned.remove(&op) {
                    let duration = Duration::from_nanos(duration_ns);
                    let done = Done { duration, missed, left, loss, timing };
                    state.finished.insert(op, error.map_or(Ok(done), Err));
                }
            }
            Outbound::Event(Event::Left { op, left }) => state.left.entry(op).or_default().push(left),
            Outbound::Event(Event::JobFailed { job, error }) => {
                state.waiting.remove(&job);
                state.failed.insert(job, error);
            }
            Outbound::Event(Event::Waiting { job, message, .. }) => {
                state.waiting.insert(job, message);
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic leaves the maps half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the buffer, which is long.
        f.debug_struct("Connection").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Parses a reply's body.
pub(crate) fn body<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, ClientError> {
    sumac_api::body(value).map_err(|error| ClientError::Protocol(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_region_is_kept_for_another_request() {
        let mut state = State::default();
        state.unregistering.extend([(7, 70), (8, 80)]);
        state.store_reply(7, Err(Failure::new(Code::RegionBusy, "an operation uses it")));
        state.store_reply(8, Ok(Answer { value: Value::Null, fds: Vec::new() }));
        assert_eq!(state.busy_regions, [70]);
        assert!(state.unregistering.is_empty() && state.replies.is_empty());
        state.store_reply(9, Err(Failure::new(Code::RegionBusy, "this request has a waiter")));
        assert!(state.replies.contains_key(&9));
    }
}
