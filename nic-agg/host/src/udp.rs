//! A socket and a thread around each shard's core.

mod pump;

use std::{
    io,
    net::{SocketAddrV4, UdpSocket},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::socket::{getsockopt, setsockopt, sockopt},
};
use sumac_udp::DatagramSocket;
use thiserror::Error;

use self::pump::Pump;
use crate::{aggregator::HostAggregator, pool::NoMemory};

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

/// The time without a round after which a thread counts as hung.
const HUNG: Duration = Duration::from_secs(2);

/// One shard: its port's socket and its core belong to its thread.
pub struct Shard {
    pub core: Arc<Mutex<HostAggregator>>,
    pub thread: Option<JoinHandle<()>>,
    last_round: LastRound,
}

/// The time of a thread's last round, in milliseconds from a start.
#[derive(Clone)]
struct LastRound {
    start: Instant,
    at: Arc<AtomicU64>,
}

impl LastRound {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn note(&self) {
        self.at.store(self.now(), Ordering::Relaxed);
    }

    fn is_recent(&self) -> bool {
        let age = self.now().saturating_sub(self.at.load(Ordering::Relaxed));
        u128::from(age) < HUNG.as_millis()
    }
}

impl Shard {
    pub fn start(
        number: u16,
        core: HostAggregator,
        socket: DatagramSocket,
        stop: Arc<AtomicBool>,
    ) -> Result<Shard, StartError> {
        let core = Arc::new(Mutex::new(core));
        let last_round = LastRound { start: Instant::now(), at: Arc::default() };
        let pump = Pump::new(socket, core.clone(), stop, last_round.clone());
        let thread = thread::Builder::new()
            .name(format!("aggregate{number}"))
            .spawn(move || pump.run())
            .map_err(|source| StartError::Setup { what: "start an aggregating thread", source })?;
        Ok(Shard { core, thread: Some(thread), last_round })
    }

    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Whether the thread runs its rounds.
    pub fn is_alive(&self) -> bool {
        !self.has_ended() && self.last_round.is_recent()
    }
}

pub fn bind(address: SocketAddrV4) -> Result<DatagramSocket, StartError> {
    let socket = UdpSocket::bind(address).map_err(|source| StartError::Bind { address, source })?;
    let limit = |source| StartError::Setup { what: "limit how long the socket waits", source };
    socket.set_read_timeout(Some(IDLE)).map_err(limit)?;
    enlarge(&socket);
    let marks = |error: Errno| StartError::Setup { what: "see the network's marks", source: error.into() };
    DatagramSocket::new(socket).map_err(marks)
}

pub fn lock(core: &Mutex<HostAggregator>) -> MutexGuard<'_, HostAggregator> {
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
