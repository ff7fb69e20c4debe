//! The peers of a lane: the hosts that its packets go to and come from.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

/// The part that a peer has in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRole {
    /// Adds the contributions of the workers below it.
    Aggregator,
    /// Sums the chunks that found no slot (ATP); there may be several, which share the shards.
    ParameterHost,
    Worker,
}

/// A host that takes part in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub role: PeerRole,
    /// Its address; the port is that of shard 0.
    pub address: SocketAddrV4,
}

/// The index of a peer in its job's [`PeerTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerId(pub u16);

/// All peers of a job, as one worker knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerTable {
    peers: Vec<Peer>,
}

impl PeerTable {
    /// A table of these peers, whose ids count from 0.
    pub fn new(peers: impl IntoIterator<Item = Peer>) -> PeerTable {
        PeerTable { peers: peers.into_iter().collect() }
    }

    /// A table of the job's aggregator, if it has one, and its parameter hosts.
    pub fn of(
        aggregator: Option<SocketAddrV4>,
        parameter_hosts: impl IntoIterator<Item = SocketAddrV4>,
    ) -> PeerTable {
        let peer = |role| move |address| Peer { role, address };
        let aggregator = aggregator.into_iter().map(peer(PeerRole::Aggregator));
        PeerTable::new(aggregator.chain(parameter_hosts.into_iter().map(peer(PeerRole::ParameterHost))))
    }

    pub fn get(&self, id: PeerId) -> Option<&Peer> {
        self.peers.get(usize::from(id.0))
    }

    pub fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        (0..).map(PeerId).zip(&self.peers)
    }

    /// The aggregator that this worker contributes to.
    pub fn aggregator(&self) -> Option<PeerId> {
        self.with_role(PeerRole::Aggregator).next()
    }

    /// The parameter host of a shard: the hosts take the shards in turn.
    pub fn parameter_host(&self, shard: u16) -> Option<PeerId> {
        let hosts = self.with_role(PeerRole::ParameterHost).count();
        let index = usize::from(shard).checked_rem(hosts)?;
        self.with_role(PeerRole::ParameterHost).nth(index)
    }

    pub fn find(&self, ip: Ipv4Addr) -> Option<PeerId> {
        self.iter().find(|(_, peer)| *peer.address.ip() == ip).map(|(id, _)| id)
    }

    fn with_role(&self, role: PeerRole) -> impl Iterator<Item = PeerId> {
        self.iter().filter(move |(_, peer)| peer.role == role).map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 48_700)
    }

    #[test]
    fn parameter_hosts_take_the_shards_in_turn() {
        let table = PeerTable::of(Some(address(1)), [address(2), address(3)]);
        assert_eq!(table.aggregator(), Some(PeerId(0)));
        let hosts = [0, 1, 2, 3].map(|shard| table.parameter_host(shard));
        assert_eq!(hosts, [1, 2, 1, 2].map(|id| Some(PeerId(id))));
        assert_eq!(table.find(*address(3).ip()), Some(PeerId(2)));
        assert_eq!((table.find(*address(4).ip()), table.get(PeerId(3))), (None, None));
    }

    #[test]
    fn a_table_may_lack_a_role() {
        let table = PeerTable::of(None, [address(2)]);
        assert_eq!((table.aggregator(), table.parameter_host(7)), (None, Some(PeerId(0))));
        assert_eq!(PeerTable::of(Some(address(1)), []).parameter_host(0), None);
    }
}
