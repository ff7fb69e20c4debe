//! A socket and a thread around each shard's core.

mod last_round;
mod pump;
mod sockets;

use std::{
    io,
    net::{SocketAddrV4, UdpSocket},
    sync::{Arc, Mutex, atomic::AtomicBool},
    thread::{self, JoinHandle},
};

use nix::errno::Errno;
use sumac_udp::{Counts, DatagramSocket};
use thiserror::Error;

use self::{
    last_round::LastRound,
    pump::{IDLE, Pump},
};
use crate::{aggregator::HostAggregator, lock::lock, pool::NoMemory};

/// The reason that the aggregator cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Memory(#[from] NoMemory),
    #[error(
        "{shards} shards from UDP port {port} on: give at least 1, and a --base-port that leaves as many \
        ports"
    )]
    Ports { shards: u16, port: u16 },
    #[error(
        "cannot bind UDP {address}: {source}; is another aggregator running? choose a port with --base-port"
    )]
    Bind { address: SocketAddrV4, source: io::Error },
    #[error("cannot {what}: {source}")]
    Setup { what: &'static str, source: io::Error },
}

/// One shard: its port's socket and its core belong to its thread.
pub struct Shard {
    pub core: Arc<Mutex<HostAggregator>>,
    pub thread: Option<JoinHandle<()>>,
    last_round: LastRound,
    /// Bytes of packets that its socket holds until they are read.
    pub socket_bytes: usize,
    /// Packets and messages of the socket, as of the last round.
    counts: Arc<Mutex<Counts>>,
}

impl Shard {
    pub fn start(
        number: u16,
        core: HostAggregator,
        socket: DatagramSocket,
        stop: Arc<AtomicBool>,
    ) -> Result<Shard, StartError> {
        let core = Arc::new(Mutex::new(core));
        let last_round = LastRound::start();
        let (socket_bytes, counts) = (socket.unread_bytes(), Arc::default());
        let pump = Pump::new(socket, core.clone(), stop, last_round.clone(), Arc::clone(&counts));
        let thread = thread::Builder::new()
            .name(format!("aggregate{number}"))
            .spawn(move || pump.run())
            .map_err(|source| StartError::Setup { what: "start an aggregating thread", source })?;
        Ok(Shard { core, thread: Some(thread), last_round, socket_bytes, counts })
    }

    pub fn counts(&self) -> Counts {
        *lock(&self.counts)
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
    let marks = |error: Errno| StartError::Setup { what: "see the network's marks", source: error.into() };
    DatagramSocket::new(socket).map_err(marks)
}
