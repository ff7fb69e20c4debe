//! Packets over the AF_XDP socket of one queue of an interface.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use sumac_hostprog::{Attached, HostMode, MapError};
use sumac_wire::frame::{self, Endpoints, OVERHEAD, Parsed, Ports};
use sumac_wire::{DEFAULT_PATHS, MAX_PATHS};
use sumac_xsk::{BindMode, LINK_HEADER, OpenError, QueueConfig, XskQueue};

use super::frame_io::{Build, FrameIo, IoReport, Outgoing, Received, SocketReport, Transmitted, wait};

const BUDGET: usize = 64;
/// The capacity of the queue of packets to this host itself. Packets beyond it are dropped, as in any queue.
const LOOPBACK_CAPACITY: usize = 1024;
/// The wait when no frame is free: no event reports that one was freed.
const RETRY: Duration = Duration::from_millis(1);
/// The UDP source port of path 0: the first of RFC 6335's dynamic range.
const FIRST_SOURCE_PORT: u16 = 49152;

#[derive(Clone, Debug)]
pub struct XdpConfig {
    pub local_ip: Ipv4Addr,
    /// Zero-copy or copy; `None`: the mode that the program was attached in.
    pub mode: Option<BindMode>,
    /// The queues to bind; `None`: those that the program was attached for.
    pub queues: Option<Vec<u32>>,
    /// Frames of each socket in each direction.
    pub frames: u32,
    /// UDP source ports of packets.
    pub paths: u16,
}

impl XdpConfig {
    pub fn new(local_ip: Ipv4Addr) -> XdpConfig {
        XdpConfig { local_ip, mode: None, queues: None, frames: 1024, paths: DEFAULT_PATHS }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    #[error("no queue of {interface} to open a socket on; attach with --queues, or set `queues`")]
    NoQueues { interface: String },
    #[error("cannot find the Ethernet address of {interface}: {source}; Sumac needs an Ethernet interface")]
    Address { interface: String, source: io::Error },
    #[error("queue {queue}: {source}")]
    Open { queue: u32, source: OpenError },
    #[error(transparent)]
    Steer(#[from] MapError),
}

/// The socket of one queue. Dropping it removes it from the program, which stays attached.
pub struct XdpFrameIo {
    queue: u32,
    socket: XskQueue,
    staged: u32,
    /// Whether the last transmission found no free frame.
    is_full: bool,
    mac: [u8; 6],
    local_ip: Ipv4Addr,
    ports: Ports,
    paths: u16,
    capacity: usize,
    /// Packets of this host's worker to its own parameter host, which no cable brings back.
    loopback: VecDeque<(SocketAddrV4, u16, Box<[u8]>)>,
    counters: IoReport,
}

impl XdpFrameIo {
    /// Opens a socket on each queue and adds it to the attached program; none stays open after an error.
    pub fn open(config: &XdpConfig, attached: &mut Attached) -> Result<Vec<XdpFrameIo>, XdpError> {
        let interface = attached.interface().name.clone();
        let queues = config.queues.clone().unwrap_or_else(|| attached.queues());
        if queues.is_empty() {
            return Err(XdpError::NoQueues { interface });
        }
        queues.into_iter().map(|queue| XdpFrameIo::open_queue(config, queue, attached)).collect()
    }

    fn open_queue(config: &XdpConfig, queue: u32, attached: &mut Attached) -> Result<XdpFrameIo, XdpError> {
        let interface = attached.interface().clone();
        let name = interface.name.as_str();
        let mac =
            mac_address(name).map_err(|source| XdpError::Address { interface: name.to_owned(), source })?;
        // A packet above a page takes several descriptors.
        let packet_size = interface.mtu + LINK_HEADER;
        let mode = config.mode.unwrap_or(match attached.requested_mode() {
            HostMode::Auto => BindMode::Auto,
            HostMode::ZeroCopy => BindMode::ZeroCopy,
            HostMode::Copy | HostMode::Generic => BindMode::Copy,
        });
        let wanted =
            QueueConfig { frames: config.frames, packet_size, mode, ..QueueConfig::new(name, queue) };
        let socket = XskQueue::open(&wanted).map_err(|source| XdpError::Open { queue, source })?;
        attached.set_socket(queue, socket.as_fd())?;
        let bound = socket.bound();
        let (zero_copy, fallback) = (bound.zero_copy, bound.fallback.as_deref());
        tracing::info!(interface = name, queue, zero_copy, fallback, "AF_XDP socket bound");
        let (base, shards) = attached.ports();
        let counters = IoReport {
            backend: "xdp",
            interface: Some(name.to_owned()),
            xdp_mode: Some(format!("{:?}", attached.mode()).to_lowercase()),
            local: Some(SocketAddrV4::new(config.local_ip, base)),
            ..IoReport::default()
        };
        Ok(XdpFrameIo {
            queue,
            socket,
            staged: 0,
            is_full: false,
            mac,
            local_ip: config.local_ip,
            ports: Ports { base, shards },
            paths: config.paths,
            capacity: packet_size as usize - OVERHEAD,
            loopback: VecDeque::new(),
            counters,
        })
    }

    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }
}

fn source_port(packet: &Outgoing) -> u16 {
    FIRST_SOURCE_PORT + packet.path % MAX_PATHS
}

impl FrameIo for XdpFrameIo {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn shards(&self) -> u16 {
        self.ports.shards
    }

