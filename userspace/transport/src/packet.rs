//! Received packets: a header that was parsed once, and its elements. Headers of packets to send.

use sumac_wire::{
    Header, Kind, Reason,
    header::{HEADER_LEN, flag},
};

use crate::{params::JobParams, peer::PeerId, time::Time};

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

/// The header of a packet of this lane, with the fields that all kinds have.
pub(crate) fn header(params: &JobParams, kind: Kind, now: Time) -> Header {
    let header = Header {
        kind: kind as u8,
        job: params.job,
        epoch: params.epoch,
        fan_in_0: params.rack_world as u8,
        bitmap_0: 1 << params.rack_rank,
        timestamp: now.stamp(),
        token: params.token,
        lane: params.lane,
        ..Header::default()
    };
    let Some(dynamic) = &params.dynamic else { return header };
    let flags = if dynamic.beside_root { flag::LEVEL } else { 0 };
    Header { flags, fan_in_1: dynamic.fan_in_1, bitmap_1: dynamic.bitmap_1, ..header }
}
