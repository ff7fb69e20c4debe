//! Dynamic jobs that lose their aggregators, or their control plane.

use super::{
    dynamic::{SHARING, below, host, plain, present, rack},
    *,
};

#[test]
fn a_job_outlives_its_aggregator_and_gets_it_back() {
    let mut world = World::sharing(&[0]);
    let present = present();
    let members = world.all([plain("a", 0, 2), plain("a", 1, 2)]);
    let bound = world.start("b", 1);
    let all = [members.clone(), bound.clone()].concat();
    for _ in 0..15 {
        world.coordinator.on_plane(world.now, Err("detached".into()));
        world.pass_with(seconds(1), &all, &present);
    }
    assert_eq!(world.failure(bound[0]).kind, FailureKind::PlaneDown, "a static one does not");
    assert_eq!(world.terms(members[0]).epoch, 1);

    world.plane.clear();
    world.refuse_restore = true;
    world.coordinator.on_plane(world.now, Ok((0xb, SHARING)));
    world.pass_with(millis(1500), &members, &present);
    assert_eq!(world.restored.len(), 2, "once a second");
    world.refuse_restore = false;
    world.pass_with(seconds(5), &members, &present);
    assert_eq!(world.restored.len(), 3);
    assert_eq!((world.restored[2].1, world.plane.len()), (None, 1));
    assert_eq!(world.terms(members[0]).epoch, 1, "its members have seen nothing of that");

    let narrower = PlaneInfo { dynamic_slots: 8, ..SHARING };
    world.plane.clear();
    world.coordinator.on_plane(world.now, Ok((0xc, narrower)));
    world.pass_with(seconds(2), &members, &present);
    assert_eq!(world.restored.len(), 3, "it goes on without one that its slots do not fit");
    assert_eq!(world.terms(members[0]).epoch, 1);
    world.coordinator.on_plane(world.now, Ok((0xd, PlaneInfo { jobs: 0, ..SHARING })));
    world.pass_with(seconds(2), &members, &present);
    assert_eq!(world.restored.len(), 3, "or its number");
}

#[test]
fn a_change_wakes_the_members_of_its_run() {
    let mut world = World::sharing(&[0]);
    let members = world.all([plain("a", 0, 2), plain("a", 1, 2)]);
    let other = world.start("b", 1);
    let mut own = world.coordinator.listen(members[0]).unwrap();
    let mut others = world.coordinator.listen(other[0]).unwrap();
    own.mark_unchanged();
    others.mark_unchanged();
    world.coordinator.leave(members[1], &Outcome::Failed("no memory".into()));
    assert!(own.has_changed().unwrap(), "its job has failed");
    assert!(!others.has_changed().unwrap(), "another run's");
}

#[test]
fn a_job_outlives_a_rack_and_gets_it_back() {
    let mut world = World::sharing(&[0]);
    world.enter(rack(1));
    let root = present();
    let both = [(1, host(0).plane), (2, rack(1).plane)];
    let members = world.all([below(2, plain("a", 0, 2)), plain("a", 1, 2)]);
    world.pass_with(seconds(1), &members, &both);
    // With the rack its worker cannot be heard, and that is not the worker's fault.
    world.pass_with(seconds(60), &members[1..], &root);
    assert_eq!(world.coordinator.poll_lost_rack(), Some(RackId(2)));
    assert_eq!(world.terms(members[1]).epoch, 1);
    assert_eq!(world.enter(rack(1)), 2);
    world.pass_with(seconds(1), &members[1..], &both);
    assert_eq!(world.restored, [(RunId(0), Some(RackId(2)))]);
    world.pass_with(seconds(3), &members, &both);
    assert_eq!(world.terms(members[0]).epoch, 1);
    world.coordinator.rack_reports(world.now, RackId(2), Ok((2, rack(1).plane)));
    world.coordinator.tick(world.now);
    world.work();
    assert_eq!(world.restored.len(), 2, "when its memory is another, too");
    let jobs = TakenOver { jobs: vec![1], last_epochs: vec![] };
    world.enter(RackEntry { jobs, instance: 2, ..rack(1) });
    world.pass_with(seconds(1), &members, &root);
    assert_eq!(world.restored.len(), 2, "not when it has the job still");
    // Its workers can be heard again, and one of them is dead.
    world.pass_with(seconds(3), &members[1..], &both);
    assert_eq!(world.failure(members[1]).culprit(), Some(0));
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
    assert_eq!(world.terms(members[0]).epoch, 1);
    assert!(world.plane.is_empty() && world.coordinator.is_idle());
    world.coordinator.on_plane(world.now, Ok((0xb, SHARING)));
    world.pass_with(seconds(1), &members, &present());
    assert!(world.plane.is_empty(), "and is not installed again");
}
