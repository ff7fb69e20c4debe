//! From the start to the end: silence, leaves, and what befalls the plane and the server.

use super::*;

#[test]
fn a_silent_rank_fails_the_job_on_all_others_and_frees_its_slots() {
    let mut world = World::new();
    let members = world.start("a", 3);
    world.pass(seconds(30), &members);
    assert_eq!(world.terms(members[0]).epoch, 1);
    world.pass(millis(1900), &members[..2]);
    assert_eq!(world.terms(members[0]).epoch, 1, "not yet");
    world.pass(millis(200), &members[..2]);
    for member in &members[..2] {
        let failure = world.failure(*member);
        assert_eq!((failure.kind, failure.culprit()), (FailureKind::Silent, Some(2)));
        assert_eq!(failure.message, "rank 2 (10.77.2.2) stopped answering");
    }
    assert!(world.plane.is_empty());
    assert_eq!(world.coordinator.pool.free(u32::MAX), 256);
    world.pass(seconds(5), &[]);
    assert!(world.coordinator.runs.is_empty() && world.coordinator.members.is_empty(), "nothing is left");
}

#[test]
fn a_server_that_stood_still_blames_nobody() {
    let mut world = World::new();
    let members = world.start("a", 2);
    world.pass(seconds(1), &members);
    world.now += seconds(60);
    world.coordinator.tick(world.now);
    assert_eq!(world.terms(members[0]).epoch, 1);
    world.pass(seconds(3), &members[..1]);
    assert_eq!(world.failure(members[0]).culprit(), Some(1));
}

#[test]
fn leaves() {
    let mut world = World::new();
    let members = world.start("a", 3);
    world.leave(members[1], Outcome::Done);
    assert_eq!(world.departed(members[0]), [1]);
    world.pass(seconds(10), &[members[0], members[2]]);
    assert_eq!(world.departed(members[0]), [1], "who has left is not silent");
    world.leave(members[2], Outcome::Failed("cancelled by the user".into()));
    let failure = world.failure(members[0]);
    assert_eq!(failure.message, "rank 2 (10.77.2.2) left: cancelled by the user");
    assert_eq!((failure.kind, failure.culprit()), (FailureKind::Left, Some(2)));
    assert!(world.plane.is_empty());

    let members = world.start("b", 2);
    for member in members {
        world.leave(member, Outcome::Done);
    }
    assert!(world.plane.is_empty());
    assert!(world.coordinator.is_idle());
}

#[test]
fn lost_state_ends_all_jobs_and_frees_the_pool() {
    let mut world = World::new();
    let members = world.start("a", 2);
    let waiting = world.join(&request("b", 0, 2)).unwrap();
    world.coordinator.on_plane(world.now, Ok((0xa, INFO)));
    assert_eq!(world.terms(members[0]).epoch, 1, "the same memory");
    world.coordinator.on_plane(world.now, Ok((0xb, PlaneInfo { slots: 64, ..INFO })));
    world.work();
    let message = "aggregator lost its state (instance a -> b)";
    assert_eq!(world.failure(members[0]).message, message);
    assert_eq!(world.status(waiting), Status::Waiting(vec![1]), "has nothing to lose yet");
    assert_eq!((world.coordinator.pool.free(u32::MAX), world.coordinator.pool.total(u32::MAX)), (64, 64));
}

#[test]
fn an_absent_plane_is_waited_for_and_not_for_ever() {
    let mut world = World::new();
    let members = world.start("a", 1);
    let away = || Err("detached".to_string());
    world.coordinator.on_plane(world.now, away());
    world.pass(seconds(9), &members);
    world.coordinator.on_plane(world.now, away());
    assert_eq!(world.terms(members[0]).epoch, 1);
    world.coordinator.on_plane(world.now, Ok((0xa, INFO)));
    world.pass(seconds(5), &members);
    world.coordinator.on_plane(world.now, away());
    assert_eq!(world.terms(members[0]).epoch, 1, "counts from the last time it was there");
    world.pass(seconds(10), &members);
    world.coordinator.on_plane(world.now, away());
    let failure = world.failure(members[0]);
    assert_eq!(failure.kind, FailureKind::PlaneDown);
    assert!(failure.message.contains("detached"), "{failure}");
}

