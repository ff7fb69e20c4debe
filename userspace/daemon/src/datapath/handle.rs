//! The data path's thread as the rest of the daemon sees it.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::eventfd::{EfdFlags, EventFd},
    unistd::Pid,
};
use sumac_transport::{JobError, JobParams, Operation};

use super::{
    command::{AddError, Command, Sink},
    port::{Peer, Port},
    stats::DatapathStats,
    worker::{State, Worker},
};

/// A thread that drives the engines of many jobs over one port. Dropping it stops it.
pub struct Datapath {
    commands: Sender<Command>,
    wake: Arc<EventFd>,
    thread: Mutex<Option<JoinHandle<DatapathStats>>>,
}

impl Datapath {
    /// Starts a thread, pinned to `cpu` if one is given. Events go to `sink`, on that thread.
    ///
    /// A CPU that does not exist is a warning, not an error.
    ///
    /// # Errors
    /// When the system has no thread or eventfd to give.
    pub fn start(name: &str, port: Box<dyn Port>, cpu: Option<usize>, sink: Sink) -> io::Result<Datapath> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_flags(flags)?);
        let (commands, orders) = channel();
        let worker = Worker {
            name: name.to_owned(),
            cpu: None,
            port,
            commands: orders,
            wake: wake.clone(),
            sink,
            state: State::new(),
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let cpu = cpu.filter(|cpu| pin(&worker.name, *cpu));
            Worker { cpu, ..worker }.run()
        })?;
        Ok(Datapath { commands, wake, thread: Mutex::new(Some(thread)) })
    }

    fn order(&self, command: Command) -> Result<(), Command> {
        self.commands.send(command).map_err(|unsent| unsent.0)?;
        // It can only be full of wake-ups that the thread has not seen.
        let _ = self.wake.write(1);
        Ok(())
    }

    /// Orders something with an answer, and waits for it; `None` when the thread has ended.
    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Option<T> {
        let (reply, answer): (_, Receiver<T>) = channel();
        self.order(command(reply)).ok()?;
        answer.recv().ok()
    }

    /// Makes an engine for a job and starts its handshake. [`super::Event::JobReady`] or
    /// [`super::Event::JobFailed`] follows.
    ///
    /// # Errors
    /// See [`AddError`].
    pub fn add_job(&self, params: JobParams, peer: Peer) -> Result<(), AddError> {
        self.ask(|reply| Command::AddJob { params, peer, reply }).unwrap_or(Err(AddError::Stopped))
    }

    /// Queues an operation. [`super::Event::Completed`] or [`super::Event::Refused`] follows, with `tag`.
    ///
    /// # Errors
    /// The operation comes back when the thread has ended.
    pub fn submit(&self, job: u16, tag: u64, operation: Operation) -> Result<(), Operation> {
        match self.order(Command::Submit { job, tag, operation }) {
            Err(Command::Submit { operation, .. }) => Err(operation),
            _ => Ok(()),
        }
    }

    /// Ends a job: its operations complete with `why`, and so do later ones, until it is removed.
    pub fn fail_job(&self, job: u16, why: JobError) {
        // A thread that has ended has failed all jobs.
        let _ = self.order(Command::FailJob { job, why });
    }

    /// Ends a job and forgets it. All its events have been told when this returns.
    pub fn remove_job(&self, job: u16) {
        let _ = self.ask(|reply| Command::RemoveJob { job, reply });
    }

    /// What the thread reports; `None` when it has ended.
    pub fn stats(&self) -> Option<DatapathStats> {
        self.ask(|reply| Command::Stats { reply })
    }

    /// Ends all jobs and the thread. Returns its last report, to the first who asks.
    pub fn shutdown(&self) -> Option<DatapathStats> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let _ = self.order(Command::Shutdown);
        if thread.thread().id() == std::thread::current().id() {
            // The sink dropped the last handle: the thread ends by itself, after this event.
            return None;
        }
        let report = thread.join();
        if report.is_err() {
            tracing::error!("a data path's thread has panicked; please report it");
        }
        report.ok()
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Pins the calling thread; says whether it is pinned.
fn pin(name: &str, cpu: usize) -> bool {
    let mut cpus = CpuSet::new();
    let outcome = cpus.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cpus));
    if let Err(error) = outcome {
        tracing::warn!(datapath = name, cpu, error = error.desc(), "cannot pin the thread to that CPU");
    }
    outcome.is_ok()
}
