//! The event loop: nodes on a network, and the events that let time pass.

use std::{collections::BTreeMap, net::SocketAddrV4};

use sumac_transport::{CompletionQueue, Engine, JobError, Operation};
use sumac_wire::{Header, Kind};

use crate::{
    address::{NodeId, node_of, socket},
    aggregator::Aggregator,
    conservation::Conservation,
    events::{Events, Nanos},
    network::{LinkId, Network, Sent},
    observer::Observer,
    packet::{Body, Framing, Packet, ecn},
    parameter::Parameter,
    tcp::{Flow, FlowSpec},
    trainer::{CommandQueue, Trainer},
    worker::Worker,
};

enum Event {
    /// A packet arrives at a node.
    Arrive(NodeId, Packet),
    /// A timer of a worker's engines may be due.
    Timer(usize),
    /// A worker's ring has room again.
    RingSpace(usize),
    /// A worker's trainer runs.
    Wake(usize),
    /// A parameter host's ring has room again.
    HostRingSpace(NodeId),
    /// A cable can transmit the next packet of its queues.
    Ready(LinkId),
    /// A flow begins, or its timer may be due.
    Flow(usize),
    /// An action of the test runs.
    Script(usize),
}

/// A node. Every node forwards packets that are not addressed to it.
#[derive(Default)]
pub struct Node {
    pub aggregator: Option<Aggregator>,
    pub parameter: Option<Parameter>,
    /// Workers of different jobs.
    workers: Vec<usize>,
}

type Script = Box<dyn FnOnce(&mut World)>;

/// The simulated world.
pub struct World {
    pub network: Network,
    pub nodes: Vec<Node>,
    /// The workers of all jobs.
    pub workers: Vec<Worker>,
    /// TCP-like flows.
    pub flows: Vec<Flow>,
    /// Packets without a route or a receiver.
    pub undeliverable: u64,
    /// Packets by fate, without those that cables count.
    counted: Conservation,
    pub observer: Option<Box<dyn Observer>>,
    now: Nanos,
    events: Events<Event>,
    scripts: Vec<Option<Script>>,
    /// Scripts that run at the ends of flows.
    flow_ends: BTreeMap<usize, Script>,
    frame: Vec<u8>,
}

impl World {
    /// A world without nodes; `seed` decides the faults of cables.
    pub fn new(framing: Framing, seed: u64) -> World {
        World {
            network: Network::new(framing, seed),
            nodes: Vec::new(),
            workers: Vec::new(),
            flows: Vec::new(),
            undeliverable: 0,
            counted: Conservation::default(),
            observer: None,
            now: 0,
            events: Events::default(),
            scripts: Vec::new(),
            flow_ends: BTreeMap::new(),
            frame: vec![0; sumac_wire::admit::payload_len(sumac_wire::MAX_ELEMENTS as u16)],
        }
    }

    /// Adds a node that forwards packets.
    pub fn add_node(&mut self) -> NodeId {
        self.nodes.push(Node::default());
        self.network.add_node()
    }

    /// Adds a worker and wakes its trainer.
    pub fn add_worker(&mut self, worker: Worker) -> usize {
        let id = self.workers.len();
        self.nodes[worker.node].workers.push(id);
        self.workers.push(worker);
        self.events.schedule(self.now, Event::Wake(id));
        id
    }

    /// Adds a TCP-like flow between two nodes that begins at `from`.
    pub fn add_flow(&mut self, a: NodeId, b: NodeId, spec: FlowSpec, from: Nanos) -> usize {
        let id = self.flows.len();
        self.flows.push(Flow::new(id, socket(a), socket(b), spec));
        self.events.schedule(from, Event::Flow(id));
        id
    }

    /// Runs an action when the last byte of a flow has arrived.
    pub fn at_flow_end(&mut self, flow: usize, script: impl FnOnce(&mut World) + 'static) {
        self.flow_ends.insert(flow, Box::new(script));
    }

