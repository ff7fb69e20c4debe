//! A socket and a thread around each shard's core.

mod pump;

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{getsockopt, setsockopt, sockopt},
};
use sumac_agg_layout::{Drops, State};
use sumac_wire::{
    Reason,
    tables::{JobEntry, job_flag},
};
use thiserror::Error;

use self::pump::Pump;
use crate::{
    aggregator::HostAggregator,
    job::{JobError, NewJob},
    pool::NoMemory,
    watch::{JobSeen, WorkerSeen},
};

/// Asked for on both sides of the socket: some thousand packets.
const SOCKET_BUFFER: usize = 8 << 20;
/// The interval at which an idle thread checks whether it should end.
const IDLE: Duration = Duration::from_millis(200);

/// The reason that the aggregator cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Memory(#[from] NoMemory),
    #[error(
        "{shards} shards from UDP port {port} on: give at least 1, and a --base-port that leaves as many ports"
    )]
    Ports { shards: u16, port: u16 },
    #[error(
        "cannot bind UDP {address}: {source}; is another aggregator running? choose a port with --base-port"
    )]
    Bind { address: SocketAddrV4, source: io::Error },
    #[error("cannot {what}: {source}")]
    Setup { what: &'static str, source: io::Error },
}

/// A running aggregator. Ends when dropped.
pub struct Running {
    shards: Vec<Shard>,
    local: SocketAddrV4,
    stop: Arc<AtomicBool>,
}

/// One shard: its port's socket and its core belong to its thread.
struct Shard {
    core: Arc<Mutex<HostAggregator>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Binds `ip:port` (port 0: any) for the first of `shards` shards, the next ports for the others, and starts their
    /// threads. Each has a pool of `slots` slots for chunks of at most `max_elements`.
    pub fn start(
        slots: u32,
        max_elements: u16,
        shards: u16,
        ip: Ipv4Addr,
        port: u16,
    ) -> Result<Running, StartError> {
        let mut running = Running {
            shards: Vec::new(),
            local: SocketAddrV4::new(ip, port),
            stop: Arc::new(AtomicBool::new(false)),
        };
        if shards == 0 {
            return Err(StartError::Ports { shards, port });
        }
        for shard in 0..shards {
            let first = running.local.port();
            let port = if shard == 0 { first } else { first.checked_add(shard).unwrap_or(0) };
            if port == 0 && shard > 0 {
                return Err(StartError::Ports { shards, port: first });
            }
            let socket = bind(SocketAddrV4::new(ip, port))?;
            if shard == 0 {
                let source = |source| StartError::Setup { what: "ask for the socket's port", source };
                running.local.set_port(socket.local_addr().map_err(source)?.port());
            }
            let core = HostAggregator::of_shard(shard, shards, slots, max_elements)?;
            running.shards.push(Shard::start(shard, core, socket, running.stop.clone())?);
        }
        Ok(running)
    }

    /// With `slots` slots in each shard that dynamic jobs share. When nobody adds to one for `timeout`, others may take it.
    ///
    /// # Errors
    /// When the slots do not fit half of the memory that this host has.
    pub fn with_dynamic(self, slots: u32, timeout: Duration) -> Result<Running, StartError> {
        let timeout = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        for core in &mut self.lock_all() {
            core.share(slots)?;
            core.set_slot_timeout(timeout);
        }
        Ok(self)
    }

    /// Returns the address of the first shard.
    pub fn local(&self) -> SocketAddrV4 {
        self.local
    }

    /// Returns the sizes, which are the same in all shards.
    pub fn sizes(&self) -> State {
        let mut sizes = self.each(HostAggregator::sizes);
        State { base_port: self.local.port(), ..sizes.next().unwrap_or_default() }
    }

    /// Returns the number of shared slots in use, in all shards.
    pub fn held(&self) -> u32 {
        self.each(HostAggregator::held).sum()
    }

    /// Starts to aggregate for a job, in all shards or in none.
    pub fn install(&self, new: &NewJob) -> Result<(), JobError> {
        let mut cores = self.lock_all();
        cores.iter().try_for_each(|core| core.check(new))?;
        cores.iter_mut().try_for_each(|core| core.install(new))
    }

    /// Leaves a job only so many slots in each lane, in all shards or in none: see [`HostAggregator::resize`].
    pub fn resize(&self, number: u16, lane_slots: u32) -> Result<(), JobError> {
        let mut cores = self.lock_all();
        cores.iter().try_for_each(|core| core.check_resize(number, lane_slots).map(drop))?;
        cores.iter_mut().try_for_each(|core| core.resize(number, lane_slots))
    }

