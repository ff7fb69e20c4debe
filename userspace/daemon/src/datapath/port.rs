//! What the data path needs of a way to move packets. It speaks UDP payloads; headers are the port's.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::BorrowedFd,
    time::Instant,
};

use serde::Serialize;
use sumac_transport::Transmit;
use sumac_xsk::{Bound, Conservation, abi::Statistics};

/// Where a payload came from and to which port it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender.
    pub from: SocketAddrV4,
    /// The UDP destination port.
    pub port: u16,
    /// Whether a queue on the way had marked it for congestion (ECN's CE).
    pub is_marked: bool,
}

/// ECN's two bits, which are both set in a packet that was marked for congestion (RFC 3168).
const CONGESTION: u8 = 0b11;

/// Whether a packet with this DSCP and ECN byte was marked for congestion.
pub(super) fn is_marked(dscp_ecn: u8) -> bool {
    dscp_ecn & CONGESTION == CONGESTION
}

/// Whom packets of a job go to: its aggregator, or a parameter host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address; results come from it too.
    pub ip: Ipv4Addr,
    /// The UDP port of shard 0.
    pub base_port: u16,
    /// Its MAC address, or its router's. Not used by the UDP port.
    pub mac: [u8; 6],
    /// Whether packets carry a UDP checksum. The kernel always writes one for the UDP port.
    pub checksum: bool,
}

/// What became of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// A packet is staged; [`Port::flush`] sends it.
    Staged,
    /// There was nothing to send.
    Nothing,
    /// There is no room now, and `build` was not called.
    Full,
}

/// A payload that was written, and how it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Bytes of it.
    pub len: usize,
    /// Where it goes.
    pub to: SocketAddrV4,
    /// The MAC address there, or on the way there. Not used by the UDP port.
    pub mac: [u8; 6],
    /// Varies from packet to packet, for the UDP source port. Not used by the UDP port.
    pub entropy: u16,
    /// IPv4's DSCP and ECN byte.
    pub dscp_ecn: u8,
    /// Whether it carries a UDP checksum. The kernel always writes one for the UDP port.
    pub checksum: bool,
}

impl Outgoing {
    /// An engine's payload, to this peer.
    pub fn new(packet: &Transmit, peer: &Peer) -> Outgoing {
        Outgoing {
            len: packet.len,
            to: SocketAddrV4::new(peer.ip, peer.base_port.wrapping_add(packet.port_offset)),
            mac: peer.mac,
            entropy: packet.entropy,
            dscp_ecn: packet.dscp_ecn,
            checksum: peer.checksum,
        }
    }
}

/// Writes one payload into the bytes it is given, if there is one to send.
pub type Build<'a> = &'a mut dyn FnMut(&mut [u8]) -> Option<Outgoing>;

/// A way to move packets between this host and its peers.
pub trait Port: Send {
    /// Most bytes of a UDP payload that can be sent.
    fn capacity(&self) -> usize;

    /// Most shards that a job can have over all ports of the data path.
    fn shards(&self) -> u16;

    /// Shows each payload that has arrived, up to the port's budget. Returns how many.
    fn receive(&mut self, each: &mut dyn FnMut(Received, &[u8])) -> io::Result<usize>;

    /// Lends the next packet's bytes to `build` and stages what it writes.
    fn transmit(&mut self, build: Build<'_>) -> io::Result<Attempt>;

    /// Sends what is staged, with as few system calls as it takes. What the kernel has no room for stays staged.
    fn flush(&mut self) -> io::Result<()>;

    /// Sleeps until packets arrive, there is room again for staged ones, `wake` is readable, or `deadline`.
    /// Says whether `wake` is readable.
    fn wait(&mut self, deadline: Option<Instant>, wake: BorrowedFd<'_>) -> io::Result<bool>;

    /// Waits, until `deadline` at most, for what was sent to have left, so that [`PortReport::frames`] can be judged.
    fn quiesce(&mut self, deadline: Instant);

    /// What the port is and what went through it.
    fn report(&self) -> PortReport;
}

/// What a port is and what went through it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PortReport {
    /// `xdp` or `udp`.
    pub backend: &'static str,
    /// The interface, where the port is bound to one.
    pub interface: Option<String>,
    /// Where the XDP program runs: `driver`, `generic`, `hardware`.
    pub xdp_mode: Option<String>,
    /// This host's address and UDP port.
    pub local: Option<SocketAddrV4>,
    /// Its sockets.
    pub sockets: Vec<SocketReport>,
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets to this host itself, neither sent nor received (XDP).
    pub own: u64,
    /// Calls that moved packets in or out. With `received` and `sent` they tell the size of a batch.
    pub batches_received: u64,
    /// See `batches_received`.
    pub batches_sent: u64,
    /// How often there was no room for a packet.
    pub full: u64,
    /// Frames that were not a packet of Sumac's.
    pub malformed: u64,
    /// Packets that the kernel refused to send.
    pub refused: u64,
    /// Why it refused the last one.
    pub last_refusal: Option<String>,
    /// Where all frames of all sockets are; none over UDP.
    pub frames: Option<Conservation>,
}

/// One AF_XDP socket.
#[derive(Clone, Debug, Serialize)]
pub struct SocketReport {
    /// The queue it is bound to.
    pub queue: u32,
    /// What the kernel bound.
    pub bound: Bound,
    /// Packets received.
    pub received: u64,
    /// What the kernel counted, where it could be asked.
    pub kernel: Option<Statistics>,
    /// Where its frames are.
    pub frames: Conservation,
}
