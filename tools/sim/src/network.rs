//! Nodes, and cables between them. Packets take the shortest way; there are no loops to choose among.

use std::collections::VecDeque;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::{
    events::Nanos,
    link::{Link, LinkCounters, LinkSpec},
    packet::{Framing, Packet, node_of},
};

/// A node's place in the list of all.
pub type NodeId = usize;
/// A cable's direction, in the list of all.
pub type LinkId = usize;

const NO_WAY: u32 = u32::MAX;

/// All cables, and which one leads where.
pub struct Network {
    framing: Framing,
    links: Vec<(NodeId, NodeId, Link)>,
    nodes: usize,
    /// The link on the way from a node to another: `[to * nodes + from]`. Empty until somebody asks.
    routes: Vec<u32>,
    rng: ChaCha8Rng,
}

impl Network {
    /// Without nodes.
    pub fn new(framing: Framing, seed: u64) -> Network {
        let rng = ChaCha8Rng::seed_from_u64(!seed);
        Network { framing, links: Vec::new(), nodes: 0, routes: Vec::new(), rng }
    }

    /// One more node.
    pub fn add_node(&mut self) -> NodeId {
        self.nodes += 1;
        self.routes.clear();
        self.nodes - 1
    }

    /// Lays a cable; gives its direction from `a` to `b`, after which comes that from `b` to `a`.
    pub fn connect(&mut self, a: NodeId, b: NodeId, there: LinkSpec, back: LinkSpec) -> LinkId {
        self.routes.clear();
        self.links.push((a, b, Link::new(there)));
        self.links.push((b, a, Link::new(back)));
        self.links.len() - 2
    }

    /// A direction of a cable.
    pub fn link(&self, id: LinkId) -> &Link {
        &self.links[id].2
    }

    /// The same, to change what it is like.
    pub fn link_mut(&mut self, id: LinkId) -> &mut Link {
        &mut self.links[id].2
    }

    /// How long packets are.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// What all cables did.
    pub fn totals(&self) -> LinkCounters {
        let mut sum = LinkCounters::default();
        self.links.iter().for_each(|(_, _, link)| sum.merge(&link.counters));
        sum
    }

    /// The cable that a packet from `node` leaves by; `None`: there is no way.
    pub fn way(&mut self, node: NodeId, packet: &Packet) -> Option<LinkId> {
        if self.routes.is_empty() {
            self.find_routes();
        }
        let to = node_of(*packet.destination.ip());
        let link = *self.routes.get(to * self.nodes + node)?;
        (link != NO_WAY).then_some(link as LinkId)
    }

    /// Sends a packet over a cable: where it arrives, and when.
    pub fn send(&mut self, now: Nanos, link: LinkId, packet: &mut Packet) -> (NodeId, [Option<Nanos>; 2]) {
        let len = self.framing.wire_len(packet);
        let (_, to, link) = &mut self.links[link];
        (*to, link.send(now, len, &mut packet.ecn, &mut self.rng))
    }

    fn find_routes(&mut self) {
        let mut from_link: Vec<Vec<(LinkId, NodeId)>> = vec![Vec::new(); self.nodes];
        for (id, (from, to, _)) in self.links.iter().enumerate() {
            from_link[*to].push((id, *from));
        }
        self.routes = vec![NO_WAY; self.nodes * self.nodes];
        for to in 0..self.nodes {
            let mut next = VecDeque::from([to]);
            while let Some(node) = next.pop_front() {
                for (link, from) in &from_link[node] {
                    let route = &mut self.routes[to * self.nodes + from];
                    if *from != to && *route == NO_WAY {
                        *route = *link as u32;
                        next.push_back(*from);
                    }
                }
            }
        }
    }
}