    fn paths(&self) -> u16 {
        self.paths
    }

    fn receive(&mut self, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let (ports, counters) = (self.ports, &mut self.counters);
        for (from, port, payload) in self.loopback.drain(..) {
            counters.pass(from, port, 0, &payload, each);
        }
        let count = self.socket.receive(BUDGET, |bytes| match frame::parse(bytes, ports) {
            Parsed::Ours(frame) => {
                let from = SocketAddrV4::new(frame.src_ip.into(), frame.src_port);
                let payload = &bytes[frame.payload()..frame.payload() + frame.payload_len()];
                counters.pass(from, frame.dst_port, frame.dscp_ecn, payload, each);
            }
            Parsed::Foreign | Parsed::Bad(_) => counters.malformed += 1,
        });
        counters.received_batch(count);
        Ok(count)
    }

    fn transmit(&mut self, build: Build<'_>) -> io::Result<Transmitted> {
        let queue = &mut self.socket;
        let Some(mut frame) = queue.frame() else {
            self.is_full = true;
            self.counters.full += 1;
            return Ok(Transmitted::Full);
        };
        self.is_full = false;
        let Some(packet) = build(&mut queue.bytes_mut(&mut frame)[OVERHEAD..]) else {
            queue.cancel(frame);
            return Ok(Transmitted::Nothing);
        };
        if *packet.to.ip() == self.local_ip {
            let from = SocketAddrV4::new(self.local_ip, source_port(&packet));
            let end = OVERHEAD + packet.len;
            if self.loopback.len() < LOOPBACK_CAPACITY
                && let Some(payload) = queue.bytes_mut(&mut frame).get(OVERHEAD..end)
            {
                self.loopback.push_back((from, packet.to.port(), payload.into()));
                self.counters.own += 1;
            }
            queue.cancel(frame);
            return Ok(Transmitted::Staged);
        }
        let endpoints = Endpoints {
            src_mac: self.mac,
            dst_mac: packet.mac,
            src_ip: self.local_ip.into(),
            dst_ip: (*packet.to.ip()).into(),
            src_port: source_port(&packet),
            dst_port: packet.to.port(),
            dscp_ecn: packet.dscp_ecn,
        };
        let bytes = queue.bytes_mut(&mut frame);
        // Both can only fail on a packet longer than `build`'s bytes.
        let len = frame::emit(bytes, &endpoints, packet.len, packet.checksum).unwrap_or(0);
        if let Err(frame) = queue.submit(frame, len) {
            queue.cancel(frame);
            return Err(io::Error::other(format!("a packet of {} bytes does not fit a frame", packet.len)));
        }
        self.staged += 1;
        Ok(Transmitted::Staged)
    }

    fn flush(&mut self) -> io::Result<()> {
        let staged = std::mem::take(&mut self.staged);
        self.counters.sent += u64::from(staged);
        self.counters.batches_sent += u64::from(staged > 0);
        if staged > 0 || self.socket.pending() > 0 { self.socket.flush() } else { Ok(()) }
    }

    fn wait(&mut self, deadline: Option<Instant>, wake: BorrowedFd<'_>) -> io::Result<bool> {
        // Once only: the lane whose packet found no frame may be gone.
        let is_stuck = std::mem::take(&mut self.is_full) || self.socket.pending() > 0;
        let soon = is_stuck.then(|| Instant::now() + RETRY);
        let now = (!self.loopback.is_empty()).then(Instant::now);
        let deadline = [deadline, soon, now].into_iter().flatten().min();
        wait(&[(self.socket.as_fd(), PollFlags::POLLIN), (wake, PollFlags::POLLIN)], deadline)
    }

    fn quiesce(&mut self, deadline: Instant) {
        while self.socket.conservation().sent > 0 && Instant::now() < deadline {
            // Frames that cannot be sent show as sent and not completed.
            let _ = self.socket.flush();
            std::thread::sleep(RETRY);
        }
    }

    fn set_mac(&mut self, mac: [u8; 6]) {
        self.mac = mac;
    }

    fn report(&self) -> IoReport {
        let frames = self.socket.conservation();
        let socket = SocketReport {
            queue: self.queue,
            bound: self.socket.bound().clone(),
            received: self.counters.received,
            kernel: self.socket.statistics().ok(),
            frames,
        };
        IoReport { sockets: vec![socket], frames: Some(frames), ..self.counters.clone() }
    }
}

/// Returns the Ethernet address of an interface in the caller's network namespace.
fn mac_address(interface: &str) -> io::Result<[u8; 6]> {
    nix::ifaddrs::getifaddrs()?
        .filter(|entry| entry.interface_name == interface)
        .find_map(|entry| entry.address?.as_link_addr()?.addr())
        .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}
