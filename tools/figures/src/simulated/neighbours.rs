//! Figure 16: a job whose worker shares its cable with a flow like TCP's.

use sumac_transport::DynamicParams;

use super::{
    Effort,
    figure::{Figure, Series, Target, median, rounded},
    testbed::{Allocation, CABLES, Running, Testbed, over_seeds, tensors},
};
use sumac_sim::{
    events::{MILLI, Nanos, SECOND},
    job::SetupError,
    tcp::{FULL_SEGMENT, Flow, FlowSpec, SEGMENT},
    trainer::StepPlan,
    world::World,
};

const WORKERS: usize = 6;
const CHUNKS: usize = 1_000;
/// A value of the lines over time.
const STEP: Nanos = 10 * MILLI;
/// When the job begins; the flow has been there before.
const BEGIN: Nanos = 250 * MILLI;

/// The other traffic on the cable.
#[derive(Clone, Copy, PartialEq)]
enum Neighbour {
    Nobody,
    /// A flow that understands marks, or not.
    Flow {
        is_capable: bool,
    },
    /// A job like it, with so many shards where it has one.
    Job {
        shards: u16,
    },
}

const TCP: Neighbour = Neighbour::Flow { is_capable: true };

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Tensors of a step and the pause after them, as a part of the time that they take alone; 0: it always
    /// sends.
    pause: f64,
    congestion: bool,
    beside: Neighbour,
}

const CASES: [Case; 8] = [
    Case { name: "small demand alone", pause: 2.0, congestion: true, beside: Neighbour::Nobody },
    Case { name: "small demand beside TCP", pause: 2.0, congestion: true, beside: TCP },
    Case { name: "always sending alone", pause: 0.0, congestion: true, beside: Neighbour::Nobody },
    Case { name: "always sending beside TCP", pause: 0.0, congestion: true, beside: TCP },
    Case { name: "the same without congestion control", pause: 0.0, congestion: false, beside: TCP },
    Case {
        name: "the same beside TCP without ECN",
        pause: 0.0,
        congestion: true,
        beside: Neighbour::Flow { is_capable: false },
    },
    Case {
        name: "two jobs that always send",
        pause: 0.0,
        congestion: true,
        beside: Neighbour::Job { shards: 1 },
    },
    Case {
        name: "one of one shard beside one of four",
        pause: 0.0,
        congestion: true,
        beside: Neighbour::Job { shards: 4 },
    },
];

struct Outcome {
    job: f64,
    /// The flow, or the other job.
    neighbour: f64,
    /// The job and the flow.
    lines: [Vec<f64>; 2],
}

pub fn figure16(effort: Effort) -> Result<Figure, SetupError> {
    let time = effort.of(8) as Nanos * 125 * MILLI;
    let results = over_seeds(&CASES, effort.seeds, |case, seed| run(*case, time, seed))?;
    let of = |case: usize, value: fn(&Outcome) -> f64| median(results[case].iter().map(value));
    let rows = CASES.iter().enumerate().map(|(number, case)| {
        let (job, flow) = (of(number, |outcome| outcome.job), of(number, |outcome| outcome.neighbour));
        let share = if flow > 0.0 { job / (job + flow) * 100.0 } else { 100.0 };
        vec![
            serde_json::json!(case.name),
            rounded(job * 8e-9),
            rounded(flow * 8e-9),
            rounded(full(case, job, flow) * 100.0),
            rounded(share),
        ]
    });
    let mut series = Vec::new();
    for case in [1, 3] {
        for (line, who) in ["job", "TCP"].into_iter().enumerate() {
            let values = results[case].first().map(|outcome| &outcome.lines[line]);
            series.push(Series::new(&format!("{}: {who}", CASES[case].name), STEP, values));
        }
    }
    let job = |case| of(case, |outcome: &Outcome| outcome.job);
    let flow = |case| of(case, |outcome: &Outcome| outcome.neighbour);
    let share = job(3) / (job(3) + flow(3));
    let two = job(6) / (job(6) + flow(6));
    let shards = job(7) / (job(7) + flow(7));
    Ok(Figure {
        figure: "fig16",
        title: "a job beside a TCP-like flow, and beside another job, on one worker's cable",
        lab: format!(
            "One job of {WORKERS} workers and a parameter host, slots enough, 10 Gbit/s; one worker's cable \
            to the aggregator, with a queue of 256 frames that marks above 64, carries a greedy flow as well \
            (a model of NewReno with ECN, one segment a packet, no SACK). The flow begins at 0, the job {} \
            ms later.",
            BEGIN / MILLI
        ),
        columns: vec!["case", "job_gbps", "neighbour_gbps", "of_the_cable_percent", "job_share_percent"],
        rows: rows.collect(),
        series,
        targets: vec![
            Target::new(
                "a job that wants less than its share",
                "gets at least 85 % of what it gets alone",
                format!("{:.1} %", job(1) / job(0) * 100.0),
                job(1) >= 0.85 * job(0),
            ),
            Target::new(
                "a job that wants everything",
                "gets 40 to 60 % beside a flow",
                format!("{:.1} %", share * 100.0),
                (0.4..=0.6).contains(&share),
            ),
            Target::new(
                "two jobs",
                "get 40 to 60 % each",
                format!("{:.1} %", two * 100.0),
                (0.4..=0.6).contains(&two),
            ),
            Target::new(
                "one of them with four shards",
                "leaves the other 40 to 60 %",
                format!("{:.1} %", shards * 100.0),
                (0.4..=0.6).contains(&shards),
            ),
            Target::new(
                "the cable with both",
                "is at least 85 % full",
                format!("{:.1} %", full(&CASES[3], job(3), flow(3)) * 100.0),
                full(&CASES[3], job(3), flow(3)) >= 0.85,
            ),
        ],
        ..Figure::default()
    })
}

