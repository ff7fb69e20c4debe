//! A data path thread: commands, receive, timers, transmit, events; it sleeps when a round had nothing to do.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use sumac_transport::{JobError, Time};

use super::engines::Engines;
use super::frame_io::wait;
use super::handoff::{HANDOFF_CAPACITY, HandoffQueue};
use super::job::{InstallError, WorkerJob};
use super::ports::Ports;
use super::snapshot::Snapshot;
use super::stats::DatapathStats;
use crate::clock::monotonic_ns;

/// The longest wait at shutdown for sent frames to complete.
const QUIESCE_TIMEOUT: Duration = Duration::from_millis(500);
/// The most commands in a round: those who send them do not stop packets.
const COMMANDS: usize = 64;
/// The pause after a failed system call, so that a lasting error does not occupy the CPU.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// Runs on a data path thread between two rounds of its loop.
pub(super) type Command = Box<dyn FnOnce(&mut DatapathThread) + Send>;

pub(super) struct DatapathThread {
    pub(super) ports: Ports,
    pub(super) engines: Engines,
    /// The thread's own part of its report.
    pub(super) stats: DatapathStats,
    handoffs: HandoffQueue,
    snapshot: Arc<Snapshot>,
    commands: Receiver<Command>,
    /// Ends the loop after the current command.
    pub(super) is_stopping: bool,
    /// Executes commands, and neither sends nor receives.
    pub(super) is_frozen: bool,
    /// The time of the last published report.
    published: Option<Instant>,
}

impl DatapathThread {
    pub(super) fn new(
        name: String,
        ports: Ports,
        engines: Engines,
        handoffs: HandoffQueue,
        snapshot: Arc<Snapshot>,
        commands: Receiver<Command>,
    ) -> DatapathThread {
        let stats = DatapathStats { name, ..DatapathStats::default() };
        DatapathThread {
            ports,
            engines,
            stats,
            handoffs,
            snapshot,
            commands,
            is_stopping: false,
            is_frozen: false,
            published: None,
        }
    }

    /// The engines' clock is that of all processes of the machine: an operation's fragments are on several
    /// threads, and its client has the times of its steps.
    #[expect(clippy::unused_self, reason = "commands that run on a thread ask it for the time")]
    pub(super) fn now(&self) -> Time {
        Time(monotonic_ns())
    }

    pub(super) fn join_group(&mut self, plan: &WorkerJob) -> Result<(), InstallError> {
        plan.group.map_or(Ok(()), |group| self.ports.join(plan.over_udp, plan.id, group))
    }

    // A symbol, by which a profile finds the thread.
    #[inline(never)]
    pub(super) fn run(mut self) -> DatapathStats {
        loop {
            let is_idle = self.execute();
            if self.is_stopping {
                break;
            }
            if self.is_frozen {
                self.publish();
                if is_idle {
                    self.rest();
                }
                continue;
            }
            self.stats.rounds += 1;
            let received = self.receive();
            let is_done = self.advance();
            self.publish();
            if received == 0 && is_done && is_idle {
                self.sleep();
            }
        }
        self.finish()
    }

    /// Executes commands. Returns `false` when there may be more.
    fn execute(&mut self) -> bool {
        for _ in 0..COMMANDS {
            let Ok(command) = self.commands.try_recv() else { return true };
            command(self);
            if self.is_stopping {
                break;
            }
        }
        false
    }

    fn publish(&mut self) {
        let Some(due) = self.snapshot.due(self.published) else { return };
        let now = Instant::now();
        if due <= now {
            self.published = Some(now);
            self.snapshot.publish(|| self.stats());
        }
    }

    fn receive(&mut self) -> usize {
        let now = self.now();
        // Bounded: other threads may fill the queue as fast as it is emptied.
        let handoffs = std::iter::from_fn(|| self.handoffs.pop()).take(HANDOFF_CAPACITY);
        let crossed = handoffs.map(|handoff| self.engines.on_received(now, handoff.received())).count();
        let engines = &mut self.engines;
        let over_udp = engines.are_over_udp();
        let outcome = self.ports.receive(over_udp, &mut |received| engines.on_received(now, received));
        crossed + self.check("receive", outcome).unwrap_or(0)
    }

    /// Runs timers, sends packets and reports events. Returns `false` when sending failed and some lanes had
    /// no turn.
    fn advance(&mut self) -> bool {
        let now = self.now();
        self.engines.on_time(now);
        let outcome = self.engines.transmit(now, &mut self.ports);
        let is_done = self.check("send", outcome).is_some();
        self.engines.note_sent(|| Time(monotonic_ns()));
        self.engines.report();
        self.engines.end_round(is_done);
        is_done
    }

    fn sleep(&mut self) {
        self.stats.sleeps += 1;
        let timer = self.engines.deadline().map(|due| {
            let left = due.0.saturating_sub(self.now().0);
            Instant::now() + Duration::from_nanos(left)
        });
        let deadline = timer.into_iter().chain(self.snapshot.due(self.published)).min();
        let outcome = self.ports.wait(self.engines.are_over_udp(), deadline, self.handoffs.wake.as_fd());
        if self.check("wait", outcome) == Some(true) {
            // Resets the eventfd; the commands are in the channel.
            let _ = self.handoffs.wake.read();
        }
    }

    /// Sleeps until a command, or until a report is due.
    fn rest(&mut self) {
        let due = self.snapshot.due(self.published);
        let outcome = wait(&[(self.handoffs.wake.as_fd(), PollFlags::POLLIN)], due);
        if self.check("wait", outcome) == Some(true) {
            let _ = self.handoffs.wake.read();
        }
    }

    /// Counts an error, and logs it when it differs from the last one.
    fn check<T>(&mut self, doing: &str, outcome: io::Result<T>) -> Option<T> {
        let error = match outcome {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        self.stats.port_errors += 1;
        let message = format!("{doing}: {error}");
        if self.stats.last_port_error.as_ref() != Some(&message) {
            tracing::warn!(datapath = self.stats.name, "a system call failed: {message}");
            self.stats.last_port_error = Some(message);
        }
        std::thread::sleep(ERROR_PAUSE);
        None
    }

    pub(super) fn stats(&self) -> DatapathStats {
        DatapathStats {
            jobs: self.engines.stats(),
            hosted: self.engines.parameter_host.host.stats(),
            port: self.ports.report(),
            undelivered: self.engines.undelivered,
            ..self.stats.clone()
        }
    }

    /// Ends all jobs, waits for frames on their way out, and accounts for every frame.
    fn finish(mut self) -> DatapathStats {
        let jobs = self.engines.stats();
        self.engines.clear(&JobError::Ended { reason: "the daemon of this host stops".to_owned() });
        self.ports.io.quiesce(Instant::now() + QUIESCE_TIMEOUT);
        let stats = DatapathStats { jobs, ..self.stats() };
        if !stats.frames_are_conserved() {
            tracing::error!(datapath = self.stats.name, frames = ?stats.port.frames,
                "frames are missing; please report it");
        }
        stats
    }
}

impl Drop for DatapathThread {
    fn drop(&mut self) {
        self.snapshot.end();
    }
}
