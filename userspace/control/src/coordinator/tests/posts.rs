//! Notices, announcements, and the number of slots.

use super::*;
use crate::events::{Announcement, Event, Fault, OperationReport, ReportedOperation, TEXT_LEN};
use sumac_job::OperationId;

fn by_name(job: &str, rank: u16, world: u16) -> Join {
    wanting(job, rank, world, |asked| asked.spec.order = Some(OperationOrder::Name))
}

fn announce(name: &str, priority: u8) -> Post {
    announce_as(name, priority, "a sum of 5 float32")
}

fn announce_as(name: &str, priority: u8, description: &str) -> Post {
    let signature = description.len() as u32;
    Post::Announce(Announcement { name: name.into(), signature, description: description.into(), priority })
}

fn fault(text: &str) -> Post {
    Post::Fault(Fault { operation: OperationId(7), rank: None, index: None, problem: text.into() })
}

/// The events from number `from` on, as text.
fn events(world: &World, member: MemberId, from: u64) -> Vec<String> {
    let mut next = from;
    let mut texts = Vec::new();
    while let Some((number, event)) = world.coordinator.event(member, next) {
        next = number + 1;
        texts.push(match event {
            Event::Fault { rank, fault } => format!("{rank}: {}", fault.problem),
            Event::Released(name) => name,
            other => panic!("{other:?}"),
        });
    }
    texts
}

#[test]
fn every_member_receives_every_event_once() {
    let mut world = World::new();
    let members = world.start("a", 2);
    world.post(members[0], 0, vec![fault("one"), fault("two")]);
    // The answer was lost: the same again, and one more.
    world.post(members[0], 0, vec![fault("one"), fault("two"), fault("three")]);
    world.post(members[1], 0, vec![fault("four")]);
    let all = ["0: one", "0: two", "0: three", "1: four"];
    for member in &members {
        assert_eq!(events(&world, *member, 0), all);
        assert_eq!(events(&world, *member, 3), all[3..]);
        world.coordinator.on_received(*member, 4);
    }
    world.post(members[1], 1, vec![fault(&"x".repeat(5000))]);
    let last = events(&world, members[0], 0);
    assert_eq!(
        (last.len(), last[0].len()),
        (1, 3 + TEXT_LEN),
        "what all have received is gone; texts are cut"
    );
    world.leave(members[1], Outcome::Done);
    assert_eq!(events(&world, members[0], 4).len(), 1, "also of one who has left");
}

#[test]
fn names_are_released_in_one_order_for_all() {
    let mut world = World::new();
    let members = world.all((0..3).map(|rank| by_name("a", rank, 3)));
    world.post(members[1], 0, vec![announce("b", 0), announce("a", 0)]);
    world.post(members[0], 0, vec![announce("a", 0), announce("c", 7), announce("b", 0)]);
    world.post(members[1], 2, vec![announce("c", 7)]);
    assert_eq!(events(&world, members[0], 0), [""; 0]);
    world.post(members[2], 0, vec![announce("b", 0)]);
    world.post(members[2], 1, vec![announce("a", 0), announce("c", 7)]);
    for member in members {
        assert_eq!(events(&world, member, 0), ["b", "c", "a"], "of two that are ready the urgent one");
    }
}

#[test]
fn unequal_operations_under_one_name_fail_the_job_naming_both() {
    let mut world = World::new();
    let members = world.all((0..2).map(|rank| by_name("a", rank, 2)));
    world.post(members[0], 0, vec![announce("g", 0)]);
    world.post(members[1], 0, vec![announce_as("g", 0, "a maximum of 5 int32")]);
    for member in members {
        let failure = world.failure(member);
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Mismatch, &[0, 1][..]));
        let both = "operation `g`: rank 1 has a maximum of 5 int32 where rank 0 has a sum of 5 float32";
        assert_eq!(failure.message, both);
    }
    let member = world.start("b", 1)[0];
    world.post(member, 0, vec![announce("g", 0)]);
    assert!(world.failure(member).message.contains("order is that of submission"));
}

#[test]
fn a_member_that_does_not_receive_ends_the_job() {
    let mut world = World::new();
    let members = world.start("a", 2);
    let text = "x".repeat(TEXT_LEN);
    for count in 0..10_000 {
        world.post(members[0], count, vec![fault(&text)]);
        world.coordinator.on_received(members[0], count + 1);
    }
    let failure = world.failure(members[0]);
    assert_eq!(failure.culprit(), Some(1));
    let message = "rank 1 (10.77.1.2) does not keep up with the job's events";
    assert_eq!(failure.message, message, "it is not said to be silent");
}

#[test]
fn reports_write_no_lines_into_the_log() {
    let mut world = World::new();
    let members = world.start("a", 2);
    world.post(members[0], 0, vec![fault("one\nWARN two\x1b[2J")]);
    assert_eq!(events(&world, members[1], 0), ["0: one WARN two [2J"]);
}

