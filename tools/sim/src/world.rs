//! The simulated world: nodes on a network, what arrives at them, and the events that make time pass.

use std::net::SocketAddrV4;

use sumac_wire::{Header, Kind};

use crate::{
    aggregator::{Aggregator, Outcome},
    events::{Events, Nanos},
    network::{Network, NodeId},
    packet::{Body, Framing, Packet, ecn, node_of, socket},
    parameter::Parameter,
    tcp::{Flow, Segment},
    trainer::Desk,
    worker::Worker,
};

/// Something that happens.
enum Event {
    /// A packet arrives at a node.
    Arrive(NodeId, Packet),
    /// An engine of a worker may be due.
    Timer(usize),
    /// A worker's ring has room again.
    Room(usize),
    /// A worker's trainer wants to be woken.
    Wake(usize),
    /// A parameter host's ring has room again.
    HostRoom(NodeId),
    /// A flow begins, or its timer may be due.
    Flow(usize),
    /// What the experimenter wants to happen.
    Script(usize),
}

/// What is at a node besides its cables. All nodes pass on what is not for them.
#[derive(Default)]
pub struct Node {
    /// An aggregator.
    pub aggregator: Option<Aggregator>,
    /// A parameter host.
    pub parameter: Option<Parameter>,
    /// Workers, of different jobs.
    workers: Vec<usize>,
}

type Script = Box<dyn FnOnce(&mut World)>;

/// Everything.
pub struct World {
    /// The cables.
    pub network: Network,
    /// What is at the ends of them.
    pub nodes: Vec<Node>,
    /// All workers of all jobs.
    pub workers: Vec<Worker>,
    /// Flows beside Sumac's.
    pub flows: Vec<Flow>,
    /// Packets that had nowhere to go, or nobody to take them.
    pub astray: u64,
    now: Nanos,
    events: Events<Event>,
    scripts: Vec<Option<Script>>,
    frame: Vec<u8>,
    packets: Vec<Packet>,
}

impl World {
    /// An empty one; `seed` decides what goes wrong on cables.
    pub fn new(framing: Framing, seed: u64) -> World {
        World {
            network: Network::new(framing, seed),
            nodes: Vec::new(),
            workers: Vec::new(),
            flows: Vec::new(),
            astray: 0,
            now: 0,
            events: Events::new(),
            scripts: Vec::new(),
            frame: vec![0; sumac_wire::admit::payload_len(sumac_wire::MAX_ELEMENTS as u16)],
            packets: Vec::new(),
        }
    }

    /// A node that passes packets on.
    pub fn add_node(&mut self) -> NodeId {
        self.nodes.push(Node::default());
        self.network.add_node()
    }

    /// A worker, whose trainer is woken at once.
    pub fn add_worker(&mut self, worker: Worker) -> usize {
        let id = self.workers.len();
        self.nodes[worker.node].workers.push(id);
        self.workers.push(worker);
        self.events.schedule(self.now, Event::Wake(id));
        id
    }

    /// A flow from one node to another, which begins at `from`.
    pub fn add_flow(&mut self, a: NodeId, b: NodeId, is_capable: bool, from: Nanos) -> usize {
        let id = self.flows.len();
        self.flows.push(Flow::new(id, socket(a), socket(b), is_capable));
        self.events.schedule(from, Event::Flow(id));
        id
    }

    /// Lets a worker go on under a new incarnation, after another was replaced.
    pub fn renew_worker(&mut self, id: usize, epoch: u16, resume: &[u32]) {
        self.workers[id].renew(self.now, epoch, resume);
        self.pump(id);
    }

    /// Lets something happen at a time.
    pub fn at(&mut self, time: Nanos, script: impl FnOnce(&mut World) + 'static) {
        let id = self.scripts.len();
        self.scripts.push(Some(Box::new(script)));
        self.events.schedule(time, Event::Script(id));
    }

