//! The flow that jobs are measured beside behaves as TCP does: it fills a cable, shares it with another, and survives loss.

use sumac_sim::{
    events::{MICRO, MILLI, SECOND},
    link::{Faults, LinkSpec},
    packet::Framing,
    world::World,
};

const RATE: u64 = 1_000_000_000;

/// Bytes per second of so many flows over one cable, in the second half of two seconds.
fn shares(flows: usize, is_capable: bool, faults: Faults) -> Vec<f64> {
    let mut world = World::new(Framing { stretch: 1 }, 7);
    let (left, right) = (world.add_node(), world.add_node());
    let narrow =
        LinkSpec { rate: RATE, delay: 50 * MICRO, queue: 256 * 1_538, mark: Some(64 * 1_538), faults };
    world.network.connect(left, right, narrow, narrow);
    let wide = LinkSpec::new(10 * RATE, narrow.delay);
    let ids: Vec<usize> = (0..flows)
        .map(|number| {
            let (from, to) = (world.add_node(), world.add_node());
            world.network.connect(from, left, wide, wide);
            world.network.connect(right, to, wide, wide);
            world.add_flow(from, to, is_capable, number as u64 * MILLI)
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

/// Without marks, queues that drop the last one favour who was first, as with the real one, for longer than is simulated here.
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
