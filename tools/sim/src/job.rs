//! A job as the control plane would hand it out: who its workers are, which aggregators are above them, and where its
//! parameter hosts are.

use std::net::SocketAddrV4;

use sumac_agg_host::{JobError, NewJob};
use sumac_parameter::{HostError, HostJob, Worker as Place};
use sumac_transport::{CompletionQueue, Engine, JobParams, LaneField, ParamError, PeerTable, Tuning};
use sumac_wire::tables::{JobEntry, job_flag};
use thiserror::Error;

use crate::{network::NodeId, packet::socket, trainer::Trainer, worker::Worker, world::World};

/// Where a worker sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its node.
    pub node: NodeId,
    /// Its rack's place in [`Tree::racks`]; `None`: it sits right below the root, or there is no tree.
    pub rack: Option<usize>,
}

/// The aggregators of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The one above all workers, or above the racks; `None`: racks' sums go straight to the parameter hosts.
    pub root: Option<NodeId>,
    /// Those above the workers of one rack.
    pub racks: Vec<NodeId>,
}

/// A job.
#[derive(Clone, Debug)]
pub struct Job {
    /// What all workers are told; ranks, lanes and places are filled in.
    pub params: JobParams,
    /// How its engines are tuned.
    pub tuning: Tuning,
    /// Its lanes.
    pub lanes: u16,
    /// Its workers, by rank.
    pub seats: Vec<Seat>,
    /// Its aggregators.
    pub tree: Tree,
    /// Its parameter hosts.
    pub hosts: Vec<NodeId>,
    /// The first slot of a static job in each shard's pool.
    pub first_slot: u32,
    /// Whether a static job's slots take whatever chunk comes next, not every so-manieth (the paper's, whose baseline has
    /// not that).
    pub stealing: bool,
    /// Bytes that may wait for each worker's cable.
    pub ring: u64,
}

