//! Section 5.2.2: what a parameter host receives from six workers in three racks (the paper's figure 9), when sums are
//! made at two levels, in racks alone, in its own rack alone, and nowhere.

use serde_json::json;
use sumac_transport::DynamicParams;

use super::{
    Effort, all,
    lab::{CABLES, ELEMENTS, FRAMING, Lab, Mode, over_seeds},
    report::{Report, Target, median, rounded},
};
use crate::{
    aggregator::{Aggregator, Capacity},
    events::{MILLI, SECOND},
    job::{Seat, SetupError, Tree},
    trainer::Plan,
    world::World,
};

const CHUNKS: usize = 4_000;
const SLOTS: u32 = 1_024;

/// Where sums are made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    /// In the racks of w0 to w3, and these with w4 and w5 in the parameter host's rack.
    TwoLevels,
    /// In each of the three racks, and then at the parameter host.
    EachRack,
    /// All six in the parameter host's rack.
    OneLevel,
    /// At the parameter host.
    Nowhere,
}

const CASES: [(Where, &str); 4] = [
    (Where::TwoLevels, "two levels"),
    (Where::EachRack, "each rack by itself"),
    (Where::OneLevel, "one level, in the parameter host's rack"),
    (Where::Nowhere, "no aggregator"),
];

/// What the table says.
///
/// # Errors
/// When a job cannot be set up.
pub fn traffic(effort: Effort) -> Result<Report, SetupError> {
    let chunks = effort.of(CHUNKS / 8) * 8;
    let results = all(over_seeds(&CASES, effort.seeds, |(case, _), seed| run(*case, chunks, seed)))?;
    let medians: Vec<(f64, f64)> = results
        .iter()
        .map(|seeds| {
            let packets = seeds.iter().map(|(packets, _)| *packets).collect();
            (median(packets), median(seeds.iter().map(|(_, time)| *time).collect()))
        })
        .collect();
    let least = medians[0].0;
    let rows = CASES.iter().zip(&medians).map(|((_, name), (packets, time))| {
        vec![
            json!(name),
            rounded(packets / chunks as f64),
            rounded(packets / least),
            rounded(chunks as f64 / time * SECOND as f64 / 1e6),
        ]
    });
    let times = medians[1].0 / least;
    Ok(Report {
        figure: "traffic",
        title: "packets into the parameter host, six workers in three racks",
        command: effort.command("traffic"),
        lab: format!(
            "The topology of the paper's figure 9: w0 and w1 below SW0, w2 and w3 below SW1, w4, w5 and the parameter host below SW2, \
             10 Gbit/s; a tensor of {chunks} chunks, slots enough, after another one in which the job has learnt which slots \
             to take."
        ),
        columns: vec!["sums_are_made", "packets_per_chunk", "against_two_levels", "million_chunks_per_s"],
        rows: rows.collect(),
        series: Vec::new(),
        targets: vec![Target::new(
            "each rack by itself against two levels",
            "3 times the traffic",
            format!("{times:.2} times"),
            (2.7..=3.3).contains(&times),
        )],
    })
}

/// Full packets into the parameter host, and the time that it took.
fn run(case: Where, chunks: usize, seed: u64) -> Result<(f64, f64), SetupError> {
    let mut lab = Lab::new(CABLES, SLOTS, seed);
    let center = lab.center;
    let cables = lab.cables;
    let mut racks = Vec::new();
    for _ in 0..2 {
        let rack = lab.world.add_node();
        lab.world.network.connect(rack, center, cables.down(), cables.down());
        let capacity =
            Capacity { shards: 1, slots: 1, dynamic_slots: SLOTS, elements: ELEMENTS, patience: SECOND };
        lab.world.nodes[rack].aggregator = Aggregator::new(capacity).ok();
        racks.push(rack);
    }
    let places = [racks[0], racks[0], racks[1], racks[1], center, center];
    let nodes: Vec<_> = places.iter().map(|place| lab.host_at(*place).0).collect();
    let host = lab.world.add_node();
    let into_host = lab.world.network.connect(center, host, cables.down(), cables.up());
    lab.world.nodes[host].parameter = Some(crate::parameter::Parameter::new(lab.ring()));
    let slots = if case == Where::Nowhere { 0 } else { SLOTS };
    let dynamic = DynamicParams { window: 512, ..DynamicParams::new(slots) };
    let mut job = lab.job(&Mode::Dynamic(dynamic), &nodes, &[host]);
    let rack = |rank: usize| if rank < 4 { Some(rank / 2) } else { None };
    let seat = |rank: usize| match case {
        Where::TwoLevels => rack(rank),
        Where::EachRack => Some(rank / 2),
        Where::OneLevel | Where::Nowhere => None,
    };
    job.seats = nodes.iter().enumerate().map(|(rank, node)| Seat { node: *node, rack: seat(rank) }).collect();
    job.tree = match case {
        Where::TwoLevels => Tree { root: Some(center), racks },
        Where::EachRack => Tree { root: None, racks: vec![racks[0], racks[1], center] },
        Where::OneLevel => Tree { root: Some(center), racks: Vec::new() },
        Where::Nowhere => Tree::default(),
    };
    let from = 200 * MILLI + lab.some_of(MILLI);
    let pause = 20 * MILLI;
    let plan = Plan {
        lanes: 1,
        tensors: 1,
        elements: chunks * usize::from(ELEMENTS),
        chunk: 4 * usize::from(ELEMENTS),
        pause,
        from,
        until: 100 * SECOND,
    };
    let running = lab.start(job, &plan)?;
    let diaries = running.diaries.clone();
    let came_to = |steps: usize| {
        let diaries = diaries.clone();
        move |_: &World| diaries.iter().all(|diary| diary.borrow().steps.len() >= steps)
    };
    // Until all have the first tensor; what is late comes in the pause.
    lab.world.run_until(60 * SECOND, came_to(1));
    let begin = lab.world.now() + pause / 2;
    lab.world.run(begin);
    let before = lab.world.network.link(into_host).counters;
    let first = diaries[0].borrow().steps.first().copied().unwrap_or(begin) + pause;
    lab.world.run_until(60 * SECOND, came_to(2));
    let ended = diaries[0].borrow().steps.last().copied().unwrap_or(60 * SECOND);
    let end = lab.world.now() + pause / 2;
    lab.world.run(end);
    running.check()?;
    let after = lab.world.network.link(into_host).counters;
    let full = (after.bytes - before.bytes) as f64 / FRAMING.chunk_len(ELEMENTS) as f64;
    Ok((full, (ended - first) as f64))
}
