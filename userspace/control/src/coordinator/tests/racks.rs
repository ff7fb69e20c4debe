//! Racks below this aggregator.

use super::{dynamic::below, *};

const RACK: PlaneInfo = plane(160, 300);

fn entry(number: u8, last_epochs: Vec<LastEpoch>) -> RackEntry {
    let ip = Ipv4Addr::new(10, 77, 100, 10 + number);
    let jobs = TakenOver { jobs: Vec::new(), last_epochs };
    RackEntry { name: format!("r{number}"), ip, above: None, plane: RACK, instance: 1, jobs }
}

fn entered() -> World {
    let mut world = World::new();
    for number in 0..2 {
        let last = vec![LastEpoch { job: 1, epoch: 40 + u16::from(number) }];
        assert_eq!(world.enter(entry(number, last)), u64::from(number) + 1);
    }
    world
}

/// Two racks, with as many workers each.
fn running() -> (World, Vec<MemberId>) {
    let mut world = entered();
    let members = world.all((0..4).map(|rank| below(u64::from(rank % 2) + 1, request("a", rank, 4))));
    (world, members)
}

/// Both racks are in service.
const BOTH: [(u64, PlaneInfo); 2] = [(1, RACK), (2, RACK)];

#[test]
fn a_job_gets_what_all_its_aggregators_have() {
    let mut world = entered();
    let ask = |rank: u16| {
        below(
            u64::from(rank / 2) + 1,
            wanting("a", rank, 4, |w| (w.spec.elements, w.spec.slots) = (None, None)),
        )
    };
    for rank in 0..4 {
        world.coordinator.join(world.now, &ask(rank)).unwrap();
    }
    let Some(Action::Install(_, order)) = world.coordinator.poll_action() else { panic!("no order") };
    let racks: Vec<_> =
        order.layout.racks().map(|(_, rack, child)| (rack.0 - 1, child.ranks.clone())).collect();
    assert_eq!(racks, [(0, vec![0, 1]), (1, vec![2, 3])]);
    assert_eq!(order.terms.elements, 300, "the racks' slots");
    assert!(order.first_slot + order.terms.slots * 2 <= 160, "the racks' pool");
    assert_eq!(order.terms.epoch, 42, "none that any of the planes remembers");
}

#[test]
fn a_silent_rack_fails_the_jobs_below_it_by_name() {
    let (mut world, members) = running();
    let apart = world.start("b", 1);
    let all = [&members[..], &apart].concat();
    world.pass_with(seconds(5), &all, &BOTH);
    assert_eq!(world.terms(members[0]).job, 1);
    world.pass_with(seconds(3), &all, &BOTH[..1]);
    let failure = world.failure(members[0]);
    assert_eq!(failure.kind, FailureKind::Rack);
    assert_eq!(failure.message, "the aggregator of rack `r1` (10.77.100.11) stopped answering");
    assert_eq!(world.coordinator.poll_lost_rack(), Some(RackId(2)));
    assert_eq!(world.terms(apart[0]).job, 2, "who is not below it goes on");
    assert!(!world.coordinator.rack_reports(world.now, RackId(2), Ok((1, RACK))));
    let late = world.join(&below(2, request("c", 0, 1))).unwrap();
    assert_eq!(world.refusal(late).kind, RefusalKind::Plane);
}

/// Its workers' streams run through it, so their last messages are older than its own.
#[test]
fn a_rack_that_dies_with_its_workers_streams_is_named() {
    let (mut world, members) = running();
    world.pass_with(millis(500), &members, &BOTH);
    // The workers below the second rack (odd ranks) sent nothing in its last 300 ms.
    let even = [members[0], members[2]];
    world.pass_with(millis(300), &even, &BOTH);
    world.pass_with(seconds(3), &even, &BOTH[..1]);
    let failure = world.failure(members[0]);
    assert_eq!(failure.kind, FailureKind::Rack, "{failure}");

    let (mut world, members) = running();
    world.pass_with(millis(500), &members, &BOTH);
    world.pass_with(millis(2_200), &members[..3], &BOTH);
    let failure = world.failure(members[0]);
    assert_eq!((failure.kind, failure.culprit()), (FailureKind::Silent, Some(3)), "{failure}");
}