/// Two members that leave the number of slots open.
fn measuring() -> (World, Vec<MemberId>) {
    let mut world = World::new();
    let members = world.all((0..2).map(|rank| wanting("a", rank, 2, |asked| asked.spec.slots = None)));
    (world, members)
}

fn measure(rtt_us: u64, mbit: u64) -> Vec<Post> {
    vec![Post::Measure(PathMeasure {
        rtt_ns: rtt_us * 1000,
        shortest_ns: rtt_us * 1000,
        bytes_per_s: mbit * 125_000,
    })]
}

#[test]
fn slots_are_fixed_when_all_have_measured_and_the_rest_is_given_back() {
    let (mut world, members) = measuring();
    let grant = world.terms(members[0]);
    assert_eq!(
        (grant.slots, grant.is_measured, grant.slots_reason.as_str()),
        (128, false, ""),
        "all that there is"
    );
    assert_eq!(world.coordinator.pool.free(u32::MAX), 0);
    world.post(members[0], 0, measure(100, 950));
    assert!(!world.terms(members[0]).is_measured, "rank 1 still measures");
    world.post(members[1], 0, measure(500, 900));
    for member in &members {
        let grant = world.terms(*member);
        assert_eq!((grant.slots, grant.is_measured), (64, true));
        let reason = "0.50 ms x 900 Mbit/s = 56.2 KB = 52 packets of 1.0 KB, next power of two 64";
        assert_eq!(grant.slots_reason, reason);
    }
    assert_eq!(world.coordinator.pool.free(u32::MAX), 128, "the rest is free again");
    assert_eq!(world.plane.values().map(|held| held.2).collect::<Vec<_>>(), [128]);
    world.post(members[1], 1, measure(90_000, 900));
    assert_eq!(world.terms(members[0]).slots, 64, "once");
    for member in members {
        world.leave(member, Outcome::Done);
    }
    assert_eq!(world.coordinator.pool.free(u32::MAX), 256);
}

/// Two members with AF_XDP that can use UDP, too, and have measured the former.
fn measuring_both(mbit: u64) -> (World, Vec<MemberId>) {
    let mut world = World::new();
    let asked = |rank| wanting("a", rank, 2, |asked| (asked.spec.slots, asked.host.has_udp) = (None, true));
    let members = world.all((0..2).map(asked));
    world.post(members[0], 0, measure(500, mbit));
    assert!(!world.terms(members[0]).over_udp, "rank 1 still measures");
    world.post(members[1], 0, measure(500, mbit));
    (world, members)
}

#[test]
fn the_faster_backend_of_both_is_chosen_for_all() {
    let of_own = "AF_XDP 900 Mbit/s a worker (slowest 900)";
    for (udp, is_faster, rest) in [
        (1800, true, "UDP 1800 (1800): UDP; 1.0 ms x 1800 Mbit/s"),
        (980, false, "UDP 980 (980): AF_XDP; 0.50 ms x 900 Mbit/s"),
        (90, false, "UDP 90 (90): AF_XDP; 0.50 ms x 900 Mbit/s"),
    ] {
        let reason = format!("{of_own}, {rest}");
        let (mut world, members) = measuring_both(900);
        for member in &members {
            let terms = world.terms(*member);
            assert_eq!((terms.over_udp, terms.is_measured), (true, false), "{reason}");
            world.post(*member, 1, measure(1000, udp));
        }
        let terms = world.terms(members[0]);
        assert_eq!((terms.over_udp, terms.is_measured), (is_faster, true), "{reason}");
        assert!(terms.slots_reason.starts_with(&reason), "{}", terms.slots_reason);
    }
}

#[test]
fn af_xdp_stays_where_one_worker_is_slow_or_silent_over_udp() {
    for slow in [0, 400] {
        let (mut world, members) = measuring_both(900);
        world.post(members[0], 1, measure(1000, 9000));
        world.post(members[1], 1, measure(1000, slow));
        let terms = world.terms(members[0]);
        assert_eq!((terms.over_udp, terms.is_measured), (false, true));
        let average = (9000 + slow) / 2;
        let reason =
            format!("AF_XDP 900 Mbit/s a worker (slowest 900), UDP {average} ({slow}): AF_XDP; 0.50 ms");
        assert!(terms.slots_reason.starts_with(&reason), "{}", terms.slots_reason);
    }
}

