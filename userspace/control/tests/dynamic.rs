//! Dynamic jobs over loopback TCP, with parameter hosts and a rack.
//!
//! ```text
//! worker 0, 1 --- rack (recording plane) ---+
//!                                           +--- root (recording plane) --- parameter hosts p, q (recording planes)
//! worker 2 ---------------------------------+
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
use server::{HANGS, RACKS, Server, failure, spec};
use sumac_control::{
    DynamicWishes, FailureKind, JoinError, JoinSpec, Member, MemberState, Mode, NoPlane, Notice,
    OperationOrder, Outcome, PlaneKind, RefusalKind, Secret, Secrets,
    dynamic::Place,
    join,
    plane::Level,
    rack::{HostDuty, Station},
    server::Listening,
};
use tokio::{
    runtime::{self, Runtime},
    task::JoinHandle,
    time::{sleep, timeout},
};

/// A parameter host that dies when dropped.
struct Host {
    plane: FakePlane,
    task: JoinHandle<()>,
}

impl Host {
    fn enter(root: SocketAddr, name: &str) -> Host {
        let plane = FakePlane::of(PlaneKind::Parameter, 1);
        let duty = HostDuty::new(plane.clone(), root, name.into(), Secret::new(RACKS).unwrap());
        Host { plane, task: tokio::spawn(duty.run()) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A rack's control plane in a runtime of its own, so that its connections end with it.
struct Rack {
    plane: FakePlane,
    address: SocketAddr,
    runtime: Runtime,
}

impl Rack {
    fn start(address: SocketAddr, root: SocketAddr) -> Rack {
        let plane = FakePlane::new(64);
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (opened, address_is) = std::sync::mpsc::channel();
        let below = plane.clone();
        runtime.spawn(async move {
            let secret = Secret::new(RACKS).unwrap();
            let station = Station::open(address, below, root, "r".into(), secret).await.unwrap();
            opened.send(station.address()).unwrap();
            station.serve(std::future::pending()).await.unwrap();
        });
        Rack { plane, address: address_is.recv().unwrap(), runtime }
    }

    fn kill(self) {
        self.runtime.shutdown_background();
    }
}

fn wanting(rank: u16, world: u16, wishes: DynamicWishes) -> JoinSpec {
    JoinSpec {
        mode: Mode::Dynamic(wishes),
        slots: None,
        shards: None,
        max_shards: 2,
        data_port: 48700 + rank,
        ..spec(rank, world)
    }
}

fn dynamic(rank: u16, world: u16) -> JoinSpec {
    wanting(rank, world, DynamicWishes::default())
}

/// Each rank joins where it is said.
async fn join_at(doors: &[SocketAddr], spec: impl Fn(u16) -> JoinSpec) -> Vec<Member> {
    let joins: Vec<_> = (0..).zip(doors).map(|(rank, at)| tokio::spawn(join(*at, spec(rank)))).collect();
    let mut members = Vec::new();
    for join in joins {
        members.push(timeout(HANGS, join).await.unwrap().unwrap().unwrap());
    }
    members
}

async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANGS, waiting).await.expect("it does not come");
}

fn is_removed(plane: &FakePlane) -> bool {
    matches!(plane.calls().last(), Some(Call::Remove(_)))
}

#[tokio::test]
async fn a_job_comes_and_goes_at_its_aggregator_and_its_hosts() {
    let server = Server::start(FakePlane::new(64)).await;
    let hosts = [Host::enter(server.address, "p"), Host::enter(server.address, "q")];
    let both = |rank| wanting(rank, 2, DynamicWishes { hosts: Some(2), ..DynamicWishes::default() });
    let members = join_at(&[server.address; 2], both).await;
    let assignment = members[1].assignment();
    let terms = assignment.dynamic.as_ref().unwrap();
    let host = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 48700);
    assert_eq!((terms.slots, &terms.hosts), (64, &vec![host; 2]));
    assert_eq!((assignment.shards, assignment.lane_slots, assignment.tune), (2, 0, false));
    assert_eq!((assignment.plane, assignment.rack_rank, assignment.rack_world), (PlaneKind::Host, 1, 2));

