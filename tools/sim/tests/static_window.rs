//! Static jobs with congestion control, on simulated networks: workers with different windows complete every
//! chunk, windows follow the same marks, and TCP beside a job has a share.
#![allow(clippy::expect_used, reason = "a test that cannot go on")]

use std::{cell::RefCell, rc::Rc};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_sim::{
    aggregator::{Aggregator, Capacity},
    events::{MICRO, MILLI, Nanos, SECOND},
    job::Job,
    link::{Faults, LinkSpec},
    packet::Framing,
    tcp::FlowSpec,
    trainer::{Recorder, StepPlan, Steps, TrainerLog},
    world::World,
};
use sumac_transport::{Arithmetic, DType, EngineStats, JobParams, Operation, Scale, Tuning};

/// A job below one aggregator, with a window of its own for each worker.
struct Plan {
    params: JobParams,
    stealing: bool,
    cable: LinkSpec,
    windows: Vec<u32>,
    /// Elements of each sum, and the time at which each worker submits it.
    sums: Vec<(usize, Vec<Nanos>)>,
}

/// Values whose sums have no rounding, that differ by worker and place.
fn values(rank: usize, sum: usize, count: usize) -> impl Iterator<Item = i32> {
    (0..count).map(move |at| ((at * 7 + rank * 31 + sum * 13) % 1009) as i32 - 500)
}

fn submit(world: &mut World, id: usize, rank: usize, sum: usize, count: usize) {
    let bytes: Vec<u8> = values(rank, sum, count).flat_map(|value| (value as f32).to_ne_bytes()).collect();
    let buffer = Box::new(bytes);
    world.submit(id, 0, Operation::allreduce(sum as u32, DType::Float32, Arithmetic::Sum, count, buffer));
}

/// Runs a plan to its end; returns each worker's statistics.
fn run(seed: u64, plan: &Plan) -> Vec<EngineStats> {
    let Plan { params, cable, .. } = plan;
    let mut world = World::new(Framing { stretch: 1 }, seed);
    let center = world.add_node();
    let (slots, elements) = (params.slots, params.elements);
    let capacity = Capacity { shards: 1, slots, dynamic_slots: 1, elements, slot_timeout: SECOND };
    world.nodes[center].aggregator = Some(Aggregator::new(capacity).expect("memory"));
    let attach = |_: &u32| {
        let node = world.add_node();
        world.network.connect(node, center, *cable, *cable);
        node
    };
    let nodes: Vec<usize> = plan.windows.iter().map(attach).collect();
    let job = Job { stealing: plan.stealing, ..Job::below(Some(center), params.clone(), &nodes) };
    let recorders: Vec<Recorder> = nodes.iter().map(|_| Recorder::default()).collect();
    let ids = job.start(&mut world, |rank| Box::new(recorders[rank].clone())).expect("a good job");
    for (rank, (id, window)) in ids.iter().zip(&plan.windows).enumerate() {
        let tuning = Tuning { initial_window: Some(*window), ..job.tuning.clone() };
        let engines = Job { tuning, ..job.clone() }.engines(rank).expect("good parameters");
        world.restart_worker(*id, engines, Box::new(recorders[rank].clone()));
    }
    for (rank, id) in ids.iter().copied().enumerate() {
        let mut last = 0;
        for (sum, (count, times)) in plan.sums.iter().enumerate() {
            let count = *count;
            // In the same order on all workers.
            last = last.max(times[rank]);
            world.at(last, move |world| submit(world, id, rank, sum, count));
        }
    }
    let all = plan.sums.len();
    let is_done = |_: &World| recorders.iter().all(|recorder| recorder.completions.borrow().len() == all);
    // With a window of one and a fifth of all packets lost, a chunk takes a timeout.
    world.run_until(600 * SECOND, is_done);
    for (rank, recorder) in recorders.iter().enumerate() {
        let completions = recorder.completions.borrow();
        assert_eq!(
            completions.len(),
            all,
            "seed {seed}, rank {rank}: {:?}",
            world.workers[ids[rank]].stats()
        );
        for (completion, (sum, (count, _))) in completions.iter().zip(plan.sums.iter().enumerate()) {
            assert_eq!(completion.result, Ok(()), "seed {seed}, rank {rank}, sum {sum}");
            let columns: Vec<Vec<i32>> =
                (0..nodes.len()).map(|rank| values(rank, sum, *count).collect()).collect();
            let total = |at: usize| columns.iter().map(|column| column[at]).sum::<i32>() as f32;
            let expected: Vec<u8> = (0..*count).flat_map(|at| total(at).to_ne_bytes()).collect();
            assert!(completion.buffer.input(0, count * 4) == expected, "seed {seed}, rank {rank}, sum {sum}");
        }
    }
    ids.iter().map(|id| world.workers[*id].stats()).collect()
}