#[test]
fn a_measure_that_is_not_asked_for_is_not_kept() {
    let (mut world, members) = measuring_both(900);
    for number in 1..100 {
        world.post(members[0], number, measure(1000, 90));
    }
    assert!(!world.terms(members[0]).is_measured, "rank 1 still measures");
    let kept = world.coordinator.runs.values().flat_map(|run| run.members.values());
    assert_eq!(kept.map(|member| member.measures.len()).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn one_that_does_not_measure_udp_is_named() {
    let (mut world, members) = measuring_both(900);
    world.pass(seconds(20), &members);
    world.post(members[1], 1, measure(1000, 900));
    world.pass(seconds(11), &members);
    assert_eq!(world.failure(members[1]).culprit(), Some(0));
}

#[test]
fn udp_is_not_measured_where_a_worker_lacks_it_or_no_worker_has_af_xdp() {
    let cases: [fn(&mut JoinRequest, u16); 2] = [
        |asked, rank| asked.host.has_udp = rank == 0,
        |asked, _| (asked.host.has_udp, asked.host.mac) = (true, [0; 6]),
    ];
    for change in cases {
        let mut world = World::new();
        let asked = |rank| {
            wanting("a", rank, 2, |asked| {
                asked.spec.slots = None;
                change(asked, rank);
            })
        };
        let members = world.all((0..2).map(asked));
        members.iter().for_each(|member| world.post(*member, 0, measure(500, 900)));
        let terms = world.terms(members[0]);
        assert_eq!((terms.over_udp, terms.is_measured), (false, true));
    }
}

#[test]
fn a_plane_that_cannot_shrink_a_job_fails_it() {
    let mut world = World::new();
    let member = world.join(&wanting("a", 0, 1, |asked| asked.spec.slots = None)).unwrap();
    world.coordinator.post(world.now, member, 0, measure(1, 1));
    let Some(Action::Resize(run, order)) = world.coordinator.poll_action() else { panic!("no order") };
    assert_eq!(order.terms.slots, 64);
    assert!(!world.terms(member).is_measured, "not before the plane knows");
    world.coordinator.on_resized(run, Err("it is away".into()));
    assert!(world.failure(member).message.contains("it is away"));
    assert!(matches!(world.coordinator.poll_action(), Some(Action::Remove { run: of, .. }) if of == run));
}

#[test]
fn slots_are_fixed_without_those_who_have_left() {
    let (mut world, members) = measuring();
    world.post(members[0], 0, measure(500, 900));
    assert!(!world.terms(members[0]).is_measured, "rank 1 still measures");
    world.leave(members[1], Outcome::Done);
    assert!(world.terms(members[0]).is_measured, "nobody else measures");
}

#[test]
fn who_never_measures_is_named() {
    let (mut world, members) = measuring();
    world.post(members[0], 0, measure(500, 900));
    world.pass(seconds(29), &members);
    assert!(!world.terms(members[0]).is_measured);
    world.pass(seconds(2), &members);
    let failure = world.failure(members[0]);
    assert_eq!(failure.culprit(), Some(1));
    assert!(
        failure.message.starts_with("rank 1 (10.77.1.2) has not measured its path within 30s"),
        "{failure}"
    );
    assert_eq!(world.coordinator.pool.free(u32::MAX), 256, "its slots are free");
}

fn operation(number: u32, text: &str) -> ReportedOperation {
    let signature = text.len() as u32;
    ReportedOperation { operation: OperationId(number), signature, text: format!("#{number} {text}") }
}

fn report(operations: &[ReportedOperation]) -> Vec<Post> {
    vec![Post::Operations(OperationReport { operations: operations.to_vec(), ..OperationReport::default() })]
}

#[test]
fn workers_that_differ_are_asked_and_all_receive_the_same_diagnosis() {
    let mut world = World::new();
    let members = world.start("a", 3);
    let (sum, maximum) = (operation(4, "a sum"), operation(4, "a maximum"));
    world.post(members[1], 0, report(&[operation(3, "same"), maximum]));
    for member in &members {
        assert!(matches!(world.coordinator.event(*member, 0), Some((0, Event::ReportOperations))));
    }
    world.post(members[0], 0, report(&[operation(3, "same"), sum.clone()]));
    assert_eq!(world.terms(members[0]).epoch, 1, "the third has not reported");
    world.post(members[2], 0, report(&[sum]));
    for member in members {
        let failure = world.failure(member);
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Mismatch, &[0, 1][..]));
        let both = "the workers do not do the same: rank 0 has #4 a sum where rank 1 has #4 a maximum";
        assert_eq!(failure.message, both);
    }
}

#[test]
fn operations_that_never_meet_are_compared_when_they_stall() {
    let mut world = World::new();
    let members = world.start("a", 2);
    let stalled = |number, text| vec![Post::Stalled(operation(number, text))];
    world.post(members[0], 0, stalled(4, "a sum"));
    world.post(members[1], 0, stalled(3, "an older one"));
    world.post(members[1], 1, stalled(4, "a sum"));
    assert_eq!(world.coordinator.event(members[0], 0), None, "they do the same");
    world.post(members[0], 1, stalled(5, "a sum urgent"));
    world.post(members[1], 2, stalled(5, "a sum"));
    assert!(matches!(world.coordinator.event(members[0], 0), Some((0, Event::ReportOperations))));
    world.post(members[0], 2, report(&[operation(5, "a sum urgent")]));
    world.pass(millis(1200), &members);
    assert_eq!(world.failure(members[0]).kind, FailureKind::Mismatch, "without the one that does not report");
}