/// A job that cannot be.
#[derive(Debug, Error)]
pub enum SetupError {
    /// Its engines refuse.
    #[error("the job's engines: {0}")]
    Params(#[from] ParamError),
    /// An aggregator refuses.
    #[error("an aggregator: {0}")]
    Aggregator(#[from] JobError),
    /// A parameter host refuses.
    #[error("a parameter host: {0}")]
    Host(#[from] HostError),
    /// An operation ended in an error.
    #[error("an operation failed: {0}")]
    Operation(String),
    /// There is nobody where somebody was told to be.
    #[error("node {0} has no aggregator, or no parameter host, where the job names it")]
    Nobody(NodeId),
}

impl Job {
    /// How many senders are below the root: racks first, then the workers beside them.
    fn below_root(&self) -> usize {
        self.tree.racks.len() + self.beside().count()
    }

    /// The ranks of the workers that sit below the root where others sit in racks.
    fn beside(&self) -> impl Iterator<Item = usize> {
        let has_racks = !self.tree.racks.is_empty();
        (0..self.seats.len()).filter(move |rank| has_racks && self.seats[*rank].rack.is_none())
    }

    /// The ranks of a rack's workers.
    fn of_rack(&self, rack: usize) -> impl Iterator<Item = usize> {
        (0..self.seats.len()).filter(move |rank| self.seats[*rank].rack == Some(rack))
    }

    /// A worker's bits: its rack's at the second level, its own at the first.
    fn place(&self, rank: usize) -> (u8, u8) {
        if self.tree.racks.is_empty() {
            return (0, rank as u8);
        }
        match self.seats[rank].rack {
            Some(rack) => {
                let bit = self.of_rack(rack).take_while(|other| *other != rank).count();
                (rack as u8, bit as u8)
            }
            None => {
                let before = self.beside().take_while(|other| *other != rank).count();
                ((self.tree.racks.len() + before) as u8, 0)
            }
        }
    }

    /// What one engine is told.
    pub fn params_of(&self, rank: usize, lane: u16) -> JobParams {
        let world = self.seats.len();
        let (rack, bit) = self.place(rank);
        let (rack_world, beside_root) = match self.seats[rank].rack {
            _ if self.tree.racks.is_empty() => (world, false),
            Some(rack) => (self.of_rack(rack).count(), false),
            None => (1, true),
        };
        let mut params = JobParams {
            rank: rank as u16,
            world: world as u16,
            rack_rank: u16::from(bit),
            rack_world: rack_world as u16,
            lane,
            ..self.params.clone()
        };
        if let Some(dynamic) = params.dynamic.as_mut().filter(|_| !self.tree.racks.is_empty()) {
            dynamic.fan_in_1 = self.below_root() as u8;
            dynamic.bitmap_1 = 1 << rack;
            dynamic.beside_root = beside_root;
        }
        params
    }

    fn entry(&self) -> JobEntry {
        let params = &self.params;
        let entry = JobEntry {
            token: params.token,
            epoch: params.epoch,
            elements: params.elements,
            contributors: self.seats.len() as u16,
            shards: params.shards,
            ..JobEntry::default()
        };
        match &params.dynamic {
            Some(dynamic) => JobEntry { slots: dynamic.slots, flags: job_flag::DYNAMIC, ..entry },
            None => JobEntry {
                slot_base: self.first_slot,
                slots: params.slots * u32::from(self.lanes),
                lane_slots_log2: params.slots.ilog2() as u16,
                flags: if self.stealing { job_flag::STEALING } else { 0 },
                ..entry
            },
        }
    }

    /// What an aggregator is told.
    fn at(&self, node: NodeId) -> NewJob {
        let entry = self.entry();
        let hosts: Vec<SocketAddrV4> = self.hosts.iter().map(|host| socket(*host)).collect();
        let parents = |parents: Vec<SocketAddrV4>| {
            if self.params.dynamic.is_none() && self.tree.root == Some(node) { Vec::new() } else { parents }
        };
        let sockets = |nodes: &mut dyn Iterator<Item = NodeId>| nodes.map(socket).collect();
        let node_of = |rank: usize| self.seats[rank].node;
        if let Some(rack) = self.tree.racks.iter().position(|rack| *rack == node) {
            let entry = JobEntry {
                rack: rack as u16,
                racks: self.below_root() as u16,
                flags: entry.flags | job_flag::CHILD,
                ..entry
            };
            let above = self.tree.root.map_or(hosts, |root| vec![socket(root)]);
            let workers = sockets(&mut self.of_rack(rack).map(node_of));
            return NewJob { entry, workers, parents: above };
        }
        if self.tree.racks.is_empty() {
            let workers = sockets(&mut self.seats.iter().map(|seat| seat.node));
            return NewJob { entry, workers, parents: parents(hosts) };
        }
        let entry = JobEntry { flags: entry.flags | job_flag::ROOT, ..entry };
        let mut below = self.tree.racks.iter().copied().chain(self.beside().map(node_of));
        NewJob { entry, workers: sockets(&mut below), parents: parents(hosts) }
    }

    /// What a parameter host is told.
    pub fn for_host(&self) -> Option<HostJob> {
        let dynamic = self.params.dynamic.as_ref()?;
        let workers = self.seats.iter().enumerate().map(|(rank, seat)| {
            let (rack, bit) = self.place(rank);
            Place { address: socket(seat.node), rack, bit }
        });
        let upstream = match self.tree.root {
            Some(root) => vec![socket(root)],
            None => self.tree.racks.iter().map(|rack| socket(*rack)).collect(),
        };
        Some(HostJob {
            job: self.params.job,
            epoch: self.params.epoch,
            token: self.params.token,
            elements: self.params.elements,
            window: dynamic.window,
            slots: dynamic.slots,
            linear: self.tuning.linear_placement,
            lanes: self.lanes,
            shards: self.params.shards,
            checksum: false,
            workers: workers.collect(),
            upstream,
        })
    }

    /// All its aggregators.
    pub fn aggregators(&self) -> impl Iterator<Item = NodeId> {
        self.tree.racks.iter().copied().chain(self.tree.root)
    }

    /// Has its aggregators and parameter hosts know it.
    ///
    /// # Errors
    /// When one of them refuses, or is not there.
    pub fn install(&self, world: &mut World) -> Result<(), SetupError> {
        self.aggregators().try_for_each(|node| self.install_at(world, node))?;
        let Some(job) = self.for_host() else { return Ok(()) };
        for node in &self.hosts {
            let parameter = world.nodes[*node].parameter.as_mut().ok_or(SetupError::Nobody(*node))?;
            parameter.host.install(job.clone())?;
        }
        Ok(())
    }

    /// Makes its workers, each with a trainer. Gives their places among all of the world.
    ///
    /// # Errors
    /// When the engines refuse.
    pub fn start(
        &self,
        world: &mut World,
        mut trainer: impl FnMut(usize) -> Box<dyn Trainer>,
    ) -> Result<Vec<usize>, SetupError> {
        self.install(world)?;
        let mut ids = Vec::new();
        for rank in 0..self.seats.len() {
            let engine =
                |lane| Engine::starting_at(self.params_of(rank, lane), &self.peers(rank), &self.tuning, 0);
            let engines = (0..self.lanes).map(engine).collect::<Result<Vec<Engine>, ParamError>>()?;
            ids.push(world.add_worker(self.worker(rank, engines, trainer(rank))));
        }
        Ok(ids)
    }

    /// Lets the parameter hosts go on under this job's incarnation, where it has another one than before. Gives each lane's first
    /// chunk that is not summed.
    ///
    /// # Errors
    /// When one of them refuses, or is not there.
    pub fn renew(&self, world: &mut World) -> Result<Vec<u32>, SetupError> {
        let Some(HostJob { job, epoch, workers, .. }) = self.for_host() else { return Ok(Vec::new()) };
        let mut resume = vec![0; usize::from(self.lanes)];
        for (number, node) in self.hosts.iter().enumerate() {
            let parameter = world.nodes[*node].parameter.as_mut().ok_or(SetupError::Nobody(*node))?;
            let next = parameter.host.renew(job, epoch, workers.clone())?;
            // Each has the shards that are its.
            let is_its = |lane: usize| lane % usize::from(self.params.shards) % self.hosts.len() == number;
            (0..resume.len()).filter(|lane| is_its(*lane)).for_each(|lane| resume[lane] = next[lane]);
        }
        Ok(resume)
    }

    /// Has one of its aggregators know it, as it is now.
    ///
    /// # Errors
    /// When that refuses, or is not there.
    pub fn install_at(&self, world: &mut World, node: NodeId) -> Result<(), SetupError> {
        let aggregator = world.nodes[node].aggregator.as_mut().ok_or(SetupError::Nobody(node))?;
        Ok(aggregator.install(self.params.job, &self.at(node))?)
    }

    /// Makes a worker that takes the place of one that died; its streams begin with these chunks.
    ///
    /// # Errors
    /// When the engines refuse.
    pub fn replace(
        &self,
        world: &mut World,
        rank: usize,
        resume: &[u32],
        trainer: Box<dyn Trainer>,
    ) -> Result<usize, SetupError> {
        let engine = |(lane, resume): (u16, &u32)| {
            Engine::taking_over(self.params_of(rank, lane), &self.peers(rank), &self.tuning, *resume)
        };
        let engines = (0..self.lanes).zip(resume).map(engine).collect::<Result<Vec<Engine>, ParamError>>()?;
        Ok(world.add_worker(self.worker(rank, engines, trainer)))
    }

    /// The peers of a worker. One that has no aggregator above it, where others have, sends to a parameter host in its place.
    fn peers(&self, rank: usize) -> PeerTable {
        let above = self.seats[rank].rack.map(|rack| self.tree.racks[rack]).or(self.tree.root);
        let aggregator = above.or(self.hosts.first().copied());
        PeerTable::of(aggregator.map(socket), self.hosts.iter().map(|host| socket(*host)))
    }

    fn worker(&self, rank: usize, engines: Vec<Engine>, trainer: Box<dyn Trainer>) -> Worker {
        let node = self.seats[rank].node;
        let lanes = match self.params.dynamic {
            Some(_) => LaneField::Lane,
            None => LaneField::Slot(self.params.slots),
        };
        Worker {
            job: self.params.job,
            node,
            engines,
            lanes,
            socket: socket(node),
            peers: self.peers(rank),
            ring: self.ring,
            pause: None,
            is_dead: false,
            lost_its_way: 0,
            taken: 0,
            ended: (0..self.lanes).map(|_| CompletionQueue::default()).collect(),
            trainer,
            timer: None,
            waits: false,
        }
    }
}
