//! Jobs of remote workers on the eBPF aggregator: the control plane over TCP, the data over UDP through
//! XDP, and the aggregator going away under both.
//!
//! ```text
//!  namespace sctl<pid>w0                namespace sctl<pid>agg
//!  10.98.0.2  to-agg ----- veth ------- w0  10.98.0.1   XDP aggregator,
//!  namespace sctl<pid>w1                                control plane on TCP 48600
//!  10.98.1.2  to-agg ----- veth ------- w1  10.98.1.1
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
#[path = "support/serve.rs"]
mod serve;

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Barrier, mpsc},
    thread,
    time::Duration,
};

use serve::{endpoint, request};
use sumac_agg::{AttachOptions, attach, clean, detach, plane::EbpfPlane};
use sumac_control::{
    FailureKind, Identity, JobFailure, Member, MemberState, Outcome, Secret, Secrets, join,
    server::{Listening, ServerOptions},
};
use sumac_job::JobSpec;
use sumac_transport::PathMeasure;
use sumac_wire::{
    DEFAULT_BASE_PORT, Header, Kind,
    header::{HEADER_LEN, flag},
    stream::place,
};
use tokio::{runtime::Runtime, sync::oneshot};

const WORKERS: u16 = 2;
const ELEMENTS: u16 = 256;
const SECRET: &str = "a secret for this test";
/// Ends a test that hangs; nothing here takes as long.
const HANGS: Duration = Duration::from_secs(60);

