//! The parameter host of a node: the real one, behind a ring of frames that leave by the node's cable.

use std::net::SocketAddrV4;

use sumac_parameter::ParameterHost;
use sumac_wire::Reason;

use crate::packet::{Body, PORT, Packet, ecn, shard_of};

/// A parameter host.
pub struct Parameter {
    /// The real one.
    pub host: ParameterHost,
    /// Bytes that may wait for its cable before it stops to send.
    pub ring: u64,
    /// Whether it is gone: it hears nothing.
    pub is_dead: bool,
    /// Packets that it was given.
    pub taken: u64,
    pub(crate) waits: bool,
}

impl Parameter {
    /// One without jobs.
    pub fn new(ring: u64) -> Parameter {
        Parameter { host: ParameterHost::new(), ring, is_dead: false, taken: 0, waits: false }
    }

    /// A packet for it.
    pub(crate) fn take(&mut self, source: SocketAddrV4, own: SocketAddrV4, payload: &[u8], marked: bool) {
        if !self.is_dead {
            self.taken += 1;
            let _: Reason = self.host.on_packet(source, own.port() - PORT, payload, marked);
        }
    }

    /// What it sends next.
    pub(crate) fn transmit(&mut self, own: SocketAddrV4, frame: &mut [u8]) -> Option<Packet> {
        let sent = self.host.poll_transmit(frame)?;
        Some(Packet {
            source: shard_of(own, sent.to.port() - PORT),
            destination: sent.to,
            ecn: sent.dscp_ecn & ecn::MASK,
            body: Body::Sumac(frame[..sent.len].to_vec()),
        })
    }
}