    /// Sends a packet from a node, as somebody there would.
    pub fn inject(&mut self, node: NodeId, packet: Packet) {
        self.send(node, packet);
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Lets time pass until `end`, or until nothing happens any more, or until `is_done` after some event.
    pub fn run_until(&mut self, end: Nanos, mut is_done: impl FnMut(&World) -> bool) {
        while self.events.next_at().is_some_and(|at| at <= end) {
            let Some((now, event)) = self.events.pop() else { return };
            self.now = now;
            self.step(event);
            if is_done(self) {
                return;
            }
        }
        self.now = self.now.max(end);
    }

    /// Lets time pass until `end`.
    pub fn run(&mut self, end: Nanos) {
        self.run_until(end, |_| false);
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Arrive(node, packet) => self.arrive(node, packet),
            Event::Timer(id) | Event::Room(id) | Event::Wake(id) if self.postponed(id, &event) => {}
            Event::Timer(id) => {
                self.workers[id].expire(self.now);
                self.pump(id);
            }
            Event::Room(id) => {
                self.workers[id].waits = false;
                self.pump(id);
            }
            Event::Wake(id) => {
                let mut desk = Desk::default();
                self.workers[id].trainer.wake(self.now, &mut desk);
                self.serve(id, desk);
                self.pump(id);
            }
            Event::HostRoom(node) => {
                self.nodes[node].parameter.iter_mut().for_each(|parameter| parameter.waits = false);
                self.pump_host(node);
            }
            Event::Flow(id) => self.flow_timer(id),
            Event::Script(id) => {
                if let Some(script) = self.scripts[id].take() {
                    script(self);
                }
            }
        }
    }

    /// Whether a worker that does nothing for a while will do this later, or never.
    fn postponed(&mut self, id: usize, event: &Event) -> bool {
        if self.workers[id].is_dead {
            return true;
        }
        let Some(until) = self.workers[id].paused(self.now) else { return false };
        let again = match event {
            Event::Room(_) => Event::Room(id),
            Event::Wake(_) => Event::Wake(id),
            _ => Event::Timer(id),
        };
        self.events.schedule(until, again);
        true
    }

    /// A packet is at a node: for somebody there, or on its way.
    fn arrive(&mut self, node: NodeId, packet: Packet) {
        if node_of(*packet.destination.ip()) != node {
            return self.send(node, packet);
        }
        let marked = packet.ecn == ecn::MARKED;
        match packet.body {
            Body::Tcp(segment) => self.segment(&segment, marked),
            Body::Sumac(payload) if self.nodes[node].aggregator.is_some() => {
                self.at_aggregator(node, packet.source, packet.destination, payload, marked);
            }
            Body::Sumac(_) => self.at_host(node, packet),
        }
    }

    /// Sends a packet from a node.
    fn send(&mut self, node: NodeId, mut packet: Packet) {
        if node_of(*packet.destination.ip()) == node {
            // A worker beside its parameter host: by no cable.
            return self.events.schedule(self.now, Event::Arrive(node, packet));
        }
        let Some(link) = self.network.way(node, &packet) else {
            self.astray += 1;
            return;
        };
        let (to, [first, second]) = self.network.send(self.now, link, &mut packet);
        if let Some(at) = second {
            self.events.schedule(at, Event::Arrive(to, packet.clone()));
        }
        if let Some(at) = first {
            self.events.schedule(at, Event::Arrive(to, packet));
        }
    }

    fn at_aggregator(
        &mut self,
        node: NodeId,
        source: SocketAddrV4,
        own: SocketAddrV4,
        mut payload: Vec<u8>,
        marked: bool,
    ) {
        let Some(aggregator) = &mut self.nodes[node].aggregator else { return };
        let mut packets = std::mem::take(&mut self.packets);
        match aggregator.take(self.now, source, own, &mut payload, marked) {
            Outcome::Silent => {}
            Outcome::One(ecn, destination) => {
                packets.push(Packet { source: own, destination, ecn, body: Body::Sumac(payload) });
            }
            Outcome::All(ecn, job) => {
                let all = aggregator.below(own, job).iter();
                packets.extend(all.map(|destination| Packet {
                    source: own,
                    destination: *destination,
                    ecn,
                    body: Body::Sumac(payload.clone()),
                }));
            }
        }
        packets.drain(..).for_each(|packet| self.send(node, packet));
        self.packets = packets;
    }

