//! A trainer's connection: a thread that reads its commands, has the core execute them, and writes the
//! messages to it.
//!
//! No other thread waits for a trainer, and this one does not wait for it to read: a message that does not
//! fit the socket's buffer ends the session, and with it the trainer's jobs.

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use sumac_api::{Channel, Code, Command, Failure, FrameError, Inbound, MAX_MESSAGE, Outbound, Request};
use sumac_datapath::monotonic_ns;
use sumac_host::{ConnectionId, Credentials, Handled, LIMITS, MESSAGE_COST, RegionId};

use crate::arena::MappedRegion;
use crate::core::Core;
use crate::outbox::{Delivery, Notification, Outbox};
use crate::peer_process::PeerProcess;
use crate::stats::StatsSource;

/// The size of a socket's buffer that is requested: the completions of all operations.
/// The kernel doubles what it is asked for.
const BUFFER: usize = LIMITS.operations as usize * MESSAGE_COST / 2;

/// Returns the number of operations whose completions fit the socket's buffer beside some replies: a trainer
/// that waits for the last of them before it reads loses none.
pub(crate) fn operations_that_fit(channel: &Channel) -> u32 {
    use nix::sys::socket::{getsockopt, setsockopt, sockopt};

    // The privileged form may exceed the system's maximum. Without either the default remains.
    if setsockopt(channel, sockopt::SndBufForce, &BUFFER).is_err() {
        let _ = setsockopt(channel, sockopt::SndBuf, &BUFFER);
    }
    let buffer = getsockopt(channel, sockopt::SndBuf).unwrap_or(0);
    u32::try_from(buffer / MESSAGE_COST).unwrap_or(u32::MAX).clamp(16, LIMITS.operations)
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
    pub(crate) core: Arc<Core>,
    pub(crate) stats: Arc<StatsSource>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) connection: ConnectionId,
    pub(crate) credentials: Credentials,
    /// The trainer's process. Its messages are read before its end.
    pub(crate) peer: PeerProcess,
    /// Reads no command: another daemon is about to take it over.
    pub(crate) is_frozen: bool,
    /// Whether it may have regions whose pages are not known to be allocated.
    pub(crate) has_unchecked_pages: Cell<bool>,
}

impl Session {
    /// Starts the session's thread.
    pub(crate) fn start(self) {
        let (core, connection) = (self.core.clone(), self.connection);
        let spawned = std::thread::Builder::new().name("sumac-session".into()).spawn(move || self.run());
        if let Err(error) = spawned {
            // The closure is dropped, which closes the connection.
            log_limited!(error, %error, "no thread for a trainer");
            core.call(|host, arena, out| {
                arena.sessions.remove(&connection);
                host.disconnect(connection, &End::Gone.to_string(), arena, out);
            });
        }
    }

    /// Serves the connection until it ends, then releases the trainer's resources.
    fn run(mut self) {
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
        let connection = self.connection;
        if self.is_frozen {
            // An interrupted or failed wait is repeated.
            let _ = rustix::event::poll(&mut [PollFd::new(&self.outbox.wake, PollFlags::IN)], None);
            let woken = self.outbox.take();
            return self.deliver(woken);
        }
        let times = self.core.call_session(connection, |host, _, out| {
            let now = monotonic_ns();
            host.expire(now, connection, out);
            (now, host.deadline(connection), host.paused_until(now, connection))
        });
        let (now, deadline, resume) = times;
        self.look()?;
        if self.is_frozen {
            return Ok(());
        }
        let until = deadline.into_iter().chain(resume).min();
        let timeout = until.map(|until| Duration::from_nanos(until.saturating_sub(now)));
        let (is_notified, is_readable) = self.wait_for_input(timeout, resume.is_some())?;
        if is_notified {
            let woken = self.outbox.take();
            self.deliver(woken)?;
        }
        if !is_readable {
            return Ok(());
        }
        // A client that polls may send a command before this session wakes up for the end of its operation.
        self.look()?;
        if self.is_frozen {
            return Ok(());
        }
        let before = thread_time();
        if !self.receive(buffer)? {
            let cost = thread_time().saturating_sub(before);
            self.core.call_session(connection, |host, _, _| host.charge(monotonic_ns(), connection, cost));
        }
        self.look()
    }

