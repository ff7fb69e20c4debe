//! A port that is the AF_XDP socket of one queue of an interface.

use std::{
    collections::VecDeque,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use nix::poll::PollFlags;
use sumac_hostprog::{Attached, MapError, Mode as HostMode};
use sumac_wire::frame::{self, Endpoints, OVERHEAD, Parsed, Ports};
use sumac_xsk::{LINK_HEADER, Mode, OpenError, Socket, SocketConfig};

use super::{
    port::{Attempt, Build, Outgoing, Port, PortReport, Received, SocketReport, is_marked},
    wait::wait,
};

/// Packets taken from one socket before the engines have their turn.
const BUDGET: usize = 64;
/// Packets to this host itself that may wait. What is beyond is lost, as in a queue of the network.
const OWN: usize = 1024;
/// How soon to try again when the kernel has no room: nothing tells when a frame is free again.
const RETRY: Duration = Duration::from_millis(1);
/// UDP source ports carry path entropy: the dynamic range of RFC 6335.
const ENTROPY_BASE: u16 = 49152;
const ENTROPY_MASK: u16 = 0x3fff;

/// How to open a port on an interface.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// This host's address, which contributions come from.
    pub local_ip: Ipv4Addr,
    /// Zero-copy or copy; `None`: as the program was attached.
    pub mode: Option<Mode>,
    /// The queues to bind; `None`: those that the program was attached for.
    pub queues: Option<Vec<u32>>,
    /// Frames of each socket, each way.
    pub frames: u32,
}

impl XdpConfig {
    /// The defaults: as attached, 1,024 frames.
    pub fn new(local_ip: Ipv4Addr) -> XdpConfig {
        XdpConfig { local_ip, mode: None, queues: None, frames: 1024 }
    }
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// The program was attached for no queue, or none was configured.
    #[error("no queue of {interface} to open a socket on; attach with --queues, or set `queues`")]
    NoQueues {
        /// The interface.
        interface: String,
    },
    /// The interface has no Ethernet address.
    #[error("cannot find the Ethernet address of {interface}: {source}; Sumac needs an Ethernet interface")]
    Address {
        /// The interface.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
    /// A socket.
    #[error("queue {queue}: {source}")]
    Open {
        /// Its queue.
        queue: u32,
        /// Why.
        source: OpenError,
    },
    /// The program did not take a socket.
    #[error(transparent)]
    Steer(#[from] MapError),
}

/// The socket of one queue. Closing it takes it out of the program, which stays attached.
pub struct XdpPort {
    queue: u32,
    socket: Socket,
    /// Packets staged and not flushed.
    staged: u32,
    /// Whether the last attempt found no frame.
    is_full: bool,
    mac: [u8; 6],
    local_ip: Ipv4Addr,
    ports: Ports,
    capacity: usize,
    /// Packets to this host itself, which no cable brings back: a worker's to its own daemon's parameter host.
    own: VecDeque<(Received, Box<[u8]>)>,
    counters: PortReport,
}

impl XdpPort {
    /// Opens a socket on each queue and has the attached program steer to them.
    ///
    /// # Errors
    /// See [`XdpError`]. No socket stays open after an error.
    pub fn open(config: &XdpConfig, attached: &mut Attached) -> Result<Vec<XdpPort>, XdpError> {
        let interface = attached.interface().name.clone();
        let queues = config.queues.clone().unwrap_or_else(|| attached.queues());
        if queues.is_empty() {
            return Err(XdpError::NoQueues { interface });
        }
        queues.into_iter().map(|queue| XdpPort::open_queue(config, queue, attached)).collect()
    }

    fn open_queue(config: &XdpConfig, queue: u32, attached: &mut Attached) -> Result<XdpPort, XdpError> {
        let interface = attached.interface().clone();
        let name = interface.name.as_str();
        let mac =
            mac_address(name).map_err(|source| XdpError::Address { interface: name.to_owned(), source })?;
        // Above a page the frames of a packet come and go in several descriptors.
        let packet_size = interface.mtu + LINK_HEADER;
        let mode = config.mode.unwrap_or(match attached.requested_mode() {
            HostMode::Auto => Mode::Auto,
            HostMode::ZeroCopy => Mode::ZeroCopy,
            HostMode::Copy | HostMode::Generic => Mode::Copy,
        });
        let wanted =
            SocketConfig { frames: config.frames, packet_size, mode, ..SocketConfig::new(name, queue) };
        let socket = Socket::open(&wanted).map_err(|source| XdpError::Open { queue, source })?;
        attached.set_socket(queue, socket.as_fd())?;
        let bound = socket.bound();
        let (zero_copy, fallback) = (bound.zero_copy, bound.fallback.as_deref());
        tracing::info!(interface = name, queue, zero_copy, fallback, "AF_XDP socket bound");
        let (base, shards) = attached.ports();
        let counters = PortReport {
            backend: "xdp",
            interface: Some(name.to_owned()),
            xdp_mode: Some(format!("{:?}", attached.mode()).to_lowercase()),
            local: Some(SocketAddrV4::new(config.local_ip, base)),
            ..PortReport::default()
        };
        Ok(XdpPort {
            queue,
            socket,
            staged: 0,
            is_full: false,
            mac,
            local_ip: config.local_ip,
            ports: Ports { base, shards },
            capacity: packet_size as usize - OVERHEAD,
            own: VecDeque::new(),
            counters,
        })
    }

    /// This host's MAC address, for the control plane.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn endpoints(&self, packet: &Outgoing) -> Endpoints {
        Endpoints {
            src_mac: self.mac,
            dst_mac: packet.mac,
            src_ip: self.local_ip.into(),
            dst_ip: (*packet.to.ip()).into(),
            src_port: source_port(packet),
            dst_port: packet.to.port(),
            dscp_ecn: packet.dscp_ecn,
        }
    }
}

/// The UDP port that a packet comes from.
fn source_port(packet: &Outgoing) -> u16 {
    ENTROPY_BASE | packet.entropy & ENTROPY_MASK
}

impl Port for XdpPort {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn shards(&self) -> u16 {
        self.ports.shards
    }

