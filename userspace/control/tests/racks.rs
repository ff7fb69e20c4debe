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

use std::{net::Ipv4Addr, net::SocketAddr, net::SocketAddrV4, time::Duration};

use plane::{Call, FakePlane};
use sumac_control::{
    FailureKind, JoinError, JoinSpec, Member, Mode, Notice, OperationOrder, Outcome, Secret, Secrets, join,
    plane::JobInstall, plane::Level, rack::Station, server::Listening,
};
use sumac_transport::{NonFinitePolicy, PathMeasure, Scale, WireFormat};
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

const SECRET: &str = "a secret for these tests";
const RACKS: &str = "the racks' own secret";
/// Far above what anything here takes: it ends a hanging test, and says nothing about speed.
const HANGS: Duration = Duration::from_secs(60);

/// A server that ends when asked to, or as if it were killed.
struct Running {
    address: SocketAddr,
    plane: FakePlane,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    async fn root() -> Running {
        let secrets = Secrets {
            default: Some(Secret::new(SECRET).unwrap()),
            racks: Some(Secret::new(RACKS).unwrap()),
            ..Secrets::default()
        };
        let plane = FakePlane::new(1024);
        let listening = Listening::open(anywhere(), plane.clone(), secrets).await.unwrap();
        let address = listening.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move { listening.serve(async { drop(stopped.await) }).await.unwrap() });
        Running { address, plane, stop: Some(stop), task }
    }

    async fn rack(root: SocketAddr, name: &str, secret: &str) -> Running {
        let plane = FakePlane::new(512);
        let secret = Secret::new(secret).unwrap();
        let station = Station::open(anywhere(), plane.clone(), root, name.into(), secret).await.unwrap();
        let address = station.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move { station.serve(async { drop(stopped.await) }).await.unwrap() });
        Running { address, plane, stop: Some(stop), task }
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        timeout(HANGS, self.task).await.unwrap().unwrap();
    }
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn spec(rank: u16, world: u16) -> JoinSpec {
    JoinSpec {
        job: "train".into(),
        world,
        rank,
        secret: Secret::new(SECRET).unwrap(),
        data_ip: Ipv4Addr::UNSPECIFIED,
        data_port: 48700 + rank,
        mac: [2, 0, 0, 0, 0, rank as u8],
        elements: None,
        max_elements: 352,
        slots: None,
        shards: None,
        max_shards: 1,
        scaling: Scale::Block,
        wire: WireFormat::Int32,
        not_finite: NonFinitePolicy::Error,
        order: OperationOrder::Submission,
        checksum: true,
        mode: Mode::Static,
        deadline: Duration::from_secs(20),
    }
}

/// Each worker joins at its own aggregator.
async fn join_all(at: &[SocketAddr]) -> Vec<Member> {
    let world = at.len() as u16;
    let joins: Vec<_> =
        at.iter().zip(0..).map(|(at, rank)| tokio::spawn(join(*at, spec(rank, world)))).collect();
    let mut members = Vec::new();
    for join in joins {
        members.push(timeout(HANGS, join).await.unwrap().unwrap().unwrap());
    }
    members
}

