//! Static jobs with loss bounds, on networks drawn from a seed: all workers end with the same bits, those of the sums over the
//! contributors that the completions name, and no worker is left out of more than the bound allows.

use std::ops::Range;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_sim::{
    aggregator::{Aggregator, Capacity},
    events::{MICRO, MILLI, Nanos, SECOND},
    job::Job,
    link::{Faults, LinkSpec},
    packet::Framing,
    trainer::Recorder,
    world::World,
};
use sumac_transport::{
    Arithmetic, Completion, DType, EngineStats, JobParams, Loss, Operation, Scale, WireFormat, convert::Codec,
};

/// One sum of float32.
#[derive(Clone, Copy, Debug)]
struct Sum {
    count: usize,
    bound: f32,
    mean: bool,
    at: Nanos,
}

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    params: JobParams,
    sums: Vec<Sum>,
    cable: LinkSpec,
    /// Of each worker's cable.
    faults: Vec<Faults>,
    pause: Option<(usize, Nanos, Nanos)>,
    lateness: Vec<Nanos>,
}

impl Plan {
    /// A job of 4 workers without faults, with 64 slots.
    fn new(sums: Vec<Sum>) -> Plan {
        let params = JobParams { scaling: Scale::Fixed(65536.0), ..JobParams::new(3, 4, 64, 16) };
        let cable = LinkSpec::new(1_000_000_000, 5 * MICRO);
        let (faults, lateness) = (vec![Faults::default(); 4], vec![0; 4]);
        Plan { seed: 1, params, sums, cable, faults, pause: None, lateness }
    }

    fn draw(seed: u64) -> Plan {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let world = rng.random_range(2..=8);
        let fixed = JobParams::new(3, world as u16, 1 << rng.random_range(0..=6), rng.random_range(1..=20));
        let params = JobParams {
            scaling: if rng.random_bool(0.5) { Scale::Block } else { Scale::Fixed(65536.0) },
            wire: if rng.random_bool(0.3) { WireFormat::Int16 } else { WireFormat::Int32 },
            ..fixed
        };
        let chunk = usize::from(params.elements);
        let sum = |rng: &mut ChaCha8Rng| Sum {
            count: rng.random_range(1..=chunk * 120),
            bound: [0.0, 0.02, 0.1, 0.3, 1.0][rng.random_range(0..5)],
            mean: rng.random_bool(0.3),
            at: rng.random_range(0..3 * MILLI),
        };
        let fault = |rng: &mut ChaCha8Rng| Faults {
            loss: if rng.random_bool(0.5) { 0.3 * rng.random::<f64>().powi(3) } else { 0.0 },
            duplication: if rng.random_bool(0.3) { 0.2 * rng.random::<f64>() } else { 0.0 },
            reordering: if rng.random_bool(0.3) { 0.2 * rng.random::<f64>() } else { 0.0 },
            held_back: rng.random_range(MICRO..MILLI),
        };
        let from = rng.random_range(0..3 * MILLI);
        let late = rng.random_bool(0.3);
        Plan {
            seed,
            sums: (0..rng.random_range(1..=5)).map(|_| sum(rng)).collect(),
            cable: LinkSpec::new(1_000_000_000, rng.random_range(2 * MICRO..100 * MICRO)),
            faults: (0..world).map(|_| fault(rng)).collect(),
            pause: rng
                .random_bool(0.4)
                .then(|| (rng.random_range(0..world), from, from + rng.random_range(MILLI..20 * MILLI))),
            lateness: (0..world).map(|_| if late { rng.random_range(0..3 * MILLI) } else { 0 }).collect(),
            params,
        }
    }

    fn world(&self) -> usize {
        usize::from(self.params.world)
    }

