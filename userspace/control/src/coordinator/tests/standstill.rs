//! Operations without progress.

use super::*;
use crate::events::{Announcement, Event, ReportedOperation};
use sumac_job::OperationId;

fn operation(number: u32) -> ReportedOperation {
    ReportedOperation { operation: OperationId(number), signature: number, text: format!("#{number} a sum") }
}

fn idle(number: u32) -> Post {
    Post::Idle(Some(operation(number)))
}

/// The ranks of the events that say for whom an operation waits, and their texts.
fn waiting(world: &World, member: MemberId) -> Vec<(Vec<u16>, String)> {
    let events = (0..).map_while(|number| world.coordinator.event(member, number));
    events
        .map(|(_, event)| match event {
            Event::Waiting { ranks, message } => (ranks, message),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn an_operation_that_all_have_submitted_ends_by_name() {
    let mut world = World::new();
    let members = world.start("a", 3);
    // The last rank has not got a result of the operation before, which the others have.
    for (rank, number) in [(0, 5), (1, 5), (2, 4)] {
        world.post(members[rank], 0, vec![idle(number)]);
    }
    world.pass(seconds(11), &members);
    assert_eq!(world.terms(members[0]).world, 3, "it may still go on");
    world.pass(seconds(2), &members);
    let failure = world.failure(members[1]);
    assert_eq!((failure.kind, failure.ranks.len()), (FailureKind::NoProgress, 0));
    assert!(failure.message.contains("all ranks have submitted #4 a sum"), "{failure}");
}

#[test]
fn an_operation_that_waits_for_ranks_names_them() {
    let mut world = World::new();
    let members = world.start("a", 3);
    world.post(members[0], 0, vec![idle(5)]);
    world.pass(millis(500), &members);
    assert_eq!(waiting(&world, members[0]), [], "the others' reports are on their way");
    world.pass(seconds(60), &members);
    let told = waiting(&world, members[0]);
    assert_eq!((told.len(), &told[0].0), (1, &vec![1, 2]), "said once");
    assert!(told[0].1.starts_with("#5 a sum waits for ranks [1, 2]"), "{told:?}");
    world.post(members[2], 0, vec![idle(5)]);
    world.pass(seconds(60), &members);
    let told = waiting(&world, members[1]);
    assert_eq!((told.len(), &told[1].0), (2, &vec![1]));
    // The last one submits it: results come, and the next wait is another.
    for member in [0, 2] {
        world.post(members[member], 1, vec![Post::Idle(None), idle(6)]);
    }
    world.pass(seconds(60), &members);
    let told = waiting(&world, members[1]);
    assert_eq!((told.len(), &told[2].0), (3, &vec![1]));
    assert!(told[2].1.starts_with("#6"), "{told:?}");
    world.leave(members[1], Outcome::Done);
    world.pass(seconds(10), &[members[0], members[2]]);
    assert_eq!(world.failure(members[0]).kind, FailureKind::NoProgress, "nobody else is waited for");
}

#[test]
fn results_and_a_coordinator_that_was_held_up_end_nothing() {
    let mut world = World::new();
    let members = world.start("a", 2);
    for turn in 0..5 {
        for member in &members {
            world.post(*member, 2 * turn, vec![idle(turn as u32)]);
        }
        world.pass(seconds(10), &members);
        for member in &members {
            world.post(*member, 2 * turn + 1, vec![Post::Idle(None)]);
        }
        world.pass(seconds(10), &members);
    }
    for member in &members {
        world.post(*member, 10, vec![idle(9)]);
    }
    world.now += seconds(60);
    for member in &members {
        world.coordinator.heartbeat(world.now, *member);
    }
    world.coordinator.tick(world.now);
    world.pass(seconds(10), &members);
    assert_eq!(world.terms(members[0]).world, 2, "the machine slept");
    world.pass(seconds(4), &members);
    assert_eq!(world.failure(members[0]).kind, FailureKind::NoProgress);
}

#[test]
fn a_name_that_a_rank_does_not_announce_names_it() {
    let mut world = World::new();
    let by_name = |rank| wanting("a", rank, 3, |asked| asked.spec.order = Some(OperationOrder::Name));
    let members = world.all((0..3).map(by_name));
    let announced = Announcement {
        name: "layer".into(),
        signature: 1,
        description: "a sum of 5 float32".into(),
        priority: 0,
    };
    for rank in [2, 0] {
        world.post(members[rank], 0, vec![Post::Announce(announced.clone())]);
    }
    world.pass(seconds(30), &members);
    let told = waiting(&world, members[1]);
    assert_eq!((told.len(), &told[0].0), (1, &vec![1]));
    assert!(told[0].1.starts_with("operation `layer`, a sum of 5 float32, waits for ranks [1]"), "{told:?}");
}
