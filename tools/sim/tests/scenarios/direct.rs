//! Direct jobs (MLT) on a leaf-spine network whose links lose, duplicate and reorder frames, from a seed.
//!
//! ```text
//!   worker 0, 2, 4 -- leaf -- spines 0, 1 -- leaf -- worker 1, 3, 5
//! ```
//!
//! Every run ends with the check that no frame is missing ([`World::conservation`]).

use std::{cell::RefCell, ops::Range, rc::Rc};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_sim::{
    class_queues::Red,
    events::{MICRO, SECOND},
    fabric::{Fabric, FabricSpec},
    job::Job,
    link::{Faults, LinkSpec},
    packet::Framing,
    trainer::Recorder,
    world::World,
};
use sumac_transport::{
    Arithmetic, Completion, DType, DirectParams, Exchange, Importance, JobParams, Operation, Pattern, Tuning,
    WireFormat,
};

const ELEMENTS: u16 = 32;
const GBIT: u64 = 1_000_000_000;

/// A direct job on a leaf-spine network.
struct Lab {
    world: World,
    fabric: Fabric,
    workers: Vec<usize>,
    completions: Vec<Rc<RefCell<Vec<Completion>>>>,
}

impl Lab {
    fn new(workers: usize, port: LinkSpec, paths: u16, seed: u64) -> Lab {
        Lab::with_wire(WireFormat::default(), workers, port, paths, seed)
    }

    fn with_wire(wire: WireFormat, workers: usize, port: LinkSpec, paths: u16, seed: u64) -> Lab {
        let mut world = World::new(Framing { stretch: 1 }, seed);
        let host = LinkSpec { queue: u64::MAX, classes: None, ..port };
        let spec = FabricSpec {
            racks: 2,
            hosts_per_rack: workers.div_ceil(2),
            spines: 2,
            links_per_spine: 1,
            host,
            port,
        };
        let fabric = spec.build(&mut world);
        // Neighbours by rank are in different racks.
        let half = spec.hosts_per_rack;
        let nodes: Vec<_> = (0..workers).map(|rank| fabric.hosts[rank % 2 * half + rank / 2]).collect();
        let direct = Some(DirectParams { line_rate: port.rate, ..DirectParams::new(128) });
        let params = JobParams { token: 7, direct, wire, ..JobParams::new(1, workers as u16, 1, ELEMENTS) };
        let tuning = Tuning { paths, ..Tuning::default() };
        let job = Job { tuning, ring: 16 << 10, ..Job::below(None, params, &nodes) };
        let completions: Vec<Rc<RefCell<Vec<Completion>>>> = nodes.iter().map(|_| Rc::default()).collect();
        let trainer = |rank: usize| Box::new(Recorder { completions: completions[rank].clone() }) as Box<_>;
        let workers = job.start(&mut world, trainer).expect("a job");
        Lab { world, fabric, workers, completions }
    }

    fn submit(&mut self, rank: usize, operation: Operation) {
        self.world.submit(self.workers[rank], 0, operation);
    }

    /// Hands all workers over to other processes, again and again.
    fn hand_over(&mut self, interval: u64) {
        for number in 1..=200 {
            self.world.at(number * interval, |world| {
                world.workers.iter_mut().for_each(|worker| {
                    worker.hand_over();
                });
            });
        }
    }

    /// Runs until all workers have so many completions, and on until no packet is under way.
    fn run(&mut self, count: usize) {
        let all = self.completions.clone();
        self.world.run_until(60 * SECOND, |_| all.iter().all(|ended| ended.borrow().len() >= count));
        let end = self.world.now() + SECOND;
        self.world.run(end);
        assert_eq!(self.world.conservation().under_way, 0);
        assert_eq!(self.world.undeliverable, 0);
    }
}

fn port(rate: u64, faults: Faults) -> LinkSpec {
    LinkSpec { faults, queue: 64 << 10, ..LinkSpec::new(rate, 5 * MICRO) }
}

