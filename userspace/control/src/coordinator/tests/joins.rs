//! From the first join to the start: who gets in, with what, and who is refused.

use super::*;

#[test]
fn nobody_starts_before_all_have_joined() {
    let mut world = World::new();
    let zero = world.join(&request("a", 0, 3)).unwrap();
    assert_eq!(world.status(zero), Status::Waiting(vec![1, 2]));
    let two = world.join(&request("a", 2, 3)).unwrap();
    assert_eq!(world.status(zero), Status::Waiting(vec![1]));
    assert!(world.plane.is_empty());
    let one = world.join(&request("a", 1, 3)).unwrap();
    for (rank, member) in [zero, one, two].into_iter().enumerate() {
        let (terms, placement) = (world.terms(member), world.placement(member));
        assert_eq!((terms.job, terms.epoch, terms.slots, terms.lanes()), (1, 1, 32, 2));
        assert_eq!((placement.rack_rank, placement.rack_world), (rank as u16, 3));
        assert_eq!((terms.is_measured, world.departed(member)), (true, vec![]));
        assert_eq!(placement.aggregator_ip, Ipv4Addr::new(10, 77, rank as u8, 1));
    }
}

#[test]
fn a_join_whose_answer_was_lost_is_asked_again() {
    let mut world = World::new();
    let asked = |rank, attempt: Option<(u64, u32)>| {
        let attempt = attempt.map(|(join, earlier)| Attempt { join, earlier });
        wanting("a", rank, 2, |asked| asked.attempt = attempt)
    };
    let first = world.join(&asked(0, Some((7, 0)))).unwrap();
    assert_eq!(world.join(&asked(0, Some((7, 2)))).unwrap(), first, "while it waits");
    let other = world.join(&asked(1, None)).unwrap();
    assert_eq!(world.join(&asked(0, Some((7, 3)))).unwrap(), first, "while it runs");
    // The second attempt comes after the third one; another join; another rank.
    let others = [(0, Some((7, 1))), (0, Some((7, 3))), (0, Some((8, 9))), (0, None), (1, Some((7, 9)))];
    for (rank, attempt) in others {
        let refused = world.join(&asked(rank, attempt)).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::RankTaken, "rank {rank}, {attempt:?}");
    }
    let mut elsewhere = asked(0, Some((7, 4)));
    elsewhere.worker.ip = Ipv4Addr::new(10, 77, 9, 9);
    assert_eq!(world.join(&elsewhere).unwrap_err().kind, RefusalKind::RankTaken);
    assert_eq!(world.terms(first).epoch, world.terms(other).epoch);
}

#[test]
fn refused_joins_change_nothing() {
    type Change = fn(&mut Join);
    let table: [(Change, RefusalKind, &str); 18] = [
        (|r| r.asked.spec.rank = 0, RefusalKind::RankTaken, "rank 0 has joined already, from 10.77.0.2"),
        (|r| r.asked.spec.job = String::new(), RefusalKind::Invalid, "1 to 64 bytes"),
        (|r| r.asked.spec.job = "x".repeat(65), RefusalKind::Invalid, "1 to 64 bytes"),
        (|r| r.asked.spec.job = "a\nb".into(), RefusalKind::Invalid, "no control characters"),
        (|r| (r.asked.spec.world, r.asked.spec.rank) = (0, 0), RefusalKind::Invalid, "1 to 32 workers"),
        (|r| r.asked.spec.world = 33, RefusalKind::Invalid, "1 to 32 workers"),
        (|r| r.asked.spec.rank = 3, RefusalKind::Invalid, "ranks count from 0"),
        (|r| r.asked.spec.elements = Some(0), RefusalKind::Invalid, "chunks of 0 elements"),
        (|r| r.asked.spec.elements = Some(361), RefusalKind::TooManyElements, "at most 360"),
        (
            |r| r.asked.spec.scale = Some(Scale::Fixed(0.0)),
            RefusalKind::Invalid,
            "a scale of 0: it must be finite",
        ),
        (
            |r| r.asked.spec.scale = Some(Scale::Fixed(f32::INFINITY)),
            RefusalKind::Invalid,
            "a scale of inf: it must be finite",
        ),
        (|r| r.asked.spec.slots = Some(0), RefusalKind::Invalid, "0 slots: give a power of two, such as 1"),
        (|r| r.asked.spec.slots = Some(33), RefusalKind::Invalid, "such as 64"),
        (
            |r| r.asked.spec.slots = Some(256),
            RefusalKind::PoolFull,
            "512 slots are not free: 256 of 256 are, at most 256 together",
        ),
        (|r| r.asked.spec.slots = Some(u32::MAX), RefusalKind::Invalid, "such as 2147483648"),
        (|r| r.asked.spec.shards = Some(0), RefusalKind::Invalid, "0 shards"),
        (|r| r.asked.spec.shards = Some(3), RefusalKind::Invalid, "3 shards: the aggregator has 2"),
        (|r| r.worker.port = 0, RefusalKind::Invalid, "data address is missing"),
    ];
    let mut world = World::new();
    let zero = world.join(&request("a", 0, 3)).unwrap();
    for (change, kind, words) in table {
        let mut bad = request("a", 1, 3);
        change(&mut bad);
        let refusal = world.join(&bad).expect_err(words);
        assert!(refusal.kind == kind && refusal.message.contains(words), "{words}: {refusal:?}");
        assert_eq!(world.status(zero), Status::Waiting(vec![1, 2]), "{words}");
    }
    assert_eq!(world.coordinator.members.len(), 1);
    assert_eq!(world.coordinator.runs.len(), 1);
}

