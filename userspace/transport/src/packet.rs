//! Received packets: a header that was parsed once, and its elements.

use sumac_wire::{Header, Reason, header::HEADER_LEN};

use crate::peer::PeerId;

/// A received packet. Its header was parsed once, by [`Packet::parse`] or by the caller.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    pub header: Header,
    pub elements: &'a [u8],
    pub from: PeerId,
    /// Whether the network marked it: congestion experienced (RFC 3168).
    pub is_marked: bool,
}

impl Packet<'_> {
    /// Parses a UDP payload from this peer.
    pub fn parse(payload: &[u8], from: PeerId, is_marked: bool) -> Result<Packet<'_>, Reason> {
        let header = Header::read(payload, 0, payload.len())?;
        Ok(Packet { header, elements: &payload[HEADER_LEN..], from, is_marked })
    }

    pub fn payload_len(&self) -> usize {
        HEADER_LEN + self.elements.len()
    }
}
