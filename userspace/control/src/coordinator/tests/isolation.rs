//! Cuts of the control plane's network, and of one member's: the same rules for static and dynamic jobs.

use super::dynamic::{host, plain, present};
use super::*;

/// A static and a dynamic job of two workers each, whose connections are open, and a parameter host.
fn running() -> (World, Vec<MemberId>) {
    let mut world = World::sharing(&[0]);
    world.coordinator.rack_connected(RackId(1), true);
    let mut members = world.start("static", 2);
    members.extend(world.all([plain("dynamic", 0, 2), plain("dynamic", 1, 2)]));
    for member in &members {
        world.coordinator.on_connected(*member);
    }
    world.pass_with(seconds(1), &members, &present());
    (world, members)
}

fn all_run(world: &World, members: &[MemberId]) -> bool {
    members.iter().all(|member| matches!(world.status(*member), Status::Running { .. }))
}

#[test]
fn a_control_plane_that_is_cut_off_blames_nobody() {
    for cut in [millis(1500), seconds(6), seconds(60)] {
        let (mut world, members) = running();
        world.pass(cut, &[]);
        assert!(all_run(&world, &members), "{cut:?}");
        // One is back. The others, and the parameter host, have the time of a reconnection.
        world.pass(seconds(4), &members[..1]);
        assert!(all_run(&world, &members), "{cut:?}");
        world.enter(RackEntry { jobs: TakenOver { jobs: vec![2], last_epochs: vec![] }, ..host(0) });
        world.pass_with(seconds(30), &members, &present());
        assert!(all_run(&world, &members), "{cut:?}");
    }
}

#[test]
fn whoever_does_not_come_back_after_a_cut_is_named() {
    let (mut world, members) = running();
    world.pass(seconds(6), &[]);
    world.pass_with(seconds(12), &[members[0], members[2]], &present());
    for member in [members[0], members[2]] {
        let failure = world.failure(member);
        assert_eq!((failure.kind, failure.culprit()), (FailureKind::Silent, Some(1)));
    }
}

#[test]
fn a_cut_at_one_worker_is_as_long_as_the_longest_outage() {
    let (mut world, members) = running();
    let others = [members[0], members[2]];
    for cut in [millis(1500), seconds(9)] {
        world.pass_with(cut, &others, &present());
        assert!(all_run(&world, &members), "{cut:?}");
        world.pass_with(seconds(1), &members, &present());
    }
    world.pass_with(seconds(11), &others, &present());
    for other in others {
        assert_eq!(world.failure(other).culprit(), Some(1));
    }
}

#[test]
fn the_end_of_a_connection_after_an_outage_leaves_time_for_the_next_one() {
    let (mut world, members) = running();
    let others = [members[0], members[2]];
    let away = [members[1], members[3]];
    let connections = away.map(|member| world.coordinator.on_connected(member));
    world.pass(seconds(8), &others);
    for (member, connection) in away.into_iter().zip(connections) {
        world.coordinator.on_disconnected(member, Some(connection));
    }
    world.coordinator.rack_connected(RackId(1), false);
    world.pass(millis(1500), &others);
    assert!(all_run(&world, &members));
    for member in away {
        world.coordinator.on_connected(member);
    }
    world.coordinator.rack_connected(RackId(1), true);
    world.pass_with(seconds(20), &members, &present());
    assert!(all_run(&world, &members));
}

#[test]
fn the_longest_outage_is_a_setting() {
    let (mut world, members) = running();
    assert_eq!(world.terms(members[0]).longest_outage_s, 10);
    world.coordinator.longest_outage = seconds(30);
    let other = world.start("other", 1);
    assert_eq!(world.terms(other[0]).longest_outage_s, 30);
    let present_members = [members[0], members[2], other[0]];
    world.pass_with(seconds(29), &present_members, &present());
    assert!(all_run(&world, &members));
    world.pass_with(seconds(2), &present_members, &present());
    assert_eq!(world.failure(members[0]).culprit(), Some(1));
}

#[test]
fn a_worker_that_has_ended_its_connection_is_dead_after_two_seconds() {
    let (mut world, members) = running();
    let others = [members[0], members[2]];
    let dead = [members[1], members[3]];
    let earlier = dead.map(|member| world.coordinator.on_connected(member));
    let last = dead.map(|member| world.coordinator.on_connected(member));
    for (member, connection) in dead.into_iter().zip(earlier) {
        world.coordinator.on_disconnected(member, Some(connection));
    }
    world.pass_with(seconds(3), &others, &present());
    assert!(all_run(&world, &members), "the end of an earlier connection means nothing");
    world.pass_with(millis(100), &members, &present());
    for (member, connection) in dead.into_iter().zip(last) {
        world.coordinator.on_disconnected(member, Some(connection));
    }
    world.pass_with(millis(2100), &others, &present());
    for other in others {
        assert_eq!(world.failure(other).culprit(), Some(1));
    }
}

#[test]
fn jobs_end_with_their_workers_although_nobody_else_is_there() {
    let (mut world, members) = running();
    for member in &members {
        world.coordinator.on_disconnected(*member, None);
    }
    world.pass(seconds(3), &[]);
    assert!(world.coordinator.runs.is_empty());
}