    let here = server.plane.job();
    let told = here.dynamic.unwrap();
    assert_eq!((here.level, here.first_slot, here.lane_slots, here.stealing), (Level::Only, 0, 0, false));
    assert_eq!((told.slots, told.hosts.len(), told.places.len(), told.upstream.len()), (64, 2, 0, 0));
    for host in &hosts {
        let job = host.plane.job();
        assert_eq!((job.job, job.epoch, job.token), (here.job, here.epoch, assignment.token));
        assert_eq!((job.level, job.shards, job.lanes, job.elements), (Level::Only, 2, 4, 256));
        let told = job.dynamic.unwrap();
        assert_eq!(told.upstream, [SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 9), 48700)]);
        assert_eq!(told.places, [Place { rack: 0, bit: 0 }, Place { rack: 0, bit: 1 }]);
        let workers: Vec<_> = job.workers.iter().map(|worker| (worker.ip, worker.port)).collect();
        assert_eq!(workers, [(Ipv4Addr::new(10, 77, 0, 2), 48700), (Ipv4Addr::new(10, 77, 1, 2), 48701)]);
    }
    for member in members {
        member.leave(Outcome::Done).await.unwrap();
    }
    for plane in [&server.plane, &hosts[0].plane, &hosts[1].plane] {
        until(|| is_removed(plane)).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn two_levels_with_a_worker_beside_the_rack_outlive_the_rack() {
    let server = Server::start(FakePlane::new(64)).await;
    let host = Host::enter(server.address, "p");
    let rack = Rack::start("127.0.0.1:0".parse().unwrap(), server.address);
    let station = rack.address;
    let members = join_at(&[station, station, server.address], |rank| dynamic(rank, 3)).await;
    let places: Vec<_> = members
        .iter()
        .map(|member| {
            let (assignment, terms) = (member.assignment(), member.assignment().dynamic.as_ref().unwrap());
            (assignment.rack_rank, assignment.rack_world, terms.fan_in_1, terms.bitmap_1, terms.beside_root)
        })
        .collect();
    assert_eq!(places, [(0, 2, 2, 1, false), (1, 2, 2, 1, false), (0, 1, 2, 2, true)]);

    let root = server.plane.job();
    assert_eq!((root.level, root.workers.len()), (Level::Root { contributors: 3 }, 2));
    assert_eq!((root.workers[0].ip, root.workers[1].port), (Ipv4Addr::LOCALHOST, 48702));
    let below = rack.plane.job();
    let parent = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 48700);
    assert_eq!(below.level, Level::Rack { rack: 0, racks: 2, contributors: 3, parent });
    assert_eq!((below.workers.len(), below.dynamic.as_ref().unwrap().fan_in_1), (2, 2));
    let places = host.plane.job().dynamic.unwrap().places;
    assert_eq!(places, [(0, 0), (0, 1), (1, 0)].map(|(rack, bit)| Place { rack, bit }));

    // Its memory is another: it gets the job back.
    rack.plane.set_instance(Some(2));
    until(|| rack.plane.calls().len() == 3).await;
    assert_eq!(rack.plane.job(), below);
    server.plane.set_instance(Some(2));
    until(|| server.plane.calls().len() == 3).await;
    assert_eq!(server.plane.job(), root);

    // It dies with its control plane, by which two of the members are heard.
    rack.kill();
    sleep(Duration::from_secs(3)).await;
    for member in &members {
        assert_eq!(*member.watch().borrow(), MemberState::Running { departed: vec![] });
    }
    let rack = Rack::start(station, server.address);
    until(|| rack.plane.calls().contains(&Call::Install(below.clone()))).await;
    for member in members {
        member.leave(Outcome::Done).await.unwrap();
    }
    for plane in [&rack.plane, &server.plane, &host.plane] {
        until(|| is_removed(plane)).await;
    }
    rack.kill();
    server.stop().await;
}

