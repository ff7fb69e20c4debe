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
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};

use plane::{Call, FakePlane};
use server::{
    ANY, HANGS, Server, StateDir, failure, fault, join_at, options, problem_of, refusal, request, until, with,
};
use sumac_control::{
    Endpoint, FailureKind, JoinRequest, MemberState, NoDataPlane, Outcome, PlaneKind, RefusalKind, join,
    plane::{ContributorBits, Level},
    rack::offer_parameter_host,
    server::{Listener, Listening},
};
use sumac_job::{AggregatorKind, Mode, OperationOrder};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

/// A parameter host that dies when dropped.
struct Host {
    plane: FakePlane,
    task: JoinHandle<()>,
}

impl Host {
    fn enter(root: Endpoint, name: &str) -> Host {
        let plane = FakePlane::of(PlaneKind::Parameter, 1);
        let task = tokio::spawn(offer_parameter_host(plane.clone(), root, name.into()));
        Host { plane, task }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn dynamic(rank: u16, world: u16) -> JoinRequest {
    let mut request = with(request(rank, world), |spec| {
        (spec.mode, spec.slots, spec.shards) = (Some(Mode::Dynamic), None, None);
    });
    request.host.max_shards = 2;
    request.host.data_port = 48700 + rank;
    request
}

fn is_removed(plane: &FakePlane) -> bool {
    matches!(plane.calls().last(), Some(Call::Remove(_)))
}

#[tokio::test]
async fn a_job_comes_and_goes_at_its_aggregator_and_its_hosts() {
    let server = Server::start(FakePlane::new(64)).await;
    let hosts = [Host::enter(server.racks_endpoint(), "p"), Host::enter(server.racks_endpoint(), "q")];
    let both = |rank| with(dynamic(rank, 2), |spec| spec.parameter_hosts = Some(2));
    let members = server.all(both, 2).await;
    let (terms, placement) = (&members[1].grant().terms, &members[1].grant().placement);
    let host = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 48700);
    assert_eq!((terms.slots, &terms.parameter_hosts), (64, &vec![host; 2]));
    assert_eq!((terms.shards, terms.is_measured), (2, true));
    assert_eq!(
        (placement.aggregator, placement.rack_rank, placement.rack_world),
        (AggregatorKind::Host, 1, 2)
    );

    let here = server.plane.job();
    assert_eq!((here.level, here.first_slot, here.pool_slots(), here.stealing), (Level::Only, 0, 0, false));
    assert_eq!((here.terms.slots, here.contributors.len(), here.upstream.len()), (64, 0, 0));
    for host in &hosts {
        let job = host.plane.job();
        assert_eq!((&job.terms, job.level), (&here.terms, Level::Only));
        assert_eq!(job.upstream, [SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 9), 48700)]);
        assert_eq!(job.contributors, [0, 1].map(|bit| ContributorBits { rack: 0, bit }));
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
    let host = Host::enter(server.racks_endpoint(), "p");
    let rack = Server::rack(&server, "r").await;
    let members =
        join_at(&[rack.endpoint(), rack.endpoint(), server.endpoint()], |rank| dynamic(rank, 3)).await;
    let places: Vec<_> = members
        .iter()
        .map(|member| {
            let (terms, placement) = (&member.grant().terms, &member.grant().placement);
            let place = (placement.rack_rank, placement.rack_world);
            (place, terms.fan_in_1, placement.bitmap_1, placement.beside_root)
        })
        .collect();
    assert_eq!(places, [((0, 2), 2, 1, false), ((1, 2), 2, 1, false), ((0, 1), 2, 2, true)]);

