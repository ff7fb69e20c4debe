//! Figure 15: many hosts that send to one (incast), and one link that loses a small part of its frames (gray
//! failure).

use std::{cell::RefCell, rc::Rc, sync::Arc};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use sumac_sim::{
    address::NodeId,
    events::{MICRO, Nanos, SECOND},
    job::SetupError,
    packet::Framing,
    tcp::FlowSpec,
    trainer::Recorder,
    world::World,
};
use sumac_transport::{Completion, Pattern};

use super::{
    dctcp::MIN_TIMEOUT,
    direct::{self, Components},
    fabric::{self, JobHosts},
    gradients::Gradients,
    model::Model,
    run::{BEGIN, Outcome, Plan, Transport, run},
    scale::{TRANSPORTS, lab},
};
use crate::simulated::{
    Effort,
    figure::{Figure, Target, interval, mean, median, percentile, rounded},
    testbed::over_seeds,
};

const SENDERS: [usize; 5] = [8, 16, 32, 64, 128];
/// Values of each sender: 128 KB.
const VALUES: usize = 32_000;
/// Senders begin within this time.
const SPREAD: Nanos = 10 * MICRO;
const LOSSES: [f64; 4] = [0.0, 1e-4, 1e-3, 1e-2];
/// The gray failure's iterations, and their scale: timers are not scaled.
const ITERATIONS: usize = 2;
const SCALE: u64 = 8;
/// The racks of the gray failure.
const RACKS: usize = 1;

/// A case of one of the two halves.
#[derive(Clone, Copy)]
enum Case {
    Incast(usize),
    Gray(f64),
}

pub fn figure15(effort: Effort) -> Result<Figure, SetupError> {
    let senders = if effort.quick { &SENDERS[..3] } else { &SENDERS };
    let halves = senders.iter().map(|senders| Case::Incast(*senders));
    let halves: Vec<Case> = halves.chain(LOSSES.map(Case::Gray)).collect();
    let cases: Vec<(Case, Transport)> =
        halves.iter().flat_map(|case| TRANSPORTS.map(|(_, transport)| (*case, transport))).collect();
    let iterations = effort.of(ITERATIONS);
    let results = over_seeds(&cases, effort.seeds, |(case, transport), seed| match case {
        Case::Incast(senders) => incast(*senders, *transport, seed),
        Case::Gray(gray) => {
            let (transport, gray) = (*transport, *gray);
            let (model, scale) = (Model::resnet50, SCALE);
            run(&Plan { transport, model, scale, racks: RACKS, iterations, gray }, seed)
        }
    })?;
    let names = TRANSPORTS.iter().map(|(name, _)| *name).cycle();
    let rows = cases.iter().zip(&results).zip(names).map(|(((case, _), runs), name)| {
        let of = |value: fn(&Outcome) -> f64| rounded(median(runs.iter().map(value)));
        let (mean, p99, longest) = (of(|run| run.mean), of(|run| run.p99), of(|run| run.longest));
        let (kind, at, iteration, all) = match case {
            Case::Incast(senders) => {
                let all = interval(runs.iter().map(|run| run.longest));
                ("incast, senders", json!(senders), Value::from(""), all)
            }
            Case::Gray(loss) => {
                let all = interval(runs.iter().map(|run| run.iteration / 1e3));
                ("gray failure, percent", json!(loss * 100.0), of(|run| run.iteration / 1e3), all)
            }
        };
        vec![json!(kind), at, json!(name), mean, p99, longest, iteration, all]
    });
    let iteration = |loss: f64, place: usize| {
        let is_its = |(case, transport): &(Case, Transport)| {
            matches!(case, Case::Gray(other) if *other == loss) && *transport == TRANSPORTS[place].1
        };
        let at = cases.iter().position(is_its);
        median(at.into_iter().flat_map(|at| &results[at]).map(|run| run.iteration))
    };
    let gray = |place: usize, loss: f64, wanted: &str, most: f64| {
        let ratio = iteration(loss, place) / iteration(0.0, place);
        let what = format!("an iteration, {} % loss, {}", loss * 100.0, TRANSPORTS[place].0);
        Target::new(&what, wanted, format!("{ratio:.3} of no loss"), ratio <= most)
    };
    let as_without = "as without loss: 1.05";
    Ok(Figure {
        figure: "mlt-fig15",
        title: "incast, and a link that loses frames",
        lab: format!(
            "Incast: so many hosts send 128 KB each to one, within 10 us, on 9 racks. Gray failure: training \
            on {RACKS} rack, ResNet50; the cable of one worker loses so many of its frames in each \
            direction. {}",
            lab(SCALE, iterations)
        ),
        columns: vec![
            "case",
            "at",
            "transport",
            "mean_us",
            "p99_us",
            "longest_us",
            "iteration_ms",
            "of_all_seeds",
        ],
        rows: rows.collect(),
        targets: vec![gray(2, 1e-3, as_without, 1.05), gray(2, 1e-2, as_without, 1.05)],
        ..Figure::default()
    })
}

