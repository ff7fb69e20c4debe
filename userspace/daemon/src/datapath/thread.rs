//! A data path thread: commands, receive, timers, transmit, events; it sleeps when a round had nothing to do.

use std::{
    io,
    os::fd::AsFd,
    sync::{
        Arc,
        mpsc::{Receiver, TryRecvError},
    },
    time::{Duration, Instant},
};

use crossbeam_queue::ArrayQueue;
use nix::sys::eventfd::EventFd;
use sumac_transport::{JobError, Time};

use super::{
    engines::Engines,
    frame_io::FrameIo,
    links::{Command, HANDOFF_CAPACITY, Handoff, Link},
    stats::DatapathStats,
};

/// The longest wait at shutdown for sent frames to complete.
const QUIESCE_TIMEOUT: Duration = Duration::from_millis(500);
/// The pause after a failed system call, so that a lasting error does not occupy the CPU.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct DatapathThread {
    pub(super) name: String,
    pub(super) cpu: Option<usize>,
    pub(super) io: Box<dyn FrameIo>,
    pub(super) engines: Engines,
    /// The same on all threads of a data path: an operation's fragments are on several.
    start: Instant,
    commands: Receiver<Command>,
    wake: Arc<EventFd>,
    handoffs: Arc<ArrayQueue<Handoff>>,
    is_stopping: bool,
    rounds: u64,
    sleeps: u64,
    port_errors: u64,
    last_port_error: Option<String>,
}

impl DatapathThread {
    pub(super) fn new(
        name: String,
        io: Box<dyn FrameIo>,
        engines: Engines,
        start: Instant,
        link: &Link,
        commands: Receiver<Command>,
    ) -> DatapathThread {
        DatapathThread {
            name,
            cpu: None,
            io,
            engines,
            start,
            commands,
            wake: link.wake.clone(),
            handoffs: link.handoffs.clone(),
            is_stopping: false,
            rounds: 0,
            sleeps: 0,
            port_errors: 0,
            last_port_error: None,
        }
    }

    /// Returns the engines' time.
    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Ends the loop after the current command.
    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Runs until it is stopped, or until the data path's handle is dropped. Returns the last report.
    pub(super) fn run(mut self) -> DatapathStats {
        while self.execute() {
            self.rounds += 1;
            let received = self.receive();
            let is_done = self.advance();
            if received == 0 && is_done {
                self.sleep();
            }
        }
        self.finish()
    }

    /// Executes the queued commands. Returns `false` when the thread is to end.
    fn execute(&mut self) -> bool {
        while !self.is_stopping {
            match self.commands.try_recv() {
                Ok(command) => command(self),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        false
    }

    /// Passes received packets to the engines. Returns their number.
    fn receive(&mut self) -> usize {
        let now = self.now();
        // Bounded: other threads may fill the queue as fast as it is emptied.
        let handoffs = std::iter::from_fn(|| self.handoffs.pop()).take(HANDOFF_CAPACITY);
        let crossed = handoffs.map(|handoff| self.engines.on_received(now, handoff.received())).count();
        let engines = &mut self.engines;
        let outcome = self.io.receive(&mut |received| engines.on_received(now, received));
        crossed + self.check("receive", outcome).unwrap_or(0)
    }

    /// Runs timers, sends packets and reports events. Returns `false` when sending failed and some lanes had no turn.
    fn advance(&mut self) -> bool {
        let now = self.now();
        self.engines.on_time(now);
        let outcome = self.engines.transmit(now, &mut *self.io);
        let is_done = self.check("send", outcome).is_some();
        self.engines.report();
        is_done
    }

    /// Sleeps until a packet, a command or a timer.
    fn sleep(&mut self) {
        self.sleeps += 1;
        let deadline = self.engines.deadline().map(|time| self.start + Duration::from_nanos(time.0));
        let outcome = self.io.wait(deadline, self.wake.as_fd());
        if self.check("wait", outcome) == Some(true) {
            // Resets the eventfd; the commands are in the channel.
            let _ = self.wake.read();
        }
    }

    /// Counts an error, and logs it when it differs from the last one.
    fn check<T>(&mut self, doing: &str, outcome: io::Result<T>) -> Option<T> {
        let error = match outcome {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        self.port_errors += 1;
        let message = format!("{doing}: {error}");
        if self.last_port_error.as_ref() != Some(&message) {
            tracing::warn!(datapath = self.name, "a system call failed: {message}");
            self.last_port_error = Some(message);
        }
        std::thread::sleep(ERROR_PAUSE);
        None
    }

    pub(super) fn stats(&self) -> DatapathStats {
        DatapathStats {
            name: self.name.clone(),
            cpu: self.cpu,
            jobs: self.engines.stats(),
            hosted: self.engines.parameter_host.stats(),
            port: self.io.report(),
            undelivered: self.engines.undelivered,
            rounds: self.rounds,
            sleeps: self.sleeps,
            port_errors: self.port_errors,
            last_port_error: self.last_port_error.clone(),
        }
    }

    /// Ends all jobs, waits for frames on their way out, and accounts for every frame.
    fn finish(mut self) -> DatapathStats {
        let jobs = self.engines.stats();
        self.engines.clear(&JobError::Ended { reason: "the daemon of this host stops".to_owned() });
        self.io.quiesce(Instant::now() + QUIESCE_TIMEOUT);
        let stats = DatapathStats { jobs, ..self.stats() };
        if !stats.frames_are_conserved() {
            tracing::error!(datapath = self.name, frames = ?stats.port.frames, "frames are missing; please report it");
        }
        stats
    }
}
