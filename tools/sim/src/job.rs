//! A job as the control plane sets it up: its workers, the aggregators above them, and its parameter hosts.

use sumac_agg_job::{JobError, NewJob};
use sumac_parameter::{HostError, HostJob, Worker as HostWorker};
use sumac_transport::{
    CompletionQueue, Engine, JobParams, LaneField, ParamError, Peer, PeerRole, PeerTable, Tuning,
};
use sumac_wire::{
    Header, Kind, MAX_WORKERS, admit,
    tables::{JobEntry, job_flag},
};
use thiserror::Error;

use crate::{
    address::{NodeId, socket},
    packet::{Body, Packet, ecn},
    trainer::Trainer,
    worker::Worker,
    world::World,
};

/// Node and rack of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub node: NodeId,
    /// Index in [`Topology::racks`]; `None`: right below the root, or there is no aggregator.
    pub rack: Option<usize>,
}

/// The aggregators of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The aggregator above all workers, or above the racks; `None`: racks send to the parameter hosts.
    pub root: Option<NodeId>,
    /// The aggregators of racks.
    pub racks: Vec<NodeId>,
}

#[derive(Clone, Debug)]
pub struct Job {
    /// Parameters that all workers share; ranks and lanes are filled in.
    pub params: JobParams,
    pub tuning: Tuning,
    pub lanes: u16,
    /// The workers by rank.
    pub workers: Vec<Attachment>,
    pub topology: Topology,
    /// Its parameter hosts.
    pub hosts: Vec<NodeId>,
    /// The first slot of a static job in each shard's pool.
    pub first_slot: u32,
    /// Whether slots of a static job take the next chunk of the lane, not their own next chunk as in
    /// SwitchML.
    pub stealing: bool,
    /// The first chunk of each lane.
    pub first_chunk: u32,
    /// Bytes that may wait for each worker's cable.
    pub ring: u64,
}

