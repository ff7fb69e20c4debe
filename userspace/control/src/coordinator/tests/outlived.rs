//! What dynamic jobs outlive: their aggregators, and their control plane.

use super::{
    dynamic::{SHARING, below, host, plain, present, rack},
    *,
};

#[test]
fn a_job_outlives_its_aggregator_and_gets_it_back() {
    let mut world = World::sharing(&[0]);
    let present = [(100, host(0).plane)];
    let members = world.all([plain("a", 0, 2), plain("a", 1, 2)]);
    let bound = world.start("b", 1);
    let all = [members.clone(), bound.clone()].concat();
    for _ in 0..15 {
        world.coordinator.on_plane(world.now, Err("detached".into()));
        world.pass_with(seconds(1), &all, &present);
    }
    assert_eq!(world.failure(bound[0]).kind, FailureKind::PlaneDown, "a static one does not");
    assert_eq!(world.grant(members[0]).epoch, 1);

    world.plane.clear();
    world.refuse_restore = true;
    world.coordinator.on_plane(world.now, Ok((0xb, SHARING)));
    world.pass_with(millis(1500), &members, &present);
    assert_eq!(world.restored.len(), 2, "once a second");
    world.refuse_restore = false;
    world.pass_with(seconds(5), &members, &present);
    assert_eq!(world.restored.len(), 3);
    assert_eq!((world.restored[2].1, world.plane.len()), (None, 1));
    assert_eq!(world.grant(members[0]).epoch, 1, "its members have seen nothing of that");

    let narrower = PlaneInfo { dynamic_slots: 8, ..SHARING };
    world.plane.clear();
    world.coordinator.on_plane(world.now, Ok((0xc, narrower)));
    world.pass_with(seconds(2), &members, &present);
    assert_eq!(world.restored.len(), 3, "it goes on without one that its slots do not fit");
    assert_eq!(world.grant(members[0]).epoch, 1);
}

#[test]
fn a_job_outlives_a_rack_and_gets_it_back() {
    let mut world = World::sharing(&[0]);
    world.enter(1, rack(1));
    let root = [(100, host(0).plane)];
    let both = [(100, host(0).plane), (1, rack(1).plane)];
    let members = world.all([below(1, plain("a", 0, 2)), plain("a", 1, 2)]);
    world.pass_with(seconds(1), &members, &both);
    // With the rack its worker cannot be heard, and that is not the worker's fault.
    world.pass_with(seconds(60), &members[1..], &root);
    assert_eq!(world.coordinator.poll_lost_rack(), Some(RackId(1)));
    assert_eq!(world.grant(members[1]).epoch, 1);
    world.enter(9, rack(1));
    let back = [(100, host(0).plane), (9, rack(1).plane)];
    world.pass_with(seconds(3), &members[1..], &back);
    assert_eq!(world.restored, [(RunId(0), Some(RackId(9)))]);
    world.pass_with(seconds(3), &members, &back);
    assert_eq!(world.grant(members[0]).epoch, 1);
    world.coordinator.rack_reports(world.now, RackId(9), Ok((2, rack(1).plane)));
    world.coordinator.tick(world.now);
    world.work();
    assert_eq!(world.restored.len(), 2, "when its memory is another, too");
    world.pass_with(seconds(5), &members[1..], &[(100, host(0).plane)]);
    world.enter(10, RackEntry { ip: Ipv4Addr::LOCALHOST, ..rack(1) });
    let elsewhere = [(100, host(0).plane), (10, rack(1).plane)];
    world.pass_with(seconds(3), &members[1..], &elsewhere);
    assert_eq!(world.restored.len(), 2, "not where the root does not expect it");
    world.pass_with(seconds(3), &members[1..], &elsewhere);
    assert_eq!(world.failure(members[1]).culprit, Some(0), "but its workers could be heard again");
}

#[test]
fn a_stopped_control_plane_leaves_jobs_to_their_hosts() {
    let mut world = World::sharing(&[0]);
    let members = world.all([plain("a", 0, 1)]);
    let bound = world.start("b", 1);
    world.coordinator.stop();
    assert!(!world.coordinator.is_idle());
    world.work();
    assert_eq!(world.failure(bound[0]).kind, FailureKind::Stopped);
    assert_eq!(world.grant(members[0]).epoch, 1);
    assert!(world.plane.is_empty() && world.coordinator.is_idle());
    world.coordinator.on_plane(world.now, Ok((0xb, SHARING)));
    world.pass_with(seconds(1), &members, &present());
    assert!(world.plane.is_empty(), "and is not installed again");
}