    /// Submits an operation to a lane of a worker.
    pub fn submit(&mut self, id: usize, lane: usize, operation: Operation) {
        self.execute(id, CommandQueue { submits: vec![(lane, operation)], wake_at: None });
        self.pump(id);
    }

    /// Lets a worker continue under another epoch after another worker was replaced.
    pub fn renew_worker(&mut self, id: usize, epoch: u16, resume: &[u32]) {
        self.workers[id].renew(self.now, epoch, resume);
        self.pump(id);
    }

    /// Fails a worker's job, as the control plane does.
    pub fn fail_worker(&mut self, id: usize, error: &JobError) {
        self.workers[id].engines.iter_mut().for_each(|engine| engine.fail(error.clone()));
        self.pump(id);
    }

    /// Gives a worker new engines and a new trainer, as after a restart of its job.
    pub fn restart_worker(&mut self, id: usize, engines: Vec<Engine>, trainer: Box<dyn Trainer>) {
        let worker = &mut self.workers[id];
        worker.completed = engines.iter().map(|_| CompletionQueue::default()).collect();
        (worker.engines, worker.trainer, worker.received) = (engines, trainer, 0);
        self.events.schedule(self.now, Event::Wake(id));
    }

    /// Runs an action at a time.
    pub fn at(&mut self, time: Nanos, script: impl FnOnce(&mut World) + 'static) {
        let id = self.scripts.len();
        self.scripts.push(Some(Box::new(script)));
        self.events.schedule(time, Event::Script(id));
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Runs until `end`, or until `is_done` after an event. Then no packet may be missing.
    pub fn run_until(&mut self, end: Nanos, is_done: impl FnMut(&World) -> bool) {
        self.run_events(end, is_done);
        let conservation = self.conservation();
        assert!(conservation.holds(), "packets are missing: {conservation:?}");
    }

    /// All packets so far, by fate.
    pub fn conservation(&self) -> Conservation {
        let arrivals = self.events.pending().filter(|event| matches!(event, Event::Arrive(..))).count();
        let under_way = arrivals as u64 + self.network.queued();
        Conservation { under_way, ..self.counted }.with_links(&self.network.totals())
    }

    fn run_events(&mut self, end: Nanos, mut is_done: impl FnMut(&World) -> bool) {
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

    /// Runs until `end`.
    pub fn run(&mut self, end: Nanos) {
        self.run_until(end, |_| false);
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Arrive(node, packet) => self.arrive(node, packet),
            Event::Timer(id) | Event::RingSpace(id) | Event::Wake(id) if self.postponed(id, &event) => {}
            Event::Timer(id) => {
                self.workers[id].expire(self.now);
                self.pump(id);
            }
            Event::RingSpace(id) => {
                self.workers[id].ring_is_full = false;
                self.pump(id);
            }
            Event::Wake(id) => {
                let mut commands = CommandQueue::default();
                self.workers[id].trainer.wake(self.now, &mut commands);
                self.execute(id, commands);
                self.pump(id);
            }
            Event::HostRingSpace(node) => {
                self.nodes[node].parameter.iter_mut().for_each(|parameter| parameter.ring_is_full = false);
                self.pump_host(node);
            }
            Event::Ready(link) => {
                let sent = self.network.send_next(self.now, link);
                self.schedule(link, sent);
            }
            Event::Flow(id) => self.with_flow(id, |flow, now, packets| {
                flow.on_timeout(now, packets);
                flow.transmit(now, packets);
            }),
            Event::Script(id) => {
                if let Some(script) = self.scripts[id].take() {
                    script(self);
                }
            }
        }
    }

    /// Whether a worker that is dead or pauses drops or postpones an event.
    fn postponed(&mut self, id: usize, event: &Event) -> bool {
        if self.workers[id].is_dead {
            return true;
        }
        let Some(until) = self.workers[id].paused(self.now) else { return false };
        let again = match event {
            Event::RingSpace(_) => Event::RingSpace(id),
            Event::Wake(_) => Event::Wake(id),
            _ => Event::Timer(id),
        };
        self.events.schedule(until, again);
        true
    }

    fn arrive(&mut self, node: NodeId, packet: Packet) {
        if node_of(*packet.destination.ip()) != node {
            return self.forward(node, packet);
        }
        self.counted.received += 1;
        let bits = packet.ecn;
        match packet.body {
            Body::Tcp(segment) => self.with_flow(segment.flow, |flow, now, packets| {
                flow.on_segment(now, &segment, bits == ecn::MARKED, packets);
            }),
            Body::Sumac(payload) if self.nodes[node].aggregator.is_some() => {
                self.at_aggregator(
                    node,
                    packet.source,
                    packet.destination,
                    payload,
                    (packet.path, packet.class, bits),
                );
            }
            Body::Sumac(_) => self.at_host(node, packet),
        }
    }

    /// Sends a packet from a node.
    pub fn send(&mut self, node: NodeId, packet: Packet) {
        self.counted.sent += 1;
        self.forward(node, packet);
    }

    fn forward(&mut self, node: NodeId, packet: Packet) {
        if node_of(*packet.destination.ip()) == node {
            // A worker and its parameter host on one node: no cable.
            return self.events.schedule(self.now, Event::Arrive(node, packet));
        }
        let Some(link) = self.network.route(node, &packet) else {
            self.undeliverable += 1;
            self.counted.unrouted += 1;
            return;
        };
        let sent = self.network.send(self.now, link, packet);
        self.schedule(link, sent);
    }

    /// Schedules the arrivals of a packet that a cable transmitted, and the cable's next packet.
    fn schedule(&mut self, link: LinkId, sent: Sent) {
        if let Some(at) = sent.next {
            self.events.schedule(at, Event::Ready(link));
        }
        let Some((to, packet, [first, second])) = sent.transmitted else { return };
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
        (path, class, bits): (u16, u8, u8),
    ) {
        let Some(aggregator) = &mut self.nodes[node].aggregator else { return };
        let header = self.observer.as_ref().and_then(|_| Header::read(&payload[..], 0, payload.len()).ok());
        let handled = aggregator.handle(self.now, source, own, &mut payload, bits);
        if let (Some(observer), Some(header), Some(reason)) = (&mut self.observer, header, handled.reason) {
            observer.handled(node, &header, reason, handled.added);
        }
        let (ecn, body) = (handled.ecn, Body::Sumac(payload));
        let answer = Packet { source: own, destination: own, path, class, ecn, body };
        for destination in handled.destinations {
            self.send(node, Packet { destination, ..answer.clone() });
        }
    }

    /// Delivers a packet to the node's parameter host, or to the worker of the packet's job.
    fn at_host(&mut self, node: NodeId, packet: Packet) {
        let Body::Sumac(payload) = &packet.body else { return };
        let Ok(header) = Header::read(&payload[..], 0, payload.len()) else {
            self.undeliverable += 1;
            return;
        };
        let marked = packet.ecn == ecn::MARKED;
        let is_answer = header.kind == Kind::Result as u8 || header.kind == Kind::Report as u8;
        if let Some(parameter) = self.nodes[node].parameter.as_mut().filter(|_| !is_answer) {
            parameter.deliver(self.now, packet.source, packet.destination, payload, marked);
            return self.pump_host(node);
        }
        let is_its = |worker: &Worker| worker.job == header.job && !worker.is_dead;
        let worker = self.nodes[node].workers.iter().find(|id| is_its(&self.workers[**id]));
        let Some(id) = worker.copied() else {
            self.undeliverable += 1;
            return;
        };
        if let Some(until) = self.workers[id].paused(self.now) {
            // It arrives again.
            self.counted.received -= 1;
            return self.events.schedule(until, Event::Arrive(node, packet));
        }
        let lane = self.workers[id].deliver(self.now, packet.source, payload, marked);
        if let (Some(observer), Some(lane)) = (&mut self.observer, lane) {
            observer.delivered(self.now, id, lane);
        }
        self.pump(id);
    }

    /// Sends and delivers all that a worker's engines have ready.
    fn pump(&mut self, id: usize) {
        self.transmit(id);
        let mut commands = CommandQueue::default();
        self.workers[id].collect(self.now, &mut commands);
        if !commands.submits.is_empty() || commands.wake_at.is_some() {
            self.execute(id, commands);
            self.transmit(id);
        }
        if let Some(at) = self.workers[id].next_timer(self.now) {
            self.events.schedule(at, Event::Timer(id));
        }
    }

    fn execute(&mut self, id: usize, commands: CommandQueue) {
        for (lane, operation) in commands.submits {
            let was_idle = self.workers[id].submit(self.now, lane, operation);
            if let (Some(observer), true) = (&mut self.observer, was_idle) {
                observer.started(self.now, id, lane);
            }
        }
        if let Some(at) = commands.wake_at {
            self.events.schedule(at.max(self.now), Event::Wake(id));
        }
    }

    /// Sends until the engines have nothing to send or the ring is full.
    fn transmit(&mut self, id: usize) {
        let mut frame = std::mem::take(&mut self.frame);
        while !self.workers[id].ring_is_full {
            let Some(packet) = self.workers[id].transmit(self.now, &mut frame) else { break };
            if let (Some(observer), Body::Sumac(payload)) = (&mut self.observer, &packet.body) {
                let header = Header::read(&payload[..], 0, payload.len());
                header.iter().for_each(|header| observer.sent(id, header));
            }
            let (node, ring) = (self.workers[id].node, self.workers[id].ring);
            if let Some(at) = self.send_by_ring(node, ring, packet) {
                self.workers[id].ring_is_full = true;
                self.events.schedule(at, Event::RingSpace(id));
            }
        }
        self.frame = frame;
    }

    fn pump_host(&mut self, node: NodeId) {
        let mut frame = std::mem::take(&mut self.frame);
        while let Some(parameter) =
            self.nodes[node].parameter.as_mut().filter(|parameter| !parameter.ring_is_full)
        {
            let Some(packet) = parameter.transmit(socket(node), &mut frame) else { break };
            let ring = parameter.ring;
            if let Some(at) = self.send_by_ring(node, ring, packet) {
                self.nodes[node].parameter.iter_mut().for_each(|parameter| parameter.ring_is_full = true);
                self.events.schedule(at, Event::HostRingSpace(node));
            }
        }
        self.frame = frame;
    }

    /// Sends a packet by a ring of `ring` bytes. Returns the time at which half of the ring is empty, if it
    /// is full now.
    fn send_by_ring(&mut self, node: NodeId, ring: u64, packet: Packet) -> Option<Nanos> {
        let link = self.network.route(node, &packet);
        self.send(node, packet);
        let link = self.network.link(link?);
        (link.backlog(self.now) >= ring).then(|| link.drained_to(ring / 2).max(self.now + 1))
    }

    /// Lets a flow act, sends its packets and schedules its timer.
    fn with_flow(&mut self, id: usize, act: impl FnOnce(&mut Flow, Nanos, &mut Vec<Packet>)) {
        let mut packets = Vec::new();
        act(&mut self.flows[id], self.now, &mut packets);
        for packet in packets {
            self.send(node_of(*packet.source.ip()), packet);
        }
        if let Some(at) = self.flows[id].next_timer() {
            self.events.schedule(at, Event::Flow(id));
        }
        if self.flows[id].finished().is_some()
            && let Some(script) = self.flow_ends.remove(&id)
        {
            script(self);
        }
    }
}