    fn receive(&mut self, each: &mut dyn FnMut(Received, &[u8])) -> io::Result<usize> {
        for (received, payload) in self.own.drain(..) {
            each(received, &payload);
        }
        let (ports, mut malformed) = (self.ports, 0);
        let count = self.socket.receive(BUDGET, |bytes| match frame::parse(bytes, ports) {
            Parsed::Ours(frame) => {
                let from = SocketAddrV4::new(frame.src_ip.into(), frame.src_port);
                let end = frame.payload() + frame.payload_len();
                let is_marked = is_marked(frame.dscp_ecn);
                each(Received { from, port: frame.dst_port, is_marked }, &bytes[frame.payload()..end]);
            }
            Parsed::Foreign | Parsed::Bad(_) => malformed += 1,
        });
        self.counters.malformed += malformed;
        self.counters.received += count as u64;
        self.counters.batches_received += u64::from(count > 0);
        Ok(count)
    }

    fn transmit(&mut self, build: Build<'_>) -> io::Result<Attempt> {
        let port = self.socket.port();
        let Some(mut frame) = port.frame() else {
            self.is_full = true;
            self.counters.full += 1;
            return Ok(Attempt::Full);
        };
        self.is_full = false;
        let Some(packet) = build(&mut port.bytes_mut(&mut frame)[OVERHEAD..]) else {
            port.cancel(frame);
            return Ok(Attempt::Nothing);
        };
        if *packet.to.ip() == self.local_ip {
            let from = SocketAddrV4::new(self.local_ip, source_port(&packet));
            let received = Received { from, port: packet.to.port(), is_marked: false };
            let end = OVERHEAD + packet.len;
            if self.own.len() < OWN
                && let Some(payload) = port.bytes_mut(&mut frame).get(OVERHEAD..end)
            {
                self.own.push_back((received, payload.into()));
                self.counters.own += 1;
            }
            port.cancel(frame);
            return Ok(Attempt::Staged);
        }
        let endpoints = self.endpoints(&packet);
        let port = self.socket.port();
        let bytes = port.bytes_mut(&mut frame);
        // Both can only fail on a packet longer than the bytes that `build` was given.
        let len = frame::emit(bytes, &endpoints, packet.len, packet.checksum).unwrap_or(0);
        if let Err(frame) = port.submit(frame, len) {
            port.cancel(frame);
            return Err(io::Error::other(format!("a packet of {} bytes does not fit a frame", packet.len)));
        }
        self.staged += 1;
        Ok(Attempt::Staged)
    }

    fn flush(&mut self) -> io::Result<()> {
        let staged = std::mem::take(&mut self.staged);
        self.counters.sent += u64::from(staged);
        self.counters.batches_sent += u64::from(staged > 0);
        if staged > 0 || self.socket.port().pending() > 0 { self.socket.flush() } else { Ok(()) }
    }

    fn wait(&mut self, deadline: Option<Instant>, wake: BorrowedFd<'_>) -> io::Result<bool> {
        let is_stuck = self.is_full || self.socket.port().pending() > 0;
        let soon = is_stuck.then(|| Instant::now() + RETRY);
        let now = (!self.own.is_empty()).then(Instant::now);
        let deadline = [deadline, soon, now].into_iter().flatten().min();
        wait(&[(self.socket.as_fd(), PollFlags::POLLIN), (wake, PollFlags::POLLIN)], deadline)
    }

    fn quiesce(&mut self, deadline: Instant) {
        while self.socket.conservation().sent > 0 && Instant::now() < deadline {
            // What cannot be sent any more shows as sent and not completed.
            let _ = self.socket.flush();
            std::thread::sleep(RETRY);
        }
    }

    fn report(&self) -> PortReport {
        let frames = self.socket.conservation();
        let socket = SocketReport {
            queue: self.queue,
            bound: self.socket.bound().clone(),
            received: self.counters.received,
            kernel: self.socket.statistics().ok(),
            frames,
        };
        PortReport { sockets: vec![socket], frames: Some(frames), ..self.counters.clone() }
    }
}

/// The Ethernet address of an interface in the caller's network namespace.
fn mac_address(interface: &str) -> io::Result<[u8; 6]> {
    nix::ifaddrs::getifaddrs()?
        .filter(|entry| entry.interface_name == interface)
        .find_map(|entry| entry.address?.as_link_addr()?.addr())
        .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}
