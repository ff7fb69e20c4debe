//! Nodes and the cables between them. Packets take the shortest routes; among several a hash of addresses and
//! path chooses (ECMP).

use std::{collections::VecDeque, net::SocketAddrV4};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::{
    address::{NodeId, node_of},
    events::Nanos,
    link::{Link, LinkCounters, LinkSpec},
    packet::{Framing, Packet},
};

/// Index of one direction of a cable.
pub type LinkId = usize;

/// The result of one packet at a cable.
#[derive(Default)]
pub(crate) struct Sent {
    /// A packet that was transmitted or dropped, with the times of its arrivals at a node.
    pub transmitted: Option<(NodeId, Packet, [Option<Nanos>; 2])>,
    /// The time of [`Network::send_next`].
    pub next: Option<Nanos>,
}

/// All cables and routes.
pub struct Network {
    framing: Framing,
    links: Vec<(NodeId, NodeId, Link)>,
    nodes: usize,
    /// The next links from one node to another: `[to * nodes + from]`. Empty until first use.
    routes: Vec<Vec<LinkId>>,
    rng: ChaCha8Rng,
}

impl Network {
    /// A network without nodes.
    pub fn new(framing: Framing, seed: u64) -> Network {
        let rng = ChaCha8Rng::seed_from_u64(!seed);
        Network { framing, links: Vec::new(), nodes: 0, routes: Vec::new(), rng }
    }

    pub fn add_node(&mut self) -> NodeId {
        self.nodes += 1;
        self.routes.clear();
        self.nodes - 1
    }

    /// Adds a cable; returns its direction from `a` to `b`. The direction from `b` to `a` is the next one.
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

    pub fn link_mut(&mut self, id: LinkId) -> &mut Link {
        &mut self.links[id].2
    }

    /// The length of packets on cables.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Counters of all cables.
    pub fn totals(&self) -> LinkCounters {
        let mut sum = LinkCounters::default();
        self.links.iter().for_each(|(_, _, link)| sum.merge(&link.counters));
        sum
    }

    /// The cable by which a packet leaves `node`; `None`: there is no route.
    pub fn route(&mut self, node: NodeId, packet: &Packet) -> Option<LinkId> {
        if self.routes.is_empty() {
            self.find_routes();
        }
        let to = node_of(*packet.destination.ip());
        let links = self.routes.get(to * self.nodes + node)?;
        match links[..] {
            [] => None,
            [link] => Some(link),
            _ => links.get(flow_hash(packet) % links.len()).copied(),
        }
    }

    /// Sends a packet over a cable.
    pub(crate) fn send(&mut self, now: Nanos, link: LinkId, mut packet: Packet) -> Sent {
        let len = self.framing.wire_len(&packet);
        let (_, to, link) = &mut self.links[link];
        let Some(red) = link.spec.classes else {
            let arrivals = link.send(now, len, &mut packet.ecn, &mut self.rng);
            return Sent { transmitted: Some((*to, packet, arrivals)), next: None };
        };
        Sent { transmitted: None, next: link.enqueue(now, len, packet, &red) }
    }

    /// Sends the next packet that waits for a cable.
    pub(crate) fn send_next(&mut self, now: Nanos, link: LinkId) -> Sent {
        let (_, to, link) = &mut self.links[link];
        let Some((packet, arrivals, next)) = link.dequeue(now, &mut self.rng) else { return Sent::default() };
        Sent { transmitted: Some((*to, packet, arrivals)), next }
    }

    /// Packets that wait in the queues of classes.
    pub fn queued(&self) -> u64 {
        self.links.iter().map(|(_, _, link)| link.queued()).sum()
    }

    fn find_routes(&mut self) {
        let mut from_link: Vec<Vec<(LinkId, NodeId)>> = vec![Vec::new(); self.nodes];
        for (id, (from, to, _)) in self.links.iter().enumerate() {
            from_link[*to].push((id, *from));
        }
        self.routes = vec![Vec::new(); self.nodes * self.nodes];
        for to in 0..self.nodes {
            let mut hops = vec![usize::MAX; self.nodes];
            hops[to] = 0;
            let mut next = VecDeque::from([to]);
            while let Some(node) = next.pop_front() {
                for (link, from) in &from_link[node] {
                    if hops[*from] == usize::MAX {
                        hops[*from] = hops[node] + 1;
                        next.push_back(*from);
                    }
                    if hops[*from] == hops[node] + 1 {
                        self.routes[to * self.nodes + from].push(*link);
                    }
                }
            }
        }
    }
}

/// A hash of what ECMP looks at: addresses, ports and the path (Fibonacci hashing).
fn flow_hash(packet: &Packet) -> usize {
    let of = |socket: SocketAddrV4| u64::from(socket.ip().to_bits()) << 16 | u64::from(socket.port());
    let key = of(packet.source).rotate_left(8) ^ of(packet.destination) ^ u64::from(packet.path) << 32;
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize
}