    let root = server.plane.job();
    assert_eq!((root.level, root.workers.len()), (Level::Root { contributors: 3 }, 2));
    assert_eq!((root.workers[0].ip, root.workers[1].port), (Ipv4Addr::LOCALHOST, 48702));
    let below = rack.plane.job();
    let parent = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 48700);
    assert_eq!(below.level, Level::Rack { rack: 0, racks: 2, contributors: 3, parent, has_racks: false });
    assert_eq!((below.workers.len(), below.terms.fan_in_1), (2, 2));
    let bits = host.plane.job().contributors;
    assert_eq!(bits, [(0, 0), (0, 1), (1, 0)].map(|(rack, bit)| ContributorBits { rack, bit }));

    // Its memory is another: it gets the job back.
    rack.plane.set_instance(Some(2));
    until(|| rack.plane.calls().len() == 3).await;
    assert_eq!(rack.plane.job(), below);
    server.plane.set_instance(Some(2));
    until(|| server.plane.calls().len() == 3).await;
    assert_eq!(server.plane.job(), root);

    // It dies with its control plane, by which two of the members are heard.
    let address = rack.address;
    let state_dir = rack.kill().await;
    sleep(Duration::from_secs(3)).await;
    for member in &members {
        assert_eq!(*member.watch().borrow(), MemberState::Running { departed: vec![] });
    }
    let rack = Server::rack_at(address, server.racks_endpoint(), "r", state_dir).await;
    until(|| rack.plane.calls().contains(&Call::Install(below.clone()))).await;
    for member in members {
        member.leave(Outcome::Done).await.unwrap();
    }
    for plane in [&rack.plane, &server.plane, &host.plane] {
        until(|| is_removed(plane)).await;
    }
    rack.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_job_outlives_its_control_plane_and_is_taken_up_by_the_next() {
    let server = Server::start(FakePlane::new(64)).await;
    let host = Host::enter(server.racks_endpoint(), "p");
    let rack = Server::rack(&server, "r").await;
    let mut members = join_at(&[rack.endpoint(), server.endpoint()], |rank| dynamic(rank, 2)).await;
    let terms = members[0].grant().terms.clone();
    let (address, before) = (server.address, server.plane.clone());
    let state_dir = server.stop().await;
    assert!(is_removed(&before), "the aggregator has nobody to say when it ends");
    assert!(!is_removed(&host.plane), "the parameter host sums on");

    let server = Server::start_at(address, FakePlane::new(64), state_dir, Duration::ZERO).await;
    // The new one gives its number to nobody.
    let other = with(dynamic(0, 1), |spec| spec.job = "other".into());
    let others = timeout(HANGS, join(&server.endpoint(), other)).await.unwrap().unwrap();
    assert_ne!(others.grant().terms.job, terms.job);
    let has_it = |plane: &FakePlane| {
        plane.calls().iter().any(|call| matches!(call, Call::Install(job) if job.terms.token == terms.token))
    };
    until(|| has_it(&server.plane)).await;
    for member in &members {
        assert_eq!(*member.watch().borrow(), MemberState::Running { departed: vec![] });
    }
    // What one says the other receives again, and that one leaves.
    let mut heard = members[1].events();
    members[0].post(fault("still here"));
    assert_eq!(problem_of(0, &mut heard).await, "still here");
    let left = members.remove(0);
    left.leave(Outcome::Failed("tired".into())).await.unwrap();
    assert!(failure(&members[0]).await.message.ends_with("left: tired"));
    others.leave(Outcome::Done).await.unwrap();
    until(|| is_removed(&host.plane) && is_removed(&rack.plane)).await;
    rack.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_job_in_order_of_names_ends_with_a_stop_and_outlives_a_kill() {
    let server = Server::start(FakePlane::new(64)).await;
    let host = Host::enter(server.racks_endpoint(), "p");
    let named = |rank| with(dynamic(rank, 1), |spec| spec.order = Some(OperationOrder::Name));
    let stopped = server.all(named, 1).await;
    let (address, plane) = (server.address, server.plane.clone());
    let state_dir = server.stop().await;
    assert_eq!(failure(&stopped[0]).await.kind, FailureKind::Stopped);

    let server = Server::start_at(address, plane.clone(), state_dir, Duration::ZERO).await;
    let mut killed = server.all(named, 1).await.remove(0);
    let state_dir = server.kill().await;
    let server = Server::start_at(address, plane, state_dir, Duration::ZERO).await;
    let mut events = killed.events();
    killed.post(fault("still here"));
    assert_eq!(problem_of(0, &mut events).await, "still here");
    killed.leave(Outcome::Done).await.unwrap();
    drop(host);
    server.stop().await;
}

#[tokio::test]
async fn no_aggregator_at_all() {
    let state_dir = StateDir::new();
    let options = options(&state_dir, Duration::ZERO);
    let listening = Listening::on(Listener::bind(ANY).await.unwrap(), Arc::new(NoDataPlane), options);
    let endpoint = state_dir.endpoint(listening.address(), server::SECRET);
    let serving = tokio::spawn(listening.serve(std::future::pending()));
    let host = Host::enter(state_dir.endpoint(endpoint.address, server::RACKS), "p");
    let members = join_at(&[endpoint.clone(), endpoint.clone()], |rank| dynamic(rank, 2)).await;
    let (terms, placement) = (&members[1].grant().terms, &members[1].grant().placement);
    assert_eq!(
        (placement.aggregator, placement.aggregator_ip),
        (AggregatorKind::None, Ipv4Addr::UNSPECIFIED)
    );
    assert_eq!((placement.rack_rank, placement.rack_world, terms.slots), (1, 2, 0));
    assert_eq!(host.plane.job().upstream, []);
    let refused = refusal(&endpoint, with(request(0, 1), |spec| spec.job = "static".into())).await;
    assert_eq!(refused.kind, RefusalKind::Plane);
    assert!(refused.message.contains("--plane none"), "{refused}");
    serving.abort();
}

#[tokio::test]
async fn a_worker_takes_a_dead_ones_place() {
    let server = Server::start_at(ANY, FakePlane::new(64), StateDir::new(), HANGS).await;
    let host = Host::enter(server.racks_endpoint(), "p");
    let mut members = server.all(|rank| dynamic(rank, 2), 2).await;
    let first = members[0].grant().terms.clone();
    let mut renewed = members[0].renewed();
    let dead = members.pop().unwrap();
    drop(dead);
    // Not within the two seconds in which the dead one may still be alive; but it waits for them.
    let mut newcomer = dynamic(1, 2);
    newcomer.host.data_port = 40000;
    let newcomer = timeout(HANGS, join(&server.endpoint(), newcomer)).await.unwrap().unwrap();
    let own = newcomer.grant().terms.clone();
    assert_eq!((own.job, own.token, own.epoch), (first.job, first.token, first.epoch + 1));
    assert_eq!(own.resume, [200, 201, 202, 203], "by the parameter host's answer");
    let told = timeout(HANGS, renewed.recv()).await.unwrap().unwrap();
    assert_eq!((told.terms.epoch, told.terms.resume), (own.epoch, own.resume.clone()));

    let Some(Call::Renew(at_host)) = host.plane.calls().last().cloned() else { panic!("not renewed") };
    assert_eq!((at_host.terms.epoch, at_host.workers[1].port), (own.epoch, 40000));
    let installed = host.plane.job();
    assert_eq!(at_host.contributors, installed.contributors, "in the same places");
    assert_eq!(at_host.terms.parameter_hosts, installed.terms.parameter_hosts);
    let calls = server.plane.calls();
    assert!(
        matches!(&calls[1..], [Call::Remove(_), Call::Install(job)] if job.terms.epoch == own.epoch),
        "{calls:?}"
    );
    for member in members.into_iter().chain([newcomer]) {
        member.leave(Outcome::Done).await.unwrap();
    }
    until(|| is_removed(&host.plane)).await;
    server.stop().await;
}