#[test]
fn a_mismatch_ends_the_gathering_for_all_and_names_both() {
    type Change = fn(&mut JoinRequest);
    let table: [(&str, Change); 9] = [
        ("world size", |w| w.spec.world = 4),
        ("chunk elements", |w| w.spec.elements = Some(64)),
        ("scaling", |w| w.spec.scale = Some(Scale::Fixed(2.0))),
        ("wire format", |w| w.spec.wire = Some(WireFormat::Int16)),
        ("NaN policy", |w| w.spec.not_finite = Some(NonFinitePolicy::Carry)),
        ("order", |w| w.spec.order = Some(OperationOrder::Name)),
        ("checksum", |w| w.host.checksum = false),
        ("slots", |w| w.spec.slots = Some(64)),
        ("shards", |w| w.spec.shards = Some(2)),
    ];
    for (what, change) in table {
        let mut world = World::new();
        let zero = world.join(&request("a", 0, 3)).unwrap();
        let refusal = world.join(&wanting("a", 2, 3, change)).expect_err(what);
        assert_eq!((refusal.kind, refusal.ranks.clone()), (RefusalKind::Mismatch, vec![0, 2]), "{what}");
        assert!(refusal.to_string().contains(what), "{what}: {refusal}");
        assert_eq!(world.refusal(zero), refusal, "{what}");
        if what == "world size" {
            let both = "job `a`: rank 0 wants world size 3, rank 2 wants 4; give all workers the same";
            assert_eq!(refusal.message, both);
        }
    }
}

#[test]
fn at_the_first_deadline_all_learn_who_is_missing() {
    let mut world = World::new();
    let zero = world.join(&within(5.0, request("a", 0, 4))).unwrap();
    let two = world.join(&request("a", 2, 4)).unwrap();
    world.pass(millis(4900), &[zero, two]);
    assert_eq!(world.status(zero), Status::Waiting(vec![1, 3]));
    world.pass(millis(200), &[zero, two]);
    for member in [zero, two] {
        let waited = seconds(5);
        let missing = Refusal::missing("a", &[1, 3], waited, false);
        assert_eq!(world.refusal(member), missing);
    }
    let fresh = world.join(&request("a", 0, 4)).unwrap();
    assert_eq!(world.status(fresh), Status::Waiting(vec![1, 2, 3]), "a new gathering");
}

#[test]
fn jobs_that_wait_for_ranks_hold_neither_a_number_nor_slots() {
    let mut world = World::new();
    let waiting: Vec<_> = (0..80)
        .map(|index| world.join(&within(86400.0, request(&format!("waits {index}"), 0, 2))).unwrap())
        .collect();
    assert_eq!(world.coordinator.pool.free(u32::MAX), INFO.slots);
    let members = world.start("a", 2);
    assert_eq!(world.terms(members[0]).job, 1);
    // The last rank is there: the job has a number, and slots.
    world.join(&within(86400.0, request("waits 79", 1, 2))).unwrap();
    assert_eq!((world.terms(waiting[79]).job, world.terms(waiting[79]).slots), (2, 32));
    assert_eq!(world.coordinator.pool.free(u32::MAX), INFO.slots - 2 * 64);
    assert_eq!(world.status(waiting[0]), Status::Waiting(vec![1]));
}