    /// The values of a worker in a sum.
    fn values(&self, rank: usize, number: usize) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed << 16 | (rank << 8 | number) as u64);
        (0..self.sums[number].count).map(|_| rng.random_range(-0.01..0.01)).collect()
    }

    /// The results of a chunk, summed beside the engine over these workers.
    fn expected(&self, number: usize, span: &Range<usize>, contributors: &[usize]) -> Vec<u8> {
        let codec = Codec::new(self.params.world, self.params.wire, self.params.scaling).scalar();
        let arithmetic = if self.sums[number].mean { Arithmetic::Mean } else { Arithmetic::Sum };
        let bytes = |rank| -> Vec<u8> {
            self.values(rank, number)[span.clone()].iter().flat_map(|value| value.to_ne_bytes()).collect()
        };
        // All workers agree on the exponent, whoever is in the sum.
        let exponents =
            (0..self.world()).map(|rank| codec.exponent(DType::Float32, arithmetic, &bytes(rank)));
        let exponent = exponents.max().unwrap();
        let words = span.len().div_ceil(codec.values_per_word(DType::Float32, arithmetic));
        let mut sums = vec![0i32; words];
        for rank in contributors {
            let mut wire = vec![0; words * 4];
            codec.encode(DType::Float32, arithmetic, exponent, &bytes(*rank), &mut wire);
            let words = wire.as_chunks().0.iter().map(|word| i32::from_be_bytes(*word));
            sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(word));
        }
        let wire: Vec<u8> = sums.iter().flat_map(|sum| sum.to_be_bytes()).collect();
        let mut out = vec![0; span.len() * 4];
        let codec = codec.of_contributors(contributors.len() as u16);
        codec.decode(DType::Float32, arithmetic, exponent, &wire, &mut out);
        out
    }

    /// Runs the job to its end.
    fn run(&self) -> Ended {
        let mut world = World::new(Framing { stretch: 22 }, self.seed);
        let Plan { params, cable, .. } = self;
        let center = world.add_node();
        let capacity = Capacity {
            shards: 1,
            slots: params.slots,
            dynamic_slots: 1,
            elements: params.elements,
            slot_timeout: SECOND,
        };
        world.nodes[center].aggregator = Some(Aggregator::new(capacity).unwrap());
        let nodes = self.faults.iter().map(|faults| {
            let (host, cable) = (world.add_node(), LinkSpec { faults: *faults, ..*cable });
            world.network.connect(host, center, cable, cable);
            host
        });
        let nodes: Vec<_> = nodes.collect();
        let job = Job { ring: 100_000, ..Job::below(Some(center), params.clone(), &nodes) };
        let recorders: Vec<_> = (0..self.world()).map(|_| Recorder::default()).collect();
        let workers = job.start(&mut world, |rank| Box::new(recorders[rank].clone())).unwrap();
        if let Some((rank, from, until)) = self.pause {
            world.workers[workers[rank]].pause = Some((from, until));
        }
        let mut at = 0;
        for (number, sum) in self.sums.iter().enumerate() {
            at = at.max(sum.at);
            for (rank, id) in workers.iter().copied().enumerate() {
                let bytes: Vec<u8> =
                    self.values(rank, number).iter().flat_map(|value| value.to_ne_bytes()).collect();
                let arithmetic = if sum.mean { Arithmetic::Mean } else { Arithmetic::Sum };
                let signature = 100 + number as u32;
                let operation =
                    Operation::allreduce(signature, DType::Float32, arithmetic, sum.count, Box::new(bytes));
                let operation = Operation { loss_bound: sum.bound, ..operation };
                world.at(at + self.lateness[rank], move |world| world.submit(id, 0, operation));
            }
        }
        let is_done = |_: &World| {
            recorders.iter().all(|recorder| recorder.completions.borrow().len() == self.sums.len())
        };
        world.run_until(60 * SECOND, is_done);
        assert!(is_done(&world), "seed {}: timeout", self.seed);
        let stats = workers.iter().map(|id| world.workers[*id].stats()).collect();
        let completions = recorders.iter().map(|recorder| recorder.completions.take()).collect();
        Ended { completions, stats }
    }
}