/// Links that lose frames, duplicate one in a hundred, and hold up one in ten.
fn faults(loss: f64) -> Faults {
    Faults { loss, duplication: 0.01, reordering: 0.1, held_back: 30 * MICRO }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn value(rank: usize, at: usize) -> f32 {
    ((at * 7 + rank * 13) % 101) as f32 / 8.0 - 6.0
}

/// A worker's part in an allreduce of `count` floats whose blocks the first `owners` ranks own.
fn allreduce(rank: usize, world: usize, count: usize, owners: usize, ring: bool) -> Operation {
    reduction(rank, 0..world as u16, count, owners, ring)
}

/// A part in an allreduce to which only `contributors` contribute.
fn reduction(rank: usize, contributors: Range<u16>, count: usize, owners: usize, ring: bool) -> Operation {
    let world = usize::from(contributors.end);
    let block = |rank: usize| -> Range<usize> {
        if rank < owners { rank * count / owners..(rank + 1) * count / owners } else { 0..0 }
    };
    let owned = (0..world).map(block).collect();
    let gives = if contributors.contains(&(rank as u16)) { 0..count } else { 0..0 };
    let pattern = Pattern::Collective { reduces: true, distributes: true, owned, contributors, ring };
    let values: Vec<f32> = (0..count).map(|at| value(rank, at)).collect();
    Operation {
        exchange: Some(Box::new(Exchange { number: 1, pattern })),
        gives,
        ..Operation::allreduce(9, DType::Float32, Arithmetic::Sum, count, Box::new(bytes(&values)))
    }
}

/// A transfer between two ranks: the sender's part and the receiver's.
fn transfer(number: u32, [from, to]: [u16; 2], values: &[f32], bound: f32) -> [Operation; 2] {
    let operation = |pattern| Operation {
        exchange: Some(Box::new(Exchange { number, pattern })),
        ..Operation::allreduce(
            number,
            DType::Float32,
            Arithmetic::Bits,
            values.len(),
            Box::new(bytes(values)),
        )
    };
    let send = operation(Pattern::Send { to });
    let receive = operation(Pattern::Receive { from, keeps: false });
    [
        Operation { takes: 0..0, importance: Importance::Magnitude, ..send },
        Operation { gives: 0..0, loss_bound: bound, ..receive },
    ]
}

#[test]
fn sums_of_both_patterns_are_exact_under_loss() {
    let mut lost = 0;
    for seed in 0..60 {
        println!("seed {seed}");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let workers = rng.random_range(2..=6);
        let faults = faults([0.0, 0.001, 0.01, 0.05][rng.random_range(0..4)]);
        let classes = rng.random_bool(0.5).then(|| Red::of_buffer(64 << 10));
        let spec = LinkSpec { classes, ..port(GBIT, faults) };
        let mut lab = Lab::new(workers, spec, [1, 64][rng.random_range(0..2)], seed);
        let (count, ring) = (rng.random_range(1..6_000), rng.random_bool(0.5));
        let owners = if ring { workers } else { rng.random_range(1..=workers) };
        for rank in 0..workers {
            lab.submit(rank, allreduce(rank, workers, count, owners, ring));
        }
        if seed % 2 == 0 {
            lab.hand_over(20 * MICRO + seed);
        }
        lab.run(1);
        let sum = |at: usize| (0..workers).map(|rank| value(rank, at)).sum::<f32>();
        let expected = bytes(&(0..count).map(sum).collect::<Vec<_>>());
        for (rank, ended) in lab.completions.iter().enumerate() {
            let ended = ended.borrow();
            assert_eq!((ended.len(), &ended[0].result), (1, &Ok(())), "rank {rank}");
            assert_eq!(ended[0].buffer.input(0, count * 4), expected, "rank {rank}");
        }
        lost += lab.world.network.totals().lost;
    }
    assert!(lost > 1_000, "{lost} frames lost");
}

/// Float32 in 16 bits: all workers have the same sums, within the bound, of half the bytes.
#[test]
fn sums_in_16_bits_are_the_same_everywhere() {
    let mut lost = 0;
    for seed in 0..60 {
        println!("seed {seed}");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let workers = rng.random_range(2..=6);
        let faults = faults([0.0, 0.01, 0.05][rng.random_range(0..3)]);
        let mut lab = Lab::with_wire(WireFormat::Int16, workers, port(GBIT, faults), 64, seed);
        let (count, ring) = (rng.random_range(1..6_000), rng.random_bool(0.5));
        let (owners, is_mean) = (if ring { workers } else { rng.random_range(1..=workers) }, seed % 3 == 0);
        let arithmetic = if is_mean { Arithmetic::Mean } else { Arithmetic::Sum };
        for rank in 0..workers {
            lab.submit(rank, Operation { arithmetic, ..allreduce(rank, workers, count, owners, ring) });
        }
        if seed % 2 == 0 {
            lab.hand_over(20 * MICRO + seed);
        }
        lab.run(1);
        let first = lab.completions[0].borrow()[0].buffer.input(0, count * 4).to_vec();
        for (rank, ended) in lab.completions.iter().enumerate() {
            let ended = ended.borrow();
            assert_eq!((ended.len(), &ended[0].result), (1, &Ok(())), "rank {rank}");
            assert_eq!(ended[0].buffer.input(0, count * 4), first, "rank {rank}");
        }
        // The largest value is below 2^3.
        let power = workers.next_power_of_two();
        let bound = ((workers + 1) * power * 8) as f32 / 65_532.0;
        let divisor = if is_mean { workers as f32 } else { 1.0 };
        for (at, sum) in first.as_chunks().0.iter().enumerate() {
            let (sum, exact) =
                (f32::from_ne_bytes(*sum), (0..workers).map(|rank| value(rank, at)).sum::<f32>());
            assert!((sum - exact / divisor).abs() <= bound / divisor, "{at}: {sum} for {exact} / {divisor}");
        }
        lost += lab.world.network.totals().lost;
    }
    assert!(lost > 300, "{lost} frames lost");
    let data = [WireFormat::Int32, WireFormat::Int16].map(|wire| {
        let mut lab = Lab::with_wire(wire, 4, port(GBIT, Faults::default()), 1, 1);
        (0..4).for_each(|rank| lab.submit(rank, allreduce(rank, 4, 64_000, 4, false)));
        lab.run(1);
        lab.world.workers.iter().map(|worker| worker.stats().chunks_sent).sum::<u64>()
    });
    assert_eq!(data[0], 2 * data[1], "{data:?} packets of data");
}

/// Servers contribute nothing, and all workers get the sums of the workers' values.
#[test]
fn servers_sum_exactly_under_loss_and_handovers() {
    let mut lost = 0;
    for seed in 0..16 {
        println!("seed {seed}");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let ranks = rng.random_range(3..=6);
        let servers = rng.random_range(1..ranks);
        let faults = faults([0.001, 0.01, 0.05][rng.random_range(0..3)]);
        let mut lab = Lab::new(ranks, port(GBIT, faults), 64, seed);
        let (count, bound) = (rng.random_range(1..6_000), [0.0, 0.1][seed as usize % 2]);
        let contributors = servers as u16..ranks as u16;
        for rank in 0..ranks {
            let operation = reduction(rank, contributors.clone(), count, servers, false);
            lab.submit(rank, Operation { loss_bound: bound, ..operation });
        }
        if seed % 4 == 0 {
            lab.hand_over(20 * MICRO + seed);
        }
        lab.run(1);
        let expected: Vec<f32> =
            (0..count).map(|at| (servers..ranks).map(|rank| value(rank, at)).sum()).collect();
        for (rank, ended) in lab.completions.iter().enumerate() {
            let ended = ended.borrow();
            assert_eq!((ended.len(), &ended[0].result), (1, &Ok(())), "rank {rank}");
            if bound == 0.0 && rank >= servers {
                assert_eq!(ended[0].buffer.input(0, count * 4), bytes(&expected), "rank {rank}");
            }
            let loss = ended[0].loss.clone().unwrap_or_default();
            assert!(loss.by_worker.iter().all(|lost| *lost <= loss.budget), "{loss:?}");
            let between = if rank < servers { servers..ranks } else { 0..servers };
            let others = loss.by_worker.iter().enumerate().filter(|(other, _)| !between.contains(other));
            assert_eq!(others.map(|(_, lost)| lost).sum::<u64>(), 0, "rank {rank}: {loss:?}");
        }
        lost += lab.world.network.totals().lost;
    }
    assert!(lost > 200, "{lost} frames lost");
}

//= mlt#4.2.3 bounded loss with stop, probe and report
#[test]
fn a_bounded_transfer_lacks_no_more_than_its_bound_and_what_came_is_right() {
    let mut missing = 0;
    for seed in 0..40 {
        println!("seed {seed}");
        let mut lab = Lab::new(2, port(GBIT, Faults { loss: 0.05, ..Faults::default() }), 64, seed);
        let values: Vec<f32> = (0..20_000).map(|at| value(0, at) + 100.0).collect();
        let [send, receive] = transfer(1, [0, 1], &values, 0.1);
        lab.submit(1, receive);
        lab.submit(0, send);
        lab.run(1);
        let ended = lab.completions[1].borrow();
        let lost = ended[0].loss.clone().expect("a loss");
        let ranges: usize = lost.missing.iter().map(Range::len).sum();
        assert!(ranges <= 2_000 && lost.by_worker[0] as usize == ranges, "{ranges}");
        let result = ended[0].buffer.input(0, 80_000);
        for (at, value) in values.iter().enumerate() {
            let is_missing = lost.missing.iter().any(|range| range.contains(&at));
            let expected = if is_missing { 0.0 } else { *value };
            assert_eq!(result[at * 4..][..4], expected.to_ne_bytes(), "value {at}");
        }
        missing += ranges;
    }
    assert!(missing > 0, "some run was short of a chunk");
}

//= mlt#4.2.2 queues and drops by layer and magnitude
/// Chunks of large magnitude and of small ones in turns, from seven workers to one over ports that queue by
/// class.
#[test]
fn ports_with_classes_drop_what_is_not_important() {
    let values: Vec<f32> =
        (0..40_000).map(|at| if at / usize::from(ELEMENTS) % 2 == 0 { 8.0 } else { 0.25 }).collect();
    let spec = LinkSpec { classes: Some(Red::of_buffer(64 << 10)), ..port(10 * GBIT, Faults::default()) };
    let mut lab = Lab::new(8, spec, 64, 3);
    // The handshakes first.
    lab.world.run(SECOND);
    for from in 1..8u16 {
        let [send, receive] = transfer(u32::from(from), [from, 0], &values, 0.0);
        lab.submit(0, receive);
        lab.submit(usize::from(from), send);
    }
    lab.world.run(2 * SECOND);
    assert_eq!(lab.completions[0].borrow().len(), 7);
    let totals = lab.world.network.totals();
    assert!(totals.dropped_early > 100, "{totals:?}");
    assert!(totals.dropped_capable * 4 < totals.dropped_early, "{totals:?}");
    assert!(totals.marked > 0, "{totals:?}");
}

#[test]
fn packets_of_one_transfer_take_all_spines_only_with_many_paths() {
    for (paths, spines) in [(1, 1), (64, 2)] {
        let mut lab = Lab::new(2, port(GBIT, Faults::default()), paths, 5);
        lab.world.run(SECOND);
        let before: Vec<u64> = uplinks(&lab);
        let values = vec![1.0; 20_000];
        let [send, receive] = transfer(1, [0, 1], &values, 0.0);
        lab.submit(1, receive);
        lab.submit(0, send);
        lab.run(1);
        let sent: Vec<u64> = uplinks(&lab).iter().zip(before).map(|(after, before)| after - before).collect();
        let used = sent[..2].iter().filter(|frames| **frames > 150).count();
        assert_eq!(used, spines, "{paths} paths: {sent:?}");
    }
}

/// Frames from leaves to spines, by leaf and spine.
fn uplinks(lab: &Lab) -> Vec<u64> {
    lab.fabric.uplinks.iter().map(|link| lab.world.network.link(*link).counters.frames).collect()
}
