//! Packets to send. A result for all is one entry; its elements are copied from the chunk when it is sent.

use std::net::SocketAddrV4;

use sumac_wire::Header;

use crate::members::Source;

/// The most packets that wait to be sent. Packets refused beyond are sent again, as if the network had lost
/// them.
pub(crate) const ROOM: usize = 1 << 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    pub job: u16,
    pub len: usize,
    pub to: SocketAddrV4,
    /// The number of its path, as the UDP source port tells it.
    pub path: u16,
    /// IP's byte of DSCP and ECN.
    pub dscp_ecn: u8,
    /// Whether it carries a UDP checksum, where the kernel does not write one anyway.
    pub checksum: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Sum,
    /// As many zeros as the header announces.
    Zeros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// All workers, from this way on ([`Members::way`](crate::members::Members::way)).
    All(usize),
    /// The source of a packet.
    One(Source),
}

/// An answer, for one or for many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) header: Header,
    pub(crate) shard: u16,
    pub(crate) body: Body,
    pub(crate) to: To,
}
