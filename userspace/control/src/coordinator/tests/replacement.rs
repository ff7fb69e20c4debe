//! Workers that take dead ones' ranks.

use sumac_job::Mode;

use super::{
    dynamic::{plain, present, rack},
    *,
};

/// Two workers, and one rank more that has died.
fn with_a_gap(grace: Time) -> (World, Vec<MemberId>) {
    let mut world = World::sharing(&[0]);
    world.coordinator.rejoin_grace = grace;
    let mut members = world.all((0..3).map(|rank| plain("a", rank, 3)));
    members.pop();
    world.pass_with(millis(2500), &members, &present());
    (world, members)
}

#[test]
fn the_job_goes_on_under_another_epoch() {
    let (mut world, mut members) = with_a_gap(seconds(10));
    let before = world.terms(members[0]);
    let newcomer = world.join(&plain("a", 2, 3)).unwrap();
    for member in [members[0], members[1], newcomer] {
        let grant = world.terms(member);
        assert_eq!((grant.job, grant.epoch, grant.token), (before.job, before.epoch + 1, before.token));
        assert_eq!(grant.resume, [3; 8]);
    }
    members.push(newcomer);
    world.pass_with(seconds(30), &members, &present());
    assert_eq!(world.terms(newcomer).epoch, before.epoch + 1);
    members.remove(0);
    world.pass_with(seconds(3), &members, &present());
    let third = world.join(&plain("a", 0, 3)).unwrap();
    assert_eq!(world.terms(third).epoch, before.epoch + 2, "and again");
}

#[test]
fn nobody_comes() {
    let (mut world, members) = with_a_gap(seconds(5));
    world.pass_with(seconds(2), &members, &present());
    assert_eq!(world.terms(members[0]).epoch, 1, "not yet");
    world.pass_with(seconds(3), &members, &present());
    let failure = world.failure(members[0]);
    assert_eq!((failure.kind, failure.culprit()), (FailureKind::Silent, Some(2)));
    assert!(world.plane.is_empty());
    world.pass_with(seconds(5), &[], &present());
    assert!(world.coordinator.runs.is_empty() && world.coordinator.members.is_empty());

    // It lives, and was not heard: nothing has happened.
    let mut world = World::sharing(&[0]);
    world.coordinator.rejoin_grace = seconds(5);
    let members = world.all((0..2).map(|rank| plain("a", rank, 2)));
    world.pass_with(seconds(4), &members[..1], &present());
    world.pass_with(seconds(20), &members, &present());
    assert_eq!(world.terms(members[1]).epoch, 1);
    let taken = world.join(&plain("a", 1, 2)).unwrap_err();
    assert_eq!(taken.kind, RefusalKind::RankTaken);
}

#[test]
fn whose_trainer_died_is_replaced_too() {
    let (mut world, members) = with_a_gap(seconds(9));
    let gone = Outcome::Died("its trainer was killed".into());
    world.leave(members[1], gone.clone());
    for rank in [1, 2] {
        world.join(&plain("a", rank, 3)).unwrap();
    }
    assert_eq!(world.terms(members[0]).epoch, 3);
    let others = world.start("static", 2);
    world.leave(others[0], gone);
    assert_eq!(world.failure(others[1]).kind, FailureKind::Left, "not in a static job");
    world.leave(members[0], Outcome::Failed("cancelled".into()));
    assert!(world.plane.is_empty(), "who gives up ends it");
}

#[test]
fn who_does_not_fit_is_refused_and_the_place_stays_open() {
    let (mut world, members) = with_a_gap(seconds(10));
    let elsewhere = world.enter(rack(1));
    let with = |change: fn(&mut JoinRequest)| {
        let mut request = plain("a", 2, 3);
        change(&mut request.asked);
        request
    };
    let table = [
        (with(|w| w.spec.scale = Some(Scale::Fixed(9.0))), "wants scaling"),
        (with(|w| w.spec.mode = Some(Mode::Static)), "wants mode dynamic"),
        (
            with(|w| w.host.max_elements = 100),
            "rank 2 can have 100 elements and 4 shards; the running job has 352 and 4",
        ),
        (with(|w| w.host.max_shards = 1), "rank 2 can have 352 elements and 1 shards"),
        (Join { rack: Some(RackId(elsewhere)), ..plain("a", 2, 3) }, "joined at another aggregator before"),
    ];
    for (request, words) in table {
        let refusal = world.join(&request).unwrap_err().to_string();
        assert!(refusal.contains(words), "{refusal}");
    }
    assert!(world.join(&plain("a", 2, 3)).is_ok());
    assert_eq!(world.terms(members[0]).epoch, 2);
}

#[test]
fn hosts_must_go_on_and_aggregators_need_not() {
    let (mut world, members) = with_a_gap(seconds(10));
    world.replaced = Err("the parameter host at 10.77.200.0: it is gone".into());
    world.join(&plain("a", 2, 3)).unwrap();
    assert!(world.failure(members[0]).message.contains("it is gone"));
    assert!(world.plane.is_empty());

    let (mut world, mut members) = with_a_gap(seconds(10));
    world.replaced = Ok(Replaced { placements: vec![None; 3], resume: vec![9; 8], lost: vec![None] });
    members.push(world.join(&plain("a", 2, 3)).unwrap());
    assert_eq!(world.terms(members[0]).resume, [9; 8]);
    world.pass_with(seconds(1), &members, &present());
    assert_eq!(world.restored.len(), 1, "it gets the job back when it can");
}

#[test]
fn a_second_one_waits_until_the_first_is_in() {
    let mut world = World::sharing(&[0]);
    world.coordinator.rejoin_grace = seconds(9);
    let members = world.all((0..3).map(|rank| plain("a", rank, 3)));
    world.pass_with(seconds(3), &members[..1], &present());
    let first = world.coordinator.join(world.now, &plain("a", 1, 3)).unwrap();
    assert_eq!(world.status(first), Status::Waiting(vec![]));
    let second = world.join(&plain("a", 2, 3)).unwrap_err();
    assert_eq!(second.kind, RefusalKind::RankTaken, "its client tries again");
    assert_eq!(world.terms(first).epoch, 2);
    let second = world.join(&plain("a", 2, 3)).unwrap();
    assert_eq!((world.terms(second).epoch, world.terms(first).epoch), (3, 3));
}

#[test]
fn without_a_grace_and_in_the_order_of_names_the_job_fails() {
    let (world, members) = with_a_gap(Time::ZERO);
    assert_eq!(world.failure(members[0]).culprit(), Some(2));
    let mut world = World::sharing(&[0]);
    world.coordinator.rejoin_grace = seconds(9);
    let named = |rank| {
        let mut request = plain("a", rank, 2);
        request.asked.spec.order = Some(OperationOrder::Name);
        request
    };
    let members = world.all((0..2).map(named));
    world.pass_with(seconds(3), &members[..1], &present());
    assert_eq!(world.failure(members[0]).culprit(), Some(1));
}
