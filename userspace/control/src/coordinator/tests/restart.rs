//! Restarts from the journal, with torn ends too.

use super::{
    dynamic::{below, dynamic, host, plain, present, rack},
    *,
};
use crate::events::{Announcement, Event};

/// The same host, which still has these jobs.
fn with_jobs(jobs: &[u16], entry: RackEntry) -> RackEntry {
    RackEntry { jobs: TakenOver { jobs: jobs.to_vec(), last_epochs: vec![] }, ..entry }
}

#[test]
fn a_static_job_goes_on_as_it_was() {
    let mut world = World::new();
    let members = world.start("a", 2);
    let waiting = world.join(&request("b", 0, 2)).unwrap();
    let before = (world.terms(members[1]), world.placement(members[1]));
    world.restart(0);
    assert_eq!(world.coordinator.status(waiting), None, "a job that had not started is joined anew");
    for (rank, member) in (0..).zip(&members) {
        assert_eq!(world.coordinator.reconnect(world.now, "a", rank, *member, 0), Ok(()));
    }
    assert_eq!((world.terms(members[1]), world.placement(members[1])), before);
    world.pass(seconds(20), &members);
    assert_eq!(world.coordinator.pool.free(u32::MAX), 192, "its slots are taken");
    world.leave(members[0], Outcome::Done);
    world.restart(0);
    assert_eq!(world.departed(members[1]), [0]);
    world.leave(members[1], Outcome::Done);
    assert!(world.plane.is_empty());
    world.restart(0);
    let again = world.start("a", 2);
    assert_eq!(
        (world.terms(again[0]).job, world.terms(again[0]).epoch),
        (1, 2),
        "no incarnation comes twice"
    );
}

#[test]
fn a_member_that_does_not_reconnect_is_named() {
    let mut world = World::new();
    let members = world.start("a", 2);
    world.restart(0);
    world.pass(seconds(4), &members[..1]);
    assert_eq!(world.terms(members[0]).epoch, 1, "not yet");
    world.pass(seconds(1), &members[..1]);
    assert_eq!(world.failure(members[0]).message, "rank 1 (10.77.1.2) stopped answering");
}

#[test]
fn workers_that_join_anew_do_not_wait_for_their_former_job() {
    let mut world = World::new();
    world.start("a", 2);
    world.restart(0);
    for rank in 0..2 {
        let taken = world.join(&request("a", rank, 2)).unwrap_err();
        assert_eq!(taken.kind, RefusalKind::RankTaken, "rank {rank}: its client tries again");
    }
    world.pass(seconds(3), &[]);
    let again = world.start("a", 2);
    assert_eq!(world.terms(again[0]).epoch, 2);
}

#[test]
fn a_plane_that_has_lost_a_static_job_fails_it() {
    let mut world = World::new();
    let members = world.start("a", 1);
    (world.instance, world.plane) = (0xb, BTreeMap::new());
    world.restart(0);
    assert_eq!(world.failure(members[0]).message, "aggregator lost its state (instance a -> b)");
    assert_eq!(world.coordinator.pool.free(u32::MAX), 256);
}

#[test]
fn a_dynamic_job_gets_its_aggregators_back_and_keeps_its_hosts() {
    let mut world = World::sharing(&[0]);
    world.enter(rack(1));
    let both = [(1, host(0).plane), (2, rack(1).plane)];
    let members = world.all([below(2, plain("a", 0, 2)), plain("a", 1, 2)]);
    let before = world.terms(members[0]);
    (world.instance, world.plane) = (0xb, BTreeMap::new());
    world.restart(0);
    assert_eq!(world.restored, []);
    assert_eq!(world.coordinator.known_jobs("p0", true).len(), 1);
    assert_eq!(world.enter(with_jobs(&[1], host(0))), 1);
    assert_eq!(world.enter(rack(1)), 2);
    world.pass_with(seconds(2), &members, &both);
    assert_eq!(world.restored.iter().map(|(_, at)| *at).collect::<Vec<_>>(), [None, Some(RackId(2))]);
    assert_eq!(world.terms(members[0]), before, "its members have noticed nothing");
}