#[test]
fn nobody_waits_longer_than_the_control_plane_lets_it() {
    let mut world = World::new();
    world.coordinator.join_limits.longest_wait = seconds(5);
    let zero = world.join(&within(86400.0, request("a", 0, 2))).unwrap();
    world.pass(millis(4900), &[zero]);
    assert_eq!(world.status(zero), Status::Waiting(vec![1]));
    world.pass(millis(200), &[zero]);
    let refusal = world.refusal(zero);
    assert_eq!((refusal.kind, refusal.ranks.clone()), (RefusalKind::Missing, vec![1]));
    for words in ["after 5s, the longest wait of this control plane", "`sumac-agg serve --longest-wait`"] {
        assert!(refusal.message.contains(words), "{refusal}");
    }
}

#[test]
fn the_dead_lose_their_rank_while_gathering() {
    let mut world = World::new();
    let zero = world.join(&request("a", 0, 2)).unwrap();
    let one = world.join(&request("b", 0, 2)).unwrap();
    world.pass(seconds(3), &[one]);
    assert_eq!(world.coordinator.status(zero), None);
    world.start("a", 2);
    assert_eq!(world.plane.len(), 1);
}

#[test]
fn the_next_incarnation_waits_for_the_last_worker_of_the_one_before() {
    let mut world = World::new();
    let first = world.start("a", 2);
    world.leave(first[0], Outcome::Done);
    let zero = world.join(&request("a", 0, 1)).unwrap();
    assert_eq!(world.status(zero), Status::Waiting(vec![]), "rank 1 is still in the first");
    assert_eq!(world.terms(first[1]).epoch, 1);
    world.leave(first[1], Outcome::Done);
    let grant = world.terms(zero);
    assert_eq!((grant.job, grant.epoch), (1, 2));
}

#[test]
fn it_does_not_wait_for_ever() {
    let mut world = World::new();
    let first = world.start("a", 2);
    world.leave(first[0], Outcome::Done);
    let zero = world.join(&within(4.0, request("a", 0, 1))).unwrap();
    world.pass(seconds(5), &[first[1], zero]);
    assert_eq!(world.refusal(zero), Refusal::held("a", &[1]));
    assert_eq!(world.terms(first[1]).epoch, 1);
}

#[test]
fn epochs_grow_by_name_and_jobs_have_numbers_of_their_own() {
    let mut world = World::new();
    for epoch in 1..=3 {
        let members = world.start("a", 2);
        assert_eq!((world.terms(members[0]).job, world.terms(members[0]).epoch), (1, epoch));
        world.leave(members[0], Outcome::Failed("again".into()));
    }
    let members = world.start("b", 1);
    assert_eq!((world.terms(members[0]).job, world.terms(members[0]).epoch), (2, 1));
}

#[test]
fn a_full_pool_says_what_is_free_and_who_has_the_rest() {
    let mut world = World::new();
    world.start("a", 1);
    world.start("b", 1);
    world.join(&wanting("c", 0, 1, |w| w.spec.slots = Some(16))).unwrap();
    let holders = [("a".into(), 64), ("b".into(), 64), ("c".into(), 32)];
    let full = Refusal::pool_full(128, [96, 96, 256], &holders);
    let wanted = wanting("d", 0, 1, |w| w.spec.slots = Some(64));
    assert_eq!(world.join(&wanted), Err(full.clone()));
    assert!(
        full.to_string().contains("96 of 256 are, at most 96 together (taken by `a` 64, `b` 64, `c` 32)"),
        "{full}"
    );
    // What is to be measured gets the most that there is until then.
    let any = world.join(&wanting("d", 0, 1, |w| w.spec.slots = None)).unwrap();
    assert_eq!((world.terms(any).slots, world.terms(any).is_measured), (32, false));
    let none = world.join(&wanting("e", 0, 1, |w| (w.spec.slots, w.spec.shards) = (None, Some(2)))).unwrap();
    assert_eq!(world.refusal(none).kind, RefusalKind::PoolFull);
}