    /// Sleeps until a notification, a message or a deadline. Returns whether there are notifications, and a
    /// message.
    fn wait_for_input(&self, timeout: Option<Duration>, is_paused: bool) -> Result<(bool, bool), End> {
        // Rounded up, so that the deadline has passed when the sleep ends.
        let timeout = if matches!(self.peer, PeerProcess::Ended) { Some(Duration::ZERO) } else { timeout };
        let timeout = timeout.and_then(|left| Timespec::try_from(left + Duration::from_micros(50)).ok());
        // A connection that is to wait is still watched for its end.
        let commands = if is_paused { PollFlags::RDHUP } else { PollFlags::IN };
        let channel: &Channel = &self.channel;
        let peer = self.peer.poll(self.outbox.wake.as_fd());
        let mut poll = [PollFd::new(&self.outbox.wake, PollFlags::IN), PollFd::new(channel, commands), peer];
        let polled = rustix::event::poll(&mut poll, timeout.as_ref());
        let [is_notified, is_readable] = [0, 1].map(|entry: usize| !poll[entry].revents().is_empty());
        let has_ended = self.peer.has_ended(&poll[2]);
        match polled {
            Ok(_) if is_paused && (is_readable || has_ended) => Err(End::Gone),
            Ok(_) if has_ended && !is_readable => Err(End::Gone),
            // After an error or a hang-up the read fails.
            Ok(_) => Ok((is_notified, is_readable)),
            Err(Errno::INTR) => Ok((false, false)),
            Err(errno) => Err(End::Broken(FrameError::System { doing: "wait for", source: errno.into() })),
        }
    }

    /// Executes the next command. Returns whether its CPU time is free.
    fn receive(&self, buffer: &mut [u8]) -> Result<bool, End> {
        let refused = match self.channel.try_receive(buffer) {
            Ok(Inbound::Message(message)) => match Request::parse(message.bytes) {
                Ok(Request { id, .. }) if message.has_lost_fds => {
                    let problem =
                        "the daemon may have no more files open, and has not received the request's";
                    let hint = "unregister regions, or allow the daemon more (LimitNOFILE=, ulimit -n)";
                    (Some(id), Failure::new(Code::Limit, problem).hint(hint))
                }
                Ok(request) => return Ok(self.command(request, message.fds)),
                Err(rejected) => (rejected.id, *rejected.failure),
            },
            Ok(Inbound::End) | Err(FrameError::Closed) => return Err(End::Gone),
            Err(FrameError::Empty) => return Ok(false),
            Err(error @ FrameError::TooLarge { .. }) => {
                (None, Failure::new(Code::TooLarge, error.to_string()))
            }
            Err(error @ FrameError::TooManyFds) => {
                (None, Failure::new(Code::UnexpectedFd, error.to_string()))
            }
            Err(error) => return Err(End::Broken(error)),
        };
        let (id, failure) = refused;
        self.reply(Outbound::failed(id, failure));
        Ok(false)
    }

    fn command(&self, request: Request, mut files: Vec<OwnedFd>) -> bool {
        let (connection, file) = (self.connection, files.pop());
        let has_file = file.is_some();
        self.look_for_pages();
        if matches!(request.command, Command::Share(_)) {
            self.has_unchecked_pages.set(true);
        }
        let handled = self.core.call_session(connection, |host, arena, out| {
            host.command(monotonic_ns(), connection, request, has_file, arena, out)
        });
        match (handled, file) {
            (Handled::Done { is_free }, _) => return is_free,
            (Handled::Stats { id, job, after }, _) => {
                let reply = match self.stats.page(job, after) {
                    Ok(stats) => Outbound::ok(id, &stats),
                    Err(failure) => Outbound::failed(Some(id), failure),
                };
                self.reply(reply);
            }
            (Handled::Register { id, region, size }, Some(file)) => self.register(id, region, size, file),
            // The core has checked that there is one.
            (Handled::Register { .. }, None) => {}
        }
        false
    }