fn run(case: Case, time: Nanos, seed: u64) -> Result<Outcome, SetupError> {
    let mut testbed = Testbed::new(CABLES, 1_024, seed);
    let (edge, sink) = cable_to_share(&mut testbed);
    let end = BEGIN + time;
    let running = job(&mut testbed, case, 1, edge, time)?;
    let other = match case.beside {
        Neighbour::Job { shards } => Some(job(&mut testbed, case, shards, edge, time)?),
        _ => None,
    };
    let flow = match case.beside {
        Neighbour::Flow { is_capable } => {
            let source = fast_host(&mut testbed, edge);
            let at = testbed.some_of(MILLI);
            Some(testbed.world.add_flow(source, sink, FlowSpec::greedy(is_capable), at))
        }
        _ => None,
    };
    let delivered = |world: &World| flow.map_or(0, |flow| Flow::delivered(&world.flows[flow]));
    let mut bytes = vec![0];
    for number in 0..end / STEP {
        testbed.world.run((number + 1) * STEP);
        bytes.push(delivered(&testbed.world));
    }
    running.check()?;
    // The first third is for the two to find their shares.
    let from = BEGIN + time / 3;
    let before = bytes[(from / STEP) as usize];
    let last = bytes.last().copied().unwrap_or(0);
    let measured = (end / STEP - from / STEP) * STEP;
    let flow = (last - before) as f64 * SECOND as f64 / measured as f64;
    let line = |pair: &[u64]| (pair[1] - pair[0]) as f64 * 8.0 / STEP as f64;
    Ok(Outcome {
        job: running.goodput(from, end),
        neighbour: other.map_or(flow, |other| other.goodput(from, end)),
        lines: [running.goodput_series(STEP, end), bytes.windows(2).map(line).collect()],
    })
}

/// A job one of whose workers is behind the cable that is shared.
fn job(
    testbed: &mut Testbed,
    case: Case,
    shards: u16,
    edge: usize,
    time: Nanos,
) -> Result<Running, SetupError> {
    let first = fast_host(testbed, edge);
    let nodes = [vec![first], testbed.hosts(WORKERS - 1)].concat();
    let parameter = testbed.parameter_host();
    let usual = DynamicParams::new(1_024);
    let dynamic = if case.congestion { usual } else { usual.without_congestion_control() };
    let mut job = testbed.job(&Allocation::Dynamic(dynamic), &nodes, &[parameter]);
    (job.lanes, job.params.shards) = (shards, shards);
    let sending = testbed.cables.time(4 * CHUNKS as u64);
    let always = case.pause == 0.0;
    // Small tensors, whose ends make the line over time.
    let count = if always { (time / testbed.cables.time(CHUNKS as u64 / 20)) as usize * 2 } else { 80 };
    let plan = StepPlan {
        pause: (sending as f64 * case.pause) as Nanos,
        until: BEGIN + time,
        ..tensors(count, CHUNKS / 20, BEGIN + testbed.some_of(MILLI))
    };
    testbed.start(job, &plan)
}

/// The part of the cable that these bytes of tensor and of the neighbour's take, headers and gaps included.
fn full(case: &Case, job: f64, neighbour: f64) -> f64 {
    let bytes = CABLES.rate as f64 / 8.0;
    let segments = bytes * SEGMENT as f64 / FULL_SEGMENT as f64;
    let rate = if matches!(case.beside, Neighbour::Job { .. }) { CABLES.goodput() } else { segments };
    job / CABLES.goodput() + neighbour / rate
}

/// A node behind whose cable to the aggregator several hosts are, and a host on the other side.
fn cable_to_share(testbed: &mut Testbed) -> (usize, usize) {
    let edge = testbed.world.add_node();
    let cables = testbed.cables;
    testbed.world.network.connect(edge, testbed.center, cables.down(), cables.down());
    (edge, testbed.hosts(1)[0])
}

/// A host whose own cable is short and never the narrow place.
fn fast_host(testbed: &mut Testbed, edge: usize) -> usize {
    let host = testbed.world.add_node();
    let up =
        sumac_sim::link::LinkSpec { rate: 10 * testbed.cables.rate, delay: 1_000, ..testbed.cables.up() };
    testbed.world.network.connect(host, edge, up, up);
    host
}
