//! The peers of a worker's job: the engines' table, and the addresses of packets to them.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_transport::{JobParams, PeerId, PeerTable, Transmit};

use super::{
    frame_io::{Outgoing, Peer},
    job::InstallError,
};

pub(super) struct JobPeers {
    table: PeerTable,
    /// By the peer's id.
    addresses: Vec<Peer>,
}

impl JobPeers {
    pub(super) fn new(
        aggregator: Option<Peer>,
        hosts: Vec<Peer>,
        lane: &JobParams,
    ) -> Result<JobPeers, InstallError> {
        let job = lane.job;
        match &lane.dynamic {
            Some(_) if hosts.is_empty() => return Err(InstallError::NoPeer { job, peer: "parameter host" }),
            None if aggregator.is_none() => return Err(InstallError::NoPeer { job, peer: "aggregator" }),
            _ => {}
        }
        let address = |peer: &Peer| SocketAddrV4::new(peer.ip, peer.base_port);
        let table = PeerTable::of(aggregator.as_ref().map(address), hosts.iter().map(address));
        Ok(JobPeers { table, addresses: aggregator.into_iter().chain(hosts).collect() })
    }

    pub(super) fn table(&self) -> &PeerTable {
        &self.table
    }

    /// Addresses an engine's packet.
    pub(super) fn address(&self, packet: &Transmit) -> Option<Outgoing> {
        let peer = self.addresses.get(usize::from(packet.to.0))?;
        Some(Outgoing::new(packet, peer))
    }

    /// Returns the peer with this address.
    pub(super) fn find(&self, ip: Ipv4Addr) -> Option<PeerId> {
        self.table.find(ip)
    }
}
