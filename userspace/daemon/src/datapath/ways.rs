//! The peers of a job on this data path, and the links to them.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_transport::{JobParams, PeerId, PeerTable, Transmit};

use super::{
    command::AddError,
    port::{Outgoing, Peer},
};

/// The ends of a job's paths.
pub(super) struct Ways {
    peers: PeerTable,
    /// By peer.
    links: Vec<Peer>,
}

impl Ways {
    /// The ways of a job with these lanes, which must have what they need.
    pub(super) fn new(
        aggregator: Option<Peer>,
        hosts: Vec<Peer>,
        lane: &JobParams,
    ) -> Result<Ways, AddError> {
        let job = lane.job;
        match &lane.dynamic {
            Some(_) if hosts.is_empty() => return Err(AddError::NoWay { job, to: "parameter host" }),
            None if aggregator.is_none() => return Err(AddError::NoWay { job, to: "aggregator" }),
            _ => {}
        }
        let address = |peer: &Peer| SocketAddrV4::new(peer.ip, peer.base_port);
        let peers = PeerTable::of(aggregator.as_ref().map(address), hosts.iter().map(address));
        Ok(Ways { peers, links: aggregator.into_iter().chain(hosts).collect() })
    }

    /// The peers, with the ids that the engines' packets name.
    pub(super) fn peers(&self) -> &PeerTable {
        &self.peers
    }

    /// An engine's payload, on its way.
    pub(super) fn send(&self, packet: &Transmit) -> Option<Outgoing> {
        let link = self.links.get(usize::from(packet.to.0))?;
        Some(Outgoing::new(packet, link))
    }

    /// The peer with this address; packets of others are none of the job's.
    pub(super) fn find(&self, ip: Ipv4Addr) -> Option<PeerId> {
        self.peers.find(ip)
    }
}
