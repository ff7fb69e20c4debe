//! The parameter host of a node: a [`ParameterHost`] behind a ring of frames that leave by the node's cable.

use std::net::SocketAddrV4;

use sumac_parameter::ParameterHost;
use sumac_wire::{Reason, Time, tos::selector_of};

use crate::{
    address::{PORT, shard_of},
    events::Nanos,
    packet::{Body, Packet, ecn},
};

/// A parameter host.
pub struct Parameter {
    pub host: ParameterHost,
    /// Bytes that may wait for its cable before it stops sending.
    pub ring: u64,
    /// It receives nothing.
    pub is_dead: bool,
    /// Packets that it received.
    pub received: u64,
    pub(crate) ring_is_full: bool,
}

impl Parameter {
    /// A parameter host without jobs.
    pub fn new(ring: u64) -> Parameter {
        Parameter { host: ParameterHost::new(), ring, is_dead: false, received: 0, ring_is_full: false }
    }

    pub(crate) fn deliver(
        &mut self,
        now: Nanos,
        source: SocketAddrV4,
        own: SocketAddrV4,
        payload: &[u8],
        marked: bool,
    ) {
        if !self.is_dead {
            self.received += 1;
            self.host.on_timeout(Time(now));
            let _: Reason = self.host.on_packet(Time(now), source, own.port() - PORT, payload, marked);
        }
    }

    /// The next packet that it sends.
    pub(crate) fn transmit(&mut self, own: SocketAddrV4, frame: &mut [u8]) -> Option<Packet> {
        let sent = self.host.poll_transmit(frame)?;
        Some(Packet {
            source: shard_of(own, sent.to.port() - PORT),
            destination: sent.to,
            path: sent.path,
            class: selector_of(sent.dscp_ecn),
            ecn: sent.dscp_ecn & ecn::MASK,
            body: Body::Sumac(frame[..sent.len].to_vec()),
        })
    }
}
