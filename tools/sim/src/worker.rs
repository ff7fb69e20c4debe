//! One worker of a job: an engine for each lane, a trainer, and a ring of frames that leave by its cable.

use std::net::SocketAddrV4;

use sumac_handover::{read_engine, write_engine};
use sumac_transport::{
    CompletionQueue, Engine, EngineStats, LaneField, OpId, Operation, Packet as Received, PeerId, PeerTable,
    Time, Transmit,
};
use sumac_wire::tos::selector_of;

use crate::{
    address::{NodeId, shard_of},
    events::Nanos,
    packet::{Body, Packet, ecn},
    trainer::{CommandQueue, Trainer},
};

pub struct Worker {
    /// The job's number.
    pub job: u16,
    pub node: NodeId,
    /// Engines by lane.
    pub engines: Vec<Engine>,
    /// The assignment of packets to lanes.
    pub lanes: LaneField,
    /// Its address for shard 0.
    pub socket: SocketAddrV4,
    /// The job's aggregator and parameter hosts.
    pub peers: PeerTable,
    /// Bytes that may wait for its cable before it stops sending.
    pub ring: u64,
    /// It does nothing from the first time until the second.
    pub pause: Option<(Nanos, Nanos)>,
    /// It receives, sends and does nothing.
    pub is_dead: bool,
    /// Whether completions wait for those of operations before them: transfers of a direct job do not.
    pub in_order: bool,
    /// Packets and operations for lanes that do not exist.
    pub undeliverable: u64,
    /// Packets that its engines received.
    pub received: u64,
    /// By lane, completions that wait for those of operations before them.
    pub(crate) completed: Vec<CompletionQueue>,
    pub(crate) trainer: Box<dyn Trainer>,
    /// Time of its earliest timer event.
    pub(crate) timer: Option<Nanos>,
    pub(crate) ring_is_full: bool,
}

impl Worker {
    /// Statistics of all lanes together.
    pub fn stats(&self) -> EngineStats {
        let mut sum = EngineStats::default();
        self.engines.iter().for_each(|engine| sum.merge(engine.stats()));
        sum
    }

    /// Delivers a packet; returns its lane.
    pub(crate) fn deliver(
        &mut self,
        now: Nanos,
        source: SocketAddrV4,
        payload: &[u8],
        marked: bool,
    ) -> Option<usize> {
        let from = self.peers.find(*source.ip()).unwrap_or(PeerId(0));
        let packet = Received::parse(payload, from, marked).ok();
        let engine = packet.and_then(|packet| {
            let lane = usize::from(self.lanes.lane(&packet.header)?);
            Some((packet, lane, self.engines.get_mut(lane)?))
        });
        let Some((packet, lane, engine)) = engine else {
            self.undeliverable += 1;
            return None;
        };
        self.received += 1;
        engine.on_packet(Time(now), &packet);
        Some(lane)
    }

    /// The next packet of its engines. Later lanes are the urgent ones and go first.
    pub(crate) fn transmit(&mut self, now: Nanos, frame: &mut [u8]) -> Option<Packet> {
        let sent = self.engines.iter_mut().rev().find_map(|engine| engine.poll_transmit(Time(now), frame))?;
        let Transmit { len, port_offset, dscp_ecn, path, to } = sent;
        let destination = self.peers.get(to)?.address;
        Some(Packet {
            source: shard_of(self.socket, port_offset),
            destination: shard_of(destination, port_offset),
            path,
            class: selector_of(dscp_ecn),
            ecn: dscp_ecn & ecn::MASK,
            body: Body::Sumac(frame[..len].to_vec()),
        })
    }

    /// Runs the timers that are due.
    pub(crate) fn expire(&mut self, now: Nanos) {
        if self.timer.is_some_and(|scheduled| scheduled <= now) {
            self.timer = None;
        }
        for engine in &mut self.engines {
            if engine.poll_timeout().is_some_and(|at| at <= Time(now)) {
                engine.on_timeout(Time(now));
                // Or a worker whose cable is full would never get on.
                let next = engine.poll_timeout();
                assert!(next.is_none_or(|at| at > Time(now)), "a timer that has expired is due again");
            }
        }
    }

    /// The time of the next timer, unless an event at or before it is scheduled already.
    pub(crate) fn next_timer(&mut self, now: Nanos) -> Option<Nanos> {
        let due = self.engines.iter().filter_map(Engine::poll_timeout).min()?;
        let at = due.0.max(now);
        if self.timer.is_some_and(|scheduled| scheduled <= at) {
            return None;
        }
        self.timer = Some(at);
        self.timer
    }

    /// Hands completions to the trainer, in the order of submission where they wait for each other.
    pub(crate) fn collect(&mut self, now: Nanos, commands: &mut CommandQueue) {
        for (lane, (engine, completed)) in self.engines.iter_mut().zip(&mut self.completed).enumerate() {
            while let Some(completion) = engine.poll_completion() {
                if self.in_order {
                    completed.push(completion);
                } else {
                    self.trainer.completed(now, lane, completion, commands);
                }
            }
            while let Some(completion) = completed.pop() {
                self.trainer.completed(now, lane, completion, commands);
            }
        }
    }

    /// Submits an operation; returns whether the lane was idle. A refused operation counts as undeliverable.
    pub(crate) fn submit(&mut self, now: Nanos, lane: usize, operation: Operation) -> bool {
        let engine = self.engines.get_mut(lane);
        let was_idle = engine.as_ref().is_some_and(|engine| engine.is_idle());
        let accepted = engine.is_some_and(|engine| engine.submit(Time(now), operation).is_ok());
        self.undeliverable += u64::from(!accepted);
        accepted && was_idle
    }

    /// Continues under another incarnation after another worker was replaced; `resume`: each lane's first
    /// chunk that is not summed.
    pub(crate) fn renew(&mut self, now: Nanos, epoch: u16, resume: &[u32]) {
        for (engine, resume) in self.engines.iter_mut().zip(resume) {
            engine.renew(Time(now), epoch, *resume);
        }
    }

    /// The states of its engines as they would be handed over.
    pub fn states(&self) -> impl Iterator<Item = ciborium::Value> {
        let states = self.engines.iter().filter_map(Engine::state_for_handover);
        let written = states.filter_map(|state| write_engine(&state).ok());
        written.filter_map(|bytes| ciborium::from_reader(bytes.as_slice()).ok())
    }

    /// Continues with engines that were written and read between two packets, as another process would.
    /// Returns whether all were: those before the end of their handshakes are not.
    pub fn hand_over(&mut self) -> bool {
        let mut are_all = true;
        for engine in &mut self.engines {
            let Some(state) = engine.state_for_handover() else {
                are_all = false;
                continue;
            };
            let written = write_engine(&state).and_then(|bytes| read_engine(&bytes));
            let Ok(read) = written else { return false };
            // One without operations, in its place.
            let Ok(idle) = Engine::new(engine.params().clone(), &self.peers) else { return false };
            let mut buffers = std::mem::replace(engine, idle).into_buffers();
            let buffer = |number: OpId| {
                let at = buffers.iter().position(|(other, _)| *other == number)?;
                Some(buffers.swap_remove(at).1)
            };
            let Ok(resumed) = read.resume(buffer) else { return false };
            *engine = resumed;
        }
        are_all
    }

    /// The end of the pause that it is in.
    pub(crate) fn paused(&self, now: Nanos) -> Option<Nanos> {
        self.pause.filter(|(from, until)| (*from..*until).contains(&now)).map(|(_, until)| until)
    }
}