    /// Locks all shards, so that what one refuses no other has done. Threads hold one lock at a time: no deadlock.
    fn lock_all(&self) -> Vec<MutexGuard<'_, HostAggregator>> {
        self.shards.iter().map(|shard| lock(&shard.core)).collect()
    }

    /// Reads from one shard after the other.
    fn each<T>(&self, read: impl Fn(&HostAggregator) -> T) -> impl Iterator<Item = T> {
        self.shards.iter().map(move |shard| read(&lock(&shard.core)))
    }

    pub fn remove(&self, number: u16) {
        for core in &mut self.lock_all() {
            core.remove(number);
        }
    }

    /// Returns the entries of all job numbers that were ever used.
    pub fn entries(&self) -> Vec<(u16, JobEntry)> {
        let entries = |core: &HostAggregator| core.entries().map(|(job, entry)| (job, *entry)).collect();
        self.each(entries).next().unwrap_or_default()
    }

    /// Returns the packets of all shards by reason.
    pub fn counter(&self, reason: Reason) -> u64 {
        self.each(|core| core.counter(reason)).sum()
    }

    /// Returns the active jobs, as the first shard has them: by number, with workers and parents.
    pub fn jobs(&self) -> Vec<(u16, JobEntry, Vec<SocketAddrV4>, Vec<SocketAddrV4>)> {
        let jobs = |core: &HostAggregator| {
            let active = core.entries().filter(|(_, entry)| entry.flags & job_flag::ACTIVE != 0);
            active
                .map(|(job, entry)| (job, *entry, core.workers(job).to_vec(), core.parents(job).to_vec()))
                .collect()
        };
        self.each(jobs).next().unwrap_or_default()
    }

    /// Returns the statistics of a job, of all shards.
    pub fn job_seen(&self, job: u16) -> JobSeen {
        self.each(|core| core.job_seen(job)).fold(JobSeen::default(), |sum, one| sum.and(&one))
    }

    /// Returns the statistics of a worker, of all shards.
    pub fn worker_seen(&self, job: u16, rank: u16) -> WorkerSeen {
        self.each(|core| core.worker_seen(job, rank)).fold(WorkerSeen::default(), |sum, one| sum.and(&one))
    }

    /// Returns the intentional drops of a job.
    pub fn drops(&self, job: u16) -> Drops {
        self.each(|core| core.drops(job)).next().unwrap_or_default()
    }

    /// Sets the intentional drops of a job.
    pub fn set_drops(&self, job: u16, drops: Drops) {
        self.lock_all().iter_mut().for_each(|core| core.set_drops(job, drops));
    }

    /// Returns whether all threads are running.
    pub fn is_alive(&self) -> bool {
        self.shards.iter().all(|shard| shard.thread.as_ref().is_some_and(|thread| !thread.is_finished()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.shards.iter_mut().filter_map(|shard| shard.thread.take()) {
            if thread.join().is_err() {
                tracing::error!("an aggregating thread panicked");
            }
        }
    }
}

impl Shard {
    fn start(
        number: u16,
        core: HostAggregator,
        socket: UdpSocket,
        stop: Arc<AtomicBool>,
    ) -> Result<Shard, StartError> {
        let core = Arc::new(Mutex::new(core));
        let pump = Pump::new(socket, core.clone(), stop);
        let thread = thread::Builder::new()
            .name(format!("aggregate{number}"))
            .spawn(move || pump.run())
            .map_err(|source| StartError::Setup { what: "start an aggregating thread", source })?;
        Ok(Shard { core, thread: Some(thread) })
    }
}

fn bind(address: SocketAddrV4) -> Result<UdpSocket, StartError> {
    let socket = UdpSocket::bind(address).map_err(|source| StartError::Bind { address, source })?;
    let limit = |source| StartError::Setup { what: "limit how long the socket waits", source };
    socket.set_read_timeout(Some(IDLE)).map_err(limit)?;
    let marks = |error: Errno| StartError::Setup { what: "see the network's marks", source: error.into() };
    setsockopt(&socket, sockopt::IpRecvTos, &true).map_err(marks)?;
    enlarge(&socket);
    Ok(socket)
}

fn lock(core: &Mutex<HostAggregator>) -> MutexGuard<'_, HostAggregator> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks for large buffers; the privileged form goes above the system's maximum. Smaller ones lose packets in bursts.
fn enlarge(socket: &UdpSocket) {
    let receive = setsockopt(socket, sockopt::RcvBufForce, &SOCKET_BUFFER)
        .or_else(|_| setsockopt(socket, sockopt::RcvBuf, &SOCKET_BUFFER))
        .and_then(|()| getsockopt(socket, sockopt::RcvBuf));
    let send = setsockopt(socket, sockopt::SndBufForce, &SOCKET_BUFFER)
        .or_else(|_| setsockopt(socket, sockopt::SndBuf, &SOCKET_BUFFER))
        .and_then(|()| getsockopt(socket, sockopt::SndBuf));
    for (limit, granted) in [("net.core.rmem_max", receive), ("net.core.wmem_max", send)] {
        match granted {
            Ok(bytes) if bytes >= SOCKET_BUFFER => {}
            Ok(bytes) => tracing::warn!(
                bytes,
                wanted = SOCKET_BUFFER,
                "small socket buffers lose packets in bursts: raise {limit}, or give CAP_NET_ADMIN"
            ),
            Err(error) => tracing::warn!(error = error.desc(), "asking for socket buffers"),
        }
    }
}