fn params(world: u16, slots: u32) -> JobParams {
    let scaling = Scale::Fixed(64.0);
    JobParams { scaling, congestion_control: true, ..JobParams::new(3, world, slots, 16) }
}

/// A cable of 1 Gbit/s, which marks beyond 16 chunks and drops beyond 64.
fn cable(faults: Faults) -> LinkSpec {
    let frame = Framing { stretch: 1 }.chunk_len(16);
    let usual = LinkSpec::new(1_000_000_000, 20 * MICRO);
    LinkSpec { queue: 64 * frame, mark: Some(16 * frame), faults, ..usual }
}

fn draw(seed: u64) -> Plan {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let world = rng.random_range(2..=6);
    let slots = 1 << rng.random_range(0..=7);
    let chance = |rng: &mut ChaCha8Rng, most: f64| {
        if rng.random_bool(0.3) { 0.0 } else { most * rng.random::<f64>().powi(2) }
    };
    let faults = Faults {
        loss: chance(rng, 0.2),
        duplication: chance(rng, 0.2),
        reordering: chance(rng, 0.3),
        held_back: rng.random_range(MICRO..2 * MILLI),
    };
    let late = rng.random_bool(0.4);
    let sum = |rng: &mut ChaCha8Rng| {
        let time = |rng: &mut ChaCha8Rng| if late { rng.random_range(0..10 * MILLI) } else { 0 };
        (rng.random_range(1..=16 * 200), (0..world).map(|_| time(rng)).collect())
    };
    let sums = (0..3).map(|_| sum(rng)).collect();
    let scaling = if rng.random_bool(0.5) { Scale::Block } else { Scale::Fixed(64.0) };
    Plan {
        params: JobParams { scaling, ..params(world, slots) },
        stealing: rng.random_bool(0.7),
        cable: cable(faults),
        windows: (0..world).map(|_| rng.random_range(1..=slots)).collect(),
        sums,
    }
}

/// Whatever the windows are: the first chunk without a result may be sent on every worker, so none waits for
/// ever.
#[test]
fn workers_with_different_windows_complete_every_chunk() {
    let (mut resent, mut halvings, mut marked, mut differ) = (0, 0, 0, 0);
    for seed in 0..400 {
        let plan = draw(seed);
        let stats = run(seed, &plan);
        resent += stats.iter().map(|stats| stats.resent).sum::<u64>();
        halvings += stats.iter().map(|stats| stats.halvings).sum::<u64>();
        marked += stats.iter().map(|stats| stats.marked).sum::<u64>();
        differ += u64::from(plan.windows.iter().any(|window| *window != plan.windows[0]));
    }
    println!(
        "{resent} chunks sent again, {marked} marked results, {halvings} halvings, {differ} with different \
        windows"
    );
    assert!(resent > 10_000 && halvings > 1_000 && marked > 1_000 && differ > 300);
}

/// Without loss nothing is asked about: a worker that holds back what others have sent already delays them,
/// and that is all.
#[test]
fn a_worker_with_a_window_of_one_delays_the_others_and_blocks_none() {
    let plan = |windows: Vec<u32>| Plan {
        params: params(windows.len() as u16, 64),
        stealing: true,
        cable: LinkSpec::new(1_000_000_000, 20 * MICRO),
        sums: vec![(16 * 1000, vec![0; windows.len()])],
        windows,
    };
    for windows in [vec![1, 64, 64], vec![64, 1, 7], vec![1, 1, 1]] {
        for stats in run(1, &plan(windows.clone())) {
            let never = (stats.questions, stats.resent, stats.halvings, stats.frames.dropped());
            assert_eq!((stats.results, never), (1000, (0, 0, 0, 0)), "{windows:?}");
        }
    }
}