#[test]
fn what_is_left_open_is_what_all_have() {
    let mut world = World::new();
    let open = |rank: u16, max_elements: u16, max_shards: u16| {
        wanting("a", rank, 2, |w| {
            (w.spec.elements, w.spec.shards, w.spec.slots) = (None, None, None);
            (w.host.max_elements, w.host.max_shards) = (max_elements, max_shards);
        })
    };
    let zero = world.join(&open(0, 1000, 9)).unwrap();
    world.join(&open(1, 352, 9)).unwrap();
    assert_eq!((world.terms(zero).elements, world.terms(zero).shards), (352, 2), "rank 1's, the plane's");
    world.leave(zero, Outcome::Failed("again".into()));
    // Who asks, asks for all.
    let zero = world.join(&open(0, 1000, 2)).unwrap();
    world.join(&request("a", 1, 2)).unwrap();
    let grant = world.terms(zero);
    assert_eq!((grant.elements, grant.shards, grant.slots, grant.is_measured), (256, 1, 32, true));
    assert!(grant.slots_reason.contains("asked for"), "{}", grant.slots_reason);
    world.leave(zero, Outcome::Failed("again".into()));
    // Not what another cannot have.
    let zero = world.join(&open(0, 64, 2)).unwrap();
    world.join(&request("a", 1, 2)).unwrap();
    let refusal = world.refusal(zero);
    assert_eq!(refusal.kind, RefusalKind::Invalid);
    assert!(refusal.to_string().contains("rank 0 has at most 64"), "{refusal}");
}

#[test]
fn the_port_that_limits_chunks_is_named() {
    let mut world = World::new();
    let narrow = PlaneInfo { max_elements: 100, narrowest: Some("p0 (MTU 484)".into()), ..INFO };
    world.coordinator.on_plane(world.now, Ok((0xa, narrow)));
    let refusal = world.join(&wanting("a", 0, 1, |w| w.spec.elements = Some(101))).unwrap_err().to_string();
    assert!(refusal.contains("at most 100, since its port p0 (MTU 484) carries no more"), "{refusal}");
    world.coordinator.on_plane(world.now, Ok((0xa, INFO)));
    let refusal = world.join(&wanting("a", 0, 1, |w| w.spec.elements = Some(361))).unwrap_err().to_string();
    assert!(refusal.contains("at most 360, which its slots hold"), "{refusal}");
}

#[test]
fn a_connection_that_ends_before_the_start_frees_the_rank_at_once() {
    let mut world = World::new();
    let zero = world.join(&request("a", 0, 2)).unwrap();
    world.coordinator.on_disconnected(zero, None);
    let zero = world.join(&request("a", 0, 2)).unwrap();
    let one = world.join(&request("a", 1, 2)).unwrap();
    world.coordinator.on_disconnected(one, None);
    world.pass(millis(1900), &[zero]);
    let again = world.coordinator.reconnect(world.now, "a", 1, one, 0);
    assert_eq!(again, Ok(()), "a running member may reconnect");
    world.pass(seconds(3), &[zero]);
    assert_eq!(world.failure(zero).culprit(), Some(1), "or is dead");
    let late = world.coordinator.reconnect(world.now, "a", 1, one, 0).unwrap_err();
    assert_eq!(late, world.failure(zero), "the same error on all workers");
}

#[test]
fn servers_of_a_direct_job_own_its_blocks() {
    let direct = |rank, servers, owners| {
        wanting("a", rank, 3, |asked| {
            (asked.spec.mode, asked.spec.slots) = (Some(Mode::Direct), None);
            (asked.spec.servers, asked.spec.owners) = (servers, owners);
        })
    };
    let mut world = World::new();
    let refusals = [
        (direct(0, Some(0), None), "0 servers in a world of 3"),
        (direct(0, Some(3), None), "3 servers in a world of 3"),
        (direct(0, Some(2), Some(2)), "leave `owners` out"),
    ];
    for (request, problem) in refusals {
        let refusal = world.join(&request).unwrap_err();
        assert!(refusal.kind == RefusalKind::Invalid && refusal.message.contains(problem), "{refusal:?}");
    }
    for (servers, other) in [(None, 0), (Some(1), 1)] {
        let mut world = World::new();
        world.join(&direct(0, Some(2), None)).unwrap();
        let refusal = world.join(&direct(1, servers, None)).unwrap_err();
        let both = format!("rank 0 wants servers 2, rank 1 wants {other}");
        assert!(refusal.message.contains(&both), "{refusal:?}");
    }
    let members = [0, 1, 2].map(|rank| world.join(&direct(rank, Some(2), None)).unwrap());
    let terms = world.terms(members[0]);
    assert_eq!((terms.servers, terms.owners, terms.contributors(), terms.blocks()), (2, 2, 2..3, 2));
    let members = world.start("b", 2);
    let terms = world.terms(members[0]);
    assert_eq!((terms.servers, terms.contributors(), terms.blocks()), (0, 0..2, 2));
}
