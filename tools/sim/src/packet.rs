//! What travels: UDP payloads of Sumac's, and segments of a TCP-like flow, with the addresses and the ECN bits of the IP header.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_wire::{frame::OVERHEAD, header::HEADER_LEN};

use crate::{
    network::NodeId,
    tcp::{self, Segment},
};

/// The two bits of the IP header's traffic class that say what a router may do (RFC 3168).
pub mod ecn {
    /// Both of them.
    pub const MASK: u8 = 0b11;
    /// The sender does not know ECN.
    pub const NOT_CAPABLE: u8 = 0b00;
    /// ECT(0): mark it in place of dropping it.
    pub const CAPABLE: u8 = 0b10;
    /// CE: it met congestion.
    pub const MARKED: u8 = 0b11;
}

/// The UDP port of shard 0, at all nodes.
pub const PORT: u16 = sumac_wire::DEFAULT_BASE_PORT;

/// Preamble, check sequence and gap around an Ethernet frame.
pub const GAP: u64 = 8 + 4 + 12;
/// The shortest Ethernet frame, without its check sequence.
const SHORTEST: u64 = 60;

/// The address of a node.
pub fn address(node: NodeId) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from_be_bytes([10, 0, 0, 0]) + node as u32 + 1)
}

/// The node with an address.
pub fn node_of(address: Ipv4Addr) -> NodeId {
    (address.to_bits() - u32::from_be_bytes([10, 0, 0, 0]) - 1) as NodeId
}

/// The socket of a node for shard 0.
pub fn socket(node: NodeId) -> SocketAddrV4 {
    SocketAddrV4::new(address(node), PORT)
}

/// The socket for a shard beside that of shard 0.
pub fn shard_of(socket: SocketAddrV4, shard: u16) -> SocketAddrV4 {
    SocketAddrV4::new(*socket.ip(), socket.port() + shard)
}

/// What a packet carries.
#[derive(Clone, Debug)]
pub enum Body {
    /// A UDP payload: header and elements.
    Sumac(Vec<u8>),
    /// A segment of a flow beside it.
    Tcp(Segment),
}

/// A packet on its way.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Whose it is.
    pub source: SocketAddrV4,
    /// Whom it is for.
    pub destination: SocketAddrV4,
    /// [`ecn`] bits.
    pub ecn: u8,
    /// The rest.
    pub body: Body,
}

/// How long packets are on cables. Chunks are short in a simulation, to be quick, and stand for those of a network: each of
/// their elements takes the room of `stretch`.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// 32-bit words on the cable for each element.
    pub stretch: u64,
}

impl Framing {
    /// Bytes that a packet occupies on a cable, gap and preamble included.
    pub fn wire_len(self, packet: &Packet) -> u64 {
        let frame = match &packet.body {
            Body::Sumac(payload) => self.frame(payload.len()),
            Body::Tcp(segment) => tcp::OVERHEAD + segment.len,
        };
        frame.max(SHORTEST) + GAP
    }

    /// The same of a chunk with this many elements.
    pub fn chunk_len(self, elements: u16) -> u64 {
        self.frame(HEADER_LEN + usize::from(elements) * 4).max(SHORTEST) + GAP
    }

    fn frame(self, payload: usize) -> u64 {
        (OVERHEAD + HEADER_LEN) as u64 + payload.saturating_sub(HEADER_LEN) as u64 * self.stretch
    }
}
