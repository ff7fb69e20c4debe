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
use sumac_agg_layout::Drops;
use sumac_wire::{MAX_JOBS, Reason, tables::JobEntry};
use thiserror::Error;

use self::pump::Pump;
use crate::{
    aggregator::{HostAggregator, JobError, NewJob, NoMemory},
    watch::{JobSeen, WorkerSeen},
};

/// Asked for on both sides of the socket: some thousand packets.
const SOCKET_BUFFER: usize = 8 << 20;
/// The interval at which an idle thread checks whether it should end.
const IDLE: Duration = Duration::from_millis(200);

/// The reason that the aggregator cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The pool is too large.
    #[error(transparent)]
    Memory(#[from] NoMemory),
    /// Ports that do not exist.
    #[error(
        "{shards} shards from UDP port {port} on: give at least 1, and a --base-port that leaves as many ports"
    )]
    Ports {
        /// Shards asked for.
        shards: u16,
        /// The first port.
        port: u16,
    },
    /// The address cannot be bound.
    #[error(
        "cannot bind UDP {address}: {source}; is another aggregator running? choose a port with --base-port"
    )]
    Bind {
        /// The address.
        address: SocketAddrV4,
        /// The system's error.
        source: io::Error,
    },
    /// The socket or the thread could not be set up.
    #[error("cannot {what}: {source}")]
    Setup {
        /// The action.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
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

    /// Returns the address of its first shard.
    pub fn local(&self) -> SocketAddrV4 {
        self.local
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> u16 {
        self.shards.len() as u16
    }

    /// Slots in the pool.
    pub fn slots(&self) -> u32 {
        self.shards.iter().map(|shard| lock(&shard.core).slots()).min().unwrap_or(0)
    }

    /// Slots of each shard that dynamic jobs share.
    pub fn dynamic_slots(&self) -> u32 {
        self.shards.iter().map(|shard| lock(&shard.core).dynamic_slots()).min().unwrap_or(0)
    }

    /// Returns the age at which a shared slot is reclaimed, in milliseconds.
    pub fn slot_timeout(&self) -> u32 {
        self.shards.first().map_or(0, |shard| lock(&shard.core).slot_timeout())
    }

    /// Returns the number of shared slots in use, in all shards.
    pub fn held(&self) -> u32 {
        self.shards.iter().map(|shard| lock(&shard.core).held()).sum()
    }

    /// Most elements in a chunk.
    pub fn max_elements(&self) -> u16 {
        self.shards.iter().map(|shard| lock(&shard.core).max_elements()).min().unwrap_or(0)
    }

    /// Starts to aggregate for a job, in all shards or in none.
    pub fn install(&self, number: u16, new: &NewJob) -> Result<(), JobError> {
        let mut cores = self.lock_all();
        cores.iter().try_for_each(|core| core.check(number, new))?;
        cores.iter_mut().try_for_each(|core| core.install(number, new.clone()))
    }

    /// Leaves a job only so many slots in each lane, in all shards or in none: see [`HostAggregator::resize`].
    pub fn resize(&self, number: u16, lane_slots: u32) -> Result<(), JobError> {
        let mut cores = self.lock_all();
        cores.iter().try_for_each(|core| core.check_resize(number, lane_slots))?;
        cores.iter_mut().try_for_each(|core| core.resize(number, lane_slots))
    }

    /// All shards at once, so that what one refuses no other has done. Threads hold one lock at a time: no deadlock.
    fn lock_all(&self) -> Vec<MutexGuard<'_, HostAggregator>> {
        self.shards.iter().map(|shard| lock(&shard.core)).collect()
    }

    /// Stops to aggregate for a job.
    pub fn remove(&self, number: u16) {
        for shard in &self.shards {
            lock(&shard.core).remove(number);
        }
    }

    /// Every job number that was used with its last epoch, and whether it is in use.
    pub fn epochs(&self) -> Vec<(u16, u16, bool)> {
        self.shards.first().map_or_else(Vec::new, |shard| lock(&shard.core).epochs().collect())
    }

    /// Packets by what became of them.
    pub fn counter(&self, reason: Reason) -> u64 {
        self.shards.iter().map(|shard| lock(&shard.core).counter(reason)).sum()
    }

    /// The jobs that are there, as the first shard knows them: by number, with workers and parents.
    pub fn jobs(&self) -> Vec<(u16, JobEntry, Vec<SocketAddrV4>, Vec<SocketAddrV4>)> {
        let Some(shard) = self.shards.first() else { return Vec::new() };
        let core = lock(&shard.core);
        let jobs = (0..MAX_JOBS as u16).filter_map(|number| Some((number, *core.job(number)?)));
        let addresses = |number| (core.workers(number).to_vec(), core.parents(number).to_vec());
        let jobs = jobs.map(|(number, entry)| (number, entry, addresses(number)));
        jobs.map(|(number, entry, (workers, parents))| (number, entry, workers, parents)).collect()
    }

    /// Returns the statistics of a job, of all shards.
    pub fn job_seen(&self, job: u16) -> JobSeen {
        let seen = self.shards.iter().map(|shard| lock(&shard.core).job_seen(job));
        seen.fold(JobSeen::default(), |sum, one| sum.and(&one))
    }

    /// Returns the statistics of a worker, of all shards.
    pub fn worker_seen(&self, job: u16, rank: u16) -> WorkerSeen {
        let seen = self.shards.iter().map(|shard| lock(&shard.core).worker_seen(job, rank));
        seen.fold(WorkerSeen::default(), |sum, one| sum.and(&one))
    }

    /// The loss injection of a job.
    pub fn drops(&self, job: u16) -> Drops {
        self.shards.first().map_or_else(Drops::default, |shard| lock(&shard.core).drops(job))
    }

    /// Loses parts of a job's packets on purpose from now on.
    pub fn set_drops(&self, job: u16, drops: Drops) {
        self.lock_all().iter_mut().for_each(|core| core.set_drops(job, drops));
    }

    /// Whether all threads are still at work.
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
