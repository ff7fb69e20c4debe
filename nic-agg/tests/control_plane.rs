//! Jobs of remote workers on the eBPF aggregator: the control plane over TCP, the data over UDP through
//! XDP, and the aggregator going away under both.
//!
//! ```text
//!  namespace of worker 0                namespace of the aggregator
//!  10.98.0.2  to-agg ----- veth ------- w0  10.98.0.1   XDP aggregator,
//!  namespace of worker 1                                control plane on TCP 48600
//!  10.98.1.2  to-agg ----- veth ------- w1  10.98.1.1
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;
#[path = "support/worker.rs"]
mod worker;

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::PathBuf,
    sync::{Arc, Barrier, mpsc},
    thread,
    time::Duration,
};

use sumac_agg::{AttachOptions, attach, clean, detach, plane::EbpfPlane};
use sumac_control::{
    FailureKind, Identity, JobFailure, JoinLimits, Member, MemberState, Outcome, Secret, Secrets, join,
    server::{Listener, Listening, ServerOptions},
};
use sumac_job::JobSpec;
use sumac_job::PathMeasure;
use sumac_wire::DEFAULT_BASE_PORT;
use support::{
    needs_privileges,
    net::{Namespace, cable},
    serve::{endpoint, request},
};
use tokio::{runtime::Runtime, sync::oneshot};
use worker::sum;

const WORKERS: u16 = 2;
const ELEMENTS: u16 = 256;
const SECRET: &str = "a secret for this test";
/// Ends a test that hangs; nothing here takes as long.
const HANGS: Duration = Duration::from_secs(60);

/// The aggregator's host, and those of the workers.
struct Lab {
    agg: Namespace,
    workers: Vec<Namespace>,
}

impl Lab {
    fn new() -> Lab {
        let (agg, workers) = (Namespace::new("agg"), (0..WORKERS).map(|_| Namespace::new("w")).collect());
        let lab = Lab { agg, workers };
        for (rank, worker) in lab.workers.iter().enumerate() {
            let (own, peer) = (format!("10.98.{rank}.1/24"), format!("10.98.{rank}.2/24"));
            cable((&lab.agg, &format!("w{rank}"), Some(&own)), (worker, "to-agg", Some(&peer)));
        }
        lab
    }

    fn attach(&self) {
        let options = AttachOptions {
            slots: 64,
            elements: Some(360),
            pin_root: self.agg.pins.clone(),
            ..AttachOptions::new((0..WORKERS).map(|rank| format!("w{rank}")).collect())
        };
        self.agg.inside(|| attach(&options).unwrap());
    }

    fn detach(&self) -> Vec<u16> {
        self.agg.inside(|| detach(&self.agg.pins, &[]).unwrap().kept_jobs)
    }
}

