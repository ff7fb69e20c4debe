//! Notices, announcements, and the number of slots.

use super::*;
use crate::{Announcement, Notice};

fn by_name(job: &str, rank: u16, world: u16) -> JoinRequest {
    wanting(job, rank, world, |wishes| wishes.order = OperationOrder::Name)
}

fn announce(name: &str, priority: u8) -> Post {
    announce_as(name, priority, "a sum of 5 float32")
}

fn announce_as(name: &str, priority: u8, description: &str) -> Post {
    let signature = description.len() as u32;
    Post::Announcement(Announcement {
        name: name.into(),
        signature,
        description: description.into(),
        priority,
    })
}

fn notice(text: &str) -> Post {
    Post::Notice(Notice { key: 7, text: text.into() })
}

fn heard(world: &World, member: MemberId, heard: u64) -> Vec<String> {
    let (_, events) = world.coordinator.events(member, heard, 1 << 20);
    let words = |event| match event {
        Event::Notice { rank, notice } => format!("{rank}: {}", notice.text),
        Event::Released(name) => name,
    };
    events.into_iter().map(words).collect()
}

#[test]
fn every_member_hears_every_notice_once() {
    let mut world = World::new();
    let members = world.start("a", 2);
    world.post(members[0], 0, vec![notice("one"), notice("two")]);
    // The answer was lost: the same again, and one more.
    world.post(members[0], 0, vec![notice("one"), notice("two"), notice("three")]);
    world.post(members[1], 0, vec![notice("four")]);
    let all = ["0: one", "0: two", "0: three", "1: four"];
    for member in &members {
        assert_eq!(heard(&world, *member, 0), all);
        assert_eq!(heard(&world, *member, 3), all[3..]);
        assert!(world.coordinator.has_events(*member, 3) && !world.coordinator.has_events(*member, 4));
        world.coordinator.heard(*member, 4);
    }
    world.post(members[1], 9, vec![notice("from the future")]);
    world.post(members[1], 1, vec![notice(&"x".repeat(5000))]);
    let last = heard(&world, members[0], 0);
    assert_eq!(
        (last.len(), last[0].len()),
        (1, 3 + crate::post::NOTICE_LEN),
        "what all know is gone; texts are cut"
    );
    world.leave(members[1], Outcome::Done);
    assert_eq!(heard(&world, members[0], 4).len(), 1, "also of one who has left");
}

#[test]
fn names_are_released_in_one_order_for_all() {
    let mut world = World::new();
    let members: Vec<_> = (0..3).map(|rank| world.join(&by_name("a", rank, 3)).unwrap()).collect();
    world.post(members[1], 0, vec![announce("b", 0), announce("a", 0)]);
    world.post(members[0], 0, vec![announce("a", 0), announce("c", 7), announce("b", 0)]);
    world.post(members[1], 2, vec![announce("c", 7)]);
    assert_eq!(heard(&world, members[0], 0), [""; 0]);
    world.post(members[2], 0, vec![announce("b", 0)]);
    world.post(members[2], 1, vec![announce("a", 0), announce("c", 7)]);
    for member in members {
        assert_eq!(heard(&world, member, 0), ["b", "c", "a"], "of two that are ready the urgent one");
    }
}

#[test]
fn unequal_operations_under_one_name_fail_the_job_naming_both() {
    let mut world = World::new();
    let members: Vec<_> = (0..2).map(|rank| world.join(&by_name("a", rank, 2)).unwrap()).collect();
    world.post(members[0], 0, vec![announce("g", 0)]);
    world.post(members[1], 0, vec![announce_as("g", 0, "a maximum of 5 int32")]);
    for member in members {
        let failure = world.failure(member);
        assert_eq!((failure.kind, failure.culprit), (FailureKind::Mismatch, Some(1)));
        let both = "operation `g`: rank 1 has a maximum of 5 int32 where rank 0 has a sum of 5 float32";
        assert_eq!(failure.message, both);
    }
    let member = world.start("b", 1)[0];
    world.post(member, 0, vec![announce("g", 0)]);
    assert!(world.failure(member).message.contains("order is that of submission"));
}

#[test]
fn who_does_not_listen_ends_the_job_and_not_the_memory() {
    let mut world = World::new();
    let members = world.start("a", 2);
    let text = "x".repeat(crate::post::NOTICE_LEN);
    for count in 0..10_000 {
        world.post(members[0], count, vec![notice(&text)]);
        let known = heard(&world, members[0], count).len() as u64;
        world.coordinator.heard(members[0], count + known);
    }
    let failure = world.failure(members[0]);
    assert_eq!(failure.culprit, Some(1));
    let message = "rank 1 (10.77.1.2) does not keep up with what the ranks tell each other";
    assert_eq!(failure.message, message, "it is not said to be silent");
}