struct Ended {
    /// By rank.
    completions: Vec<Vec<Completion>>,
    stats: Vec<EngineStats>,
}

impl Ended {
    /// Checks all results and what they say of losses; returns the chunks that were left out.
    fn check(&self, plan: &Plan) -> usize {
        let mut left_out = 0;
        for (number, sum) in plan.sums.iter().enumerate() {
            let what = format!("seed {}, sum {number}, {sum:?}", plan.seed);
            let of = |rank: usize| &self.completions[rank][number];
            let memory = |rank: usize| of(rank).buffer.input(0, sum.count * 4);
            for rank in 0..plan.world() {
                assert_eq!(of(rank).result, Ok(()), "{what}, rank {rank}");
                assert!(memory(rank) == memory(0), "{what}: rank {rank} has other bits than rank 0");
                assert_eq!(of(rank).loss.is_some(), sum.bound > 0.0, "{what}");
            }
            let losses: Vec<Loss> =
                (0..plan.world()).map(|rank| of(rank).loss.clone().unwrap_or_default()).collect();
            for (rank, loss) in losses.iter().enumerate() {
                assert_eq!(
                    (loss.budget, &loss.by_worker),
                    (losses[0].budget, &losses[0].by_worker),
                    "{what}"
                );
                let own: usize = loss.own.iter().map(Range::len).sum();
                assert_eq!(own as u64, loss.by_worker.get(rank).copied().unwrap_or(0), "{what}, rank {rank}");
                assert!(own as u64 <= loss.budget, "{what}, rank {rank}: {loss:?}");
                assert!(own as f64 <= f64::from(sum.bound) * sum.count as f64, "{what}, rank {rank}: {own}");
            }
            let per_word = if plan.params.wire == WireFormat::Int16 { 2 } else { 1 };
            let chunk = usize::from(plan.params.elements) * per_word;
            for first in (0..sum.count).step_by(chunk) {
                let span = first..(first + chunk).min(sum.count);
                let is_in = |rank: &usize| !losses[*rank].own.iter().any(|range| range.contains(&first));
                let contributors: Vec<usize> = (0..plan.world()).filter(is_in).collect();
                left_out += plan.world() - contributors.len();
                assert!(2 * contributors.len() >= plan.world(), "{what}: {contributors:?} at {first}");
                let expected = plan.expected(number, &span, &contributors);
                assert!(
                    memory(0)[span.start * 4..span.end * 4] == expected,
                    "{what}: {span:?} of {contributors:?}"
                );
            }
        }
        left_out
    }

    /// When a sum ended on the last of these workers.
    fn end(&self, number: usize, ranks: Range<usize>) -> Nanos {
        ranks.map(|rank| self.completions[rank][number].finished.0).max().unwrap()
    }
}

#[test]
fn replicas_stay_equal_and_no_budget_is_overdrawn() {
    let seeds = crate::number("SUMAC_SIM_SCENARIOS").unwrap_or(600);
    let seeds = crate::number("SUMAC_SIM_SEED").map_or(0..seeds, |seed| seed..seed + 1);
    let (mut left_out, mut flushes, mut scenarios) = (0, 0, 0);
    for seed in seeds {
        let plan = Plan::draw(seed);
        let ended = plan.run();
        let chunks = ended.check(&plan);
        let sent = ended.stats.iter().map(|stats| stats.flushes).sum::<u64>();
        left_out += chunks;
        flushes += sent;
        scenarios += u64::from(chunks > 0);
    }
    println!("{left_out} contributions left out in {scenarios} scenarios, {flushes} flushes");
    assert!(left_out > 0 && flushes > 0);
}

