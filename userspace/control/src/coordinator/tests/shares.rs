//! Shares: the parts of job numbers and slots that one host, user or secret may hold.

use super::*;
use crate::coordinator::Holder;
use sumac_wire::MAX_JOBS;

const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);

/// A world in which a holder may have a half.
fn halves() -> World {
    let mut world = World::new();
    world.coordinator.join_limits = JoinLimits::default();
    world
}

/// The same request from a user of a host.
fn of(host: Ipv4Addr, user: u32, request: Join) -> Join {
    let holders = vec![Holder::Host(host), Holder::User(user), Holder::UserOf(host, user)];
    Join { holders, ..request }
}

/// A direct job, which has a number and no slots.
fn numbered(job: &str, rank: u16, world: u16) -> Join {
    wanting(job, rank, world, |asked| {
        (asked.spec.mode, asked.spec.slots) = (Some(sumac_job::Mode::Direct), None);
    })
}

fn kind(refusal: &Refusal) -> RefusalKind {
    refusal.kind
}

/// Opens jobs of one worker until one is refused. Returns their number, and the refusal.
fn fill(world: &mut World, request: impl Fn(&str) -> Join) -> (usize, Refusal) {
    for index in 0.. {
        match world.join(&request(&format!("fills {index}"))) {
            Ok(member) => match world.status(member) {
                Status::Over(End::Refused(refusal)) => return (index, refusal),
                status => assert!(matches!(status, Status::Running { .. }), "{status:?}"),
            },
            Err(refusal) => return (index, refusal),
        }
    }
    unreachable!()
}

#[test]
fn no_host_user_or_secret_has_all_job_numbers() {
    let most = (MAX_JOBS - 1) / 2;
    let secret = |job: Option<&str>| Holder::Secret(job.map(Into::into));
    let table = [
        (vec![Holder::Host(HOST)], vec![Holder::Host(OTHER)], "host 10.77.0.2 holds"),
        (vec![Holder::User(65534)], vec![Holder::User(0)], "user 65534 holds"),
        (
            vec![secret(None)],
            vec![secret(Some("a"))],
            "the secret of all jobs without one of their own holds",
        ),
    ];
    for (holders, others, words) in table {
        let mut world = halves();
        let (held, refusal) =
            fill(&mut world, |job| Join { holders: holders.clone(), ..numbered(job, 0, 1) });
        assert_eq!((held, kind(&refusal)), (most, RefusalKind::TooManyJobs), "{refusal}");
        let limit = format!("share of {most} of {} job numbers", MAX_JOBS - 1);
        for words in [words, "`fills 0`", "more", &limit, "`sumac-agg serve --share`"] {
            assert!(refusal.message.contains(words), "{words}: {refusal}");
        }
        let other = world.join(&Join { holders: others, ..numbered("a", 0, 1) }).unwrap();
        assert!(matches!(world.status(other), Status::Running { .. }), "{words}: others open jobs");
    }
}

#[test]
fn no_host_or_user_has_all_slots() {
    let mut world = halves();
    let sized = |job: &str, slots| wanting(job, 0, 1, |asked| asked.spec.slots = slots);
    let refusal = |world: &World, member| world.refusal(member).message;
    let whole = world.join(&of(HOST, 7, sized("whole", Some(128)))).unwrap();
    let words =
        "256 slots are too many: user 7 of host 10.77.0.2 holds no job, and has a share of 64 of 256 slots";
    assert_eq!(world.refusal(whole).kind, RefusalKind::PoolFull);
    assert!(refusal(&world, whole).contains(words), "{}", refusal(&world, whole));
    // A job that measures its path gets the share until then.
    let measured = world.join(&of(HOST, 7, sized("measured", None))).unwrap();
    assert_eq!((world.terms(measured).slots, world.terms(measured).is_measured), (32, false));
    let next = world.join(&of(HOST, 7, request("next", 0, 1))).unwrap();
    assert!(refusal(&world, next).contains("user 7 of host 10.77.0.2 holds `measured`"));
    let neighbour = world.join(&of(HOST, 8, request("neighbour", 0, 1))).unwrap();
    assert_eq!(world.terms(neighbour).slots, 32, "others of the host have their part of its share");
    let third = world.join(&of(HOST, 9, request("third", 0, 1))).unwrap();
    let words = "host 10.77.0.2 holds `measured`, `neighbour`, and has a share of 128 of 256 slots";
    assert!(refusal(&world, third).contains(words), "{}", refusal(&world, third));
    let elsewhere = world.join(&of(OTHER, 7, request("elsewhere", 0, 1))).unwrap();
    assert_eq!(world.terms(elsewhere).slots, 32);
    let same = world.join(&of(Ipv4Addr::new(10, 77, 2, 2), 7, request("same user", 0, 1))).unwrap();
    assert!(
        refusal(&world, same).contains("user 7 holds `measured`, `elsewhere`"),
        "{}",
        refusal(&world, same)
    );
}