#[tokio::test]
async fn the_loss_of_a_host_is_named() {
    let server = Server::start(FakePlane::new(64)).await;
    let host = Host::enter(server.address, "p");
    let members = join_at(&[server.address], |rank| dynamic(rank, 1)).await;
    drop(host);
    let failure = failure(&members[0]).await;
    assert_eq!(failure.kind, FailureKind::ParameterHost);
    assert_eq!(failure.message, "the parameter host `p` (127.0.0.1) stopped answering");
    match join(server.address, dynamic(0, 1)).await {
        Err(JoinError::Refused(refused)) => assert_eq!(refused.kind, RefusalKind::Hosts, "{refused}"),
        other => panic!("{other:?}"),
    }
    drop(members);
    server.stop().await;
}

#[tokio::test]
async fn a_job_outlives_its_control_plane_and_is_taken_up_by_the_next() {
    let server = Server::start(FakePlane::new(64)).await;
    let host = Host::enter(server.address, "p");
    let rack = Rack::start("127.0.0.1:0".parse().unwrap(), server.address);
    let mut members = join_at(&[rack.address, server.address], |rank| dynamic(rank, 2)).await;
    let (number, token) = (members[0].assignment().job, members[0].assignment().token);
    let (address, before) = (server.address, server.plane.clone());
    host.plane.keep(&[number]);
    server.stop().await;
    assert!(is_removed(&before), "the aggregator has nobody to say when it ends");
    assert!(!is_removed(&host.plane), "the parameter host sums on");

    let server = Server::start_at(address, FakePlane::new(64)).await;
    // The new one gives its number to nobody, also before it knows the job.
    let other = JoinSpec { job: "other".into(), ..dynamic(0, 1) };
    let others = timeout(HANGS, join(address, other)).await.unwrap().unwrap();
    assert_ne!(others.assignment().job, number);

    let is_resumed =
        |call: &Call| matches!(call, Call::Resume(job) if (job.job, job.token) == (number, token));
    until(|| host.plane.calls().iter().any(is_resumed)).await;
    let has_it = |plane: &FakePlane| {
        let calls = plane.calls();
        calls
            .iter()
            .rev()
            .any(|call| matches!(call, Call::Install(job) if (job.job, job.token) == (number, token)))
    };
    until(|| has_it(&server.plane)).await;
    until(|| rack.plane.calls().iter().filter(|call| matches!(call, Call::Install(_))).count() == 2).await;
    for member in &members {
        assert_eq!(*member.watch().borrow(), MemberState::Running { departed: vec![] });
    }
    // What one says the other hears again, and that one leaves.
    let mut heard = members[1].notices();
    members[0].post(Notice { key: 7, text: "still here".into() });
    let notice = timeout(HANGS, heard.recv()).await.unwrap().unwrap();
    assert_eq!((notice.0, notice.1.key), (0, 7));
    let left = members.remove(0);
    left.leave(Outcome::Failed("tired".into())).await.unwrap();
    assert!(failure(&members[0]).await.message.ends_with("left: tired"));
    others.leave(Outcome::Done).await.unwrap();
    until(|| is_removed(&host.plane) && is_removed(&rack.plane)).await;
    rack.kill();
    server.stop().await;
}

