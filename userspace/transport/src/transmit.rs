//! Packets to send: a written UDP payload with its destination and tags.

use crate::peer::PeerId;

/// A UDP payload that the engine has written, and its destination and tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes written: header and elements.
    pub len: usize,
    /// The destination.
    pub to: PeerId,
    /// The destination port is the peer's port plus this: the lane's shard.
    pub port_offset: u16,
    /// Varies from packet to packet; spread over source ports it makes ECMP use all paths.
    pub entropy: u16,
    /// IPv4's DSCP and ECN byte.
    pub dscp_ecn: u8,
}

/// The properties of a packet that decide its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketClass {
    /// A probe of the handshake, of a path or of its bandwidth.
    Probe,
    /// A contribution, a query or an exponent round of an operation of this priority, sent for the first time or again.
    Chunk {
        /// 0 (least) to 7 (most urgent).
        priority: u8,
        /// Whether the sender reacts to marks: the mode has congestion control.
        reacts_to_marks: bool,
    },
}

/// The ECN field of packets that routers may mark instead of dropping them: ECT(0).
const ECT_0: u8 = 0b10;
/// The bit at which IPv4's class selector begins in the byte of DSCP and ECN.
const CLASS_SELECTOR: u32 = 5;
/// The highest class selector.
const MAX_PRIORITY: u8 = 7;

/// The byte of DSCP and ECN of a packet. All tags are decided here; aggregators and parameter hosts keep them.
pub(crate) fn tag(class: PacketClass) -> u8 {
    match class {
        PacketClass::Probe => 0,
        PacketClass::Chunk { priority, reacts_to_marks } => {
            let ecn = if reacts_to_marks { ECT_0 } else { 0 };
            priority.min(MAX_PRIORITY) << CLASS_SELECTOR | ecn
        }
    }
}

/// Spreads consecutive numbers over 16 bits (Fibonacci hashing).
pub(crate) fn entropy(index: u64) -> u16 {
    (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}