#[test]
fn each_rank_holds_its_part_of_a_job() {
    let mut world = halves();
    let both = |job: &str, slots| {
        [(HOST, 0), (OTHER, 1)].map(|(host, rank)| {
            let asked = wanting(job, rank, 2, |asked| asked.spec.slots = Some(slots));
            Join { holders: vec![Holder::Host(host)], ..asked }
        })
    };
    for (job, slots) in [("a", 64), ("b", 32)] {
        let [_, last] = both(job, slots).map(|join| world.join(&join).unwrap());
        assert_eq!(world.terms(last).slots, slots, "each host has a half of the job's slots");
    }
    let alone = world.join(&Join { holders: vec![Holder::Host(HOST)], ..request("alone", 0, 1) }).unwrap();
    let refusal = world.refusal(alone);
    assert!(refusal.message.contains("host 10.77.0.2 holds `a`, `b`, and has a share of 128"), "{refusal}");
}

#[test]
fn a_share_is_free_again_with_the_end_of_a_job_and_survives_a_restart() {
    let mut world = halves();
    let open = |job: &str| Join { holders: vec![Holder::User(7)], ..numbered(job, 0, 1) };
    let members: Vec<_> =
        (0..(MAX_JOBS - 1) / 2 - 1).map(|index| world.join(&open(&index.to_string())).unwrap()).collect();
    world.restart(0);
    world.pass(millis(100), &members);
    let last = world.join(&open("last")).unwrap();
    let refusal = match world.status(last) {
        Status::Running { .. } => world.join(&open("one more")).unwrap_err(),
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal.kind, RefusalKind::TooManyJobs);
    // A job that comes again takes the place of its earlier incarnation.
    let again = world.join(&open("last")).unwrap_err();
    assert_eq!(again.kind, RefusalKind::RankTaken);
    world.leave(last, Outcome::Done);
    let again = world.join(&open("last")).unwrap();
    assert!(matches!(world.status(again), Status::Running { .. }));
}

#[test]
fn one_user_leaves_connections_to_the_others_of_its_host() {
    let mut world = halves();
    let waits = |index: usize, host, user| of(host, user, request(&format!("waits {index}"), 0, 2));
    for index in 0..512 {
        world.join(&waits(index, HOST, 7)).unwrap();
    }
    let refusal = world.join(&waits(512, HOST, 7)).unwrap_err();
    let words =
        "user 7 of host 10.77.0.2 is a worker of 512 jobs, and has a share of 512 of the 1024 connections";
    assert!(refusal.message.contains(words), "{refusal}");
    world.join(&waits(513, HOST, 8)).unwrap();
    world.join(&waits(514, OTHER, 7)).unwrap();
}

#[test]
fn whoever_has_all_job_numbers_is_named_to_the_others() {
    let mut world = World::new();
    let host = |job: &str| if job.ends_with(['0', '2', '4', '6', '8']) { HOST } else { OTHER };
    fill(&mut world, |job| Join { holders: vec![Holder::Host(host(job))], ..numbered(job, 0, 1) });
    let third = Ipv4Addr::new(10, 77, 2, 2);
    let refusal = world.join(&of(third, 8, numbered("other", 0, 1))).unwrap_err();
    for part in ["host 10.77.0.2 has 512", "host 10.77.1.2 has 511"] {
        assert!(refusal.message.contains(part), "{refusal}");
    }
}