/// `senders` hosts, all over the racks, send to one.
fn incast(senders: usize, transport: Transport, seed: u64) -> Result<Outcome, SetupError> {
    let mut world = World::new(Framing { stretch: 1 }, seed);
    let racks = 9;
    let fabric = fabric::spec(racks, transport.queues()).build(&mut world);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // The receiver is the first host of the first rack; senders are taken from the racks in turn.
    let place = |number: usize| number % racks * fabric::HOSTS_PER_RACK + number / racks;
    let nodes: Vec<NodeId> = (0..=senders).map(|number| fabric.hosts[place(number)]).collect();
    let starts: Vec<Nanos> = nodes.iter().map(|_| BEGIN + rng.random_range(0..SPREAD)).collect();
    let mut times = match transport {
        Transport::Dctcp => by_flows(&mut world, &nodes, &starts),
        Transport::Direct(components) => by_engines(&mut world, nodes, &starts, components, seed)?,
    };
    if times.len() < senders {
        return Err(SetupError::Operation(format!("{} of {senders} transfers ended", times.len())));
    }
    Ok(Outcome {
        mean: mean(&times),
        p99: percentile(&mut times, 99.0),
        longest: percentile(&mut times, 100.0),
        ..Outcome::default()
    })
}

/// Microseconds of each transfer.
fn by_flows(world: &mut World, nodes: &[NodeId], starts: &[Nanos]) -> Vec<f64> {
    for (node, start) in nodes.iter().zip(starts).skip(1) {
        world.add_flow(*node, nodes[0], FlowSpec::dctcp(VALUES as u64 * 4, MIN_TIMEOUT), *start);
    }
    world.run(10 * SECOND);
    let ends = world.flows.iter().zip(&starts[1..]);
    ends.filter_map(|(flow, start)| Some((flow.finished()? - start) as f64 / 1e3)).collect()
}

fn by_engines(
    world: &mut World,
    nodes: Vec<NodeId>,
    starts: &[Nanos],
    components: Components,
    seed: u64,
) -> Result<Vec<f64>, SetupError> {
    let gradients = Arc::new(Gradients::new(seed));
    let workers = nodes.len();
    let job = direct::job(&JobHosts { nodes, workers }, components);
    let completions = Rc::new(RefCell::new(Vec::<Completion>::new()));
    let workers = job.start(world, |rank| {
        let completions = if rank == 0 { completions.clone() } else { Rc::default() };
        Box::new(Recorder { completions })
    })?;
    for (rank, start) in starts.iter().enumerate().skip(1) {
        let tags = (0, components);
        let (number, from) = (rank as u32, rank as u16);
        let receive =
            direct::operation(&gradients, number, VALUES, Pattern::Receive { from, keeps: false }, tags);
        let send = direct::operation(&gradients, number, VALUES, Pattern::Send { to: 0 }, tags);
        let (receiver, sender) = (workers[0], workers[rank]);
        // The receiver is ready before, as in training.
        world.at(BEGIN / 2, move |world| world.submit(receiver, 0, receive));
        world.at(*start, move |world| world.submit(sender, 0, send));
    }
    let all = starts.len() - 1;
    let ended = completions.clone();
    world.run_until(10 * SECOND, |_| ended.borrow().len() == all);
    let ended = completions.borrow();
    let time =
        |completion: &Completion| (completion.finished.0 - starts[completion.id.0 as usize + 1]) as f64 / 1e3;
    Ok(ended.iter().filter(|completion| completion.result.is_ok()).map(time).collect())
}
