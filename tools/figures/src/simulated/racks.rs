//! Section 5.2.2: what a parameter host receives from six workers in three racks (the paper's figure 9), when
//! sums are made at two levels, in racks alone, in its own rack alone, and nowhere.

use serde_json::json;
use sumac_transport::DynamicParams;

use super::{
    Effort,
    figure::{Figure, Target, median, rounded},
    testbed::{Allocation, CABLES, ELEMENTS, FRAMING, Testbed, over_seeds, tensors},
};
use sumac_sim::{
    aggregator::{Aggregator, Capacity},
    events::{MILLI, SECOND},
    job::{Attachment, SetupError, Topology},
    trainer::StepPlan,
    world::World,
};

const CHUNKS: usize = 4_000;
const SLOTS: u32 = 1_024;

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

pub fn traffic(effort: Effort) -> Result<Figure, SetupError> {
    let chunks = effort.of(CHUNKS / 8) * 8;
    let results = over_seeds(&CASES, effort.seeds, |(case, _), seed| run(*case, chunks, seed))?;
    let medians: Vec<(f64, f64)> = results
        .iter()
        .map(|seeds| {
            let packets = seeds.iter().map(|(packets, _)| *packets);
            (median(packets), median(seeds.iter().map(|(_, time)| *time)))
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
    Ok(Figure {
        figure: "traffic",
        title: "packets into the parameter host, six workers in three racks",
        lab: format!(
            "The topology of the paper's figure 9: w0 and w1 below SW0, w2 and w3 below SW1, w4, w5 and the \
            parameter host below SW2, 10 Gbit/s; a tensor of {chunks} chunks, slots enough, after another \
            one in which the job has learnt which slots to take."
        ),
        columns: vec!["sums_are_made", "packets_per_chunk", "against_two_levels", "million_chunks_per_s"],
        rows: rows.collect(),
        targets: vec![Target::new(
            "each rack by itself against two levels",
            "3 times the traffic",
            format!("{times:.2} times"),
            (2.7..=3.3).contains(&times),
        )],
        ..Figure::default()
    })
}

/// Full packets into the parameter host, and the time that it took.
fn run(case: Where, chunks: usize, seed: u64) -> Result<(f64, f64), SetupError> {
    let mut testbed = Testbed::new(CABLES, SLOTS, seed);
    let center = testbed.center;
    let cables = testbed.cables;
    let mut racks = Vec::new();
    for _ in 0..2 {
        let rack = testbed.world.add_node();
        testbed.world.network.connect(rack, center, cables.down(), cables.down());
        let capacity =
            Capacity { shards: 1, slots: 1, dynamic_slots: SLOTS, elements: ELEMENTS, slot_timeout: SECOND };
        testbed.world.nodes[rack].aggregator = Aggregator::new(capacity).ok();
        racks.push(rack);
    }
    let places = [racks[0], racks[0], racks[1], racks[1], center, center];
    let nodes: Vec<_> = places.iter().map(|place| testbed.host_at(*place).0).collect();
    let host = testbed.world.add_node();
    let into_host = testbed.world.network.connect(center, host, cables.down(), cables.up());
    testbed.world.nodes[host].parameter = Some(sumac_sim::parameter::Parameter::new(testbed.ring()));
    let slots = if case == Where::Nowhere { 0 } else { SLOTS };
    let dynamic = DynamicParams { window: 512, ..DynamicParams::new(slots) };
    let mut job = testbed.job(&Allocation::Dynamic(dynamic), &nodes, &[host]);
    let rack = |rank: usize| if rank < 4 { Some(rank / 2) } else { None };
    let seat = |rank: usize| match case {
        Where::TwoLevels => rack(rank),
        Where::EachRack => Some(rank / 2),
        Where::OneLevel | Where::Nowhere => None,
    };
    job.workers =
        nodes.iter().enumerate().map(|(rank, node)| Attachment { node: *node, rack: seat(rank) }).collect();
    job.topology = match case {
        Where::TwoLevels => Topology { root: Some(center), racks },
        Where::EachRack => Topology { root: None, racks: vec![racks[0], racks[1], center] },
        Where::OneLevel => Topology { root: Some(center), racks: Vec::new() },
        Where::Nowhere => Topology::default(),
    };
    let from = 200 * MILLI + testbed.some_of(MILLI);
    let pause = 20 * MILLI;
    let plan = StepPlan { pause, ..tensors(1, chunks, from) };
    let running = testbed.start(job, &plan)?;
    let logs = running.logs.clone();
    let came_to = |steps: usize| {
        let logs = logs.clone();
        move |_: &World| logs.iter().all(|log| log.borrow().steps.len() >= steps)
    };
    // Until all have the first tensor; what is late comes in the pause.
    testbed.world.run_until(60 * SECOND, came_to(1));
    let begin = testbed.world.now() + pause / 2;
    testbed.world.run(begin);
    let before = testbed.world.network.link(into_host).counters;
    let first = logs[0].borrow().steps.first().copied().unwrap_or(begin) + pause;
    testbed.world.run_until(60 * SECOND, came_to(2));
    let ended = logs[0].borrow().steps.last().copied().unwrap_or(60 * SECOND);
    let end = testbed.world.now() + pause / 2;
    testbed.world.run(end);
    running.check()?;
    let after = testbed.world.network.link(into_host).counters;
    let full = (after.bytes - before.bytes) as f64 / FRAMING.chunk_len(ELEMENTS) as f64;
    Ok((full, (ended - first) as f64))
}