fn run(program: &str, arguments: &str) -> Result<(), String> {
    let output =
        Command::new(program).args(arguments.split(' ')).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The namespaces, cables and pins; all end with it.
struct Lab {
    prefix: String,
    pin_root: PathBuf,
}

impl Lab {
    fn new() -> Result<Lab, String> {
        let prefix = format!("sctl{}", std::process::id());
        let lab = Lab { pin_root: PathBuf::from("/sys/fs/bpf").join(&prefix), prefix };
        let agg = lab.name("agg");
        run("ip", &format!("netns add {agg}"))?;
        for rank in 0..WORKERS {
            let worker = lab.name(&format!("w{rank}"));
            run("ip", &format!("netns add {worker}"))?;
            run("ip", &format!("-n {agg} link add w{rank} type veth peer name to-agg netns {worker}"))?;
            run("ip", &format!("-n {agg} addr add 10.98.{rank}.1/24 dev w{rank}"))?;
            run("ip", &format!("-n {worker} addr add 10.98.{rank}.2/24 dev to-agg"))?;
            run("ip", &format!("-n {agg} link set w{rank} up"))?;
            run("ip", &format!("-n {worker} link set to-agg up"))?;
            // Checksums in the packets, where XDP can see them, and NAPI for frames that XDP sends.
            run("ip", &format!("netns exec {worker} ethtool -K to-agg tx off gro on"))?;
        }
        Ok(lab)
    }

    fn name(&self, host: &str) -> String {
        format!("{}{host}", self.prefix)
    }

    /// Runs `body` on a thread of its own inside a host.
    fn on<T: Send + 'static>(
        &self,
        host: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let path = format!("/run/netns/{}", self.name(host));
        thread::spawn(move || {
            let namespace = File::open(path).unwrap();
            nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            body()
        })
    }

    fn attach(&self) {
        let options = AttachOptions {
            slots: 64,
            elements: Some(360),
            pin_root: self.pin_root.clone(),
            ..AttachOptions::new((0..WORKERS).map(|rank| format!("w{rank}")).collect())
        };
        self.on("agg", move || attach(&options).unwrap()).join().unwrap();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let root = self.pin_root.clone();
        let cleaned = self.on("agg", move || clean(&root, false).is_ok()).join();
        if !matches!(cleaned, Ok(true)) {
            eprintln!("pins may be left in {}", self.pin_root.display());
        }
        let _ = std::fs::remove_dir_all(&self.pin_root);
        for host in ["agg".to_string()].into_iter().chain((0..WORKERS).map(|rank| format!("w{rank}"))) {
            let _ = run("ip", &format!("netns del {}", self.name(&host)));
        }
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
    let (pin_root, state_dir) = (lab.pin_root.clone(), state_dir());
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = mpsc::channel();
    let thread = lab.on("agg", move || {
        let plane = EbpfPlane::open(&pin_root).unwrap();
        let secrets = Secrets { default: Some(Secret::new(SECRET).unwrap()), ..Secrets::default() };
        let options = ServerOptions {
            identity: Identity::of_state_dir(&state_dir).unwrap(),
            secrets,
            state_dir,
            stealing: true,
            rejoin_grace: Duration::ZERO,
        };
        runtime().block_on(async {
            let listening =
                Listening::open("0.0.0.0:48600".parse().unwrap(), plane.into(), options).await.unwrap();
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
    aggregator: SocketAddr,
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
        let aggregator = SocketAddr::from((placement.aggregator_ip, placement.base_port));
        assert!(!terms.is_measured, "the slots are left open");
        let most = terms.slots;
        // 20 us x 1 Gbit/s: two packets.
        let measure = PathMeasure { rtt_ns: 20_000, bytes_per_s: 125_000_000 };
        let (lane_slots, reason) = runtime.block_on(member.tune(measure)).unwrap();
        assert!(lane_slots <= most, "{lane_slots}: {reason}");
        Worker { rank, runtime, member: Some(member), socket, aggregator, lane_slots }
    }

    fn member(&self) -> &Member {
        self.member.as_ref().unwrap()
    }

    /// Sums chunks `from..to` with the others, and checks every element.
    fn sum(&self, from: u32, to: u32) {
        for seq in from..to {
            let result = self.exchange(&self.contribution(seq), seq);
            for (i, bytes) in result[HEADER_LEN..].chunks(4).enumerate() {
                let expected: i32 = (0..WORKERS).map(|rank| value(rank, seq, i)).sum();
                let sum = i32::from_be_bytes(bytes.try_into().unwrap());
                assert_eq!(sum, expected, "rank {} chunk {seq} element {i}", self.rank);
            }
        }
    }

    fn contribution(&self, seq: u32) -> Vec<u8> {
        let terms = &self.member().grant().terms;
        let place = place(seq, self.lane_slots.ilog2());
        let header = Header {
            kind: Kind::Contribution as u8,
            flags: if place.version == 1 { flag::POOL_VERSION } else { 0 },
            job: terms.job,
            epoch: terms.epoch,
            seq,
            received: seq,
            slot: place.slot,
            fan_in_0: WORKERS as u8,
            elements: ELEMENTS,
            bitmap_0: 1 << self.rank,
            token: terms.token,
            ..Header::default()
        };
        let values = (0..usize::from(ELEMENTS)).flat_map(|i| value(self.rank, seq, i).to_be_bytes());
        header.to_bytes().into_iter().chain(values).collect()
    }

    /// Sends until the result comes.
    fn exchange(&self, packet: &[u8], seq: u32) -> Vec<u8> {
        let mut buffer = [0; 4096];
        for _ in 0..40 {
            self.socket.send_to(packet, self.aggregator).unwrap();
            while let Ok(len) = self.socket.recv(&mut buffer) {
                let header = Header::read(&buffer[..], 0, len).unwrap();
                if header.kind == Kind::Result as u8 && header.seq == seq {
                    return buffer[..len].to_vec();
                }
            }
        }
        panic!("rank {}: no result for chunk {seq}", self.rank);
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

fn value(rank: u16, seq: u32, i: usize) -> i32 {
    (seq as i32 * 31 + i as i32 * 7 - 500) * (i32::from(rank) + 1)
}

/// The steps of both workers, with the test's between them.
fn worker(rank: u16, step: &Barrier) {
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
    const NAME: &str = "jobs_of_remote_workers_survive_a_new_attach_and_fail_with_the_state";
    let lab = match Lab::new() {
        Ok(lab) => lab,
        Err(why) if std::env::var("REQUIRE_PRIVILEGED").is_ok_and(|value| value == "1") => panic!("{why}"),
        Err(why) => return println!("SKIP {NAME}: {why}"),
    };
    lab.attach();
    let (stop, server) = start_server(&lab);
    let step = Arc::new(Barrier::new(usize::from(WORKERS) + 1));
    let workers: Vec<_> = (0..WORKERS)
        .map(|rank| {
            let step = step.clone();
            lab.on(&format!("w{rank}"), move || worker(rank, &step))
        })
        .collect();
    step.wait();
    let kept = off(&lab, |root| detach(root, &[]).unwrap().kept_jobs);
    assert_eq!(kept.len(), 1, "the job's slots are kept");
    thread::sleep(Duration::from_secs(1));
    lab.attach();
    step.wait();
    step.wait();
    off(&lab, |root| clean(root, false).unwrap());
    lab.attach();
    step.wait();
    for worker in workers {
        worker.join().unwrap();
    }
    drop(stop);
    server.join().unwrap();
    let kept = off(&lab, |root| detach(root, &[]).unwrap().kept_jobs);
    assert!(kept.is_empty(), "the last leave removed the job");
    let _ = std::fs::remove_dir_all(state_dir());
}

fn off<T: Send + 'static>(lab: &Lab, body: impl FnOnce(&Path) -> T + Send + 'static) -> T {
    let root = lab.pin_root.clone();
    lab.on("agg", move || body(&root)).join().unwrap()
}