/// Their streams ran through its former process.
#[test]
fn workers_have_time_to_reconnect_through_a_rack_that_is_back() {
    let (mut world, members) = running();
    let even = [members[0], members[2]];
    world.pass_with(millis(1_700), &even, &BOTH[..1]);
    let jobs = TakenOver { jobs: vec![1], last_epochs: vec![] };
    let entered = world.coordinator.rack_enters(world.now, RackEntry { jobs, ..entry(1, vec![]) });
    assert_eq!(entered, Ok(RackId(2)));
    world.pass_with(millis(1_500), &even, &BOTH);
    assert_eq!(world.terms(members[0]).job, 1, "the workers below it are not called silent yet");
    world.pass_with(seconds(1), &even, &BOTH);
    let failure = world.failure(members[0]);
    assert_eq!((failure.kind, failure.culprit()), (FailureKind::Silent, Some(1)), "{failure}");
}

/// Members below it cannot receive the end of the job, and ask for it when the rack is back.
#[test]
fn workers_below_a_dead_rack_are_told_that_it_was_the_rack() {
    let (mut world, members) = running();
    let even = [members[0], members[2]];
    world.pass_with(seconds(5), &even, &BOTH[..1]);
    assert_eq!(world.failure(members[0]).kind, FailureKind::Rack);
    let missed = world.coordinator.reconnect(world.now, "a", 1, members[1], 0).unwrap_err();
    assert_eq!(missed, world.failure(members[0]));
    assert!(missed.message.contains("`r1` (10.77.100.11) stopped answering"), "{missed:?}");
}

#[test]
fn a_rack_that_lost_its_state_or_is_away_fails_them_too() {
    let (mut world, members) = running();
    world.coordinator.rack_reports(world.now, RackId(1), Ok((2, RACK)));
    let failure = world.failure(members[3]);
    assert!(failure.message.contains("`r0` (10.77.100.10) lost its state (instance 1 -> 2)"), "{failure}");

    let (mut world, members) = running();
    for second in 0..11 {
        assert_eq!(world.terms(members[0]).job, 1, "not yet, after {second} s");
        world.coordinator.rack_reports(world.now, RackId(1), Err("detached".into()));
        world.pass_with(seconds(1), &members, &BOTH[1..]);
    }
    assert!(world.failure(members[0]).message.contains("detached"));
}

#[test]
fn names_and_their_owners() {
    let (mut world, members) = running();
    let now = world.now;
    let mut enter = |entry| world.coordinator.rack_enters(now, entry);
    let other = RackEntry { ip: Ipv4Addr::LOCALHOST, ..entry(0, vec![]) };
    assert!(enter(other).unwrap_err().contains("a rack `r0` is there already, at 10.77.100.10"));
    assert!(enter(RackEntry { name: String::new(), ..entry(0, vec![]) }).is_err());
    let jobs = TakenOver { jobs: vec![1], last_epochs: vec![] };
    assert_eq!(enter(RackEntry { jobs, ..entry(0, vec![]) }), Ok(RackId(1)), "its connection was lost");
    assert_eq!(world.terms(members[0]).job, 1, "and the job goes on");
    assert_eq!(world.coordinator.known_jobs("r0", false).len(), 1);
    assert_eq!(world.coordinator.known_jobs("r0", true), []);
    world.coordinator.rack_enters(now, entry(0, vec![])).unwrap();
    let failure = world.failure(members[0]);
    assert!(failure.message.contains("`r0` (10.77.100.10) was started anew"), "{failure}");
}

#[test]
fn workers_are_all_below_racks_or_none() {
    let mut world = entered();
    let zero = world.join(&request("a", 0, 2)).unwrap();
    world.join(&below(2, request("a", 1, 2))).unwrap();
    let refusal = world.refusal(zero);
    assert_eq!(refusal.kind, RefusalKind::Invalid);
    assert!(
        refusal.to_string().contains("rank 0 joined at the root itself and rank 1 at rack `r1`"),
        "{refusal}"
    );
    let refusal = world.join(&request("b", 0, 33)).unwrap_err();
    assert!(refusal.to_string().contains("1 to 32"), "{refusal}");
    assert!(world.join(&below(1, request("b", 0, 33))).is_ok(), "more than 32 have room in two racks");
}

/// Racks 1 and 2 are in the middle, with two racks each: 3 and 4, 5 and 6.
fn tree() -> World {
    let mut world = entered();
    for number in 2..6 {
        let above = Some(RackId(u64::from(number / 2)));
        world.enter(RackEntry { above, ..entry(number, vec![]) });
    }
    world
}

/// A worker of a job of eight in a tree, two below each of the lowest racks.
fn in_tree(rank: u16) -> Join {
    below(u64::from(rank / 2) + 3, request("a", rank, 8))
}

