//! Packets: Sumac's UDP payloads and TCP-like segments, with the addresses and the ECN bits of the IP header.

use std::net::SocketAddrV4;

use sumac_wire::{frame::OVERHEAD, header::HEADER_LEN};

use crate::events::Nanos;

/// ECN bits of the IP header (RFC 3168).
pub mod ecn {
    pub const MASK: u8 = sumac_wire::tos::ECN_MASK;
    /// The sender does not support ECN.
    pub const NOT_CAPABLE: u8 = 0b00;
    /// ECT(0).
    pub const CAPABLE: u8 = sumac_wire::tos::ECT_0;
    /// CE: congestion experienced.
    pub const MARKED: u8 = sumac_wire::tos::CE;
}

/// Preamble, check sequence and gap around an Ethernet frame.
pub const GAP: u64 = 8 + 4 + 12;
/// The shortest Ethernet frame, without its check sequence.
const SHORTEST: u64 = 60;

/// Headers of a TCP segment: Ethernet, IPv4, and TCP with timestamps.
pub const TCP_OVERHEAD: u64 = 14 + 20 + 32;

/// A segment of a TCP-like flow, or its acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Index of the flow.
    pub flow: usize,
    /// Its number; of an acknowledgement, the first missing one.
    pub number: u64,
    pub is_ack: bool,
    /// Bytes of data.
    pub len: u64,
    /// The sender's clock; echoed.
    pub sent: Nanos,
    /// ECE in an acknowledgement, CWR in a segment (RFC 3168).
    pub echo: bool,
}

#[derive(Clone, Debug)]
pub enum Body {
    /// A UDP payload: header and elements.
    Sumac(Vec<u8>),
    /// A segment of a TCP-like flow.
    Tcp(Segment),
}

#[derive(Clone, Debug)]
pub struct Packet {
    pub source: SocketAddrV4,
    pub destination: SocketAddrV4,
    /// The path as the UDP source port tells it, by which nodes choose among several routes (ECMP).
    pub path: u16,
    /// The class selector of its DSCP.
    pub class: u8,
    /// One of [`ecn`].
    pub ecn: u8,
    pub body: Body,
}

/// The length of packets on cables. Simulated chunks are short to save time: each element occupies the length
/// of `stretch` elements.
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
            Body::Tcp(segment) => TCP_OVERHEAD + segment.len,
        };
        frame.max(SHORTEST) + GAP
    }

    /// Bytes of a full chunk on a cable.
    pub fn chunk_len(self, elements: u16) -> u64 {
        self.frame(HEADER_LEN + usize::from(elements) * 4).max(SHORTEST) + GAP
    }

    fn frame(self, payload: usize) -> u64 {
        (OVERHEAD + HEADER_LEN) as u64 + payload.saturating_sub(HEADER_LEN) as u64 * self.stretch
    }
}