    /// A packet for a host: for its parameter host, or for the worker of that job.
    fn at_host(&mut self, node: NodeId, packet: Packet) {
        let Body::Sumac(payload) = &packet.body else { return };
        let Ok(header) = Header::read(&payload[..], 0, payload.len()) else {
            self.astray += 1;
            return;
        };
        let marked = packet.ecn == ecn::MARKED;
        let is_answer = header.kind == Kind::Result as u8 || header.kind == Kind::Report as u8;
        if let Some(parameter) = self.nodes[node].parameter.as_mut().filter(|_| !is_answer) {
            parameter.take(packet.source, packet.destination, payload, marked);
            return self.pump_host(node);
        }
        let is_its = |worker: &Worker| worker.job == header.job && !worker.is_dead;
        let worker = self.nodes[node].workers.iter().find(|id| is_its(&self.workers[**id]));
        let Some(id) = worker.copied() else {
            self.astray += 1;
            return;
        };
        if let Some(until) = self.workers[id].paused(self.now) {
            return self.events.schedule(until, Event::Arrive(node, packet));
        }
        self.workers[id].deliver(self.now, payload, marked);
        self.pump(id);
    }

    /// Takes out of a worker's engines all that they have to say.
    fn pump(&mut self, id: usize) {
        self.transmit(id);
        let mut desk = Desk::default();
        self.workers[id].collect(self.now, &mut desk);
        if !desk.submits.is_empty() || desk.wake_at.is_some() {
            self.serve(id, desk);
            self.transmit(id);
        }
        if let Some(at) = self.workers[id].next_timer(self.now) {
            self.events.schedule(at, Event::Timer(id));
        }
    }

    fn serve(&mut self, id: usize, mut desk: Desk) {
        self.workers[id].submit(self.now, &mut desk);
        if let Some(at) = desk.wake_at {
            self.events.schedule(at.max(self.now), Event::Wake(id));
        }
    }

    /// Sends until the engines have nothing to send or the ring is full.
    fn transmit(&mut self, id: usize) {
        let mut frame = std::mem::take(&mut self.frame);
        while !self.workers[id].waits {
            let Some(packet) = self.workers[id].transmit(self.now, &mut frame) else { break };
            let (node, ring) = (self.workers[id].node, self.workers[id].ring);
            if let Some(at) = self.send_by_ring(node, ring, packet) {
                self.workers[id].waits = true;
                self.events.schedule(at, Event::Room(id));
            }
        }
        self.frame = frame;
    }

    fn pump_host(&mut self, node: NodeId) {
        let mut frame = std::mem::take(&mut self.frame);
        while let Some(parameter) = self.nodes[node].parameter.as_mut().filter(|parameter| !parameter.waits) {
            let Some(packet) = parameter.transmit(socket(node), &mut frame) else { break };
            let ring = parameter.ring;
            if let Some(at) = self.send_by_ring(node, ring, packet) {
                self.nodes[node].parameter.iter_mut().for_each(|parameter| parameter.waits = true);
                self.events.schedule(at, Event::HostRoom(node));
            }
        }
        self.frame = frame;
    }

    /// Sends a packet by a ring of so many bytes; when it is full now: the time at which half of it will be empty.
    fn send_by_ring(&mut self, node: NodeId, ring: u64, packet: Packet) -> Option<Nanos> {
        let link = self.network.way(node, &packet);
        self.send(node, packet);
        let link = self.network.link(link?);
        (link.backlog(self.now) >= ring).then(|| link.drained_to(ring / 2).max(self.now + 1))
    }

    fn segment(&mut self, segment: &Segment, marked: bool) {
        let mut packets = std::mem::take(&mut self.packets);
        self.flows[segment.flow].on_segment(self.now, segment, marked, &mut packets);
        self.packets = packets;
        self.after_flow(segment.flow);
    }

    fn flow_timer(&mut self, id: usize) {
        let mut packets = std::mem::take(&mut self.packets);
        let flow = &mut self.flows[id];
        flow.on_timeout(self.now, &mut packets);
        flow.transmit(self.now, &mut packets);
        self.packets = packets;
        self.after_flow(id);
    }

    fn after_flow(&mut self, id: usize) {
        let mut packets = std::mem::take(&mut self.packets);
        for packet in packets.drain(..) {
            let node = node_of(*packet.source.ip());
            self.send(node, packet);
        }
        self.packets = packets;
        if let Some(at) = self.flows[id].next_timer() {
            self.events.schedule(at, Event::Flow(id));
        }
    }
}
