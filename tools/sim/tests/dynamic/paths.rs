//! Packets spread over the spines of a fabric, and away from one that loses or delays.

use sumac_sim::{
    events::{MICRO, MILLI},
    link::Faults,
};

use crate::{
    PERFECT,
    fabric::{CHUNKS, Fabric, WORKERS, jobs},
};

/// The second spine's share of the contributions to so many tensors, in percent.
fn share(fabric: &mut Fabric, tensors: u32) -> u64 {
    let before = fabric.sent_up();
    fabric.sum(tensors);
    let after = fabric.sent_up();
    let [near, far] = [0, 1].map(|spine| after[spine] - before[spine]);
    100 * far / (near + far)
}

#[test]
fn both_spines_carry_half() {
    for params in jobs() {
        let mut fabric = Fabric::new(&params, 10 * MICRO, PERFECT, 1);
        let share = share(&mut fabric, 8);
        assert!((35..=65).contains(&share), "{share} %");
        let stats = fabric.stats();
        let sent: u64 = stats.paths.sent.iter().sum();
        assert_eq!((stats.paths.sent.len(), stats.paths.lost.iter().sum::<u64>()), (64, 0));
        assert!(sent >= 8 * CHUNKS * u64::from(WORKERS), "{sent}");
    }
}

#[test]
fn a_dead_spine_is_avoided_and_found_again() {
    for params in jobs() {
        let mut fabric = Fabric::new(&params, 10 * MICRO, PERFECT, 2);
        fabric.sum(8);
        let [_, dead] = fabric.up;
        fabric.world.network.link_mut(dead).spec.faults = Faults { loss: 1.0, ..PERFECT };
        fabric.sum(24);
        let avoided = share(&mut fabric, 40);
        assert!(avoided <= 3, "{avoided} %: {:?}", fabric.stats());
        let resent = fabric.stats().resent;
        fabric.sum(40);
        let lost = fabric.stats().resent - resent;
        assert!(lost < 40 * CHUNKS * u64::from(WORKERS) / 50, "{lost} sent again");
        fabric.world.network.link_mut(dead).spec.faults = PERFECT;
        // Suspended paths are probed every 3.2 s at the latest.
        for _ in 0..50 {
            let end = fabric.world.now() + 100 * MILLI;
            fabric.world.run(end);
            fabric.sum(8);
        }
        let found = share(&mut fabric, 40);
        assert!(found >= 30, "{found} %: {:?}", fabric.stats());
    }
}

#[test]
fn a_lossy_or_slow_spine_carries_less() {
    let lossy = Faults { loss: 0.1, ..PERFECT };
    for (delay, faults, most) in [(10, lossy, 25), (100, PERFECT, 35)] {
        for params in jobs() {
            let mut fabric = Fabric::new(&params, delay * MICRO, PERFECT, 3);
            let [_, bad] = fabric.up;
            fabric.world.network.link_mut(bad).spec.faults = faults;
            fabric.sum(160);
            let share = share(&mut fabric, 80);
            assert!(share <= most, "{delay} us, {faults:?}: {share} %: {:?}", fabric.stats());
        }
    }
}