/// Results carry each mark and each loss to all workers: their windows are halved by the same results.
#[test]
fn windows_stay_alike_under_marks_and_losses() {
    for (name, loss) in [("marks", 0.0), ("loss", 0.002)] {
        let mut all = (0, 0);
        for seed in 0..10 {
            let plan = Plan {
                params: params(4, 256),
                stealing: true,
                cable: cable(Faults { loss, ..Faults::default() }),
                windows: vec![32; 4],
                sums: vec![(16 * 20_000, vec![0; 4])],
            };
            let halvings: Vec<u64> = run(seed, &plan).iter().map(|stats| stats.halvings).collect();
            let (least, most) = (halvings.iter().min().copied(), halvings.iter().max().copied());
            let (least, most) = (least.expect("workers"), most.expect("workers"));
            // The last result that a worker lacks may carry one more; after a loss recovery ends at different
            // chunks.
            assert!(least >= 10 && most <= least + least / 8 + 1, "{name}, seed {seed}: {halvings:?}");
            all = (all.0 + least, all.1 + most);
        }
        println!("{name}: {} to {} halvings", all.0, all.1);
    }
}

/// Bytes that a static job of two workers and a TCP-like flow from the first to the second got through the
/// same cables, in the second of two seconds.
fn beside_flow(congestion_control: bool, mark: Option<u64>, is_capable: bool) -> [u64; 2] {
    // 1,408 bytes of data in each chunk on the cables.
    let framing = Framing { stretch: 22 };
    let frame = framing.chunk_len(16);
    let mut world = World::new(framing, 7);
    let center = world.add_node();
    let capacity = Capacity { shards: 1, slots: 256, dynamic_slots: 1, elements: 16, slot_timeout: SECOND };
    world.nodes[center].aggregator = Some(Aggregator::new(capacity).expect("memory"));
    let narrow = LinkSpec {
        queue: 170 * frame,
        mark: mark.map(|chunks| chunks * frame),
        ..LinkSpec::new(1_000_000_000, 50 * MICRO)
    };
    let wide = LinkSpec::new(10_000_000_000, MICRO);
    // Hosts behind the same cable: the job's workers and the ends of the flow.
    let mut host = || {
        let edge = world.add_node();
        world.network.connect(edge, center, narrow, narrow);
        let ends = [world.add_node(), world.add_node()];
        ends.iter().for_each(|end| {
            world.network.connect(*end, edge, wide, wide);
        });
        ends
    };
    let [[first, source], [second, sink]] = [host(), host()];
    let params = JobParams { congestion_control, ..params(2, 256) };
    let job = Job::below(Some(center), params, &[first, second]);
    let job = Job { tuning: Tuning { initial_window: Some(40), ..job.tuning.clone() }, ..job };
    let plan = StepPlan {
        lanes: 1,
        tensors: 1,
        elements: 16 * 2_000_000,
        chunk: 64,
        pause: 0,
        from: 0,
        until: SECOND,
    };
    let logs: Vec<_> = (0..2).map(|_| Rc::new(RefCell::new(TrainerLog::default()))).collect();
    let start = job.start(&mut world, |rank| Box::new(Steps::new(plan.clone(), logs[rank].clone())));
    let ids = start.expect("a good job");
    let flow = world.add_flow(source, sink, FlowSpec::greedy(is_capable), 0);
    let had = |world: &World| [world.workers[ids[0]].stats().results * frame, world.flows[flow].delivered()];
    world.run(SECOND);
    let before = had(&world);
    world.run(2 * SECOND);
    let after = had(&world);
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn tcp_has_a_share_beside_a_job_that_yields_and_none_beside_one_that_does_not() {
    let [job, flow] = beside_flow(true, Some(43), true);
    println!("marks: job {job}, flow {flow}");
    assert!(job * 4 > flow && flow * 4 > job, "{job} and {flow} bytes");
    let full = 1_000_000_000 / 8;
    assert!(job + flow > full * 85 / 100, "{job} and {flow} bytes");
    let [job, flow] = beside_flow(true, None, false);
    println!("a queue that drops: job {job}, flow {flow}");
    assert!(job * 12 > flow && flow * 12 > job, "{job} and {flow} bytes");
    let [job, flow] = beside_flow(false, Some(43), true);
    println!("without congestion control: job {job}, flow {flow}");
    assert!(flow * 20 < job, "as in the paper: {job} and {flow} bytes");
}
