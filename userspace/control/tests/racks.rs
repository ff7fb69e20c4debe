//! Two racks below a root, over loopback TCP.
//!
//! ```text
//! workers 0, 1 --- rack a (recording plane) ---+
//!                                              +--- root (recording plane)
//! workers 2, 3 --- rack b (recording plane) ---+
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod plane;
#[allow(dead_code, reason = "each test file uses a part")]
mod server;

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};

use plane::{Call, FakePlane};
use server::{HANGS, Server, StateDir, failure, fault, join_at, problem_of, refusal, until, with};
use sumac_control::{
    Endpoint, FailureKind, JoinError, JoinRequest, Member, MemberState, Outcome, join,
    plane::{JobInstall, Level},
};
use sumac_job::PathMeasure;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

/// The most racks from a worker up to the root.
const DEEPEST: usize = 8;

/// Rank `rank` of the job `train`, which the size of the pool is left to.
fn request(rank: u16, world: u16) -> JoinRequest {
    let mut request = with(server::request(rank, world), |spec| {
        (spec.elements, spec.slots, spec.shards, spec.scale) = (None, None, None, None);
    });
    request.host.data_ip = Ipv4Addr::UNSPECIFIED;
    request.host.data_port = 48700 + rank;
    request
}

fn installed(plane: &FakePlane) -> JobInstall {
    match plane.calls().first() {
        Some(Call::Install(job)) => job.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_job_of_two_racks_comes_and_goes_on_all_planes() {
    let root = Server::start(FakePlane::new(1024)).await;
    let (a, b) = (Server::rack(&root, "a").await, Server::rack(&root, "b").await);
    let endpoints = [a.endpoint(), a.endpoint(), b.endpoint(), b.endpoint()];
    let mut members = join_at(&endpoints, |rank| request(rank, 4)).await;
    let places: Vec<_> = members
        .iter()
        .map(|member| (member.grant().placement.rack_rank, member.grant().placement.rack_world))
        .collect();
    assert_eq!(places, [(0, 2), (1, 2), (0, 2), (1, 2)]);
    let top = installed(&root.plane);
    assert_eq!((top.level, top.workers.len()), (Level::Root { contributors: 4 }, 2));
    let mut numbers = Vec::new();
    for (rack, ports) in [(&a, [48700, 48701]), (&b, [48702, 48703])] {
        let job = installed(&rack.plane);
        assert_eq!((&job.terms, job.first_slot), (&top.terms, top.first_slot));
        assert_eq!(job.workers.iter().map(|worker| worker.port).collect::<Vec<_>>(), ports);
        let Level::Rack { rack, racks: 2, contributors: 4, parent, has_racks: false } = job.level else {
            panic!("{:?}", job.level)
        };
        assert_eq!(parent, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 48700));
        numbers.push(rack);
    }
    assert_eq!(numbers, [0, 1]);

    // What is measured below both racks fixes the slots everywhere.
    let measure = PathMeasure { rtt_ns: 1_200_000, shortest_ns: 1_200_000, bytes_per_s: 118_750_000 };
    let [zero, one, two, three] = &members[..] else { panic!("four") };
    let all =
        async { tokio::join!(zero.tune(measure), one.tune(measure), two.tune(measure), three.tune(measure)) };
    let tuned = timeout(HANGS, all).await.unwrap();
    for tuned in [tuned.0, tuned.1, tuned.2, tuned.3] {
        assert_eq!(tuned.unwrap().terms.slots, 128);
    }
    for plane in [&root.plane, &a.plane, &b.plane] {
        let calls = plane.calls();
        let resized = calls.iter().find_map(|call| match call {
            Call::Resize(job, slots, reason) => Some((*job, *slots, reason.contains("next power of two"))),
            _ => None,
        });
        assert_eq!(resized, Some((top.terms.job, 128, true)), "{calls:?}");
    }

    let mut events = members[3].events();
    members[0].post(fault("over two racks"));
    assert_eq!(problem_of(0, &mut events).await, "over two racks");

    for member in members {
        member.leave(Outcome::Done).await.unwrap();
    }
    let again = join_at(&[b.endpoint(), a.endpoint()], |rank| request(rank, 2)).await;
    assert_eq!(
        again[0].grant().terms.epoch,
        2,
        "the next incarnation, after the first was removed everywhere"
    );
    for plane in [&root.plane, &a.plane, &b.plane] {
        assert_eq!(plane.calls()[2], Call::Remove(top.terms.job));
    }
    drop(again);
    a.stop().await;
    b.stop().await;
    root.stop().await;
}

/// ```text
/// worker 0 --- low a --- middle m ---+
/// worker 1 --- low b ------+         +--- root
/// worker 2 --- low c --- middle n ---+
/// ```
#[tokio::test]
async fn a_tree_of_three_levels_has_its_job_on_all_planes() {
    let root = Server::start(FakePlane::new(1024)).await;
    let (m, n) = (Server::rack(&root, "m").await, Server::rack(&root, "n").await);
    let (a, b) = (Server::rack(&m, "a").await, Server::rack(&m, "b").await);
    let c = Server::rack(&n, "c").await;
    let endpoints = [a.endpoint(), b.endpoint(), c.endpoint()];
    let mut members = join_at(&endpoints, |rank| request(rank, 3)).await;
    let parent = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 48700);
    let level = |rack, racks, has_racks| Level::Rack { rack, racks, contributors: 3, parent, has_racks };
    for (server, expected, senders) in [
        (&root, Level::Root { contributors: 3 }, 2),
        (&m, level(0, 2, true), 2),
        (&n, level(1, 2, true), 1),
        (&a, level(0, 2, false), 1),
        (&b, level(1, 2, false), 1),
        (&c, level(0, 1, false), 1),
    ] {
        let job = installed(&server.plane);
        assert_eq!((job.level, job.workers.len()), (expected, senders));
    }
    let places = members.iter().map(|member| {
        let placement = member.grant().placement;
        (placement.rack_rank, placement.rack_world, placement.beside_root)
    });
    assert_eq!(places.collect::<Vec<_>>(), [(0, 1, false); 3]);

    let mut events = members[2].events();
    members[0].post(fault("over three levels"));
    assert_eq!(problem_of(0, &mut events).await, "over three levels");

    // A middle that dies ends the job by its name.
    m.kill().await;
    let told = failure(&members[2]).await;
    assert_eq!(told.kind, FailureKind::Rack);
    assert!(["m", "a", "b"].iter().any(|name| told.message.contains(&format!("rack `{name}`"))), "{told:?}");
    drop(members.pop());
    for server in [a, b, c, n, root] {
        server.stop().await;
    }
}

