//! Packets that overtake each other without being lost, in both modes.
//!
//! ```text
//!                        +- spine, 10 us -+
//!   3 workers --- leaf --+                +-- aggregator -- parameter host
//!                        +- spine, 10 us +
//!                             or far more
//! ```
//!
//! Every packet takes one of the two spines (ECMP), and so does every result.

use sumac_sim::{
    address::NodeId,
    aggregator::{Aggregator, Capacity},
    events::{MICRO, Nanos, SECOND},
    job::Job,
    link::{Faults, LinkSpec},
    packet::Framing,
    parameter::Parameter,
    trainer::Recorder,
    world::World,
};
use sumac_transport::{DynamicParams, EngineStats, JobParams, Scale};

use crate::{bytes, sum, value};

const WORKERS: u16 = 3;
const TENSORS: u32 = 40;
/// Chunks of all tensors.
const CHUNKS: u64 = TENSORS as u64 * 125;
/// Slots enough that few positions share one.
const SLOTS: u32 = 1 << 15;
const CABLE: LinkSpec = LinkSpec::new(10_000_000_000, 5 * MICRO);

struct Fabric {
    /// The delay of the second spine's cables.
    far: Nanos,
    /// Faults of both spines.
    faults: Faults,
    seed: u64,
}

/// Sums the tensors over the fabric; returns the statistics of all workers together.
fn run(params: &JobParams, fabric: &Fabric) -> EngineStats {
    let mut world = World::new(Framing { stretch: 1 }, fabric.seed);
    let (leaf, center) = (world.add_node(), world.add_node());
    for delay in [10 * MICRO, fabric.far] {
        let spine = world.add_node();
        let link = LinkSpec { faults: fabric.faults, ..LinkSpec::new(10_000_000_000, delay) };
        world.network.connect(leaf, spine, link, link);
        world.network.connect(spine, center, link, link);
    }
    let mut add_host = |at| {
        let node = world.add_node();
        world.network.connect(node, at, CABLE, CABLE);
        node
    };
    let host = add_host(center);
    let nodes: Vec<NodeId> = (0..WORKERS).map(|_| add_host(leaf)).collect();
    world.nodes[host].parameter = Some(Parameter::new(u64::MAX));
    let elements = params.elements;
    let capacity = Capacity { shards: 1, slots: 64, dynamic_slots: SLOTS, elements, slot_timeout: SECOND };
    world.nodes[center].aggregator = Some(Aggregator::new(capacity).expect("memory"));
    let hosts = if params.dynamic.is_some() { vec![host] } else { Vec::new() };
    let job = Job { hosts, ..Job::below(Some(center), params.clone(), &nodes) };
    let recorders: Vec<Recorder> = nodes.iter().map(|_| Recorder::default()).collect();
    let workers = job.start(&mut world, |rank| Box::new(recorders[rank].clone())).expect("a good job");
    for tensor in 0..TENSORS {
        workers.iter().enumerate().for_each(|(rank, id)| world.submit(*id, 0, sum(rank, tensor)));
    }
    let is_done = || recorders.iter().all(|recorder| recorder.completions.borrow().len() == TENSORS as usize);
    world.run_until(20 * SECOND, |_| is_done());
    assert!(is_done(), "stuck");
    let sum_of = |at: usize| (0..usize::from(WORKERS)).map(|rank| value(rank, at)).sum::<f32>();
    let expected = bytes(&(0..1000).map(sum_of).collect::<Vec<f32>>());
    for recorder in &recorders {
        for completion in recorder.completions.borrow().iter() {
            assert_eq!((&completion.result, completion.buffer.input(0, 4000)), (&Ok(()), &expected[..]));
        }
    }
    let mut total = EngineStats::default();
    workers.iter().for_each(|id| total.merge(&world.workers[*id].stats()));
    total
}

/// A dynamic job with a window of 64 chunks, and a static one with as many slots.
fn jobs() -> [JobParams; 2] {
    let job = |slots| JobParams { scaling: Scale::Fixed(1e6), ..JobParams::new(3, WORKERS, slots, 8) };
    [JobParams { dynamic: Some(DynamicParams::new(SLOTS).with_window(64)), ..job(1) }, job(64)]
}

#[test]
fn overtaking_is_no_loss() {
    // The second spine's delay beside 10 us, and the most by which single packets are held back.
    let table = [(10, 0), (15, 0), (40, 0), (200, 0), (10, 10), (10, 30), (40, 30)];
    for (far, held_back) in table {
        let faults = Faults {
            reordering: f64::from(held_back.min(1)),
            held_back: held_back as Nanos * MICRO,
            ..Faults::default()
        };
        for (params, seed) in jobs().iter().flat_map(|params| (0..4).map(move |seed| (params, seed))) {
            let stats = run(params, &Fabric { far: far * MICRO, faults, seed });
            let case = format!("{far} us, held back {held_back} us, seed {seed}: {stats:?}");
            // A chunk whose first packets met a busy slot waits for a retransmission, as if one had been lost.
            assert!(stats.halvings - stats.halvings_undone <= stats.collisions, "{case}");
            assert!(stats.halvings <= 6, "{case}");
            // One of a hundred, most in the first round trips.
            let sent = stats.resent + stats.questions;
            assert!(sent <= u64::from(WORKERS) * CHUNKS / 100, "{sent} of {CHUNKS}: {case}");
        }
    }
}

#[test]
fn losses_are_found_beside_reordering() {
    let faults = Faults { loss: 0.005, ..Faults::default() };
    for (params, seed) in jobs().iter().flat_map(|params| (0..4).map(move |seed| (params, seed))) {
        let stats = run(params, &Fabric { far: 40 * MICRO, faults, seed });
        let case = format!("seed {seed}: {stats:?}");
        assert!(stats.suspects_fast > 5 * stats.suspects_timer && stats.suspects_fast > 100, "{case}");
        // A chunk crosses two cables with each contribution and each result; all workers miss one that is lost.
        let lost = CHUNKS * 2 * 2 * u64::from(WORKERS) * 5 / 1000;
        let most = lost * u64::from(WORKERS) * 4;
        assert!(stats.resent + stats.questions < most, "{most}: {case}");
    }
}
