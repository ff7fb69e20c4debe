//! Static jobs without faults: packet counts, and workers that disagree.
#![allow(clippy::expect_used, reason = "a test that cannot go on")]

use sumac_sim::{
    aggregator::{Aggregator, Capacity},
    events::{MICRO, MILLI, SECOND},
    job::{Attachment, Job, Topology},
    link::LinkSpec,
    packet::Framing,
    trainer::Recorder,
    world::World,
};
use sumac_transport::{Arithmetic, DType, Engine, JobError, JobParams, JobState, Operation, Scale};

const CABLE: LinkSpec = LinkSpec::new(10_000_000_000, 10 * MICRO);

/// A job of `world` workers with 8 slots, below one aggregator or each in a rack of its own.
fn start(world: u16, elements: u16, scaling: Scale, has_racks: bool) -> (World, Vec<Recorder>) {
    let mut simulated = World::new(Framing { stretch: 1 }, 1);
    let capacity = Capacity { shards: 1, slots: 8, dynamic_slots: 1, elements, slot_timeout: SECOND };
    let mut add_aggregator = |parent: Option<usize>| {
        let node = simulated.add_node();
        parent.into_iter().for_each(|parent| {
            simulated.network.connect(node, parent, CABLE, CABLE);
        });
        simulated.nodes[node].aggregator = Some(Aggregator::new(capacity).expect("memory"));
        node
    };
    let root = add_aggregator(None);
    let racks: Vec<usize> =
        (0..if has_racks { world } else { 0 }).map(|_| add_aggregator(Some(root))).collect();
    let attach = |rank: u16| {
        let rack = has_racks.then_some(usize::from(rank));
        let node = simulated.add_node();
        simulated.network.connect(node, rack.map_or(root, |rack| racks[rack]), CABLE, CABLE);
        Attachment { node, rack }
    };
    let workers = (0..world).map(attach).collect();
    let params = JobParams { scaling, ..JobParams::new(3, world, 8, elements) };
    let topology = Topology { root: Some(root), racks };
    let job = Job { workers, topology, ..Job::below(None, params, &[]) };
    let recorders: Vec<Recorder> = (0..world).map(|_| Recorder::default()).collect();
    job.start(&mut simulated, |rank| Box::new(recorders[rank].clone())).expect("a good job");
    (simulated, recorders)
}

fn sum(signature: u32, values: impl Iterator<Item = f32>) -> Operation {
    let bytes: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
    Operation::allreduce(signature, DType::Float32, Arithmetic::Sum, bytes.len() / 4, Box::new(bytes))
}

fn engine(world: &World, rank: usize) -> &Engine {
    &world.workers[rank].engines[0]
}

//= switchml#4.4 self-clocked stream of chunks
#[test]
fn without_faults_every_chunk_is_sent_once() {
    let (mut world, recorders) = start(3, 16, Scale::Fixed(65536.0), false);
    let lengths = [1000, 1, 0, 16, 129];
    for length in lengths {
        for rank in 0..3 {
            world.submit(rank, 0, sum(5, (0..length).map(|at| (at * (rank + 1)) as f32 / 8.0)));
        }
    }
    world.run(SECOND);
    for (rank, recorder) in recorders.iter().enumerate() {
        let completions = recorder.completions.borrow();
        assert_eq!(completions.len(), lengths.len(), "rank {rank}");
        for (completion, length) in completions.iter().zip(lengths) {
            assert_eq!(completion.result, Ok(()), "rank {rank}, {length} elements");
            let expected: Vec<u8> =
                (0..length).flat_map(|at| ((at * 6) as f32 / 8.0).to_ne_bytes()).collect();
            assert_eq!(completion.buffer.input(0, length * 4), expected, "rank {rank}, {length} elements");
        }
        let (engine, stats) = (engine(&world, rank), engine(&world, rank).stats());
        let chunks: usize = lengths.iter().map(|length| length.div_ceil(16)).sum();
        assert_eq!((stats.chunks_sent, stats.results), (chunks as u64, chunks as u64));
        assert_eq!((stats.questions, stats.frames.dropped(), stats.in_flight), (0, 0, 0));
        assert_eq!(stats.probes_sent, 1);
        assert_eq!(engine.state(), JobState::Ready);
        assert_eq!(engine.poll_timeout(), None, "nothing in flight, no timer");
        assert!(engine.is_idle());
    }
}

/// Two racks of one worker each, with different operations: the root refuses the second rack's part, and its
/// aggregator sends the refusal down. The first rack's worker learns of it from the control plane.
#[test]
fn a_refusal_of_the_root_reaches_the_worker_below() {
    let (mut world, _) = start(2, 4, Scale::Block, true);
    world.submit(0, 0, sum(77, [0.0; 4].into_iter()));
    world.run(MILLI);
    world.submit(1, 0, sum(78, [0.0; 4].into_iter()));
    world.run(2 * MILLI);
    let why = JobError::Mismatch { lane: 0, seq: 0, base: 0, signature: 78, theirs: 77 };
    assert_eq!(engine(&world, 1).state(), JobState::Failed(&why));
    assert_eq!(engine(&world, 0).state(), JobState::Ready);
}
