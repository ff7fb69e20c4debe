//! A socket and a thread around the core: packets in and out by the batch.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg, setsockopt, sockopt},
};
use sumac_wire::{MAX_ELEMENTS, MAX_WORKERS, admit::payload_len};
use thiserror::Error;

use crate::aggregator::{Answer, HostAggregator, NoMemory};

/// Packets that are received at once.
const BATCH: usize = 32;
/// Bytes of a packet's buffer: longer ones are cut short, and refused for it.
const CAPACITY: usize = payload_len(MAX_ELEMENTS as u16) + 64;
/// Asked for on both sides of the socket: some thousand packets.
const SOCKET_BUFFER: usize = 8 << 20;
/// How often an idle thread looks whether it should end.
const IDLE: Duration = Duration::from_millis(200);

/// Why the aggregator cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The pool is too large.
    #[error(transparent)]
    Memory(#[from] NoMemory),
    /// The address cannot be bound.
    #[error(
        "cannot bind UDP {address}: {source}; is another aggregator running? choose a port with --base-port"
    )]
    Bind {
        /// The address.
        address: SocketAddrV4,
        /// What the system said.
        source: io::Error,
    },
    /// The socket or the thread could not be set up.
    #[error("cannot {what}: {source}")]
    Setup {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A running aggregator. Ends when dropped.
pub struct Running {
    core: Arc<Mutex<HostAggregator>>,
    local: SocketAddrV4,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Binds `ip:port` (port 0: any) and starts the thread.
    pub fn start(core: HostAggregator, ip: Ipv4Addr, port: u16) -> Result<Running, StartError> {
        let address = SocketAddrV4::new(ip, port);
        let socket = UdpSocket::bind(address).map_err(|source| StartError::Bind { address, source })?;
        let setup = |what| move |source| StartError::Setup { what, source };
        socket.set_read_timeout(Some(IDLE)).map_err(setup("limit how long the socket waits"))?;
        enlarge(&socket);
        let port = socket.local_addr().map_err(setup("ask for the socket's port"))?.port();
        let core = Arc::new(Mutex::new(core));
        let stop = Arc::new(AtomicBool::new(false));
        let pump = Pump { socket, core: core.clone(), stop: stop.clone() };
        let thread = thread::Builder::new()
            .name("aggregate".into())
            .spawn(move || pump.run())
            .map_err(setup("start the aggregating thread"))?;
        Ok(Running { core, local: SocketAddrV4::new(ip, port), stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn local(&self) -> SocketAddrV4 {
        self.local
    }

    /// The core, between two batches.
    pub fn core(&self) -> MutexGuard<'_, HostAggregator> {
        lock(&self.core)
    }

    /// Whether the thread is still at work.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the aggregating thread panicked");
        }
    }
}

fn lock(core: &Mutex<HostAggregator>) -> MutexGuard<'_, HostAggregator> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks for large buffers; the privileged form goes above the system's maximum.
fn enlarge(socket: &UdpSocket) {
    if setsockopt(socket, sockopt::RcvBufForce, &SOCKET_BUFFER).is_err() {
        let _ = setsockopt(socket, sockopt::RcvBuf, &SOCKET_BUFFER);
    }
    if setsockopt(socket, sockopt::SndBufForce, &SOCKET_BUFFER).is_err() {
        let _ = setsockopt(socket, sockopt::SndBuf, &SOCKET_BUFFER);
    }
}

/// What the thread owns.
struct Pump {
    socket: UdpSocket,
    core: Arc<Mutex<HostAggregator>>,
    stop: Arc<AtomicBool>,
}

/// A packet of the batch that is to be sent.
struct Outgoing {
    packet: usize,
    to: SocketAddrV4,
    is_copy: bool,
}

impl Pump {
    fn run(self) {
        let mut buffers = vec![0; BATCH * CAPACITY];
        let mut arrivals = Vec::with_capacity(BATCH);
        let mut outgoing = Vec::with_capacity(BATCH * MAX_WORKERS);
        while !self.stop.load(Ordering::Relaxed) {
            arrivals.clear();
            match self.receive(&mut buffers, &mut arrivals) {
                Ok(()) | Err(Errno::EAGAIN | Errno::EINTR) => {}
                // An earlier datagram was refused by its receiver; that concerns nobody else.
                Err(Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => {}
                Err(error) => {
                    tracing::error!(error = error.desc(), "cannot receive; trying again");
                    thread::sleep(IDLE);
                }
            }
            if arrivals.is_empty() {
                continue;
            }
            outgoing.clear();
            self.aggregate(&mut buffers, &arrivals, &mut outgoing);
            let copies = self.send(&buffers, &arrivals, &outgoing);
            lock(&self.core).count_sent(copies);
        }
    }

    /// Waits for packets: at least one, or [`IDLE`]. `arrivals` gets sender and length of each.
    fn receive(&self, buffers: &mut [u8], arrivals: &mut Vec<(Ipv4Addr, usize)>) -> nix::Result<()> {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            buffers.chunks_exact_mut(CAPACITY).map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let mut headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
        let fd = self.socket.as_raw_fd();
        let messages = recvmmsg(fd, &mut headers, slices.iter_mut(), MsgFlags::MSG_WAITFORONE, None)?;
        for message in messages {
            let source = message.address.map_or(Ipv4Addr::UNSPECIFIED, |address| address.ip());
            arrivals.push((source, message.bytes));
        }
        Ok(())
    }

    fn aggregate(&self, buffers: &mut [u8], arrivals: &[(Ipv4Addr, usize)], outgoing: &mut Vec<Outgoing>) {
        let mut core = lock(&self.core);
        let packets = buffers.chunks_exact_mut(CAPACITY).zip(arrivals);
        for (packet, (buffer, (source, len))) in packets.enumerate() {
            match core.on_packet(*source, &mut buffer[..*len]) {
                Answer::None(_) => {}
                Answer::One(_, to) => outgoing.push(Outgoing { packet, to, is_copy: false }),
                Answer::All(job) => {
                    let copies = core.workers(job).iter();
                    outgoing.extend(copies.map(|to| Outgoing { packet, to: *to, is_copy: true }));
                }
            }
        }
    }

    /// Sends the answers. A datagram that the kernel refuses is skipped: its worker asks again. Gives
    /// the number of copies of results that left.
    fn send(&self, buffers: &[u8], arrivals: &[(Ipv4Addr, usize)], outgoing: &[Outgoing]) -> u64 {
        let buffers: Vec<&[u8]> = buffers.chunks_exact(CAPACITY).collect();
        let mut rest = outgoing;
        let mut copies = 0;
        while let Some(first) = rest.first() {
            let batch = &rest[..rest.len().min(2 * BATCH)];
            let slices: Vec<[IoSlice<'_>; 1]> = batch
                .iter()
                .map(|outgoing| [IoSlice::new(&buffers[outgoing.packet][..arrivals[outgoing.packet].1])])
                .collect();
            let addresses: Vec<_> =
                batch.iter().map(|outgoing| Some(SockaddrIn::from(outgoing.to))).collect();
            let mut headers = MultiHeaders::preallocate(batch.len(), None);
            let flags = MsgFlags::empty();
            let taken = match sendmmsg(self.socket.as_raw_fd(), &mut headers, &slices, &addresses, [], flags)
            {
                Ok(sent) => {
                    let sent = sent.count();
                    copies += rest[..sent].iter().filter(|outgoing| outgoing.is_copy).count() as u64;
                    sent
                }
                Err(Errno::EINTR) => 0,
                Err(error) => {
                    tracing::debug!(to = %first.to, error = error.desc(), "the kernel refuses to send a packet");
                    1
                }
            };
            rest = &rest[taken..];
        }
        copies
    }
}