/// A way to a control plane whose connections can be cut.
struct Cable {
    address: SocketAddr,
    cut: watch::Sender<()>,
}

impl Cable {
    async fn to(far: SocketAddr) -> Cable {
        let listener = TcpListener::bind(server::ANY).await.unwrap();
        let (address, cut) = (listener.local_addr().unwrap(), watch::Sender::new(()));
        let cuts = cut.subscribe();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut cuts = cuts.clone();
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(far).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Cable { address, cut }
    }
}

/// As many racks as there may be one below the other; the first one's connection is cut, and the root is
/// started again. Each time all enter in time, the lowest last.
#[tokio::test]
async fn the_deepest_branch_comes_back_in_time() {
    let root = Server::start(FakePlane::new(1024)).await;
    let cable = Cable::to(root.address).await;
    let mut above = Endpoint { address: cable.address, ..root.racks_endpoint() };
    let mut racks = Vec::new();
    for number in 1..=DEEPEST {
        let rack = Server::rack_at(server::ANY, above, &format!("r{number}"), StateDir::new()).await;
        above = rack.racks_endpoint();
        racks.push(rack);
    }
    let lowest = racks.last().unwrap().endpoint();
    let mut members = join_at(&[lowest.clone(), lowest], |rank| request(rank, 2)).await;
    let goes_on = async |root: &Server, members: &[Member], for_s| {
        tokio::time::sleep(Duration::from_secs(for_s)).await;
        for member in members {
            assert_eq!(*member.watch().borrow(), MemberState::Running { departed: vec![] });
        }
        for plane in racks.iter().map(|rack| &rack.plane).chain([&root.plane]) {
            assert_eq!(plane.calls().len(), 1, "it has the job as it was");
        }
        assert_eq!(root.overview().racks.len(), DEEPEST, "all have entered");
    };
    cable.cut.send(()).unwrap();
    goes_on(&root, &members, 3).await;
    let (address, plane) = (root.address, root.plane.clone());
    let root = Server::start_at(address, plane, root.kill().await, Duration::ZERO).await;
    goes_on(&root, &members, 5).await;
    drop(members.pop());
    assert_eq!(failure(&members[0]).await.culprit(), Some(1), "its workers are watched as before");
    for rack in racks.into_iter().rev() {
        rack.stop().await;
    }
    root.stop().await;
}

#[tokio::test]
async fn a_rack_that_dies_fails_its_jobs_by_name_and_comes_back() {
    let root = Server::start(FakePlane::new(1024)).await;
    let (a, b) = (Server::rack(&root, "a").await, Server::rack(&root, "b").await);
    let members = join_at(&[a.endpoint(), b.endpoint()], |rank| request(rank, 2)).await;
    b.kill().await;
    let told = failure(&members[0]).await;
    assert_eq!(told.kind, FailureKind::Rack);
    assert_eq!(told.message, "the aggregator of rack `b` (127.0.0.1) stopped answering");
    assert_eq!(failure(&members[1]).await.kind, FailureKind::AggregatorSilent, "its own rack's is gone");
    drop(members);
    let b = Server::rack(&root, "b").await;
    let members = join_at(&[a.endpoint(), b.endpoint()], |rank| request(rank, 2)).await;
    assert_eq!(members[0].grant().terms.epoch, 2);
    drop(members);
    a.stop().await;
    b.stop().await;
    root.stop().await;
}