/// A worker pauses for 20 ms when most of a tensor is summed: with a bound the others do not wait for it.
#[test]
fn a_straggler_does_not_set_the_pace_within_the_bound() {
    let sum = |bound| Sum { count: 16 * 1000, bound, mean: false, at: 0 };
    let end = |bound| {
        let pause = Some((3, 11 * MILLI, 31 * MILLI));
        let plan = Plan { pause, ..Plan::new(vec![sum(bound)]) };
        let ended = plan.run();
        ended.check(&plan);
        (ended.end(0, 0..3), ended.end(0, 3..4))
    };
    let ((reliable, _), (bounded, late)) = (end(0.0), end(0.1));
    println!(
        "others end after {reliable} ns, with a bound of 10 % after {bounded} ns, the late one after {late} ns"
    );
    assert!(reliable > 31 * MILLI && bounded < 20 * MILLI, "{reliable} {bounded}");
    assert!(late >= 31 * MILLI, "it gets its results when it is back");
}

/// One worker loses 2 % of its packets: it is left out, and the others hardly. The bound costs little time: losses are repaired
/// within two round trips without it too.
#[test]
fn a_worker_with_a_lossy_cable_is_left_out() {
    let end = |bound, seed| {
        let lossy = Faults { loss: 0.02, ..Faults::default() };
        let faults = [Faults::default(), Faults::default(), lossy, Faults::default()].to_vec();
        let sum = Sum { count: 16 * 200, bound, mean: true, at: 0 };
        let plan = Plan { faults, seed, ..Plan::new(vec![sum]) };
        let ended = plan.run();
        ended.check(&plan);
        let by_worker = ended.completions[0][0].loss.as_ref().map(|loss| loss.by_worker.clone());
        (ended.end(0, 0..4), by_worker.unwrap_or_default())
    };
    let (mut reliable, mut bounded, mut lost) = (0, 0, [0; 4]);
    for seed in 0..40 {
        let (with, by_worker) = end(0.2, seed);
        lost.iter_mut().zip(by_worker).for_each(|(sum, values)| *sum += values);
        (reliable, bounded) = (reliable + end(0.0, seed).0, bounded + with);
    }
    println!("40 sums: {reliable} ns, with a bound {bounded} ns; values left out by worker {lost:?}");
    assert!(bounded < reliable / 4 * 5, "{reliable} {bounded}");
    assert!(lost[2] > 0 && lost[0] + lost[1] + lost[3] < lost[2] / 2, "{lost:?}");
}

/// Sums one after the other over cables that lose 1 %, beside the same without loss: the last chunks of a sum have no later
/// result that shows a loss, and wait for no retransmission timeout.
#[test]
fn the_tail_under_loss_is_short_within_the_bound() {
    let times = |loss, seed| -> Vec<Nanos> {
        let sum = |number: u64| Sum { count: 16 * 187, bound: 0.1, mean: true, at: number * 500 * MILLI };
        let faults = [Faults { loss, ..Faults::default() }; 4].to_vec();
        let plan = Plan { faults, seed, ..Plan::new((0..6).map(sum).collect()) };
        let params = JobParams { scaling: Scale::Block, ..plan.params };
        // The rate at which hosts of a lab send, and a window of twice the path's.
        let plan = Plan { params, cable: LinkSpec::new(400_000_000, 10 * MICRO), ..plan };
        let ended = plan.run();
        ended.check(&plan);
        // The first sum measures the path.
        (1..6).map(|number| ended.end(number, 0..4) - plan.sums[number].at).collect()
    };
    let without = times(0.0, 0)[4];
    let mut with: Vec<Nanos> = (0..40).flat_map(|seed| times(0.01, seed)).collect();
    with.sort_unstable();
    let (median, p99) = (with[100], with[198]);
    println!(
        "without loss {without} ns; with 1 % the median is {median} ns and the 99th percentile {p99} ns"
    );
    assert!(median < without / 10 * 11 && p99 < without / 4 * 5, "{median} {p99}, without loss {without}");
}