    /// Looks for the pages of regions that trainers allocate, without the core's lock, since it may take
    /// long. An operation on a region without all of them is refused.
    fn look_for_pages(&self) {
        if !self.has_unchecked_pages.get() {
            return;
        }
        let connection = self.connection;
        let unchecked: Vec<Arc<MappedRegion>> = self.core.call_session(connection, |host, arena, _| {
            let regions = host.regions_of(connection).filter_map(|region| arena.regions.get(&region));
            regions.filter(|region| !region.is_whole()).cloned().collect()
        });
        unchecked.iter().for_each(|region| region.look_for_pages());
        self.has_unchecked_pages.set(unchecked.iter().any(|region| !region.is_whole()));
    }

    /// Maps a region without the core's lock, since it takes long.
    fn register(&self, id: u64, region: RegionId, size: u64, file: OwnedFd) {
        let mapped = MappedRegion::map(file, size);
        let connection = self.connection;
        self.core.call_session(connection, |host, arena, out| {
            let mapped = mapped.map(|mapped| drop(arena.regions.insert(region, mapped)));
            host.registered(connection, id, region, mapped, arena, out);
        });
    }

    fn reply(&self, outbound: Outbound) {
        let connection = self.connection;
        self.core.call_session(connection, |host, _, out| host.reply(connection, outbound, out));
    }

    /// Writes the messages that this thread's calls of the core have made.
    fn look(&mut self) -> Result<(), End> {
        let notifications = self.outbox.look();
        self.deliver(notifications)
    }

    fn deliver(&mut self, notifications: VecDeque<Notification>) -> Result<(), End> {
        for notification in notifications {
            match notification {
                Notification::Message(delivery) => self.write(&delivery)?,
                Notification::Stop => {
                    // The connection ends in any case.
                    let connection = self.connection;
                    self.core.call_session(connection, |host, _, out| host.shut_down(connection, out));
                    for notification in self.outbox.look() {
                        if let Notification::Message(delivery) = notification {
                            let _ = self.write(&delivery);
                        }
                    }
                    return Err(End::Stopping);
                }
                Notification::Freeze(answer) => {
                    self.is_frozen = true;
                    // Its sender may have stopped waiting.
                    let _ = answer.send(());
                }
                Notification::Thaw => self.is_frozen = false,
                Notification::HandedOver => return Err(End::HandedOver),
            }
        }
        Ok(())
    }

    fn write(&self, delivery: &Delivery) -> Result<(), End> {
        let Delivery { outbound, attached, signalled, is_optional } = delivery;
        if let Outbound::Reply { result: Err(failure), .. } = outbound {
            tracing::debug!(peer = %self.credentials, %failure, "a request failed");
        }
        let fds: Vec<BorrowedFd<'_>> = attached.iter().map(AsFd::as_fd).collect();
        match self.send(outbound, &fds) {
            Err(End::Overrun) if *is_optional => return Ok(()),
            sent => sent?,
        }
        if let Some(event) = signalled {
            event.signal();
        }
        Ok(())
    }

    fn send(&self, message: &Outbound, fds: &[BorrowedFd<'_>]) -> Result<(), End> {
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
                self.send(&Outbound::failed(*id, Failure::new(Code::TooLarge, error.to_string())), &[])
            }
            Err(error) => Err(End::Broken(error)),
        }
    }

    /// Releases everything. Jobs that were not closed fail on all workers.
    fn finish(self, end: &End) {
        self.outbox.close();
        if matches!(end, End::HandedOver) {
            return;
        }
        self.channel.shutdown();
        let connection = self.connection;
        let open = self.core.call(|host, arena, out| {
            let open = host.handles(connection).count();
            arena.sessions.remove(&connection);
            host.disconnect(connection, &end.to_string(), arena, out);
            open
        });
        if open > 0 || matches!(end, End::Overrun | End::Broken(_)) {
            log_limited!(warn, peer = %self.credentials, jobs = open, "a trainer {end}");
        } else {
            tracing::debug!(peer = %self.credentials, "a trainer {end}");
        }
    }
}

/// Returns the CPU time of the calling thread in nanoseconds.
fn thread_time() -> u64 {
    let time = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
