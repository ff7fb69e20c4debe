//! The flow that jobs are measured beside behaves as TCP does: it fills a cable, shares it with another, and
//! survives loss.

use sumac_sim::{
    events::{MICRO, MILLI, SECOND},
    link::{Faults, LinkSpec},
    packet::Framing,
    tcp::FlowSpec,
    world::World,
};

const RATE: u64 = 1_000_000_000;

/// Bytes per second of so many flows over one cable, in the second half of two seconds.
fn shares(flows: usize, is_capable: bool, faults: Faults) -> Vec<f64> {
    let mut world = World::new(Framing { stretch: 1 }, 7);
    let (left, right) = (world.add_node(), world.add_node());
    let narrow = LinkSpec {
        rate: RATE,
        delay: 50 * MICRO,
        queue: 256 * 1_538,
        mark: Some(64 * 1_538),
        classes: None,
        faults,
    };
    world.network.connect(left, right, narrow, narrow);
    let wide = LinkSpec::new(10 * RATE, narrow.delay);
    let ids: Vec<usize> = (0..flows)
        .map(|number| {
            let (from, to) = (world.add_node(), world.add_node());
            world.network.connect(from, left, wide, wide);
            world.network.connect(right, to, wide, wide);
            world.add_flow(from, to, FlowSpec::greedy(is_capable), number as u64 * MILLI)
        })
        .collect();
    world.run(SECOND);
    let before: Vec<u64> = ids.iter().map(|id| world.flows[*id].delivered()).collect();
    world.run(2 * SECOND);
    ids.iter().zip(before).map(|(id, before)| (world.flows[*id].delivered() - before) as f64).collect()
}

#[test]
fn one_flow_fills_the_cable() {
    for is_capable in [true, false] {
        let rate = shares(1, is_capable, Faults::default())[0] * 8.0;
        assert!(rate > 0.9 * RATE as f64, "{rate} bits per second, ECN {is_capable}");
    }
}

/// Without marks, queues that drop the last one favour who was first, as with the real one, for longer than
/// is simulated here.
#[test]
fn two_flows_share_it_by_marks() {
    let rates = shares(2, true, Faults::default());
    let (sum, least) = (rates[0] + rates[1], rates[0].min(rates[1]));
    assert!(sum * 8.0 > 0.9 * RATE as f64 && least > 0.35 * sum, "{rates:?}");
}

#[test]
fn loss_slows_it_down_and_stops_it_not() {
    let lossy = shares(1, true, Faults { loss: 0.001, ..Faults::default() })[0] * 8.0;
    assert!(lossy > 0.2 * RATE as f64, "{lossy} bits per second");
}

/// Bytes of senders behind one port, each over a cable of its own; returns the time of the last one, the
/// frames dropped and the longest queue's marks.
fn incast(senders: usize, bytes: u64, spec: impl Fn(u64) -> FlowSpec) -> (u64, u64, u64) {
    let mut world = World::new(Framing { stretch: 1 }, 7);
    let (leaf, sink) = (world.add_node(), world.add_node());
    let port = LinkSpec { queue: 256 * 1_538, mark: Some(65 * 1_538), ..LinkSpec::new(10 * RATE, 5 * MICRO) };
    world.network.connect(leaf, sink, port, port);
    for _ in 0..senders {
        let from = world.add_node();
        world.network.connect(from, leaf, LinkSpec { queue: u64::MAX, ..port }, port);
        world.add_flow(from, sink, spec(bytes), 0);
    }
    world.run(20 * SECOND);
    let ends = world.flows.iter().filter_map(sumac_sim::tcp::Flow::finished);
    assert_eq!(ends.clone().count(), senders, "all have ended");
    let totals = world.network.totals();
    (ends.max().unwrap_or(0), totals.dropped, totals.marked)
}

/// DCTCP keeps the queue near the threshold, where NewReno without marks fills it, drops and waits for a
/// timeout.
#[test]
fn dctcp_ends_an_incast_without_drops() {
    let bytes = 1_000_000;
    let ideal = 8 * bytes * SECOND / RATE / 10 * 8;
    let (ended, dropped, marked) = incast(8, bytes, |bytes| FlowSpec::dctcp(bytes, 10 * MILLI));
    assert!(dropped == 0 && marked > 100, "{dropped} dropped, {marked} marked");
    assert!(ended < ideal * 12 / 10, "{ended} ns, at best {ideal}");
    let reno = |bytes| FlowSpec { bytes: Some(bytes), ..FlowSpec::greedy(false) };
    let (_, dropped, _) = incast(8, bytes, reno);
    assert!(dropped > 0);
}

/// So many senders that their first windows overflow the queue: some wait for the timeout, all end.
#[test]
fn dctcp_survives_an_incast_that_overflows() {
    let (ended, dropped, _) = incast(64, 30_000, |bytes| FlowSpec::dctcp(bytes, 10 * MILLI));
    assert!(dropped > 0 && (10 * MILLI..SECOND).contains(&ended), "{dropped} dropped, {ended} ns");
}