#[test]
fn what_is_said_writes_no_lines_into_anybody_s_log() {
    let mut world = World::new();
    let members = world.start("a", 2);
    world.post(members[0], 0, vec![notice("one\nWARN two\x1b[2J")]);
    assert_eq!(heard(&world, members[1], 0), ["0: one WARN two [2J"]);
}

fn measure(rtt_us: u64, mbit: u64) -> Vec<Post> {
    vec![Post::Measure(PathMeasure { rtt_ns: rtt_us * 1000, bytes_per_s: mbit * 125_000 })]
}

#[test]
fn slots_are_fixed_when_all_have_measured_and_the_rest_is_given_back() {
    let mut world = World::new();
    let open = |rank| wanting("a", rank, 2, |wishes| wishes.slots = None);
    let members: Vec<_> = (0..2).map(|rank| world.join(&open(rank)).unwrap()).collect();
    let grant = world.grant(members[0]);
    assert_eq!(
        (grant.lane_slots, grant.tune, grant.slots_reason.as_str()),
        (128, true, ""),
        "all that there is"
    );
    assert_eq!(world.coordinator.pool.free(u32::MAX), 0);
    world.post(members[0], 0, measure(100, 950));
    assert!(world.grant(members[0]).tune, "rank 1 still measures");
    world.post(members[1], 0, measure(500, 900));
    for member in &members {
        let grant = world.grant(*member);
        assert_eq!((grant.lane_slots, grant.tune), (64, false));
        let reason = "0.50 ms x 900 Mbit/s = 56.2 KB = 53 packets of 1.0 KB, next power of two 64";
        assert_eq!(grant.slots_reason, reason);
    }
    assert_eq!(world.coordinator.pool.free(u32::MAX), 128, "the rest is free again");
    assert_eq!(world.plane.values().map(|held| held.2).collect::<Vec<_>>(), [128]);
    world.post(members[1], 1, measure(90_000, 900));
    assert_eq!(world.grant(members[0]).lane_slots, 64, "once");
    for member in members {
        world.leave(member, Outcome::Done);
    }
    assert_eq!(world.coordinator.pool.free(u32::MAX), 256);
}

#[test]
fn a_plane_that_cannot_shrink_a_job_fails_it() {
    let mut world = World::new();
    let member = world.join(&wanting("a", 0, 1, |wishes| wishes.slots = None)).unwrap();
    world.coordinator.post(world.now, member, 0, measure(1, 1));
    let Some(Action::Resize { run, job, lane_slots: 64, .. }) = world.coordinator.poll_action() else {
        panic!("no order")
    };
    assert!(world.grant(member).tune, "not before the plane knows");
    world.coordinator.on_resized(run, Err("it is away".into()));
    assert!(world.failure(member).message.contains("it is away"));
    assert_eq!(world.coordinator.poll_action(), Some(Action::Remove(run, job)));
}

#[test]
fn slots_are_fixed_without_those_who_have_left() {
    let mut world = World::new();
    let open = |rank| wanting("a", rank, 2, |wishes| wishes.slots = None);
    let members: Vec<_> = (0..2).map(|rank| world.join(&open(rank)).unwrap()).collect();
    world.post(members[0], 0, measure(500, 900));
    assert!(world.grant(members[0]).tune, "rank 1 still measures");
    world.leave(members[1], Outcome::Done);
    assert!(!world.grant(members[0]).tune, "nobody else measures");
}

#[test]
fn who_never_measures_is_named() {
    let mut world = World::new();
    let open = |rank| wanting("a", rank, 2, |wishes| wishes.slots = None);
    let members: Vec<_> = (0..2).map(|rank| world.join(&open(rank)).unwrap()).collect();
    world.post(members[0], 0, measure(500, 900));
    world.pass(seconds(29), &members);
    assert!(world.grant(members[0]).tune);
    world.pass(seconds(2), &members);
    let failure = world.failure(members[0]);
    assert_eq!(failure.culprit, Some(1));
    assert!(
        failure.message.starts_with("rank 1 (10.77.1.2) has not measured its path within 30s"),
        "{failure}"
    );
    assert_eq!(world.coordinator.pool.free(u32::MAX), 256, "its slots are free");
}
