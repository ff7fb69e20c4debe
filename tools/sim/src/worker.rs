//! One worker of a job: an engine per lane, a trainer that gives them work, and a ring of frames that leave by its cable.

use std::net::SocketAddrV4;

use sumac_transport::{
    CompletionQueue, Engine, EngineStats, LaneField, Packet as Received, PeerId, PeerTable, Time, Transmit,
};

use crate::{
    events::Nanos,
    network::NodeId,
    packet::{Body, Packet, ecn, shard_of},
    trainer::{Desk, Trainer},
};

/// A worker.
pub struct Worker {
    /// The job's number.
    pub job: u16,
    /// Where it is.
    pub node: NodeId,
    /// Its engines, by lane.
    pub engines: Vec<Engine>,
    /// How lanes are told apart.
    pub lanes: LaneField,
    /// Its own address, for shard 0.
    pub socket: SocketAddrV4,
    /// The job's aggregator and parameter hosts.
    pub peers: PeerTable,
    /// Bytes that may wait for its cable before it stops to send: its ring.
    pub ring: u64,
    /// Does nothing from and until these times.
    pub pause: Option<(Nanos, Nanos)>,
    /// Whether it has died: it hears, sends and does nothing any more.
    pub is_dead: bool,
    /// Packets that no engine could be found for.
    pub lost_its_way: u64,
    /// Packets that its engines were given.
    pub taken: u64,
    /// By lane, completions that wait for those of operations before them.
    pub(crate) ended: Vec<CompletionQueue>,
    pub(crate) trainer: Box<dyn Trainer>,
    /// The earliest of its timer's events.
    pub(crate) timer: Option<Nanos>,
    /// Whether it waits for room in its ring.
    pub(crate) waits: bool,
}

impl Worker {
    /// What its engines did, together.
    pub fn stats(&self) -> EngineStats {
        let mut sum = EngineStats::default();
        self.engines.iter().for_each(|engine| sum.merge(engine.stats()));
        sum
    }

    /// A frame for one of its lanes.
    pub(crate) fn deliver(&mut self, now: Nanos, payload: &[u8], marked: bool) {
        let packet = Received::parse(payload, PeerId(0), marked).ok();
        let engine = packet.and_then(|packet| {
            let lane = self.lanes.lane(&packet.header)?;
            Some((packet, self.engines.get_mut(usize::from(lane))?))
        });
        let Some((packet, engine)) = engine else {
            self.lost_its_way += 1;
            return;
        };
        self.taken += 1;
        engine.on_packet(Time(now), &packet);
    }

    /// The next packet that one of its engines sends; the urgent lanes, which are the later ones, go first.
    pub(crate) fn transmit(&mut self, now: Nanos, frame: &mut [u8]) -> Option<Packet> {
        let sent = self.engines.iter_mut().rev().find_map(|engine| engine.poll_transmit(Time(now), frame))?;
        let Transmit { len, port_offset, dscp_ecn, to, .. } = sent;
        let destination = self.peers.get(to)?.address;
        Some(Packet {
            source: shard_of(self.socket, port_offset),
            destination: shard_of(destination, port_offset),
            ecn: dscp_ecn & ecn::MASK,
            body: Body::Sumac(frame[..len].to_vec()),
        })
    }

    /// Tells the engines that time has passed.
    pub(crate) fn expire(&mut self, now: Nanos) {
        if self.timer.is_some_and(|scheduled| scheduled <= now) {
            self.timer = None;
        }
        for engine in &mut self.engines {
            if engine.poll_timeout().is_some_and(|at| at <= Time(now)) {
                engine.on_timeout(Time(now));
            }
        }
    }

    /// When the next of its engines wants to be told, where no event for it is scheduled yet.
    pub(crate) fn next_timer(&mut self, now: Nanos) -> Option<Nanos> {
        let due = self.engines.iter().filter_map(Engine::poll_timeout).min()?;
        let at = due.0.max(now);
        if self.timer.is_some_and(|scheduled| scheduled <= at) {
            return None;
        }
        self.timer = Some(at);
        self.timer
    }

    /// Hands what has ended to the trainer; gives whether it has submitted anything.
    pub(crate) fn collect(&mut self, now: Nanos, desk: &mut Desk) {
        for (lane, (engine, ended)) in self.engines.iter_mut().zip(&mut self.ended).enumerate() {
            while let Some(completion) = engine.poll_completion() {
                ended.push(completion);
            }
            while let Some(completion) = ended.pop() {
                self.trainer.completed(now, lane, completion, desk);
            }
        }
    }

    /// Submits what the trainer wants; an operation that no engine takes is the trainer's mistake, and counts as one.
    pub(crate) fn submit(&mut self, now: Nanos, desk: &mut Desk) {
        for (lane, operation) in desk.submits.drain(..) {
            let taken = self.engines.get_mut(lane).map(|engine| engine.submit(Time(now), operation).is_ok());
            self.lost_its_way += u64::from(taken != Some(true));
        }
    }

    /// Goes on under a new incarnation, after another worker was replaced; `resume`: each lane's first chunk that is not summed.
    pub fn renew(&mut self, now: Nanos, epoch: u16, resume: &[u32]) {
        for (engine, resume) in self.engines.iter_mut().zip(resume) {
            engine.renew(Time(now), epoch, *resume);
        }
    }

    /// Until when it does nothing.
    pub(crate) fn paused(&self, now: Nanos) -> Option<Nanos> {
        self.pause.filter(|(from, until)| (*from..*until).contains(&now)).map(|(_, until)| until)
    }
}