/// Errors of a job's set-up and run.
#[derive(Debug, Error)]
pub enum SetupError {
    #[error("the job's engines: {0}")]
    Params(#[from] ParamError),
    #[error("an aggregator: {0}")]
    Aggregator(#[from] JobError),
    #[error("a parameter host: {0}")]
    Host(#[from] HostError),
    #[error("an operation failed: {0}")]
    Operation(String),
    #[error("node {0} has no aggregator or parameter host, but the job names it")]
    Missing(NodeId),
}

impl Job {
    /// A job of one lane whose workers at these nodes are all right below `root`.
    pub fn below(root: Option<NodeId>, params: JobParams, nodes: &[NodeId]) -> Job {
        Job {
            params,
            tuning: Tuning::default(),
            lanes: 1,
            workers: nodes.iter().map(|node| Attachment { node: *node, rack: None }).collect(),
            topology: Topology { root, racks: Vec::new() },
            hosts: Vec::new(),
            first_slot: 0,
            stealing: true,
            first_chunk: 0,
            ring: u64::MAX,
        }
    }

    /// A contribution of rank 0 to a chunk, from its node to an aggregator's.
    pub fn contribution(&self, seq: u32, slot: u32, to: NodeId) -> Packet {
        let params = &self.params;
        let header = Header {
            kind: Kind::Contribution as u8,
            job: params.job,
            epoch: params.epoch,
            token: params.token,
            seq,
            slot,
            fan_in_0: params.world as u8,
            bitmap_0: 1,
            elements: params.elements,
            ..Header::default()
        };
        let mut payload = header.to_bytes().to_vec();
        payload.resize(admit::payload_len(params.elements), 1);
        let (source, destination) = (socket(self.workers[0].node), socket(to));
        Packet { source, destination, path: 0, class: 0, ecn: ecn::CAPABLE, body: Body::Sumac(payload) }
    }

    /// Senders below the root: racks first, then the workers beside them.
    fn below_root(&self) -> usize {
        self.topology.racks.len() + self.beside().count()
    }

    /// Ranks of the workers right below the root, of a job that has racks.
    fn beside(&self) -> impl Iterator<Item = usize> {
        let has_racks = !self.topology.racks.is_empty();
        (0..self.workers.len()).filter(move |rank| has_racks && self.workers[*rank].rack.is_none())
    }

    /// Ranks of a rack's workers.
    fn of_rack(&self, rack: usize) -> impl Iterator<Item = usize> {
        (0..self.workers.len()).filter(move |rank| self.workers[*rank].rack == Some(rack))
    }

    /// A worker's bit positions: its rack's at the second level, its own at the first.
    fn bits(&self, rank: usize) -> (u8, u8) {
        if self.topology.racks.is_empty() {
            return (0, rank as u8);
        }
        match self.workers[rank].rack {
            Some(rack) => {
                let bit = self.of_rack(rack).take_while(|other| *other != rank).count();
                (rack as u8, bit as u8)
            }
            None => {
                let before = self.beside().take_while(|other| *other != rank).count();
                ((self.topology.racks.len() + before) as u8, 0)
            }
        }
    }

    /// The parameters of one engine.
    fn params_of(&self, rank: usize, lane: u16) -> JobParams {
        let world = self.workers.len();
        let (rack, bit) = self.bits(rank);
        let (rack_world, beside_root) = match self.workers[rank].rack {
            _ if self.params.direct.is_some() => (1, false),
            _ if self.topology.racks.is_empty() => (world, false),
            Some(rack) => (self.of_rack(rack).count(), false),
            None => (1, true),
        };
        let mut params = JobParams {
            rank: rank as u16,
            world: world as u16,
            rack_rank: if self.params.direct.is_some() { 0 } else { u16::from(bit) },
            rack_world: rack_world as u16,
            lane,
            ..self.params.clone()
        };
        if let Some(dynamic) = params.dynamic.as_mut().filter(|_| !self.topology.racks.is_empty()) {
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
            contributors: self.workers.len() as u16,
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

    /// The job as the aggregator at `node` knows it.
    fn aggregator_job(&self, node: NodeId) -> NewJob {
        let (job, entry) = (self.params.job, self.entry());
        let hosts = || self.hosts.iter().map(|host| socket(*host)).collect::<Vec<_>>();
        let node_of = |rank: usize| socket(self.workers[rank].node);
        let racks = &self.topology.racks;
        if let Some(rack) = racks.iter().position(|rack| *rack == node) {
            let entry = JobEntry {
                rack: rack as u16,
                racks: self.below_root() as u16,
                flags: entry.flags | job_flag::CHILD,
                ..entry
            };
            let parents = self.topology.root.map_or_else(hosts, |root| vec![socket(root)]);
            let below = NewJob::at(job, entry, self.of_rack(rack).map(node_of), parents);
            return with_ranks(below, self.of_rack(rack).map(|rank| vec![rank]), self.workers.len());
        }
        let parents = if self.params.dynamic.is_some() { hosts() } else { Vec::new() };
        if racks.is_empty() {
            return NewJob::at(job, entry, (0..self.workers.len()).map(node_of), parents);
        }
        let entry = JobEntry { flags: entry.flags | job_flag::ROOT, ..entry };
        let below = racks.iter().map(|rack| socket(*rack)).chain(self.beside().map(node_of));
        let ranks = (0..racks.len()).map(|rack| self.of_rack(rack).collect());
        let ranks = ranks.chain(self.beside().map(|rank| vec![rank]));
        with_ranks(NewJob::at(job, entry, below, parents), ranks, self.workers.len())
    }

    /// The job as its parameter hosts know it; `None` for static jobs.
    pub fn host_job(&self) -> Option<HostJob> {
        let dynamic = self.params.dynamic.as_ref()?;
        let workers = self.workers.iter().enumerate().map(|(rank, worker)| {
            let (rack, bit) = self.bits(rank);
            HostWorker { address: socket(worker.node), rack, bit }
        });
        let upstream = match self.topology.root {
            Some(root) => vec![socket(root)],
            None => self.topology.racks.iter().map(|rack| socket(*rack)).collect(),
        };
        Some(HostJob {
            job: self.params.job,
            epoch: self.params.epoch,
            token: self.params.token,
            elements: self.params.elements,
            window: dynamic.window,
            slots: dynamic.slots,
            lanes: self.lanes,
            shards: self.params.shards,
            checksum: false,
            congestion_control: dynamic.congestion,
            workers: workers.collect(),
            upstream,
        })
    }

    pub fn aggregators(&self) -> impl Iterator<Item = NodeId> {
        self.topology.racks.iter().copied().chain(self.topology.root)
    }

    /// Installs the job at its aggregators and parameter hosts.
    pub fn install(&self, world: &mut World) -> Result<(), SetupError> {
        self.aggregators().try_for_each(|node| self.install_at(world, node))?;
        let Some(job) = self.host_job() else { return Ok(()) };
        for node in &self.hosts {
            let parameter = world.nodes[*node].parameter.as_mut().ok_or(SetupError::Missing(*node))?;
            parameter.host.install(job.clone())?;
            if self.tuning.linear_placement {
                parameter.host.place_linearly(job.job);
            }
        }
        Ok(())
    }

    /// Installs the job and adds its workers, each with a trainer. Returns their indices in the world.
    pub fn start(
        &self,
        world: &mut World,
        mut trainer: impl FnMut(usize) -> Box<dyn Trainer>,
    ) -> Result<Vec<usize>, SetupError> {
        self.install(world)?;
        let start = |rank| {
            let worker = self.worker(rank, self.engines(rank)?, trainer(rank));
            Ok(world.add_worker(worker))
        };
        (0..self.workers.len()).map(start).collect()
    }

    /// New engines of a worker.
    pub fn engines(&self, rank: usize) -> Result<Vec<Engine>, ParamError> {
        let peers = self.peers(rank);
        let engine =
            |lane| Engine::starting_at(self.params_of(rank, lane), &peers, &self.tuning, self.first_chunk);
        (0..self.lanes).map(engine).collect()
    }

    /// Lets the parameter hosts continue under this job's epoch, which has changed. Returns each lane's first
    /// chunk that is not summed.
    pub fn renew_hosts(&self, world: &mut World) -> Result<Vec<u32>, SetupError> {
        let Some(HostJob { job, epoch, workers, .. }) = self.host_job() else { return Ok(Vec::new()) };
        let mut resume = vec![0; usize::from(self.lanes)];
        for (number, node) in self.hosts.iter().enumerate() {
            let parameter = world.nodes[*node].parameter.as_mut().ok_or(SetupError::Missing(*node))?;
            let next = parameter.host.renew(job, epoch, workers.clone())?;
            // Shards are assigned to hosts in turn.
            let is_its = |lane: usize| lane % usize::from(self.params.shards) % self.hosts.len() == number;
            (0..resume.len()).filter(|lane| is_its(*lane)).for_each(|lane| resume[lane] = next[lane]);
        }
        Ok(resume)
    }

    /// Installs the job at one of its aggregators.
    pub fn install_at(&self, world: &mut World, node: NodeId) -> Result<(), SetupError> {
        let aggregator = world.nodes[node].aggregator.as_mut().ok_or(SetupError::Missing(node))?;
        Ok(aggregator.install(&self.aggregator_job(node), self.first_chunk)?)
    }

    /// Adds a worker in place of one that died; its streams begin with chunks `resume`.
    pub fn replace(
        &self,
        world: &mut World,
        rank: usize,
        resume: &[u32],
        trainer: Box<dyn Trainer>,
    ) -> Result<usize, SetupError> {
        let peers = self.peers(rank);
        let engine = |(lane, resume): (u16, &u32)| {
            Engine::taking_over(self.params_of(rank, lane), &peers, &self.tuning, *resume)
        };
        let engines = (0..self.lanes).zip(resume).map(engine).collect::<Result<Vec<Engine>, ParamError>>()?;
        Ok(world.add_worker(self.worker(rank, engines, trainer)))
    }

    /// The peers of a worker: in a direct job all workers. Without an aggregator above it, a parameter host
    /// takes its place.
    fn peers(&self, rank: usize) -> PeerTable {
        if self.params.direct.is_some() {
            let peer = |worker: &Attachment| Peer { role: PeerRole::Worker, address: socket(worker.node) };
            return PeerTable::new(self.workers.iter().map(peer));
        }
        let above = self.workers[rank].rack.map(|rack| self.topology.racks[rack]).or(self.topology.root);
        let aggregator = above.or(self.hosts.first().copied());
        PeerTable::of(aggregator.map(socket), self.hosts.iter().map(|host| socket(*host)))
    }

    fn worker(&self, rank: usize, engines: Vec<Engine>, trainer: Box<dyn Trainer>) -> Worker {
        let node = self.workers[rank].node;
        let has_slots = self.params.dynamic.is_none() && self.params.direct.is_none();
        let lanes = if has_slots { LaneField::Slot(self.params.slots) } else { LaneField::Lane };
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
            in_order: self.params.direct.is_none(),
            undeliverable: 0,
            received: 0,
            completed: (0..self.lanes).map(|_| CompletionQueue::default()).collect(),
            trainer,
            timer: None,
            ring_is_full: false,
        }
    }
}

/// The job with the ranks below each of its workers, where there are as many bits.
fn with_ranks(mut job: NewJob, ranks: impl Iterator<Item = Vec<usize>>, world: usize) -> NewJob {
    if world <= MAX_WORKERS {
        for (worker, ranks) in job.workers.iter_mut().zip(ranks) {
            worker.ranks = ranks.iter().fold(0, |bits, rank| bits | 1 << rank);
        }
    }
    job
}
