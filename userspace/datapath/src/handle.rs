//! The handle of a data path: it starts its threads and sends them commands.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use sumac_host::{FragmentKey, JobId};
use sumac_parameter::{HostError, Worker as Member};
use sumac_transport::{JobError, Operation};
use tokio::sync::watch;

use super::engines::Engines;
use super::frame_io::{FrameIo, Identity, Peer, Route};
use super::handoff::{HandoffQueue, thread_of};
use super::job::{EventSink, InstallError, ParameterJob, WorkerJob};
use super::lane::Lane;
use super::links::Link;
use super::ports::Ports;
use super::progress::Progress;
use super::stats::{DatapathStats, JobStats};
use super::thread::DatapathThread;
use super::udp::UdpFrameIo;

/// Threads that run the lanes of jobs, each with a [`FrameIo`] of its own. Dropping the handle stops them.
pub struct Datapath {
    /// By the thread's number.
    links: Vec<Link>,
    /// The threads' queues for packets of each other.
    handoffs: Arc<[HandoffQueue]>,
    sink: EventSink,
    /// The workers' jobs.
    jobs: Mutex<HashMap<JobId, Arc<Progress>>>,
    /// A thread that panicked returns nothing.
    threads: Mutex<Vec<JoinHandle<Option<DatapathStats>>>>,
    /// The first thread that panicked, with its message.
    died: watch::Sender<Option<String>>,
    /// The largest UDP payload that can be sent, in bytes.
    capacity: AtomicUsize,
    /// The most shards of a job.
    pub shards: u16,
    /// Source ports that packets leave by, over any of the ways that a job may have.
    pub paths: u16,
}