#[tokio::test]
async fn workers_that_missed_the_end_are_told_whose_fault_it_was() {
    let root = Server::start(FakePlane::new(1024)).await;
    let (a, b) = (Server::rack(&root, "a").await, Server::rack(&root, "b").await);
    let mut members = join_at(&[a.endpoint(), b.endpoint(), b.endpoint()], |rank| request(rank, 3)).await;
    let address = a.address;
    let state_dir = a.kill().await;
    members.pop().unwrap().leave(Outcome::Failed("of its disk".into())).await.unwrap();
    assert_eq!(failure(&members[1]).await.ranks, [2]);
    drop(members.pop());
    // The root forgets the job with the silent rank 0.
    until(|| !root.has("train")).await;
    let a = Server::rack_at(address, root.racks_endpoint(), "a", state_dir).await;
    let told = failure(&members[0]).await;
    assert_eq!((told.kind, told.ranks), (FailureKind::Left, vec![2]), "{}", told.message);
    a.stop().await;
    b.stop().await;
    root.stop().await;
}

#[tokio::test]
async fn a_killed_root_takes_a_job_of_two_racks_up_again() {
    let root = Server::start(FakePlane::new(1024)).await;
    let (a, b) = (Server::rack(&root, "a").await, Server::rack(&root, "b").await);
    let endpoints = [vec![a.endpoint(); 7], vec![b.endpoint()]].concat();
    let mut members = join_at(&endpoints, |rank| request(rank, 8)).await;
    let (address, plane) = (root.address, root.plane.clone());
    let state_dir = root.kill().await;
    let root = Server::start_at(address, plane, state_dir, Duration::ZERO).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    for member in &members {
        assert_eq!(*member.watch().borrow(), MemberState::Running { departed: vec![] });
    }
    for plane in [&root.plane, &a.plane, &b.plane] {
        assert_eq!(plane.calls().len(), 1, "it has the job as it was");
    }
    drop(members.pop());
    assert_eq!(failure(&members[0]).await.culprit(), Some(7), "and its workers are watched as before");
    a.stop().await;
    b.stop().await;
    root.stop().await;
}

#[tokio::test]
async fn workers_of_racks_are_not_limited_by_the_racks_address() {
    let root = Server::start(FakePlane::new(1024)).await;
    let (a, b) = (Server::rack(&root, "a").await, Server::rack(&root, "b").await);
    // Together more than may connect from one address.
    let mut waiting = Vec::new();
    for (rack, job) in (0..10).map(|job| (if job < 5 { &a } else { &b }, job)) {
        for rank in 0..14 {
            let asked = with(request(rank, 15), |spec| {
                (spec.job, spec.timeout_s) = (format!("job {job}"), Some(2.0 * HANGS.as_secs_f64()));
            });
            let endpoint = rack.endpoint();
            waiting.push(tokio::spawn(async move { join(&endpoint, asked).await }));
        }
    }
    let all_wait = || {
        let missing = root.missing();
        missing.len() == 10 && missing.iter().all(|(_, ranks)| *ranks == [14])
    };
    until(all_wait).await;
    // Beside them, others from there have what an address has.
    join(&root.endpoint(), with(request(0, 1), |spec| spec.job = "beside".into())).await.unwrap();
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    until(|| root.missing().is_empty()).await;
    a.stop().await;
    b.stop().await;
    root.stop().await;
}

#[tokio::test]
async fn a_plane_of_a_rack_that_fails_is_quoted() {
    let root = Server::start(FakePlane::new(1024)).await;
    let a = Server::rack(&root, "a").await;
    a.plane.refuse_installs("no XDP program on any interface");
    let refused = refusal(&a.endpoint(), request(0, 1)).await;
    assert!(refused.message.contains("the rack at 127.0.0.1: "), "{refused}");
    assert!(refused.message.contains("no XDP program"), "{refused}");
    // What was half done is undone.
    until(|| matches!(root.plane.calls().last(), Some(Call::Remove(_)))).await;
    a.stop().await;
    root.stop().await;
}

#[tokio::test]
async fn a_rack_without_the_secret_gets_nowhere() {
    let root = Server::start(FakePlane::new(1024)).await;
    let endpoint = root.state_dir.endpoint(root.address, "another secret than the root's");
    let a = Server::rack_at(server::ANY, endpoint, "a", StateDir::new()).await;
    let hasty = with(request(0, 1), |spec| spec.timeout_s = Some(1.5));
    match join(&a.endpoint(), hasty).await {
        Err(JoinError::Unreachable { why, .. }) => {
            assert!(why.contains("no connection to the one above it"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert!(root.plane.calls().is_empty());
    a.stop().await;
    root.stop().await;
}
