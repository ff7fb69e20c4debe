//! A leaf-spine fabric between the workers and the aggregator.
//!
//! ```text
//!                        +- spine, 10 us -+
//!   3 workers --- leaf --+                +-- aggregator -- parameter host
//!                        +- spine --------+
//! ```
//!
//! Every packet takes one of the two spines (ECMP), and so does every result.

use sumac_sim::{
    address::NodeId,
    aggregator::{Aggregator, Capacity},
    events::{MICRO, Nanos, SECOND},
    job::Job,
    link::{Faults, LinkSpec},
    network::LinkId,
    packet::Framing,
    parameter::Parameter,
    trainer::Recorder,
    world::World,
};
use sumac_transport::{DynamicParams, EngineStats, JobParams, Scale};

use crate::{bytes, sum, value};

pub const WORKERS: u16 = 3;
/// Chunks of a tensor.
pub const CHUNKS: u64 = 125;
/// Slots enough that few positions share one.
const SLOTS: u32 = 1 << 15;
const CABLE: LinkSpec = LinkSpec::new(10_000_000_000, 5 * MICRO);

pub struct Fabric {
    pub world: World,
    workers: Vec<usize>,
    recorders: Vec<Recorder>,
    /// The cables from the leaf to the spines.
    pub up: [LinkId; 2],
    tensors: u32,
}

impl Fabric {
    /// `far`: the delay of the second spine's cables. `faults`: of both spines.
    pub fn new(params: &JobParams, far: Nanos, faults: Faults, seed: u64) -> Fabric {
        let mut world = World::new(Framing { stretch: 1 }, seed);
        let (leaf, center) = (world.add_node(), world.add_node());
        let up = [10 * MICRO, far].map(|delay| {
            let spine = world.add_node();
            let link = LinkSpec { faults, ..LinkSpec::new(10_000_000_000, delay) };
            world.network.connect(spine, center, link, link);
            world.network.connect(leaf, spine, link, link)
        });
        let mut add_host = |at| {
            let node = world.add_node();
            world.network.connect(node, at, CABLE, CABLE);
            node
        };
        let host = add_host(center);
        let nodes: Vec<NodeId> = (0..WORKERS).map(|_| add_host(leaf)).collect();
        world.nodes[host].parameter = Some(Parameter::new(u64::MAX));
        let elements = params.elements;
        let capacity =
            Capacity { shards: 1, slots: 64, dynamic_slots: SLOTS, elements, slot_timeout: SECOND };
        world.nodes[center].aggregator = Some(Aggregator::new(capacity).expect("memory"));
        let hosts = if params.dynamic.is_some() { vec![host] } else { Vec::new() };
        let job = Job { hosts, ..Job::below(Some(center), params.clone(), &nodes) };
        let recorders: Vec<Recorder> = nodes.iter().map(|_| Recorder::default()).collect();
        let start = job.start(&mut world, |rank| Box::new(recorders[rank].clone()));
        Fabric { world, workers: start.expect("a good job"), recorders, up, tensors: 0 }
    }

    /// Sums so many tensors, and checks the sums.
    pub fn sum(&mut self, tensors: u32) {
        for tensor in self.tensors..self.tensors + tensors {
            for (rank, id) in self.workers.clone().into_iter().enumerate() {
                self.world.submit(id, 0, sum(rank, tensor));
            }
        }
        self.tensors += tensors;
        let (recorders, count) = (self.recorders.clone(), self.tensors as usize);
        let is_done = || recorders.iter().all(|recorder| recorder.completions.borrow().len() == count);
        let end = self.world.now() + 20 * SECOND;
        self.world.run_until(end, |_| is_done());
        assert!(is_done(), "stuck: {:?}", self.stats());
        let sum_of = |at: usize| (0..usize::from(WORKERS)).map(|rank| value(rank, at)).sum::<f32>();
        let expected = bytes(&(0..1000).map(sum_of).collect::<Vec<f32>>());
        for recorder in &self.recorders {
            for completion in recorder.completions.borrow().iter() {
                assert_eq!((&completion.result, completion.buffer.input(0, 4000)), (&Ok(()), &expected[..]));
            }
        }
    }

    /// The statistics of all workers together.
    pub fn stats(&self) -> EngineStats {
        let mut total = EngineStats::default();
        self.workers.iter().for_each(|id| total.merge(&self.world.workers[*id].stats()));
        total
    }

    /// Packets that went up to each spine, also those that were lost there.
    pub fn sent_up(&self) -> [u64; 2] {
        self.up.map(|link| self.world.network.link(link).counters.frames)
    }
}

/// A dynamic job with a window of 64 chunks, and a static one with as many slots.
pub fn jobs() -> [JobParams; 2] {
    let job = |slots| JobParams { scaling: Scale::Fixed(1e6), ..JobParams::new(3, WORKERS, slots, 8) };
    [JobParams { dynamic: Some(DynamicParams::new(SLOTS).with_window(64)), ..job(1) }, job(64)]
}
