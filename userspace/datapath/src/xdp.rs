//! Packets over the AF_XDP socket of one queue of an interface.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use sumac_hostprog::{Attached, HostMode, MapError};
use sumac_wire::frame::{self, Endpoints, OVERHEAD, Parsed, Ports, VLAN_LEN};
use sumac_wire::{DEFAULT_PATHS, FIRST_SOURCE_PORT, MAX_PATHS};
use sumac_xsk::{BindMode, LINK_HEADER, OpenError, QueueConfig, XskQueue};

use super::frame_io::{
    Build, FrameIo, Identity, IoReport, Outgoing, Received, Route, SocketReport, Transmitted,
};

const BUDGET: usize = 64;
/// The capacity of the queue of packets to this host itself. Packets beyond it are dropped, as in any queue.
const LOOPBACK_CAPACITY: usize = 1024;
/// The wait when no frame is free: no event reports that one was freed.
const RETRY: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub struct XdpConfig {
    pub local_ip: Ipv4Addr,
    /// Zero-copy or copy; `None`: the mode that the program was attached in.
    pub mode: Option<BindMode>,
    /// Copy mode whatever `mode` is, for this reason.
    pub copy_reason: Option<&'static str>,
    /// The queues to bind; `None`: those that the program was attached for.
    pub queues: Option<Vec<u32>>,
    /// Frames of each socket in each direction.
    pub frames: u32,
    /// UDP source ports of packets.
    pub paths: u16,
    /// Explicit paths: all of them have a tag, or none.
    pub routes: Vec<Route>,
}

impl XdpConfig {
    pub fn new(local_ip: Ipv4Addr) -> XdpConfig {
        let paths = DEFAULT_PATHS;
        XdpConfig {
            local_ip,
            mode: None,
            copy_reason: None,
            queues: None,
            frames: 1024,
            paths,
            routes: Vec::new(),
        }
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
    routes: Vec<Route>,
    /// Bytes of the tag that all packets have.
    tag_len: usize,
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
        let mode = config.copy_reason.map(|_| BindMode::Copy).or(config.mode);
        let mode = mode.unwrap_or(match attached.requested_mode() {
            HostMode::Auto => BindMode::Auto,
            HostMode::ZeroCopy => BindMode::ZeroCopy,
            HostMode::Copy | HostMode::Generic => BindMode::Copy,
        });
        let wanted =
            QueueConfig { frames: config.frames, packet_size, mode, ..QueueConfig::new(name, queue) };
        let mut socket = XskQueue::open(&wanted).map_err(|source| XdpError::Open { queue, source })?;
        if let Some(reason) = config.copy_reason {
            socket.set_fallback(reason);
        }
        attached.set_socket(queue, socket.as_fd())?;
        let bound = socket.bound();
        let (zero_copy, fallback) = (bound.zero_copy, bound.fallback.as_deref());
        tracing::info!(interface = name, queue, zero_copy, fallback, "AF_XDP socket bound");
        let (base, shards) = attached.ports();
        let tag_len = if config.routes.iter().any(|route| route.vlan.is_some()) { VLAN_LEN } else { 0 };
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
            routes: config.routes.clone(),
            tag_len,
            capacity: packet_size as usize - OVERHEAD - tag_len,
            loopback: VecDeque::new(),
            counters,
        })
    }

    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    pub fn is_zero_copy(&self) -> bool {
        self.socket.bound().zero_copy
    }
}

/// The explicit path of a packet; without any, that of the kernel's route.
fn route_of(packet: &Outgoing, routes: &[Route]) -> Route {
    let at = usize::from(packet.path).checked_rem(routes.len());
    at.and_then(|at| routes.get(at)).copied().unwrap_or_default()
}