#[test]
fn slots_stay_taken_until_the_plane_has_given_the_job_up() {
    let mut world = World::new();
    let members = world.start("a", 1);
    world.refuse_removal = true;
    world.leave(members[0], Outcome::Done);
    assert_eq!(world.coordinator.pool.free(u32::MAX), 192);
    let next = world.join(&request("a", 0, 1)).unwrap();
    world.pass(seconds(3), &[next]);
    assert_eq!(world.status(next), Status::Waiting(vec![]));
    world.refuse_removal = false;
    world.pass(seconds(2), &[next]);
    assert_eq!(world.terms(next).epoch, 2);
    world.refuse_removal = true;
    world.leave(next, Outcome::Done);
    let hasty = world.join(&within(1.0, request("a", 0, 1))).unwrap();
    world.pass(seconds(2), &[hasty]);
    let refusal = world.refusal(hasty);
    assert_eq!(refusal.kind, RefusalKind::Plane, "nobody runs it any more: {refusal}");
    assert!(refusal.to_string().contains("has not removed"), "{refusal}");
}

#[test]
fn an_install_that_comes_too_late_or_fails_is_undone() {
    let mut world = World::new();
    let member = world.coordinator.join(Time::ZERO, &request("a", 0, 1)).unwrap();
    let Some(Action::Install(run, order)) = world.coordinator.poll_action() else { panic!("no order") };
    let is_removal = |action: Option<Action>, job: u16| matches!(action, Some(Action::Remove { run: of, job: number, .. }) if (of, number) == (run, job));
    world.coordinator.leave(member, &Outcome::Failed("cancelled".into()));
    assert_eq!(world.coordinator.poll_action(), None, "the plane is at work");
    let installed = InstalledJob { placements: placements(&order), parents: Vec::new() };
    world.coordinator.on_installed(run, Ok(installed));
    assert!(is_removal(world.coordinator.poll_action(), order.terms.job));
    world.coordinator.on_removed(Time::ZERO, run, Ok(()));
    assert!(world.coordinator.runs.is_empty());

    let member = world.coordinator.join(Time::ZERO, &request("b", 0, 1)).unwrap();
    let Some(Action::Install(run, _)) = world.coordinator.poll_action() else { panic!("no order") };
    world.coordinator.on_installed(run, Err("no way to rank 0".into()));
    assert_eq!(world.refusal(member), Refusal::plane("no way to rank 0"));
    let undone = world.coordinator.poll_action();
    assert!(matches!(undone, Some(Action::Remove { run: of, .. }) if of == run), "what was half done");
}

#[test]
fn a_stop_tells_everybody() {
    let mut world = World::new();
    let running = world.start("a", 1);
    let waiting = world.join(&request("b", 0, 2)).unwrap();
    world.coordinator.stop();
    world.work();
    assert_eq!(world.failure(running[0]).kind, FailureKind::Stopped);
    assert_eq!(world.refusal(waiting), Refusal::stopping());
    assert!(world.plane.is_empty() && world.coordinator.is_idle());
    assert_eq!(world.join(&request("c", 0, 1)), Err(Refusal::stopping()));
}

#[test]
fn nobody_waits_for_the_installs_of_others_to_leave() {
    let mut world = World::new();
    let member = world.start("a", 1)[0];
    for job in ["b", "c"] {
        world.coordinator.join(world.now, &request(job, 0, 1)).unwrap();
    }
    let mut next = || world.coordinator.poll_action().expect("an order");
    assert!(matches!(next(), Action::Install(..)), "of b");
    world.coordinator.leave(member, &Outcome::Done);
    let mut next = || world.coordinator.poll_action().expect("an order");
    assert!(matches!(next(), Action::Remove { .. }), "of a");
    assert!(matches!(next(), Action::Install(..)), "of c");
}
