//! Members with several ranks: hosts, which the planes have as one worker each.

use super::*;
use crate::events::{Event, Fault, ReportedOperation};
use sumac_job::OperationId;

/// The host of the ranks from `first` on.
fn host(first: u16, world: u16, local: u16) -> Join {
    wanting("a", first, world, |asked| asked.spec.local_world = Some(local))
}

fn start(world: &mut World) -> Vec<MemberId> {
    [0, 4, 8].map(|first| world.join(&host(first, 12, 4)).unwrap()).to_vec()
}

#[test]
fn the_planes_have_a_worker_for_each_host() {
    let mut world = World::new();
    let last = world.join(&host(8, 12, 4)).unwrap();
    assert_eq!(world.status(last), Status::Waiting((0..8).collect()));
    let members = [world.join(&host(0, 12, 4)).unwrap(), world.join(&host(4, 12, 4)).unwrap(), last];
    for (number, member) in (0..).zip(members) {
        let (terms, placement) = (world.terms(member), world.placement(member));
        assert_eq!((terms.world, terms.local_world, terms.ranks()), (3, 4, 12));
        assert_eq!((placement.rank, placement.rack_rank, placement.rack_world), (number, number, 3));
    }
    // 32 workers, of any number of ranks.
    let mut world = World::new();
    world.join(&host(31 * 40, 32 * 40, 40)).unwrap();
    assert!(world.join(&host(0, 33 * 40, 40)).unwrap_err().message.contains("a world of 33"));
}

#[test]
fn all_ranks_of_a_host_are_named() {
    let mut world = World::new();
    let members = start(&mut world);
    world.leave(members[1], Outcome::Done);
    assert_eq!(world.departed(members[0]), [4, 5, 6, 7]);
    let idle = ReportedOperation { operation: OperationId(5), signature: 5, text: "#5 a sum".into() };
    world.post(members[0], 0, vec![Post::Idle(Some(idle))]);
    world.pass(seconds(5), &[members[0], members[2]]);
    let event = world.coordinator.event(members[0], 0).map(|(_, event)| event);
    let Some(Event::Waiting { ranks, .. }) = event else { panic!("{event:?}") };
    assert_eq!(ranks, [8, 9, 10, 11]);

    let mut world = World::new();
    let members = start(&mut world);
    world.pass(seconds(30), &members[..2]);
    let failure = world.failure(members[0]);
    assert_eq!(failure.ranks, [8, 9, 10, 11]);
    assert!(failure.message.starts_with("ranks 8 to 11 (10.77.8.2)"), "{failure}");
}

#[test]
fn a_member_names_its_own_ranks_alone() {
    let mut world = World::new();
    let members = start(&mut world);
    for (number, (named, expected)) in (0..).zip([(Some(6), 6), (Some(8), 4), (None, 4)]) {
        let fault =
            Fault { operation: OperationId(7), rank: named, index: None, problem: "it is NaN".into() };
        world.post(members[1], number, vec![Post::Fault(fault)]);
        let event = world.coordinator.event(members[0], number).map(|(_, event)| event);
        assert!(matches!(event, Some(Event::Fault { rank, .. }) if rank == expected), "{event:?}");
    }
}

#[test]
fn hosts_have_as_many_ranks_one_after_the_other() {
    let mut world = World::new();
    let zero = world.join(&host(0, 12, 4)).unwrap();
    for (first, all, local) in [(2, 12, 4), (0, 10, 4), (4, 6, 4)] {
        let refusal = world.join(&host(first, all, local)).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Invalid, "{refusal:?}");
        assert!(refusal.message.contains(&format!("the first of {local} on its host")), "{refusal:?}");
    }
    assert_eq!(world.status(zero), Status::Waiting((4..12).collect()));
    // One rank is the number of hosts that say nothing.
    let other = world.join(&request("a", 4, 12)).unwrap_err();
    assert_eq!((other.kind, &other.ranks[..]), (RefusalKind::Mismatch, &[0, 4][..]));
    assert!(other.message.contains("rank 0 wants local world size 4, rank 4 wants 1"), "{other:?}");
    assert_eq!(world.refusal(zero).kind, RefusalKind::Mismatch);
}
