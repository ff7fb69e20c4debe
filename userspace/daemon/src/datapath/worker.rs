//! The thread's loop: orders, receive, timers, transmit, tell, and sleep when there was nothing to do.

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
use sumac_transport::JobError;

use super::{
    command::Command,
    engines::{Clock, Engines},
    links::{CROSSING, Crossed},
    port::Port,
    stats::DatapathStats,
};

/// How long packets on their way out are waited for at the end.
const QUIESCE: Duration = Duration::from_millis(500);
/// A pause after an error of the port, so that one that stays does not take the CPU.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct Worker {
    pub(super) name: String,
    pub(super) cpu: Option<usize>,
    pub(super) port: Box<dyn Port>,
    pub(super) commands: Receiver<Command>,
    pub(super) wake: Arc<EventFd>,
    /// What arrived on other threads' queues.
    pub(super) crossing: Arc<ArrayQueue<Crossed>>,
    pub(super) state: State,
}

/// What the loop carries from round to round.
pub(super) struct State {
    engines: Engines,
    clock: Clock,
    rounds: u64,
    sleeps: u64,
    port_errors: u64,
    last_port_error: Option<String>,
}

impl State {
    pub(super) fn new(engines: Engines, start: Instant) -> State {
        State {
            engines,
            clock: Clock::new(start),
            rounds: 0,
            sleeps: 0,
            port_errors: 0,
            last_port_error: None,
        }
    }
}

impl Worker {
    /// Runs until it is told to stop, or nobody is left to tell it. Returns the last report.
    pub(super) fn run(mut self) -> DatapathStats {
        while self.obey() {
            self.state.rounds += 1;
            let received = self.receive();
            let is_done = self.advance();
            if received == 0 && is_done {
                self.sleep();
            }
        }
        self.finish()
    }

    /// Carries out the orders that have come in; `false`: the last one was to stop.
    fn obey(&mut self) -> bool {
        loop {
            let now = self.state.clock.now();
            let engines = &mut self.state.engines;
            match self.commands.try_recv() {
                Ok(Command::AddJob { plan, reply }) => {
                    let _ = reply.send(engines.add(plan, &*self.port));
                }
                Ok(Command::StartJob { job, slots, reply }) => {
                    let _ = reply.send(engines.start(job, slots));
                }
                Ok(Command::RenewJob { job, epoch, resume, reply }) => {
                    let _ = reply.send(engines.renew(now, job, epoch, &resume));
                }
                Ok(Command::Submit { job, lane, tag, operation }) => {
                    engines.submit(now, job, lane, tag, operation);
                }
                Ok(Command::FailJob { job, why }) => engines.fail(job, &why),
                Ok(Command::RemoveJob { job, reply }) => {
                    let why = JobError::Ended { reason: "this worker has left it".to_owned() };
                    engines.remove(job, &why);
                    let _ = reply.send(());
                }
                Ok(Command::AddHost { plan, reply }) => {
                    let _ = reply.send(engines.hosted().add(plan, &*self.port));
                }
                Ok(Command::RenewHost { job, epoch, workers, peers, reply }) => {
                    let _ = reply.send(engines.hosted().renew(job, epoch, workers, &peers));
                }
                Ok(Command::RemoveHost { job, reply }) => {
                    let _ = reply.send(engines.hosted().remove(job));
                }
                Ok(Command::Stats { reply }) => {
                    let _ = reply.send(self.stats());
                }
                Ok(Command::Shutdown) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Gives what has arrived to the engines. Returns how many packets there were.
    fn receive(&mut self) -> usize {
        let engines = &mut self.state.engines;
        let now = self.state.clock.now();
        // Bounded: others may fill it as fast as it is emptied.
        let crossed = std::iter::from_fn(|| self.crossing.pop()).take(CROSSING);
        let crossed = crossed.map(|one| engines.on_payload(now, one.received, &one.payload)).count();
        let outcome = self.port.receive(&mut |received, payload| engines.on_payload(now, received, payload));
        crossed + self.note("receive", outcome).unwrap_or(0)
    }

    /// Timers, then packets, then events. A batch of results has become a batch of contributions here. `false`: the port
    /// failed, and some lanes may have had no turn.
    fn advance(&mut self) -> bool {
        let now = self.state.clock.now();
        self.state.engines.on_time(now);
        let outcome = self.state.engines.transmit(now, &mut *self.port);
        let is_done = self.note("send", outcome).is_some();
        self.state.engines.tell();
        is_done
    }

    /// Sleeps until a packet, an order or a timer. Events of this round have been told.
    fn sleep(&mut self) {
        self.state.sleeps += 1;
        let deadline = self.state.engines.deadline().map(|time| self.state.clock.instant(time));
        let outcome = self.port.wait(deadline, self.wake.as_fd());
        if self.note("wait", outcome) == Some(true) {
            // Only to make it wait again; the orders are in the channel.
            let _ = self.wake.read();
        }
    }

    /// Counts an error of the port, and logs it when it is another than the last.
    fn note<T>(&mut self, doing: &str, outcome: io::Result<T>) -> Option<T> {
        let error = match outcome {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        self.state.port_errors += 1;
        let message = format!("{doing}: {error}");
        if self.state.last_port_error.as_ref() != Some(&message) {
            tracing::warn!(datapath = self.name, "the port fails: {message}");
            self.state.last_port_error = Some(message);
        }
        std::thread::sleep(ERROR_PAUSE);
        None
    }

    fn stats(&self) -> DatapathStats {
        DatapathStats {
            name: self.name.clone(),
            cpu: self.cpu,
            jobs: self.state.engines.stats(),
            hosted: self.state.engines.host_stats(),
            port: self.port.report(),
            strays: self.state.engines.strays(),
            rounds: self.state.rounds,
            sleeps: self.state.sleeps,
            port_errors: self.state.port_errors,
            last_port_error: self.state.last_port_error.clone(),
        }
    }

    /// Ends all jobs, waits for what is on its way out, and accounts for every frame.
    fn finish(mut self) -> DatapathStats {
        let jobs = self.state.engines.stats();
        let why = JobError::Ended { reason: "the daemon of this host stops".to_owned() };
        self.state.engines.clear(&why);
        self.port.quiesce(Instant::now() + QUIESCE);
        let stats = DatapathStats { jobs, ..self.stats() };
        if !stats.frames_are_conserved() {
            tracing::error!(datapath = self.name, frames = ?stats.port.frames, "frames are missing; please report it");
        }
        stats
    }
}