/// Writes the headers in front of a payload that stands behind them, with room for a tag where the route has
/// one. Returns the frame's length; `None` for a packet that is too long.
fn emit(bytes: &mut [u8], to: &Endpoints, packet: &Outgoing, vlan: Option<u16>) -> Option<usize> {
    let Some(vlan) = vlan else { return frame::emit(bytes, to, packet.len, packet.checksum) };
    let len = frame::emit(bytes.get_mut(VLAN_LEN..)?, to, packet.len, packet.checksum)?;
    frame::tag(bytes, vlan)?;
    Some(len + VLAN_LEN)
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
            // Until the next wait: another lane may find a frame before, and this one would wait without end.
            self.is_full = true;
            self.counters.full += 1;
            return Ok(Transmitted::Full);
        };
        let start = OVERHEAD + self.tag_len;
        let Some(packet) = build(&mut queue.bytes_mut(&mut frame)[start..]) else {
            queue.cancel(frame);
            return Ok(Transmitted::Nothing);
        };
        if *packet.to.ip() == self.local_ip {
            let from = SocketAddrV4::new(self.local_ip, source_port(&packet));
            if self.loopback.len() < LOOPBACK_CAPACITY
                && let Some(payload) = queue.bytes_mut(&mut frame).get(start..start + packet.len)
            {
                self.loopback.push_back((from, packet.to.port(), payload.into()));
                self.counters.own += 1;
            }
            queue.cancel(frame);
            return Ok(Transmitted::Staged);
        }
        let Route { mac, vlan } = route_of(&packet, &self.routes);
        let endpoints = Endpoints {
            src_mac: self.mac,
            dst_mac: mac.unwrap_or(packet.mac),
            src_ip: self.local_ip.into(),
            dst_ip: (*packet.to.ip()).into(),
            src_port: source_port(&packet),
            dst_port: packet.to.port(),
            dscp_ecn: packet.dscp_ecn,
        };
        let bytes = queue.bytes_mut(&mut frame);
        // Both can only fail on a packet longer than `build`'s bytes.
        let len = emit(bytes, &endpoints, &packet, vlan).unwrap_or(0);
        if let Err(frame) = queue.submit(frame, len) {
            queue.cancel(frame);
            return Err(io::Error::other(format!("a packet of {} bytes does not fit a frame", packet.len)));
        }
        self.staged += 1;
        Ok(Transmitted::Staged)
    }

    fn flush(&mut self) -> io::Result<()> {
        let staged = std::mem::take(&mut self.staged);
        self.counters.counts.sent += u64::from(staged);
        self.counters.counts.batches_sent += u64::from(staged > 0);
        if staged > 0 || self.socket.pending() > 0 { self.socket.flush() } else { Ok(()) }
    }

    fn interest<'a>(&'a mut self, fds: &mut Vec<(BorrowedFd<'a>, PollFlags)>) -> Option<Instant> {
        // Once only: the lane whose packet found no frame may be gone.
        let is_stuck = std::mem::take(&mut self.is_full) || self.socket.pending() > 0;
        let soon = is_stuck.then(|| Instant::now() + RETRY);
        let now = (!self.loopback.is_empty()).then(Instant::now);
        fds.push((self.socket.as_fd(), PollFlags::POLLIN));
        [soon, now].into_iter().flatten().min()
    }

    fn quiesce(&mut self, deadline: Instant) {
        while self.socket.conservation().sent > 0 && Instant::now() < deadline {
            // Frames that cannot be sent show as sent and not completed.
            let _ = self.socket.flush();
            std::thread::sleep(RETRY);
        }
    }

    fn set_identity(&mut self, Identity { name, mac, ip }: &Identity) {
        (self.mac, self.local_ip) = (*mac, *ip);
        self.counters.interface = Some(name.clone());
        self.counters.local = Some(SocketAddrV4::new(*ip, self.ports.base));
    }

    fn set_routes(&mut self, routes: &[Route]) {
        self.routes = routes.to_vec();
    }

    fn report(&self) -> IoReport {
        let frames = self.socket.conservation();
        let socket = SocketReport {
            queue: self.queue,
            bound: self.socket.bound().clone(),
            received: self.counters.counts.received,
            kernel: self.socket.statistics().ok(),
            frames,
        };
        let routes = self.routes.clone();
        IoReport { sockets: vec![socket], routes, frames: Some(frames), ..self.counters.clone() }
    }
}