/// The directory of the control plane's key and journal.
fn state_dir() -> PathBuf {
    std::env::temp_dir().join(format!("sumac-control-plane-{}", std::process::id()))
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Serves on the aggregator's host until told to stop.
fn start_server(lab: &Lab) -> (oneshot::Sender<()>, thread::JoinHandle<()>) {
    let (pin_root, state_dir) = (lab.agg.pins.clone(), state_dir());
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = mpsc::channel();
    let thread = lab.agg.spawn(move || {
        let plane = EbpfPlane::open(&pin_root).unwrap();
        let secrets = Secrets {
            default: Some(Secret::new(SECRET).unwrap()),
            jobs: HashMap::new(),
            racks: Secret::new("the racks' own secret").unwrap(),
        };
        let options = ServerOptions {
            identity: Identity::of_state_dir(&state_dir).unwrap(),
            secrets,
            state_dir,
            stealing: true,
            rejoin_grace: Duration::ZERO,
            longest_outage: Duration::from_secs(10),
            join_limits: JoinLimits::NONE,
            data_networks: Vec::new(),
        };
        runtime().block_on(async {
            let listener = Listener::bind("0.0.0.0:48600".parse().unwrap()).await.unwrap();
            let listening = Listening::on(listener, plane.into(), options);
            ready.send(()).unwrap();
            listening.serve(async { drop(stopped.await) }).await.unwrap();
        });
    });
    is_ready.recv_timeout(HANGS).unwrap();
    (stop, thread)
}

/// One rank: a membership, and a socket in place of a daemon's.
struct Worker {
    rank: u16,
    runtime: Runtime,
    member: Option<Member>,
    socket: UdpSocket,
    lane_slots: u32,
}

impl Worker {
    fn join(rank: u16) -> Worker {
        let gateway = Ipv4Addr::new(10, 98, rank as u8, 1);
        let spec = JobSpec {
            elements: Some(ELEMENTS),
            timeout_s: Some(HANGS.as_secs_f64()),
            ..JobSpec::new("train", rank, WORKERS)
        };
        let mut request = request(spec, DEFAULT_BASE_PORT);
        (request.host.max_elements, request.host.max_shards) = (360, 1);
        let endpoint = endpoint(SocketAddr::from((gateway, 48600)), &state_dir(), SECRET);
        let runtime = runtime();
        let member = runtime.block_on(join(&endpoint, request)).unwrap();
        let socket = UdpSocket::bind(("0.0.0.0", DEFAULT_BASE_PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let (terms, placement) = (&member.grant().terms, &member.grant().placement);
        assert_eq!(placement.aggregator_ip, gateway);
        assert!(!terms.is_measured, "the slots are left open");
        let most = terms.slots;
        // 20 us x 1 Gbit/s: two packets.
        let measure = PathMeasure { rtt_ns: 20_000, shortest_ns: 20_000, bytes_per_s: 125_000_000 };
        let measured = runtime.block_on(member.tune(measure)).unwrap().terms;
        let lane_slots = measured.slots;
        assert!(measured.is_measured && lane_slots <= most, "{measured:?}");
        Worker { rank, runtime, member: Some(member), socket, lane_slots }
    }

    fn member(&self) -> &Member {
        self.member.as_ref().unwrap()
    }

    /// Sums chunks `from..to` with the others, and checks every element.
    fn sum(&self, from: u32, to: u32) {
        (from..to).for_each(|seq| sum(self.rank, self.member(), &self.socket, self.lane_slots, seq));
    }

    fn failure(&self) -> JobFailure {
        let failed = self.member().failed();
        self.runtime
            .block_on(async { tokio::time::timeout(HANGS, failed).await.expect("the job does not fail") })
    }

    fn leave(mut self) {
        let member = self.member.take().unwrap();
        self.runtime.block_on(member.leave(Outcome::Done)).unwrap();
    }
}

/// The steps of both workers, with the test's between them.
fn work(rank: u16, step: &Barrier) {
    let mut own = Worker::join(rank);
    own.sum(0, 100);
    step.wait(); // detached and attached again, the slots kept
    step.wait();
    own.sum(100, 150);
    assert_eq!(*own.member().watch().borrow(), MemberState::Running { departed: vec![] });
    step.wait(); // detached and attached again, everything lost
    step.wait();
    let failure = own.failure();
    assert_eq!(failure.kind, FailureKind::StateLost, "{failure}");
    assert!(failure.message.starts_with("aggregator lost its state (instance "), "{failure}");
    let before = own.member().grant().terms.clone();
    drop(own);
    own = Worker::join(rank);
    let after = &own.member().grant().terms;
    assert_eq!((after.job, after.epoch), (before.job, before.epoch + 1));
    own.sum(0, 50);
    own.leave();
}

#[test]
fn jobs_of_remote_workers_survive_a_new_attach_and_fail_with_the_state() {
    needs_privileges!("jobs_of_remote_workers_survive_a_new_attach_and_fail_with_the_state");
    let lab = Lab::new();
    lab.attach();
    let (stop, server) = start_server(&lab);
    let step = Arc::new(Barrier::new(usize::from(WORKERS) + 1));
    let start = |(rank, host): (u16, &Namespace)| {
        let step = step.clone();
        host.spawn(move || work(rank, &step))
    };
    let workers: Vec<_> = (0..).zip(&lab.workers).map(start).collect();
    step.wait();
    assert_eq!(lab.detach().len(), 1, "the job's slots are kept");
    thread::sleep(Duration::from_secs(1));
    lab.attach();
    step.wait();
    step.wait();
    lab.agg.inside(|| clean(&lab.agg.pins, false).unwrap());
    lab.attach();
    step.wait();
    for worker in workers {
        worker.join().unwrap();
    }
    drop(stop);
    server.join().unwrap();
    assert!(lab.detach().is_empty(), "the last leave removed the job");
    let _ = std::fs::remove_dir_all(state_dir());
}