fn installed(plane: &FakePlane) -> JobInstall {
    match plane.calls().first() {
        Some(Call::Install(job)) => job.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_job_of_two_racks_comes_and_goes_on_all_planes() {
    let root = Running::root().await;
    let (a, b) =
        (Running::rack(root.address, "a", RACKS).await, Running::rack(root.address, "b", RACKS).await);
    let mut members = join_all(&[a.address, a.address, b.address, b.address]).await;
    let places: Vec<_> =
        members.iter().map(|m| (m.assignment().rack_rank, m.assignment().rack_world)).collect();
    assert_eq!(places, [(0, 2), (1, 2), (0, 2), (1, 2)]);
    let top = installed(&root.plane);
    assert_eq!((top.level, top.workers.len()), (Level::Root { contributors: 4 }, 2));
    let mut numbers = Vec::new();
    for (rack, ports) in [(&a, [48700, 48701]), (&b, [48702, 48703])] {
        let job = installed(&rack.plane);
        assert_eq!(
            (job.job, job.epoch, job.token, job.first_slot),
            (top.job, top.epoch, top.token, top.first_slot)
        );
        assert_eq!((job.slots(), job.shards, job.elements), (top.slots(), top.shards, top.elements));
        assert_eq!(job.workers.iter().map(|worker| worker.port).collect::<Vec<_>>(), ports);
        let Level::Rack { rack, racks: 2, contributors: 4, parent } = job.level else {
            panic!("{:?}", job.level)
        };
        assert_eq!(parent, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 48700));
        numbers.push(rack);
    }
    assert_eq!(numbers, [0, 1]);

    // What is measured below both racks fixes the slots everywhere.
    let measure = PathMeasure { rtt_ns: 1_200_000, bytes_per_s: 118_750_000 };
    let [zero, one, two, three] = &members[..] else { panic!("four") };
    let all =
        async { tokio::join!(zero.tune(measure), one.tune(measure), two.tune(measure), three.tune(measure)) };
    let tuned = timeout(HANGS, all).await.unwrap();
    for tuned in [tuned.0, tuned.1, tuned.2, tuned.3] {
        assert_eq!(tuned.unwrap().slots, 128);
    }
    for plane in [&root.plane, &a.plane, &b.plane] {
        let calls = plane.calls();
        let resized = calls.iter().find_map(|call| match call {
            Call::Resize(job, slots, reason) => Some((*job, *slots, reason.contains("next power of two"))),
            _ => None,
        });
        assert_eq!(resized, Some((top.job, 128, true)), "{calls:?}");
    }

    let mut notices = members[3].notices();
    members[0].post(Notice { key: 1, text: "over two racks".into() });
    let (from, notice) = timeout(HANGS, notices.recv()).await.unwrap().unwrap();
    assert_eq!((from, notice.text.as_str()), (0, "over two racks"));

    for member in members {
        member.leave(Outcome::Done).await.unwrap();
    }
    let again = join_all(&[b.address, a.address]).await;
    assert_eq!(
        again[0].assignment().epoch,
        2,
        "the next incarnation, after the first was removed everywhere"
    );
    for plane in [&root.plane, &a.plane, &b.plane] {
        assert_eq!(plane.calls()[2], Call::Remove(top.job));
    }
    drop(again);
    for running in [a, b, root] {
        running.stop().await;
    }
}

#[tokio::test]
async fn a_rack_that_dies_fails_its_jobs_by_name_and_comes_back() {
    let root = Running::root().await;
    let (a, b) =
        (Running::rack(root.address, "a", RACKS).await, Running::rack(root.address, "b", RACKS).await);
    let members = join_all(&[a.address, b.address]).await;
    b.task.abort();
    let failure = timeout(HANGS, members[0].failed()).await.unwrap();
    assert_eq!(failure.kind, FailureKind::Rack);
    assert_eq!(failure.message, "the aggregator of rack `b` (127.0.0.1) stopped answering");
    // Whose own rack it was hears so, or nothing: a killed process's connections end with it, an aborted task's do not.
    let failure = timeout(HANGS, members[1].failed()).await.unwrap();
    assert!(matches!(failure.kind, FailureKind::Rack | FailureKind::AggregatorSilent), "{failure}");
    drop(members);
    let b = Running::rack(root.address, "b", RACKS).await;
    let members = join_all(&[a.address, b.address]).await;
    assert_eq!(members[0].assignment().epoch, 2);
    drop(members);
    for running in [a, b, root] {
        running.stop().await;
    }
}

#[tokio::test]
async fn a_plane_of_a_rack_that_fails_is_quoted() {
    let root = Running::root().await;
    let a = Running::rack(root.address, "a", RACKS).await;
    a.plane.refuse_installs("no XDP program on any interface");
    match join(a.address, spec(0, 1)).await {
        Err(JoinError::Refused(refused)) => {
            assert!(refused.message.contains("the rack at 127.0.0.1: "), "{refused}");
            assert!(refused.message.contains("no XDP program"), "{refused}");
        }
        other => panic!("{other:?}"),
    }
    // What was half done is undone.
    let undone = || matches!(root.plane.calls().last(), Some(Call::Remove(_)));
    timeout(HANGS, async {
        while !undone() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    for running in [a, root] {
        running.stop().await;
    }
}

#[tokio::test]
async fn a_rack_without_the_secret_gets_nowhere() {
    let root = Running::root().await;
    let a = Running::rack(root.address, "a", "another secret than the root's").await;
    let hasty = JoinSpec { deadline: Duration::from_millis(1500), ..spec(0, 1) };
    match join(a.address, hasty).await {
        Err(JoinError::Unreachable { why, .. }) => {
            assert!(why.contains("no connection to its root"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    assert!(root.plane.calls().is_empty());
    for running in [a, root] {
        running.stop().await;
    }
}