/// Returns the Ethernet address of an interface in the caller's network namespace.
fn mac_address(interface: &str) -> io::Result<[u8; 6]> {
    nix::ifaddrs::getifaddrs()?
        .filter(|entry| entry.interface_name == interface)
        .find_map(|entry| entry.address?.as_link_addr()?.addr())
        .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const PORTS: Ports = Ports { base: 48700, shards: 1 };

    fn packet(path: u16) -> Outgoing {
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), PORTS.base);
        Outgoing { len: 64, to, mac: PEER, path, dscp_ecn: 0, checksum: true }
    }

    /// The frame of a packet, whose payload stands behind its headers.
    fn frame(packet: &Outgoing, routes: &[Route]) -> Vec<u8> {
        let Route { mac, vlan } = route_of(packet, routes);
        let start = OVERHEAD + if vlan.is_some() { VLAN_LEN } else { 0 };
        let mut bytes = vec![0; 256];
        bytes[start..start + 64].fill(packet.path as u8);
        let to = Endpoints {
            src_mac: OWN,
            dst_mac: mac.unwrap_or(packet.mac),
            src_ip: 0x0a00_0002,
            dst_ip: 0x0a00_0001,
            src_port: source_port(packet),
            dst_port: packet.to.port(),
            dscp_ecn: 0,
        };
        let len = emit(&mut bytes, &to, packet, vlan).unwrap();
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn each_path_has_its_next_hop_and_tag() {
        let [one, other] = [1, 2].map(|last| [2, 0, 0, 0, 9, last]);
        let route = |mac, vlan| Route { mac, vlan };
        // The routes, and those of the paths from 0 on.
        let table: [(&str, Vec<Route>, [Route; 4]); 4] = [
            ("none", vec![], [Route::default(); 4]),
            (
                "next hops",
                vec![route(Some(one), None), route(Some(other), None)],
                [one, other, one, other].map(|mac| route(Some(mac), None)),
            ),
            (
                "VLANs",
                [101, 102, 4094].map(|vlan| route(None, Some(vlan))).to_vec(),
                [101, 102, 4094, 101].map(|vlan| route(None, Some(vlan))),
            ),
            ("both", vec![route(Some(one), Some(7))], [route(Some(one), Some(7)); 4]),
        ];
        for (case, routes, expected) in table {
            for (path, Route { mac, vlan }) in (0..).zip(expected) {
                let bytes = frame(&packet(path), &routes);
                assert_eq!((&bytes[..6], &bytes[6..12]), (&mac.unwrap_or(PEER)[..], &OWN[..]), "{case}");
                let tag = vlan.map(|vlan| [0x81, 0x00, (vlan >> 8) as u8, vlan as u8]);
                assert_eq!(vlan.map(|_| &bytes[12..16]), tag.as_ref().map(|tag| &tag[..]), "{case}");
                let Parsed::Ours(frame) = frame::parse(&bytes[..], PORTS) else {
                    panic!("{case}: {bytes:?}")
                };
                assert_eq!((frame.tagged, frame.src_port), (vlan.is_some(), 49152 + path), "{case}");
                assert_eq!(bytes[frame.payload()..], [path as u8; 64], "{case}");
                assert!(frame::has_valid_checksum(&bytes, &frame), "{case}");
            }
        }
        let long = Outgoing { len: 250, ..packet(0) };
        let to = Endpoints {
            src_mac: OWN,
            dst_mac: PEER,
            src_ip: 0,
            dst_ip: 0,
            src_port: 0,
            dst_port: 0,
            dscp_ecn: 0,
        };
        assert_eq!(emit(&mut [0; 256], &to, &long, Some(7)), None);
    }
}