impl Datapath {
    /// Starts a thread for each of `ios`, pinned to the CPU at its index in `cpus`, if there is one. A CPU
    /// that does not exist is a warning. `sink` receives the events on those threads.
    /// `udp`: sockets beside AF_XDP, of the first threads.
    pub fn start(
        name: &str,
        ios: Vec<Box<dyn FrameIo>>,
        udp: Vec<UdpFrameIo>,
        cpus: &[usize],
        sink: EventSink,
    ) -> io::Result<Datapath> {
        let capacity = ios.iter().map(|io| io.capacity()).min();
        let shards = ios.iter().map(|io| io.shards()).min();
        // Results come by as many, also where a job is moved to the sockets beside AF_XDP.
        let paths = ios.iter().map(|io| io.paths()).chain(udp.iter().map(FrameIo::paths)).min();
        let (Some(capacity), Some(shards), Some(paths)) = (capacity, shards, paths) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a data path without a queue or socket"));
        };
        // Over UDP each socket has a port of its own; the first is shard 0's.
        let local = ios.first().and_then(|io| io.report().local);
        let base_port = local.map_or(0, |local| local.port());
        let links = ios.iter().map(|_| Link::new()).collect::<io::Result<Vec<_>>>()?;
        let (links, commands): (Vec<_>, Vec<_>) = links.into_iter().unzip();
        let datapath = Datapath {
            handoffs: links.iter().map(|link| link.handoffs.clone()).collect(),
            links,
            sink,
            jobs: Mutex::default(),
            threads: Mutex::default(),
            died: watch::Sender::new(None),
            capacity: capacity.into(),
            shards,
            paths,
        };
        let mut udp = udp.into_iter();
        for (number, (io, commands)) in ios.into_iter().zip(commands).enumerate() {
            let ports = Ports { io, udp: udp.next() };
            let name = if datapath.links.len() == 1 { name.to_owned() } else { format!("{name}-{number}") };
            let Link { handoffs, snapshot, .. } = &datapath.links[number];
            let engines = Engines::new(number, datapath.handoffs.clone(), datapath.sink.clone(), base_port);
            let (handoffs, snapshot) = (handoffs.clone(), snapshot.clone());
            let mut thread = DatapathThread::new(name.clone(), ports, engines, handoffs, snapshot, commands);
            let (cpu, died) = (cpus.get(number).copied(), datapath.died.clone());
            let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
                thread.stats.cpu = cpu.filter(|cpu| pin(&thread.stats.name, *cpu));
                // The thread's state ends with it; nobody sees it half changed.
                let ended = catch_unwind(AssertUnwindSafe(|| thread.run()));
                ended.map_err(|panic| died.send_replace(Some(format!("{name}: {}", text(&*panic))))).ok()
            })?;
            datapath.threads().push(thread);
        }
        Ok(datapath)
    }

    /// Waits until a thread has panicked. Returns which, with its message.
    pub async fn died(&self) -> String {
        let mut died = self.died.subscribe();
        let why = died.wait_for(Option::is_some).await.ok().and_then(|why| (*why).clone());
        why.unwrap_or_default()
    }

    /// Returns whether all threads answer. Waits for them.
    pub fn is_alive(&self) -> bool {
        self.on_all(|_| ()).is_some()
    }

    /// The largest UDP payload that can be sent, in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Gives the threads other sockets, after their interface was made anew. Returns `false` when there are
    /// not as many.
    pub fn replace_io(&self, ios: Vec<Box<dyn FrameIo>>) -> bool {
        if ios.len() != self.links.len() {
            return false;
        }
        let capacity = ios.iter().map(|io| io.capacity()).min().unwrap_or_default();
        self.capacity.store(capacity, Ordering::Relaxed);
        self.links.iter().zip(ios).all(|(link, io)| link.send(move |thread| thread.ports.io = io))
    }

    /// Sets the name and the addresses that the interface has by now.
    pub fn set_identity(&self, identity: &Identity) {
        for link in &self.links {
            let identity = identity.clone();
            link.send(move |thread| thread.ports.io.set_identity(&identity));
        }
    }

    /// Sets the explicit paths of packets. Jobs that are added later have them.
    pub fn set_routes(&self, routes: &[Route]) {
        for link in &self.links {
            let routes = routes.to_vec();
            link.send(move |thread| thread.ports.io.set_routes(&routes));
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<Option<DatapathStats>>>> {
        // Every statement leaves the list whole.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `call` on all threads and returns its results; `None` when a thread has ended.
    pub(super) fn on_all<T: Send + 'static>(
        &self,
        call: impl Fn(&mut DatapathThread) -> T + Clone + Send + 'static,
    ) -> Option<Vec<T>> {
        let replies = self.links.iter().map(|link| {
            let (reply, received) = channel();
            let call = call.clone();
            let is_sent = link.send(move |thread| {
                let _ = reply.send(call(thread));
            });
            is_sent.then_some(received)
        });
        let replies = replies.collect::<Option<Vec<_>>>()?;
        replies.into_iter().map(|received| received.recv().ok()).collect()
    }

    fn try_on_all<T: Send + 'static>(
        &self,
        call: impl Fn(&mut DatapathThread) -> Result<T, InstallError> + Clone + Send + 'static,
    ) -> Result<Vec<T>, InstallError> {
        self.on_all(call).ok_or(InstallError::Stopped)?.into_iter().collect()
    }

    /// Passes each thread its lanes. Returns the first error.
    pub(super) fn try_on_each(
        &self,
        lanes: Vec<Lane>,
        shards: u16,
        call: impl Fn(&mut DatapathThread, Vec<Lane>) -> Result<(), InstallError> + Clone + Send + 'static,
    ) -> Result<(), InstallError> {
        let mut by_thread: Vec<Vec<Lane>> = self.links.iter().map(|_| Vec::new()).collect();
        for lane in lanes {
            by_thread[thread_of(lane.number(), shards, self.links.len())].push(lane);
        }
        for (link, lanes) in self.links.iter().zip(by_thread) {
            let (reply, received) = channel();
            let call = call.clone();
            link.send(move |thread| {
                let _ = reply.send(call(thread, lanes));
            });
            received.recv().map_err(|_| InstallError::Stopped)??;
        }
        Ok(())
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<JobId, Arc<Progress>>> {
        // Every statement leaves the map whole.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job of which this many lanes are not ready.
    pub(super) fn open_job(
        &self,
        job: JobId,
        shards: u16,
        is_trial: bool,
        lanes: usize,
    ) -> Result<Arc<Progress>, InstallError> {
        let mut jobs = self.jobs();
        let Entry::Vacant(place) = jobs.entry(job) else { return Err(InstallError::InUse { job }) };
        let progress = Progress::new(job, shards, is_trial, lanes, self.handoffs.clone(), self.sink.clone());
        Ok(place.insert(Arc::new(progress)).clone())
    }

    /// Creates engines for a job's lanes and starts their handshakes. [`super::Event::JobReady`] or
    /// [`super::Event::JobFailed`] follows; [`super::Event::JobMeasured`] where a lane measures the path.
    /// The job is installed on no thread after an error.
    pub fn add_job(&self, plan: WorkerJob) -> Result<(), InstallError> {
        let (job, shards) = (plan.id, self.check(&plan)?);
        let progress = self.open_job(job, shards, plan.is_trial(), plan.lanes.len())?;
        let plan = Arc::new(plan);
        let added = self.try_on_all(move |thread| {
            thread.engines.add(&plan, progress.clone(), &*thread.ports.io)?;
            thread.join_group(&plan)
        });
        if added.is_err() {
            self.remove_job(job);
        }
        added.map(drop)
    }

    /// Begins the handshake of a job anew, which has sent no chunk, over another backend.
    pub fn add_job_again(&self, plan: WorkerJob) -> Result<(), InstallError> {
        let job = plan.id;
        let forgotten = self.on_all(move |thread| {
            thread.engines.forget_one(job);
            thread.ports.leave(job);
        });
        forgotten.ok_or(InstallError::Stopped)?;
        self.jobs().remove(&job);
        self.add_job(plan)
    }

    /// Returns the number of the job's shards.
    pub(super) fn check(&self, plan: &WorkerJob) -> Result<u16, InstallError> {
        let given = plan.lanes.len();
        let Some(first) = plan.lanes.first() else { return Err(InstallError::Lanes { job: 0, given }) };
        let (job, shards) = (first.job, first.shards);
        let are_numbered = plan.lanes.iter().enumerate().all(|(number, lane)| {
            usize::from(lane.lane) == number
                && (lane.job, lane.token, lane.shards, lane.slots) == (job, first.token, shards, first.slots)
        });
        if !are_numbered {
            return Err(InstallError::Lanes { job, given });
        }
        self.check_shards(shards)?;
        Ok(shards)
    }

    fn check_shards(&self, asked: u16) -> Result<(), InstallError> {
        let given = self.shards;
        if asked > given { Err(InstallError::Shards { asked, given }) } else { Ok(()) }
    }

    /// Sets the number of slots in each lane of a measured job. [`super::Event::JobReady`] follows.
    pub fn start_job(&self, job: JobId, slots: u32) -> Result<(), InstallError> {
        self.try_on_all(move |thread| thread.engines.start(job, slots)).map(drop)
    }

    /// Continues a dynamic job in another epoch, after a worker was replaced (ATP appendix A.3). Chunks
    /// without a result are retransmitted. `resume`: the first chunk of each lane that is not summed.
    pub fn renew_job(&self, job: JobId, epoch: u16, resume: Vec<u32>) -> Result<(), InstallError> {
        self.try_on_all(move |thread| thread.engines.renew(thread.now(), job, epoch, &resume)).map(drop)
    }

    /// Queues an operation in a lane. [`super::Event::Completed`] or [`super::Event::Rejected`] follows, with
    /// `id`. Returns `false` when the thread has ended.
    pub fn submit(&self, job: JobId, lane: u16, id: FragmentKey, operation: Operation) -> bool {
        let shards = self.jobs().get(&job).map_or(1, |job| job.shards);
        let link = &self.links[thread_of(lane, shards, self.links.len())];
        link.send(move |thread| thread.engines.submit(thread.now(), job, lane, id, operation))
    }

    /// Records that another worker of a direct job has left it, after it had ended all its operations.
    pub fn peer_left(&self, job: JobId, rank: u16) {
        for link in &self.links {
            link.send(move |thread| thread.engines.peer_left(thread.now(), job, rank));
        }
    }

    /// Fails a job: its operations complete with `error`, as do later ones, until it is removed.
    pub fn fail_job(&self, job: JobId, error: &JobError) {
        for link in &self.links {
            let error = error.clone();
            link.send(move |thread| thread.engines.fail(job, &error));
        }
    }

    /// Ends and removes a job. All its events have been reported when this returns.
    pub fn remove_job(&self, job: JobId) {
        let error = JobError::Ended { reason: "this worker has left it".to_owned() };
        let _ = self.on_all(move |thread| {
            thread.engines.remove(job, &error);
            thread.ports.leave(job);
        });
        self.jobs().remove(&job);
    }

    /// Installs a parameter host's job; after an error it is installed on no thread, unless it was before.
    pub fn add_parameter_job(&self, plan: ParameterJob) -> Result<(), InstallError> {
        let job = plan.job.job;
        self.check_shards(plan.job.shards)?;
        let added =
            self.try_on_all(move |thread| thread.engines.parameter_host.add(plan.clone(), &*thread.ports.io));
        if added.as_ref().is_err_and(|error| *error != InstallError::ParameterHost(HostError::Taken(job))) {
            self.remove_parameter_job(job);
        }
        added.map(drop)
    }

    /// Continues a parameter host's job in another epoch, after a worker was replaced (ATP appendix A.3).
    /// Returns the first chunk of each lane that is not summed.
    pub fn renew_parameter_job(
        &self,
        job: u16,
        epoch: u16,
        workers: Vec<Member>,
        peers: Vec<Peer>,
    ) -> Result<Vec<u32>, InstallError> {
        let threads = self.try_on_all(move |thread| {
            thread.engines.parameter_host.renew(job, epoch, workers.clone(), &peers)
        })?;
        // A thread returns 0 for another thread's lane.
        let lanes = threads.first().map_or(0, Vec::len);
        Ok((0..lanes).map(|lane| threads.iter().map(|firsts| firsts[lane]).max().unwrap_or(0)).collect())
    }

    pub fn remove_parameter_job(&self, job: u16) -> bool {
        let removed = self.on_all(move |thread| thread.engines.parameter_host.remove(job));
        removed.is_some_and(|removed| removed.contains(&true))
    }

    /// Returns the threads' reports, none older than this call; `None` when a thread has ended. It may wait
    /// for a few milliseconds: a thread makes reports at intervals, however many are asked for.
    pub fn stats(&self) -> Option<Vec<DatapathStats>> {
        self.read(DatapathStats::clone)
    }

    /// Returns what `read` takes from each lane of a job, without a copy of all jobs' statistics; `None`
    /// after the threads have ended.
    pub fn lanes_of<R>(&self, job: JobId, read: impl Fn(&JobStats) -> R) -> Option<Vec<R>> {
        let of_thread = |thread: &DatapathStats| {
            thread.jobs.iter().filter(|lane| lane.id == job).map(&read).collect::<Vec<_>>()
        };
        Some(self.read(of_thread)?.into_iter().flatten().collect())
    }

    /// Returns what `read` takes from each thread's next report.
    fn read<R>(&self, read: impl Fn(&DatapathStats) -> R) -> Option<Vec<R>> {
        let ask = |link: &Link| {
            let wanted = link.snapshot.ask();
            if wanted.is_first {
                link.handoffs.wake();
            }
            wanted
        };
        let wanted: Vec<_> = self.links.iter().map(ask).collect();
        self.links.iter().zip(wanted).map(|(link, wanted)| link.snapshot.wait(wanted, &read)).collect()
    }

    /// Ends all jobs and the threads. The first call returns the threads' last reports.
    pub fn shutdown(&self) -> Option<Vec<DatapathStats>> {
        let threads = std::mem::take(&mut *self.threads());
        if threads.is_empty() {
            return None;
        }
        for link in &self.links {
            link.send(|thread| thread.is_stopping = true);
        }
        // A thread whose event sink drops the last handle cannot join itself; it ends after this event.
        let here = std::thread::current().id();
        let others = threads.into_iter().filter(|thread| thread.thread().id() != here);
        let reports: Vec<_> = others.map(|thread| thread.join().ok().flatten()).collect();
        if reports.iter().any(Option::is_none) {
            tracing::error!("a thread of the data path has panicked; please report it");
        }
        Some(reports.into_iter().flatten().collect())
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// The message of a panic.
fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Pins the calling thread. Returns whether it succeeded.
fn pin(name: &str, cpu: usize) -> bool {
    let mut cpus = CpuSet::new();
    let outcome = cpus.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cpus));
    if let Err(error) = outcome {
        tracing::warn!(datapath = name, cpu, error = error.desc(), "cannot pin the thread to that CPU");
    }
    outcome.is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::super::UdpFrameIo;
    use super::*;

    #[tokio::test]
    async fn a_thread_that_panics_is_named() {
        let ios = UdpFrameIo::bind_shards(Ipv4Addr::LOCALHOST, 0, 2, 1).unwrap();
        let ios = ios.into_iter().map(|io| Box::new(io) as Box<dyn FrameIo>).collect();
        let datapath = Datapath::start("test-datapath", ios, Vec::new(), &[], Arc::new(|_| ())).unwrap();
        assert!(datapath.is_alive());
        // Unlike `panic!`, without a backtrace in the tests' output.
        datapath.links[1].send(|_| std::panic::resume_unwind(Box::new("injected")));
        let died = tokio::time::timeout(Duration::from_secs(20), datapath.died()).await.unwrap();
        assert_eq!(died, "test-datapath-1: injected");
        assert!(!datapath.is_alive() && datapath.stats().is_none());
        assert_eq!(datapath.shutdown().map(|reports| reports.len()), Some(1), "the other one's");
    }
}
