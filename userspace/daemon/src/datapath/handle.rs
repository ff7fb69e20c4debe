//! The data path's threads as the rest of the daemon sees them.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Instant,
};

use crossbeam_queue::ArrayQueue;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::eventfd::{EfdFlags, EventFd},
    unistd::Pid,
};
use sumac_parameter::{HostError, Worker as Member};
use sumac_transport::{JobError, Operation};

use super::{
    command::{AddError, Command, HostPlan, HostingError, JobPlan, Sink},
    engines::Engines,
    links::{CROSSING, Link, Links, thread_of},
    port::{Peer, Port},
    progress::Progress,
    stats::DatapathStats,
    worker::{State, Worker},
};

/// Threads that drive the lanes of many jobs, each over a port of its own. Dropping it stops them.
pub struct Datapath {
    links: Links,
    progress: Arc<Progress>,
    threads: Mutex<Vec<JoinHandle<DatapathStats>>>,
    capacity: usize,
    shards: u16,
    /// The UDP port that packets of shard 0 come to.
    base_port: u16,
    /// By job: its shards.
    jobs: Mutex<Vec<(u16, u16)>>,
}

impl Datapath {
    /// Starts a thread for each port, pinned to the CPU with its number in `cpus` if there is one. Events go to
    /// `sink`, on those threads.
    ///
    /// A CPU that does not exist is a warning, not an error.
    ///
    /// # Errors
    /// When there is no port, or the system has no thread or eventfd to give.
    pub fn start(name: &str, ports: Vec<Box<dyn Port>>, cpus: &[usize], sink: Sink) -> io::Result<Datapath> {
        let capacity = ports.iter().map(|port| port.capacity()).min();
        let shards = ports.iter().map(|port| port.shards()).min();
        let (Some(capacity), Some(shards)) = (capacity, shards) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a data path without a port"));
        };
        // Each port of a UDP data path has its own; the first is shard 0's.
        let local = ports.first().and_then(|port| port.report().local);
        let base_port = local.map_or(0, |local| local.port());
        let (links, orders): (Vec<_>, Vec<_>) =
            ports.iter().map(|_| link()).collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
        let links: Links = links.into();
        let progress = Arc::new(Progress::new(links.clone(), sink));
        let (threads, jobs) = (Mutex::default(), Mutex::default());
        let datapath = Datapath { links, progress, threads, capacity, shards, base_port, jobs };
        let start = Instant::now();
        for (number, (port, commands)) in ports.into_iter().zip(orders).enumerate() {
            let thread = datapath.spawn(name, number, port, commands, cpus.get(number).copied(), start)?;
            datapath.threads().push(thread);
        }
        Ok(datapath)
    }

    fn spawn(
        &self,
        name: &str,
        number: usize,
        port: Box<dyn Port>,
        commands: Receiver<Command>,
        cpu: Option<usize>,
        start: Instant,
    ) -> io::Result<JoinHandle<DatapathStats>> {
        let name = if self.links.len() == 1 { name.to_owned() } else { format!("{name}-{number}") };
        let engines = Engines::new(number, self.links.clone(), self.progress.clone(), self.base_port);
        let worker = Worker {
            name: name.clone(),
            cpu: None,
            port,
            commands,
            wake: self.links[number].wake.clone(),
            crossing: self.links[number].crossing.clone(),
            state: State::new(engines, start),
        };
        std::thread::Builder::new().name(name).spawn(move || {
            let cpu = cpu.filter(|cpu| pin(&worker.name, *cpu));
            Worker { cpu, ..worker }.run()
        })
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<DatapathStats>>> {
        // Every statement leaves the list whole.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jobs(&self) -> std::sync::MutexGuard<'_, Vec<(u16, u16)>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Most bytes of UDP payload that all ports can send.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Most shards that a job can have here.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// How many threads there are.
    pub fn thread_count(&self) -> usize {
        self.links.len()
    }

    /// Orders all threads something with an answer, and waits for the answers; `None` when one has ended.
    fn ask_all<T>(&self, command: impl Fn(Sender<T>) -> Command) -> Option<Vec<T>> {
        let asked = self.links.iter().map(|link| {
            let (reply, answer): (_, Receiver<T>) = channel();
            link.order(command(reply)).ok().map(|()| answer)
        });
        let asked = asked.collect::<Option<Vec<_>>>()?;
        asked.into_iter().map(|answer| answer.recv().ok()).collect()
    }

    /// Makes engines for a job's lanes and starts their handshakes. [`super::Event::JobReady`] follows, or
    /// [`super::Event::JobFailed`], or, where a lane is to measure the path, [`super::Event::JobMeasured`].
    ///
    /// # Errors
    /// See [`AddError`]. No thread knows the job after one.
    pub fn add_job(&self, plan: JobPlan) -> Result<(), AddError> {
        let (job, shards) = self.check(&plan)?;
        if !self.progress.open(job, plan.lanes.len()) {
            return Err(AddError::Exists { job });
        }
        let added = self
            .ask_all(|reply| Command::AddJob { plan: plan.clone(), reply })
            .ok_or(AddError::Stopped)
            .and_then(|answers| answers.into_iter().collect::<Result<(), _>>());
        match added {
            Ok(()) => self.jobs().push((job, shards)),
            Err(_) => self.remove_job(job),
        }
        added
    }

    /// Gives the job's number and its shards.
    fn check(&self, plan: &JobPlan) -> Result<(u16, u16), AddError> {
        let given = plan.lanes.len();
        let Some(first) = plan.lanes.first() else { return Err(AddError::Lanes { job: 0, given }) };
        let (job, shards) = (first.job, first.shards);
        let are_numbered = plan.lanes.iter().enumerate().all(|(number, lane)| {
            usize::from(lane.lane) == number
                && (lane.job, lane.shards, lane.slots) == (job, shards, first.slots)
        });
        if !are_numbered {
            return Err(AddError::Lanes { job, given });
        }
        if shards > self.shards {
            return Err(AddError::Shards { asked: shards, given: self.shards });
        }
        Ok((job, shards))
    }

    /// Lets the chunks of a job go that waits since [`super::Event::JobMeasured`], with so many slots in each
    /// lane. [`super::Event::JobReady`] follows.
    ///
    /// # Errors
    /// See [`AddError`].
    pub fn start_job(&self, job: u16, slots: u32) -> Result<(), AddError> {
        let answers = self.ask_all(|reply| Command::StartJob { job, slots, reply });
        answers.ok_or(AddError::Stopped)?.into_iter().collect()
    }

    /// Goes on in a dynamic job under another incarnation, after a worker of it was replaced (ATP appendix A.3): what is on its way is
    /// sent again. `resume`: the first chunk of each lane that is not summed.
    ///
    /// # Errors
    /// When there is no such job, or the threads have ended.
    pub fn renew_job(&self, job: u16, epoch: u16, resume: Vec<u32>) -> Result<(), AddError> {
        let answers = self.ask_all(|reply| Command::RenewJob { job, epoch, resume: resume.clone(), reply });
        answers.ok_or(AddError::Stopped)?.into_iter().collect()
    }

    /// Queues an operation in a lane. [`super::Event::Completed`] or [`super::Event::Refused`] follows, with `tag`.
    ///
    /// # Errors
    /// The operation comes back when the thread has ended.
    pub fn submit(&self, job: u16, lane: u16, tag: u64, operation: Operation) -> Result<(), Operation> {
        let shards = self.jobs().iter().find(|(number, _)| *number == job).map_or(1, |(_, shards)| *shards);
        let link = &self.links[thread_of(lane, shards, self.links.len())];
        match link.order(Command::Submit { job, lane, tag, operation }) {
            Err(Command::Submit { operation, .. }) => Err(operation),
            _ => Ok(()),
        }
    }

    /// Ends a job: its operations complete with `why`, and so do later ones, until it is removed.
    pub fn fail_job(&self, job: u16, why: JobError) {
        for link in self.links.iter() {
            // A thread that has ended has failed all jobs.
            let _ = link.order(Command::FailJob { job, why: why.clone() });
        }
    }

    /// Ends a job and forgets it. All its events have been told when this returns.
    pub fn remove_job(&self, job: u16) {
        let _ = self.ask_all(|reply| Command::RemoveJob { job, reply });
        self.progress.close(job);
        self.jobs().retain(|(number, _)| *number != job);
    }

    /// Sums for a job as a parameter host, each thread for its shards.
    ///
    /// # Errors
    /// See [`HostingError`]. No thread knows the job after one, unless it did before.
    pub fn add_host(&self, plan: HostPlan) -> Result<(), HostingError> {
        let (job, asked) = (plan.job.job, plan.job.shards);
        if asked > self.shards {
            return Err(HostingError::Shards { asked, given: self.shards });
        }
        let answers = self.ask_all(|reply| Command::AddHost { plan: plan.clone(), reply });
        let added = answers.ok_or(HostingError::Stopped)?.into_iter().collect::<Result<(), _>>();
        let is_there = HostError::Taken(job);
        if added.as_ref().is_err_and(|error| *error != HostingError::Host(is_there)) {
            self.remove_host(job);
        }
        added
    }

    /// Goes on with a job under another incarnation, after a worker was replaced (ATP appendix A.3). Gives the first chunk of each
    /// lane that is not summed.
    ///
    /// # Errors
    /// See [`HostingError`].
    pub fn renew_host(
        &self,
        job: u16,
        epoch: u16,
        workers: Vec<Member>,
        peers: Vec<Peer>,
    ) -> Result<Vec<u32>, HostingError> {
        let renew = |reply| {
            let (workers, peers) = (workers.clone(), peers.clone());
            Command::RenewHost { job, epoch, workers, peers, reply }
        };
        let threads = self.ask_all(renew).ok_or(HostingError::Stopped)?;
        let threads = threads.into_iter().collect::<Result<Vec<_>, _>>()?;
        // A lane that is on another thread is at its beginning here.
        let lanes = threads.first().map_or(0, Vec::len);
        Ok((0..lanes).map(|lane| threads.iter().map(|firsts| firsts[lane]).max().unwrap_or(0)).collect())
    }

    /// Sums no more for a job; says whether it did.
    pub fn remove_host(&self, job: u16) -> bool {
        let answers = self.ask_all(|reply| Command::RemoveHost { job, reply });
        answers.is_some_and(|answers| answers.contains(&true))
    }

    /// What each thread reports; `None` when they have ended.
    pub fn stats(&self) -> Option<Vec<DatapathStats>> {
        self.ask_all(|reply| Command::Stats { reply })
    }

    /// Ends all jobs and the threads. Returns their last reports, to the first who asks.
    pub fn shutdown(&self) -> Option<Vec<DatapathStats>> {
        let threads = std::mem::take(&mut *self.threads());
        if threads.is_empty() {
            return None;
        }
        for link in self.links.iter() {
            let _ = link.order(Command::Shutdown);
        }
        let here = std::thread::current().id();
        // The one where the sink dropped the last handle ends by itself, after this event.
        let others = threads.into_iter().filter(|thread| thread.thread().id() != here);
        let reports: Vec<_> = others.map(JoinHandle::join).collect();
        if reports.iter().any(Result::is_err) {
            tracing::error!("a thread of the data path has panicked; please report it");
        }
        Some(reports.into_iter().filter_map(Result::ok).collect())
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// A way to a thread, and the thread's end of it.
fn link() -> io::Result<(Link, Receiver<Command>)> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let wake = Arc::new(EventFd::from_flags(flags)?);
    let (commands, orders) = channel();
    Ok((Link { commands, wake, crossing: Arc::new(ArrayQueue::new(CROSSING)) }, orders))
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
