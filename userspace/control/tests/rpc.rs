//! Client and server over loopback TCP.
//!
//! ```text
//! worker 0 ---+
//! worker 1 ---+--- 127.0.0.1 --- control plane --- recording data plane
//! worker 2 ---+
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod plane;
#[allow(dead_code, reason = "each test file uses a part")]
mod server;

use std::{net::Ipv4Addr, time::Duration};

use plane::{Call, FakePlane};
use server::{HANGS, SECRET, Server, StateDir, failure, request, with};
use sumac_control::{
    FailureKind, JoinError, MemberState, Outcome, RefusalKind,
    events::{Announcement, Event, Fault, Post},
    join,
};
use sumac_job::{OperationId, OperationOrder, Scale};
use sumac_transport::PathMeasure;
use tokio::time::timeout;

#[tokio::test]
async fn three_workers_join_and_leave_and_join_again() {
    let server = Server::start(FakePlane::new(1024)).await;
    let members = server.all(|rank| request(rank, 3), 3).await;
    let first = members[0].grant().terms.clone();
    assert_eq!((first.epoch, first.slots, first.elements, first.lanes()), (1, 32, 256, 2));
    assert_eq!((members[0].grant().placement.base_port, first.shards), (48700, 1));
    for (rank, member) in members.iter().enumerate() {
        let placement = member.grant().placement;
        assert_eq!((&member.grant().terms, placement.rack_rank), (&first, rank as u16));
    }
    let calls = server.plane.calls();
    let Call::Install(job) = &calls[0] else { panic!("{calls:?}") };
    assert_eq!((&job.terms, job.pool_slots()), (&first, 64));
    assert_eq!(job.workers[2].ip, Ipv4Addr::new(10, 77, 2, 2));
    assert_eq!(job.workers[2].local_ip, Ipv4Addr::LOCALHOST);

    let mut others = members.into_iter();
    let (last, mut state) = {
        let zero = others.next().unwrap();
        let one = others.next().unwrap();
        let two = others.next().unwrap();
        zero.leave(Outcome::Done).await.unwrap();
        one.leave(Outcome::Done).await.unwrap();
        let state = two.watch();
        (two, state)
    };
    let departed = MemberState::Running { departed: vec![0, 1] };
    timeout(HANGS, state.wait_for(|state| *state == departed)).await.unwrap().unwrap();
    last.leave(Outcome::Done).await.unwrap();

    let again = server.all(|rank| request(rank, 3), 3).await;
    let second = &again[0].grant().terms;
    assert_eq!((second.job, second.epoch), (first.job, 2), "the next incarnation");
    assert_ne!(second.token, first.token);
    let calls = server.plane.calls();
    assert!(matches!(calls[1], Call::Remove(job) if job == first.job), "{calls:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_missing_rank_is_named() {
    let server = Server::start(FakePlane::new(1024)).await;
    let impatient = |rank| with(request(rank, 4), |spec| spec.timeout_s = Some(0.7));
    let endpoint = server.endpoint();
    let (zero, two) = tokio::join!(join(&endpoint, impatient(0)), join(&endpoint, impatient(2)));
    for result in [zero, two] {
        match result {
            Err(JoinError::Missing { ranks, message }) => {
                assert_eq!(ranks, [1, 3]);
                assert!(message.contains("ranks [1, 3]"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(server.plane.calls().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn a_killed_member_fails_the_others_by_name() {
    let server = Server::start(FakePlane::new(1024)).await;
    let mut members = server.all(|rank| request(rank, 3), 3).await;
    drop(members.pop());
    for member in &members {
        let failure = failure(member).await;
        assert_eq!((failure.kind, failure.culprit()), (FailureKind::Silent, Some(2)));
        assert_eq!(failure.message, "rank 2 (10.77.2.2) stopped answering");
    }
    assert!(server.plane.calls().iter().any(|call| matches!(call, Call::Remove(_))), "its slots are free");
    server.stop().await;
}

#[tokio::test]
async fn an_install_that_takes_long_hides_no_death() {
    let server = Server::start(FakePlane::new(1024)).await;
    let mut members = server.all(|rank| request(rank, 2), 2).await;
    server.plane.hold_installs(true);
    let endpoint = server.endpoint();
    let other = with(request(0, 1), |spec| spec.job = "other".into());
    let other = tokio::spawn(async move { join(&endpoint, other).await });
    while server.plane.waiting_installs() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(members.pop());
    assert_eq!(failure(&members[0]).await.culprit(), Some(1));
    server.plane.hold_installs(false);
    timeout(HANGS, other).await.unwrap().unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_member_that_gives_up_says_why() {
    let server = Server::start(FakePlane::new(1024)).await;
    let mut members = server.all(|rank| request(rank, 2), 2).await;
    members.pop().unwrap().leave(Outcome::Failed("out of memory".into())).await.unwrap();
    assert_eq!(failure(&members[0]).await.message, "rank 1 (10.77.1.2) left: out of memory");
    server.stop().await;
}

#[tokio::test]
async fn workers_that_disagree_are_both_named() {
    let server = Server::start(FakePlane::new(1024)).await;
    let endpoint = server.endpoint();
    let (three, four) = tokio::join!(join(&endpoint, request(0, 3)), join(&endpoint, request(1, 4)));
    // Either may have been the first.
    let messages = [
        "job `train`: rank 0 wants world size 3, rank 1 wants 4; give all workers the same",
        "job `train`: rank 1 wants world size 4, rank 0 wants 3; give all workers the same",
    ];
    for result in [three, four] {
        match result {
            Err(JoinError::Refused(refused)) => {
                assert_eq!(refused.kind, RefusalKind::Mismatch);
                assert!(messages.contains(&refused.message.as_str()), "{}", refused.message);
            }
            other => panic!("{other:?}"),
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn slots_follow_from_what_all_have_measured() {
    let server = Server::start(FakePlane::new(1024)).await;
    let members = server.all(|rank| with(request(rank, 2), |spec| spec.slots = None), 2).await;
    let first = &members[0].grant().terms;
    assert_eq!((first.slots, first.is_measured), (512, false));
    let measure = |rtt_us: u64| PathMeasure { rtt_ns: rtt_us * 1000, bytes_per_s: 118_750_000 };
    let both = async { tokio::join!(members[0].tune(measure(1200)), members[1].tune(measure(300))) };
    let (zero, one) = timeout(HANGS, both).await.unwrap();
    let (slots, reason) = zero.unwrap();
    assert_eq!((slots, reason.clone()), one.unwrap());
    assert_eq!(slots, 256);
    assert_eq!(reason, "1.2 ms x 950 Mbit/s = 142 KB = 131 packets of 1.0 KB, next power of two 256");
    assert!(server.plane.calls().contains(&Call::Resize(first.job, 256, reason)));
    server.stop().await;
}

#[tokio::test]
async fn members_receive_all_events_in_one_order() {
    let fault = |problem: String| Post::Fault(Fault { operation: OperationId(5), index: None, problem });
    let server = Server::start(FakePlane::new(1024)).await;
    let named = |rank| with(request(rank, 3), |spec| spec.order = Some(OperationOrder::Name));
    let mut members = server.all(named, 3).await;
    for (rank, member) in members.iter().enumerate() {
        member.post(fault(format!("from {rank}")));
    }
    let names: Vec<String> = (0..300).map(|number| format!("layer {number}")).collect();
    for (rank, member) in members.iter().enumerate() {
        // Each in an order of its own.
        for at in 0..names.len() {
            let name = names[(at * [1, 7, 11][rank]) % names.len()].clone();
            let description = format!("a sum of {} float32", name.len());
            member.post(Post::Announce(Announcement { name, signature: 1, description, priority: 0 }));
        }
    }
    let (mut orders, mut receivers) = (Vec::new(), Vec::new());
    for member in &mut members {
        let mut events = member.events();
        let (mut released, mut faults) = (Vec::new(), Vec::new());
        while released.len() < names.len() || faults.len() < 3 {
            match timeout(HANGS, events.recv()).await.unwrap().unwrap() {
                Event::Released(name) => released.push(name),
                Event::Fault { rank, fault } => faults.push((rank, fault.problem)),
                other => panic!("{other:?}"),
            }
        }
        faults.sort_unstable();
        assert_eq!(faults, [0, 1, 2].map(|rank| (rank, format!("from {rank}"))));
        orders.push(released);
        receivers.push(events);
    }
    assert!(orders.iter().all(|order| *order == orders[0]), "one order for all");
    let mut all = orders.swap_remove(0);
    all.sort();
    let mut expected = names;
    expected.sort();
    assert_eq!(all, expected, "each once");

    // What was posted before a leave comes before the end.
    let last = members.pop().unwrap();
    last.post(fault("before the end".into()));
    last.leave(Outcome::Failed("tired".into())).await.unwrap();
    assert!(failure(&members[0]).await.message.ends_with("left: tired"));
    match timeout(HANGS, receivers[0].recv()).await.unwrap().unwrap() {
        Event::Fault { rank: 2, fault } => assert_eq!(fault.problem, "before the end"),
        other => panic!("{other:?}"),
    }
    server.stop().await;
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let server = Server::start(FakePlane::new(96)).await;
    let holder = join(&server.endpoint(), request(0, 1)).await.unwrap();
    let other = with(request(0, 1), |spec| spec.job = "other".into());
    let changed = |change: fn(&mut sumac_job::JobSpec)| with(other.clone(), change);
    let table = [
        ("rank taken", request(0, 1), RefusalKind::RankTaken, "rank 0 has joined already, from 10.77.0.2"),
        (
            "pool full",
            other.clone(),
            RefusalKind::PoolFull,
            "64 slots are not free: 32 of 96 are, at most 32 together",
        ),
        ("elements", changed(|s| s.elements = Some(400)), RefusalKind::TooManyElements, "at most 360"),
        ("world", changed(|s| s.world = 33), RefusalKind::Invalid, "1 to 32 workers"),
        ("rank", changed(|s| s.rank = 1), RefusalKind::Invalid, "ranks count from 0"),
        ("slots", changed(|s| s.slots = Some(33)), RefusalKind::Invalid, "such as 64"),
        ("scale", changed(|s| s.scale = Some(Scale::Fixed(0.0))), RefusalKind::Invalid, "finite"),
    ];
    for (what, spec, kind, words) in table {
        match join(&server.endpoint(), spec).await {
            Err(JoinError::Refused(refused)) => {
                assert_eq!(refused.kind, kind, "{what}");
                assert!(refused.message.contains(words), "{what}: {}", refused.message);
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    let smaller = join(&server.endpoint(), changed(|s| s.slots = Some(16))).await.unwrap();
    assert_ne!(smaller.grant().terms.job, holder.grant().terms.job);
    server.stop().await;
}

#[tokio::test]
async fn lost_state_fails_the_job_and_a_pause_does_not() {
    let plane = FakePlane::new(1024);
    let server = Server::start(plane.clone()).await;
    let member = join(&server.endpoint(), request(0, 1)).await.unwrap();
    plane.set_instance(None);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    plane.set_instance(Some(1));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(
        *member.watch().borrow(),
        MemberState::Running { departed: vec![] },
        "detached and attached again"
    );
    plane.set_instance(Some(0xb));
    let failure = failure(&member).await;
    assert_eq!(failure.kind, FailureKind::StateLost);
    assert_eq!(failure.message, "aggregator lost its state (instance 1 -> b)");
    server.stop().await;
}

#[tokio::test]
async fn a_stopped_server_ends_its_jobs_and_a_lost_one_is_noticed() {
    let server = Server::start(FakePlane::new(1024)).await;
    let plane = server.plane.clone();
    let member = join(&server.endpoint(), request(0, 1)).await.unwrap();
    server.stop().await;
    assert_eq!(failure(&member).await.kind, FailureKind::Stopped);
    assert!(matches!(plane.calls().last(), Some(Call::Remove(_))));

    let server = Server::start(FakePlane::new(1024)).await;
    let (member, address) = (join(&server.endpoint(), request(0, 1)).await.unwrap(), server.address);
    server.kill().await;
    let failure = failure(&member).await;
    assert_eq!(failure.kind, FailureKind::AggregatorSilent);
    assert!(failure.message.contains(&address.to_string()), "{failure}");
}

#[tokio::test]
async fn a_killed_server_takes_a_static_job_up_again() {
    let plane = FakePlane::new(1024);
    let server = Server::start(plane.clone()).await;
    let mut members = server.all(|rank| request(rank, 2), 2).await;
    let mut events = members[1].events();
    let (address, before) = (server.address, members[0].grant().clone());
    let state_dir = server.kill().await;
    // What is reported meanwhile is not lost.
    let problem = "while it was away".into();
    members[0].post(Post::Fault(Fault { operation: OperationId(1), index: None, problem }));
    let server = Server::start_at(address, plane.clone(), state_dir, Duration::ZERO).await;
    let event = timeout(HANGS, events.recv()).await.unwrap().unwrap();
    assert!(matches!(event, Event::Fault { rank: 0, .. }), "{event:?}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    for member in &members {
        assert_eq!(*member.watch().borrow(), MemberState::Running { departed: vec![] });
    }
    assert_eq!(plane.calls().len(), 1, "the plane has the job as it was");
    drop(members.pop());
    assert_eq!(failure(&members[0]).await.culprit(), Some(1), "and it is watched as before");
    let again = server.all(|rank| request(rank, 2), 2).await;
    assert_eq!(again[0].grant().terms.epoch, before.terms.epoch + 1, "no incarnation comes twice");
    server.stop().await;
}

#[tokio::test]
async fn nobody_there_is_said_with_the_address() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let state_dir = StateDir::new();
    let endpoint = state_dir.endpoint(address, SECRET);
    let hasty = with(request(0, 1), |spec| spec.timeout_s = Some(0.5));
    let error = join(&endpoint, hasty).await.unwrap_err();
    assert!(matches!(error, JoinError::Unreachable { endpoint, .. } if endpoint == address), "{error}");
    // A server that comes up in time is found.
    let waiting = tokio::spawn(async move { join(&endpoint, request(0, 1)).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let server = Server::start_at(address, FakePlane::new(1024), state_dir, Duration::ZERO).await;
    timeout(HANGS, waiting).await.unwrap().unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_plane_that_fails_is_quoted() {
    let plane = FakePlane::new(1024);
    plane.refuse_installs("no XDP program on any interface");
    let server = Server::start(plane.clone()).await;
    match join(&server.endpoint(), request(0, 1)).await {
        Err(JoinError::Refused(refused)) => {
            assert_eq!(refused.kind, RefusalKind::Plane);
            assert!(refused.message.contains("no XDP program"), "{refused}");
        }
        other => panic!("{other:?}"),
    }
    server.stop().await;
}

#[tokio::test]
async fn a_worker_that_gives_up_waiting_frees_its_place_at_once() {
    let server = Server::start(FakePlane::new(1024)).await;
    let endpoint = server.endpoint();
    let first = tokio::spawn(async move { join(&endpoint, request(0, 2)).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    first.abort();
    let members = server.all(|rank| request(rank, 2), 2).await;
    assert_eq!(members.len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_worker_that_died_gets_its_rank_back() {
    let server = Server::start(FakePlane::new(1024)).await;
    let mut members = server.all(|rank| request(rank, 2), 2).await;
    drop(members.pop());
    let endpoint = server.endpoint();
    let again = tokio::spawn(async move { join(&endpoint, request(1, 2)).await });
    assert_eq!(failure(&members[0]).await.culprit(), Some(1), "the old incarnation");
    let zero = join(&server.endpoint(), request(0, 2)).await.unwrap();
    let one = timeout(HANGS, again).await.unwrap().unwrap().unwrap();
    assert_eq!((zero.grant().terms.epoch, one.grant().terms.epoch), (2, 2));
    server.stop().await;
}