#[test]
fn hosts_that_do_not_come_back_end_their_jobs() {
    for (how, words) in [
        ("never", "the parameter hosts at 10.77.200.0:48800 did not come back with the job's sums"),
        ("without", "was started anew"),
    ] {
        let mut world = World::sharing(&[0]);
        let members = world.all([plain("a", 0, 1)]);
        world.restart(0);
        if how == "without" {
            world.enter(host(0));
        } else {
            world.pass(seconds(5), &members);
        }
        let failure = world.failure(members[0]);
        assert_eq!(failure.kind, FailureKind::ParameterHost);
        assert!(failure.message.contains(words), "{how}: {failure}");
    }
}

#[test]
fn a_replacement_that_was_under_way_is_ordered_again() {
    let mut world = World::sharing(&[0]);
    world.coordinator.rejoin_grace = seconds(30);
    let members = world.all((0..2).map(|rank| plain("a", rank, 2)));
    world.pass_with(seconds(3), &members[..1], &present());
    let new = world.coordinator.join(world.now, &plain("a", 1, 2)).unwrap();
    world.record();
    assert!(matches!(world.coordinator.poll_action(), Some(Action::Renew(..))), "killed meanwhile");
    world.restart(0);
    assert_eq!(world.coordinator.known_jobs("p0", true)[0].next_epoch, Some(2));
    let all = [members[0], new];
    world.pass(millis(500), &all);
    assert_eq!(world.status(new), Status::Waiting(vec![]), "the parameter host is not there yet");
    world.enter(with_jobs(&[1], host(0)));
    world.pass_with(seconds(1), &all, &present());
    assert_eq!((world.terms(new).epoch, world.terms(members[0]).epoch), (2, 2));
}

#[test]
fn a_restart_between_the_measures_of_both_backends_changes_no_choice() {
    for crashes in 0..4u32 {
        let mut world = World::new();
        let open =
            |rank| wanting("a", rank, 2, |asked| (asked.spec.slots, asked.host.has_udp) = (None, true));
        let members = world.all((0..2).map(open));
        let rates = [112_500_000, 112_500_000, 225_000_000, 225_000_000];
        for (at, bytes_per_s) in (0..).zip(rates) {
            let measure = PathMeasure { rtt_ns: 500_000, shortest_ns: 500_000, bytes_per_s };
            world.post(members[at % 2], (at / 2) as u64, vec![Post::Measure(measure)]);
            if at == crashes as usize {
                world.restart(0);
            }
        }
        let terms = world.terms(members[0]);
        assert_eq!((terms.is_measured, terms.over_udp), (true, true), "after {crashes}");
        assert!(terms.slots_reason.contains("UDP 1800 (1800): UDP"), "{}", terms.slots_reason);
    }
}

#[test]
fn measures_names_and_events_survive() {
    let announce = |name: &str| {
        let (name, description) = (name.into(), "a sum".into());
        vec![Post::Announce(Announcement { name, signature: 1, description, priority: 0 })]
    };
    let mut world = World::new();
    let open = |rank| {
        wanting("a", rank, 2, |asked| {
            (asked.spec.slots, asked.spec.order) = (None, Some(OperationOrder::Name));
        })
    };
    let members = world.all((0..2).map(open));
    let measure = || {
        vec![Post::Measure(PathMeasure { rtt_ns: 500_000, shortest_ns: 500_000, bytes_per_s: 112_500_000 })]
    };
    world.post(members[0], 0, measure());
    world.restart(0);
    world.post(members[1], 0, measure());
    assert_eq!((world.terms(members[0]).slots, world.terms(members[0]).is_measured), (64, true));
    world.post(members[0], 1, [announce("x"), announce("y")].concat());
    world.post(members[1], 1, announce("y"));
    world.restart(0);
    assert_eq!(world.coordinator.posted(members[0]), 3);
    let released = |world: &World, from| world.coordinator.event(members[0], from);
    assert_eq!(released(&world, 0), Some((0, Event::Released("y".into()))));
    world.post(members[1], 2, announce("x"));
    assert_eq!(released(&world, 1), Some((1, Event::Released("x".into()))));
    let records = world.coordinator.all_records();
    world.journal = journal::encode(&records);
    world.restart(0);
    assert_eq!(released(&world, 1), Some((1, Event::Released("x".into()))), "from a compacted journal too");
}