#[tokio::test]
async fn a_job_in_order_of_names_ends_with_its_control_plane() {
    let server = Server::start(FakePlane::new(64)).await;
    let host = Host::enter(server.address, "p");
    let named = |rank| JoinSpec { order: OperationOrder::Name, ..dynamic(rank, 1) };
    let stopped = join_at(&[server.address], named).await;
    let address = server.address;
    server.stop().await;
    assert_eq!(failure(&stopped[0]).await.kind, FailureKind::Stopped);

    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.spawn(Server::start_at(address, FakePlane::new(64))).await.unwrap();
    let killed = join_at(&[address], named).await;
    // Without a word.
    tokio::task::spawn_blocking(move || runtime.shutdown_timeout(HANGS)).await.unwrap();
    drop(server);
    let server = Server::start_at(address, FakePlane::new(64)).await;
    let failure = failure(&killed[0]).await;
    assert!(failure.message.contains("the order of the named operations is lost"), "{failure}");
    drop(host);
    server.stop().await;
}

#[tokio::test]
async fn no_aggregator_at_all() {
    let secrets = Secrets {
        default: Some(Secret::new(server::SECRET).unwrap()),
        racks: Some(Secret::new(RACKS).unwrap()),
        ..Secrets::default()
    };
    let listening = Listening::open("127.0.0.1:0".parse().unwrap(), NoPlane, secrets).await.unwrap();
    let address = listening.address();
    let serving = tokio::spawn(listening.serve(std::future::pending()));
    let host = Host::enter(address, "p");
    let members = join_at(&[address; 2], |rank| dynamic(rank, 2)).await;
    let assignment = members[1].assignment();
    assert_eq!((assignment.plane, assignment.aggregator_ip), (PlaneKind::None, Ipv4Addr::UNSPECIFIED));
    assert_eq!((assignment.rack_rank, assignment.rack_world), (1, 2));
    assert_eq!(assignment.dynamic.as_ref().unwrap().slots, 0);
    assert_eq!(host.plane.job().dynamic.unwrap().upstream, []);
    match join(address, JoinSpec { job: "static".into(), ..spec(0, 1) }).await {
        Err(JoinError::Refused(refused)) => {
            assert_eq!(refused.kind, RefusalKind::Plane);
            assert!(refused.message.contains("--plane none"), "{refused}");
        }
        other => panic!("{other:?}"),
    }
    serving.abort();
}

#[tokio::test]
async fn a_worker_takes_a_dead_ones_place() {
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let server = Server::start_with(anywhere, FakePlane::new(64), HANGS).await;
    let host = Host::enter(server.address, "p");
    let mut members = join_at(&[server.address; 2], |rank| dynamic(rank, 2)).await;
    let first = members[0].assignment().clone();
    let mut renewed = members[0].renewed();
    let dead = members.pop().unwrap();
    drop(dead);
    // Not within the two seconds in which the dead one may still be alive; but it waits for them.
    let newcomer = JoinSpec { data_port: 40000, ..dynamic(1, 2) };
    let newcomer = timeout(HANGS, join(server.address, newcomer)).await.unwrap().unwrap();
    let own = newcomer.assignment();
    assert_eq!((own.job, own.token, own.epoch), (first.job, first.token, first.epoch + 1));
    let resume = vec![200, 201, 202, 203];
    assert_eq!(own.dynamic.as_ref().unwrap().resume, resume, "by the parameter host's answer");
    let told = timeout(HANGS, renewed.recv()).await.unwrap().unwrap();
    assert_eq!((told.epoch, told.dynamic.unwrap().resume), (own.epoch, resume));

    let Some(Call::Renew(at_host)) = host.plane.calls().last().cloned() else { panic!("not renewed") };
    assert_eq!((at_host.epoch, at_host.workers[1].port), (own.epoch, 40000));
    let installed = host.plane.job().dynamic.unwrap();
    let told = at_host.dynamic.unwrap();
    assert_eq!((told.places, told.hosts), (installed.places, installed.hosts), "in the same places");
    let calls = server.plane.calls();
    assert!(
        matches!(&calls[1..], [Call::Remove(_), Call::Install(job)] if job.epoch == own.epoch),
        "{calls:?}"
    );
    for member in members.into_iter().chain([newcomer]) {
        member.leave(Outcome::Done).await.unwrap();
    }
    until(|| is_removed(&host.plane)).await;
    server.stop().await;
}
