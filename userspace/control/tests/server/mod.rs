//! A control plane on loopback, and workers for it.

use std::{
    collections::HashMap,
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use sumac_control::{
    Endpoint, Identity, JoinError, JoinLimits, JoinRequest, Member, Refusal, Secret, Secrets, Trust,
    WorkerHost,
    coordinator::overview::Overview,
    events::{Event, Fault, Post},
    join,
    rack::RackServer,
    server::{Listener, Listening, Monitor, ServerOptions},
};
use sumac_job::{JobSpec, OperationId, Scale};
use tokio::{
    runtime::{self, Runtime},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use crate::plane::FakePlane;

pub const SECRET: &str = "a secret for these tests";
pub const RACKS: &str = "the racks' own secret";
/// Far above what anything here takes: it ends a hanging test, and is no measure of speed.
pub const HANGS: Duration = Duration::from_secs(60);

/// A directory that is removed when dropped.
pub struct StateDir(pub PathBuf);

impl StateDir {
    pub fn new() -> Arc<StateDir> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("sumac-control-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Arc::new(StateDir(std::env::temp_dir().join(name)))
    }

    pub fn identity(&self) -> Identity {
        Identity::of_state_dir(&self.0).unwrap()
    }

    pub fn endpoint(&self, address: SocketAddr, secret: &str) -> Endpoint {
        let trust = Trust::Pinned(self.identity().fingerprint());
        Endpoint { address, others: Vec::new(), trust, secret: Secret::new(secret).unwrap() }
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A root's control plane, or a rack's. It has a runtime of its own, so that its connections end with it when
/// it is killed.
pub struct Server {
    pub address: SocketAddr,
    pub plane: FakePlane,
    pub state_dir: Arc<StateDir>,
    /// None of a rack's.
    monitor: Option<Monitor>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
    runtime: Runtime,
}

/// A server's own address, once it listens.
type Opened = oneshot::Sender<(SocketAddr, Option<Monitor>)>;

pub const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Server {
    pub async fn start(plane: FakePlane) -> Server {
        Server::start_at(ANY, plane, StateDir::new(), Duration::ZERO).await
    }

    pub async fn start_at(
        address: SocketAddr,
        plane: FakePlane,
        state_dir: Arc<StateDir>,
        rejoin_grace: Duration,
    ) -> Server {
        let (below, options) = (Arc::new(plane.clone()), options(&state_dir, rejoin_grace));
        let serve = |opened: Opened, stopped: oneshot::Receiver<()>| async move {
            let listening = Listening::on(Listener::bind(address).await.unwrap(), below, options);
            opened.send((listening.address(), Some(listening.monitor()))).ok().unwrap();
            listening.serve(async { drop(stopped.await) }).await.unwrap();
        };
        Server::run(plane, state_dir, serve).await
    }

    pub async fn rack(root: &Server, name: &str) -> Server {
        Server::rack_at(ANY, root.racks_endpoint(), name, StateDir::new()).await
    }

    pub async fn rack_at(
        address: SocketAddr,
        root: Endpoint,
        name: &str,
        state_dir: Arc<StateDir>,
    ) -> Server {
        let plane = FakePlane::new(512);
        let (below, name, identity) = (Arc::new(plane.clone()), name.to_owned(), state_dir.identity());
        let serve = |opened: Opened, stopped: oneshot::Receiver<()>| async move {
            let rack = RackServer::on(Listener::bind(address).await.unwrap(), below, identity, root, name);
            opened.send((rack.address(), None)).ok().unwrap();
            rack.serve(async { drop(stopped.await) }).await.unwrap();
        };
        Server::run(plane, state_dir, serve).await
    }

    async fn run<F: Future<Output = ()> + Send + 'static>(
        plane: FakePlane,
        state_dir: Arc<StateDir>,
        serve: impl FnOnce(Opened, oneshot::Receiver<()>) -> F,
    ) -> Server {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (opened, is_open) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let task = runtime.spawn(serve(opened, stopped));
        let (address, monitor) = timeout(HANGS, is_open).await.unwrap().unwrap();
        Server { address, plane, state_dir, monitor, stop: Some(stop), task, runtime }
    }

    pub async fn stop(mut self) -> Arc<StateDir> {
        drop(self.stop.take());
        timeout(HANGS, &mut self.task).await.unwrap().unwrap();
        self.runtime.shutdown_background();
        self.state_dir
    }

    /// As kill -9 does, but for the plane.
    pub async fn kill(self) -> Arc<StateDir> {
        let runtime = self.runtime;
        tokio::task::spawn_blocking(move || runtime.shutdown_timeout(HANGS)).await.unwrap();
        self.state_dir
    }

    /// Returns the ranks that the jobs of a root wait for, by job.
    pub fn missing(&self) -> Vec<(String, Vec<u16>)> {
        self.overview().jobs.into_iter().map(|job| (job.name, job.missing)).collect()
    }

    /// Whether a root has a job of this name.
    pub fn has(&self, job: &str) -> bool {
        self.overview().jobs.iter().any(|known| known.name == job)
    }

    /// The state of a root.
    pub fn overview(&self) -> Overview {
        self.monitor.as_ref().and_then(Monitor::overview).unwrap_or_default()
    }

    /// Returns the endpoint to join.
    pub fn endpoint(&self) -> Endpoint {
        self.state_dir.endpoint(self.address, SECRET)
    }

    pub fn racks_endpoint(&self) -> Endpoint {
        self.state_dir.endpoint(self.address, RACKS)
    }

    /// All ranks join.
    pub async fn all(&self, request: impl Fn(u16) -> JoinRequest, world: u16) -> Vec<Member> {
        join_at(&vec![self.endpoint(); usize::from(world)], request).await
    }
}

pub fn options(state_dir: &StateDir, rejoin_grace: Duration) -> ServerOptions {
    let secrets = Secrets {
        default: Some(Secret::new(SECRET).unwrap()),
        jobs: HashMap::new(),
        racks: Secret::new(RACKS).unwrap(),
    };
    let (identity, state_dir) = (state_dir.identity(), state_dir.0.clone());
    let join_limits = JoinLimits::default();
    // Workers connect over loopback, and state the addresses of a lab.
    let data_networks = vec!["10.77.0.0/16".parse().unwrap()];
    let longest_outage = Duration::from_secs(5);
    ServerOptions {
        identity,
        secrets,
        state_dir,
        stealing: true,
        rejoin_grace,
        longest_outage,
        join_limits,
        data_networks,
    }
}

/// Each rank joins at its endpoint.
pub async fn join_at(endpoints: &[Endpoint], request: impl Fn(u16) -> JoinRequest) -> Vec<Member> {
    let joins = (0..).zip(endpoints).map(|(rank, endpoint)| {
        let (endpoint, request) = (endpoint.clone(), request(rank));
        tokio::spawn(async move { join(&endpoint, request).await })
    });
    let joins: Vec<_> = joins.collect();
    let mut members = Vec::new();
    for join in joins {
        members.push(timeout(HANGS, join).await.unwrap().unwrap().unwrap());
    }
    members
}

/// Rank `rank` of the job `train`.
pub fn request(rank: u16, world: u16) -> JoinRequest {
    let spec = JobSpec {
        elements: Some(256),
        slots: Some(32),
        shards: Some(1),
        scale: Some(Scale::Fixed(1000.0)),
        timeout_s: Some(20.0),
        ..JobSpec::new("train", rank, world)
    };
    let host = WorkerHost {
        data_ip: Ipv4Addr::new(10, 77, rank as u8, 2),
        data_port: 48700,
        mac: [2, 0, 0, 0, 0, rank as u8],
        max_elements: 352,
        max_shards: 1,
        checksum: true,
        paths: 1,
        has_udp: false,
        user: 0,
    };
    JoinRequest::new(spec, host)
}

/// The same with another spec.
pub fn with(mut request: JoinRequest, change: impl FnOnce(&mut JobSpec)) -> JoinRequest {
    change(&mut request.spec);
    request
}

/// The failure of a job that is to fail.
pub async fn failure(member: &Member) -> sumac_control::JobFailure {
    timeout(HANGS, member.failed()).await.expect("the job does not fail")
}

pub async fn until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANGS, waiting).await.expect("it does not come");
}

/// The refusal of a join that is to be refused.
pub async fn refusal(endpoint: &Endpoint, request: JoinRequest) -> Refusal {
    match join(endpoint, request).await {
        Err(JoinError::Refused(refused)) => refused,
        other => panic!("{other:?}"),
    }
}

/// A report that all members receive.
pub fn fault(problem: impl Into<String>) -> Post {
    Post::Fault(Fault { operation: OperationId(5), rank: None, index: None, problem: problem.into() })
}

/// Receives the report of a rank.
pub async fn problem_of(rank: u16, events: &mut mpsc::UnboundedReceiver<Event>) -> String {
    match timeout(HANGS, events.recv()).await.unwrap().unwrap() {
        Event::Fault { rank: of, fault } if of == rank => fault.problem,
        other => panic!("{other:?}"),
    }
}