#[test]
fn a_torn_or_damaged_journal_is_read_up_to_there() {
    let mut world = World::sharing(&[0]);
    world.all([dynamic("a", 0, 1, |_| {})]);
    world.start("b", 2);
    let bytes = world.journal.clone();
    let (all, len) = journal::read(&bytes);
    assert_eq!(len, bytes.len());
    let mut last = all.len();
    for cut in (0..bytes.len()).rev() {
        let (records, len) = journal::read(&bytes[..cut]);
        assert!(records.len() <= last && len <= cut);
        last = records.len();
        drop(Restart::new(records));
    }
    assert_eq!(last, 0);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let (records, len) = journal::read(&damaged);
        assert!(records.len() < all.len() && len <= at, "byte {at}");
    }
    assert_eq!(journal::read(&[0xff; 100]).0.len(), 0);
    let zeros = [&bytes[..], &[0; 100]].concat();
    assert_eq!(journal::read(&zeros).1, len, "the end of a file that was not written out");
}

/// A record's bytes in the journal.
fn framed(json: &str) -> Vec<u8> {
    let (len, checksum) = (json.len() as u32, crc32fast::hash(json.as_bytes()));
    [&len.to_le_bytes(), &checksum.to_le_bytes(), json.as_bytes()].concat()
}

#[test]
fn a_journal_of_another_release_is_read_as_far_as_possible() {
    // The release before switches: neither its aggregators nor its terms have their limits.
    let mut world = World::sharing(&[0]);
    let members = world.all([plain("a", 0, 1)]);
    world.enter(rack(1));
    let mut before = Vec::new();
    let mut rest = &world.journal[..];
    while let Some((len, body)) = rest.split_first_chunk::<4>() {
        let (json, others) = body[4..].split_at(u32::from_le_bytes(*len) as usize);
        let mut json = String::from_utf8(json.to_vec()).unwrap();
        for new in ["verifies_checksums", "marks_overflow", "bounds_loss", "headroom", "whole"] {
            for value in ["true", "false"] {
                json = json.replace(&format!(r#","{new}":{value}"#), "");
                json = json.replace(&format!(r#",\"{new}\":{value}"#), "");
            }
        }
        before.extend(framed(&json));
        rest = others;
    }
    assert!(before.len() < world.journal.len(), "fields were removed");
    let (records, len) = journal::read(&before);
    assert_eq!((records.len(), len), (journal::read(&world.journal).0.len(), before.len()));
    world.journal = before;
    world.restart(0);
    assert_eq!(world.coordinator.racks[&RackId(2)].plane, rack(1).plane);
    assert_eq!(world.terms(members[0]).epoch, 1, "the job goes on");

    // A later release: the records that this one knows count, and all of them stay.
    let known = journal::encode(&[Record::Instance(7), Record::RackGone(RackId(1))]);
    let (first, second) = known.split_at(8 + r#"{"Instance":7}"#.len());
    let later = framed(r#"{"Unheard":{"of":1}}"#);
    let bytes = [first, &later, second].concat();
    let (records, len) = journal::read(&bytes);
    assert!(matches!(records[..], [Record::Instance(7), Record::RackGone(RackId(1))]), "{records:?}");
    assert_eq!(len, bytes.len());
}