#[test]
fn a_tree_of_three_levels_has_a_job_on_all_its_aggregators() {
    let mut world = tree();
    for rank in 0..8 {
        world.coordinator.join(world.now, &in_tree(rank)).unwrap();
    }
    let Some(Action::Install(_, order)) = world.coordinator.poll_action() else { panic!("no order") };
    let racks = |at: Option<u64>| {
        let senders = order.layout.senders(at.map(RackId)).into_iter();
        senders.map(|sender| match sender {
            Sender::Rack(rack) => rack.0,
            Sender::Worker(rank) => 100 + rank as u64,
        })
    };
    assert_eq!(racks(None).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(racks(Some(1)).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(racks(Some(2)).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(racks(Some(6)).collect::<Vec<_>>(), [106, 107]);
    let mut all: Vec<_> = order.layout.all_racks().into_iter().map(|rack| rack.0).collect();
    all.sort_unstable();
    assert_eq!((all, order.racks.len()), (vec![1, 2, 3, 4, 5, 6], 6));
    let position = order.layout.position(7).unwrap();
    assert_eq!((position.bit, position.fan_in, order.terms.world), (1, 2, 8));
}

#[test]
fn a_rack_in_the_middle_fails_the_jobs_of_those_below_it() {
    let mut world = tree();
    let members = world.all((0..8).map(in_tree));
    let alive: Vec<_> = (1..=6).filter(|id| *id != 2).map(|id| (id, RACK)).collect();
    world.pass_with(seconds(4), &members, &alive);
    let failure = world.failure(members[0]);
    assert_eq!(failure.kind, FailureKind::Rack);
    assert_eq!(failure.message, "the aggregator of rack `r1` (10.77.100.11) stopped answering");
}

#[test]
fn what_a_tree_cannot_be_is_refused() {
    let mut world = tree();
    let dynamic = |asked: &mut JoinRequest| {
        asked.spec.mode = Some(sumac_job::Mode::Dynamic);
        (asked.spec.slots, asked.spec.shards) = (None, None);
    };
    let refused = world.join(&below(3, wanting("d", 0, 2, dynamic))).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Invalid);
    let why = "rank 0 joined at rack `r2`, which is below rack `r0`: dynamic jobs have two levels";
    assert!(refused.to_string().contains(why), "{refused}");

    let zero = world.join(&below(1, request("m", 0, 2))).unwrap();
    world.join(&below(3, request("m", 1, 2))).unwrap();
    let refused = world.refusal(zero);
    let why = "rank 0 joined at rack `r0`, which has racks of the job below it";
    assert!(refused.to_string().contains(why), "{refused}");

    let switch = PlaneInfo { kind: PlaneKind::P4, ..RACK };
    assert!(world.coordinator.rack_reports(world.now, RackId(1), Ok((1, switch))));
    let refused = world.join(&below(3, request("p", 0, 1))).unwrap();
    let why = "rack `r0` is between other racks and the root, and has a P4 switch";
    assert!(world.refusal(refused).to_string().contains(why));

    let now = world.now;
    let mut enter = |number, above| {
        world.coordinator.rack_enters(now, RackEntry { above: Some(RackId(above)), ..entry(number, vec![]) })
    };
    assert!(enter(0, 3).unwrap_err().contains("a tree of racks has no circles"));
    assert!(enter(9, 77).unwrap_err().contains("the rack above is gone"));
    let mut above = enter(10, 3).unwrap();
    let deepest = (11..30).find_map(|number| match enter(number, above.0) {
        Ok(rack) => {
            above = rack;
            None
        }
        Err(why) => Some(why),
    });
    assert!(deepest.unwrap().contains("8 racks from rack `r15` up to the root already"));
}

#[test]
fn a_rack_that_comes_back_elsewhere_has_lost_its_jobs() {
    let mut world = tree();
    let members = world.all((0..8).map(in_tree));
    let jobs = || TakenOver { jobs: vec![1], last_epochs: vec![] };
    let ip = entry(2, vec![]).ip;
    let here = RackEntry { above: Some(RackId(1)), jobs: jobs(), ..entry(2, vec![]) };
    world.coordinator.rack_enters(world.now, here).unwrap();
    assert_eq!(world.terms(members[0]).job, 1);
    assert_eq!(world.coordinator.entered_rack("r2", ip, Some(RackId(1))), Some(RackId(3)));
    assert_eq!(world.coordinator.entered_rack("r2", ip, None), None, "past the one above");
    let elsewhere = RackEntry { above: Some(RackId(2)), jobs: jobs(), ..entry(2, vec![]) };
    world.coordinator.rack_enters(world.now, elsewhere).unwrap();
    assert!(world.failure(members[0]).message.contains("was started anew"));
}
