//! `sumac-agg serve` as a process, with the host aggregator: needs no privilege.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[path = "../../tests/src/copied.rs"]
mod copied;
#[path = "support/serve.rs"]
mod serve;
#[path = "support/worker.rs"]
mod worker;

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitStatus},
    time::Duration,
};

use copied::copy_programs;
use nix::sys::signal::Signal;
use serve::{Serving, endpoint, request, wait::eventually};
use sumac_control::{
    Endpoint, FailureKind, Grant, Identity, JoinError, JoinToken, Member, PlaneKind, Secret,
    state_dir::write_private,
};
use sumac_job::{JobSpec, Mode};
use tempfile::TempDir;

/// Ends a test that hangs; nothing here takes as long.
const HANGS: Duration = Duration::from_secs(60);

struct Server {
    serving: Serving,
    control: SocketAddr,
    data_port: u16,
    state_dir: TempDir,
}

impl Server {
    fn start() -> Server {
        Server::start_with(|files| {
            let [all, own, racks] = files.each_ref().map(|file| file.display().to_string());
            let own = format!("own={own}");
            ["--secret-file", &all, "--job-secret", &own, "--rack-secret-file", &racks, "--share", "100"]
                .map(String::from)
                .into()
        })
    }

    /// A rack's aggregator, below another.
    fn rack(name: &str, root: &Server) -> Server {
        let parent = root.control.to_string();
        Server::start_with(|files| {
            let fingerprint = Identity::of_state_dir(root.state_dir.path()).unwrap().fingerprint();
            let secret = Secret::new("the secret of the racks").unwrap();
            let token = JoinToken { fingerprint, secret }.to_string();
            write_private(&files[2], token.as_bytes()).unwrap();
            let racks = files[2].display().to_string();
            ["--parent", &parent, "--rack-name", name, "--rack-secret-file", &racks].map(String::from).into()
        })
    }

    /// Of the files the first is the secret of all jobs, the second one job's, the third the racks'.
    fn start_with(arguments: impl Fn(&[PathBuf; 3]) -> Vec<String>) -> Server {
        let state_dir = tempfile::tempdir().unwrap();
        let file = |name: &str, secret: &str| {
            let path = state_dir.path().join(name);
            write_private(&path, secret.as_bytes()).unwrap();
            path
        };
        let files = [
            file("all", "the secret of all\n"),
            file("own", "a secret of its own\n"),
            file("racks", "the secret of the racks\n"),
        ];
        let own = [
            ["--plane", "host"],
            ["--listen", "127.0.0.1:0"],
            ["--base-port", "0"],
            ["--slots", "64"],
            ["--elements", "300"],
            ["--data-ip", "127.0.0.1"],
            ["--dynamic-slots", "32"],
            ["--slot-timeout", "250"],
            ["--state-dir", state_dir.path().to_str().unwrap()],
        ];
        let own = own.as_flattened().iter().map(|word| (*word).to_owned());
        let serving = Serving::start(own.chain(arguments(&files)));
        let [control, data_port] = ["control", "data_port"].map(|name| serving.field(name));
        let (control, data_port) = (control.parse().unwrap(), data_port.parse().unwrap());
        Server { serving, control, data_port, state_dir }
    }

    /// Sends a signal, and waits for the end. Gives the rest of the log, too.
    fn end(&mut self, signal: Signal) -> (ExitStatus, String) {
        let status = self.serving.end(signal);
        let mut log = String::new();
        self.serving.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (status, log)
    }
}

fn spec(job: &str) -> JobSpec {
    JobSpec { elements: Some(256), slots: Some(32), timeout_s: Some(20.0), ..JobSpec::new(job, 0, 1) }
}

async fn join(server: &Server, job: &str, secret: &str) -> Result<Member, JoinError> {
    let endpoint = endpoint(server.control, server.state_dir.path(), secret);
    sumac_control::join(&endpoint, request(spec(job), 48700)).await
}

#[tokio::test]
async fn jobs_have_their_secrets_and_hear_of_the_end() {
    let mut server = Server::start();
    let member = join(&server, "any", "the secret of all").await.unwrap();
    let Grant { terms, placement } = member.grant();
    assert_eq!((placement.aggregator, terms.slots, terms.elements), (PlaneKind::Host, 32, 256));
    assert_eq!((terms.shards, terms.is_measured), (1, true));
    assert_eq!((placement.aggregator_ip, placement.base_port), (Ipv4Addr::LOCALHOST, server.data_port));
    for (job, secret) in [("own", "the secret of all"), ("any", "a secret of its own")] {
        let refused = join(&server, job, secret).await;
        assert!(matches!(refused, Err(JoinError::Denied { .. })), "{job}: {refused:?}");
    }
    let full = join(&server, "own", "a secret of its own").await.unwrap_err().to_string();
    assert!(full.contains("0 of 64"), "{full}");
    let failed = member.failed();
    let ended = tokio::task::spawn_blocking(move || server.end(Signal::SIGTERM)).await.unwrap();
    assert_eq!(tokio::time::timeout(HANGS, failed).await.unwrap().kind, FailureKind::Stopped);
    let (status, log) = ended;
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains("SIGTERM"), "{log}");
}

/// As from a host whose control connection comes from a management network.
#[tokio::test]
async fn packets_go_to_other_networks_than_the_connections_where_that_is_allowed() {
    let server = Server::start_with(|[all, ..]| {
        let words = ["--secret-file", all.to_str().unwrap(), "--data-network", "192.0.2.0/24"];
        words.map(String::from).into()
    });
    let endpoint = endpoint(server.control, server.state_dir.path(), "the secret of all");
    for (ip, is_allowed) in [([192, 0, 2, 7], true), ([198, 51, 100, 7], false)] {
        let spec = JobSpec { mode: Some(Mode::Direct), slots: None, ..spec("direct") };
        let mut asked = request(spec, 48700);
        asked.host.data_ip = ip.into();
        match sumac_control::join(&endpoint, asked).await {
            Ok(_) => assert!(is_allowed, "{ip:?}"),
            Err(JoinError::Refused(refused)) => {
                assert!(!is_allowed && refused.message.contains("--data-network"), "{ip:?}: {refused}");
            }
            Err(error) => panic!("{ip:?}: {error}"),
        }
    }
}

#[test]
fn what_is_wrong_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    write_private(&secret, b"a secret of some length").unwrap();
    let secret = secret.display().to_string();
    let table = [
        ("no state", vec!["--state-dir", "/proc/nowhere"], "--state-dir"),
        ("no file", vec!["--secret-file", "/nonexistent/secret"], "/nonexistent/secret"),
        ("elements", vec!["--secret-file", &secret, "--elements", "9999"], "--elements 9999"),
        ("address", vec!["--secret-file", &secret, "--listen", "192.0.2.1:1"], "192.0.2.1:1"),
    ];
    for (what, arguments, words) in table {
        let output = Command::new(env!("CARGO_BIN_EXE_sumac-agg"))
            .args(["serve", "--plane", "host", "--base-port", "0"])
            .args(arguments)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        assert!(said.contains(words), "{what}: {said}");
    }
    fs::remove_file(&secret).unwrap();
}

/// Scrapes a server, and returns its series.
fn scrape(address: SocketAddr) -> BTreeMap<String, f64> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANGS)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (header, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(header.starts_with("HTTP/1.1 200"), "{header}");
    let series =
        body.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap());
    series.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[tokio::test]
async fn metrics_are_those_that_are_listed() {
    let metrics = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let server = Server::start_with(|[all, ..]| {
        let metrics = metrics.to_string();
        let words = ["--secret-file", all.to_str().unwrap(), "--metrics", &metrics, "--share", "100"];
        words.map(String::from).into()
    });
    let _member = join(&server, "any", "the secret of all").await.unwrap();
    assert!(join(&server, "any", "not the secret of all").await.is_err());
    let series = scrape(metrics);
    let job = "job_name=\"any\",job_number=\"1\"";
    let expected = [
        (concat!("sumac_aggregator_info{version=\"", env!("CARGO_PKG_VERSION"), "\",plane=\"host\"}"), 1.0),
        ("sumac_aggregator_attached", 1.0),
        ("sumac_aggregator_slots_used", 64.0),
        ("sumac_aggregator_dynamic_slots_used", 0.0),
        ("sumac_aggregator_frames_total{reason=\"bad_token\"}", 0.0),
        (&format!("sumac_aggregator_job_slots{{{job}}}"), 64.0),
        (&format!("sumac_aggregator_worker_contributions_last_total{{{job},rank=\"0\"}}"), 0.0),
        ("sumac_control_jobs{state=\"running\"}", 1.0),
        ("sumac_control_joins_total", 1.0),
        ("sumac_control_denied_total{reason=\"secret\"}", 1.0),
        (&format!("sumac_control_job_workers_missing{{{job}}}"), 0.0),
    ];
    for (name, value) in expected {
        assert_eq!(series.get(name), Some(&value), "{name} in {series:#?}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_sumac-agg")).args(["metrics", "--json"]).output().unwrap();
    let listed: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    for series in series.keys() {
        let name = series.split('{').next().unwrap();
        let is_listed = |metric: &serde_json::Value| {
            let suffix = name.strip_prefix(metric["name"].as_str().unwrap());
            suffix.is_some_and(|suffix| match metric["type"].as_str() {
                Some("histogram") => ["_bucket", "_count", "_sum"].contains(&suffix),
                _ => suffix.is_empty(),
            })
        };
        assert!(listed.iter().any(is_listed), "{name} is not listed");
    }
}

const WORLD: u16 = 4;

/// A member with a socket in place of a daemon's.
struct Worker {
    rank: u16,
    member: Member,
    socket: UdpSocket,
}

impl Worker {
    async fn join(rank: u16, endpoint: Endpoint) -> Worker {
        let ip = Ipv4Addr::new(127, 0, 0, 10 + rank as u8);
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let spec = JobSpec { world: WORLD, rank, slots: Some(4), ..spec("train") };
        let mut request = request(spec, socket.local_addr().unwrap().port());
        request.host.data_ip = ip;
        Worker { rank, member: sumac_control::join(&endpoint, request).await.unwrap(), socket }
    }

    fn sum(&self, seq: u32) {
        worker::sum(self.rank, &self.member, &self.socket, self.member.grant().terms.slots, seq);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racks_add_up_below_a_root_and_are_named_when_they_die() {
    let root = Server::start();
    let mut racks = vec![Server::rack("north", &root), Server::rack("south", &root)];
    let joins: Vec<_> = (0..WORLD)
        .map(|rank| {
            let rack = &racks[usize::from(rank) / 2];
            let endpoint = endpoint(rack.control, rack.state_dir.path(), "the secret of all");
            tokio::spawn(Worker::join(rank, endpoint))
        })
        .collect();
    let mut workers = Vec::new();
    for join in joins {
        workers.push(tokio::time::timeout(HANGS, join).await.unwrap().unwrap());
    }
    for (rank, worker) in (0..).zip(&workers) {
        let placement = worker.member.grant().placement;
        assert_eq!((placement.rack_rank, placement.rack_world), (rank % 2, 2));
        assert_eq!(placement.base_port, racks[usize::from(rank) / 2].data_port);
    }
    let failed: Vec<_> = workers.iter().map(|worker| worker.member.failed()).collect();
    let summed: Vec<_> = workers
        .into_iter()
        .map(|worker| {
            tokio::task::spawn_blocking(move || {
                (0..40).for_each(|seq| worker.sum(seq));
                worker
            })
        })
        .collect();
    // They stay members while they wait.
    let mut workers = Vec::new();
    for worker in summed {
        workers.push(worker.await.unwrap());
    }
    let south = racks.pop().unwrap();
    drop(south);
    for failed in failed.into_iter().take(2) {
        let failure = tokio::time::timeout(HANGS, failed).await.unwrap();
        assert_eq!(failure.kind, FailureKind::Rack, "{failure}");
        assert!(failure.message.contains("south"), "{failure}");
    }
}

/// Returns the output of `sumac-agg`, or its standard error when it fails.
fn shell(line: &str) -> Result<String, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_sumac-agg")).args(line.split(' ')).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn strangers_are_not_answered() {
    const NOBODY: u32 = 65_534;
    if !nix::unistd::geteuid().is_root() {
        return println!("SKIP strangers_are_not_answered: needs root to be somebody else");
    }
    let server = Server::start();
    // From where a stranger may run it.
    let program = std::env::temp_dir().join(format!("sumac-agg-stranger-{}", std::process::id()));
    copy_programs([env!("CARGO_BIN_EXE_sumac-agg")], &program);
    let port = server.data_port.to_string();
    let asked = [vec!["status"], vec!["drop", "--up", "1%", "--down", "0"]].map(|line| {
        Command::new(&program).args(line).args(["--host", &port]).uid(NOBODY).gid(NOBODY).output()
    });
    fs::remove_file(&program).unwrap();
    for asked in asked {
        let asked = asked.unwrap();
        let said = String::from_utf8(asked.stderr).unwrap();
        assert!(!asked.status.success() && said.contains("it answers the user that runs it"), "{said}");
    }
    let status = shell(&format!("status --host {port} --json")).unwrap();
    assert!(status.contains("\"drops\":[]"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_aggregator_tells_its_status_and_drops_on_purpose() {
    let server = Server::start();
    let port = server.data_port;
    let json = || -> serde_json::Value {
        serde_json::from_str(&shell(&format!("status --host {port} --json")).unwrap()).unwrap()
    };
    let empty = json();
    assert_eq!((&empty["plane"], &empty["slots"]), (&"host".into(), &64.into()));
    assert_eq!(empty["jobs"], serde_json::json!([]));
    assert_eq!(empty["dynamic"], serde_json::json!({ "slots": 32, "held": 0, "timeout_ms": 250 }));
    shell(&format!("drop --up 5% --down 6% --host {port}")).unwrap();
    let rule = serde_json::json!(
        [{ "first_job": 1, "last_job": 1023, "up_percent": 5.0, "down_percent": 6.0 }]
    );
    assert_eq!(json()["drops"], rule, "also without a job");
    let text = shell(&format!("status --host {port}")).unwrap();
    assert!(text.starts_with("host process, instance "), "{text}");
    assert!(
        text.contains("INTENTIONAL DROPS: 5 % of arriving frames, 6 % of leaving frames, of jobs 1 to 1023"),
        "{text}"
    );
    let endpoint = endpoint(server.control, server.state_dir.path(), "the secret of all");
    let workers = (0..WORLD).map(|rank| tokio::spawn(Worker::join(rank, endpoint.clone())));
    let mut summed = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        let worker = tokio::time::timeout(HANGS, worker).await.unwrap().unwrap();
        summed.push(tokio::task::spawn_blocking(move || {
            (0..40).for_each(|seq| worker.sum(seq));
            worker
        }));
    }
    let mut workers = Vec::new();
    for worker in summed {
        workers.push(worker.await.unwrap());
    }
    let status = json();
    let job = &status["jobs"][0];
    let dropped = &job["drops"];
    let (up, down) = (dropped["up"].as_u64().unwrap(), dropped["down"].as_u64().unwrap());
    assert!(up > 0 && down > 0, "{job}");
    assert_eq!(job["counters"]["injected_drop"], up + down);
    assert_eq!(job["aggregation"]["count"], 3, "chunks 0, 16 and 32: {job}");
    let last: u64 = (0..4).map(|rank| job["workers"][rank]["last"].as_u64().unwrap()).sum();
    assert_eq!(last, 40, "{job}");
    assert_eq!(job["slots_reason"], "asked for when the job was opened");
    let text = shell(&format!("status --host {port}")).unwrap();
    assert!(text.contains("  slots: asked for when the job was opened"), "{text}");
    assert!(text.contains("chunks complete within"), "{text}");
    let control = server.control.port();
    let top = shell(&format!("top --host {port} --control-port {control} --interval 0.1 --json")).unwrap();
    let top: serde_json::Value = serde_json::from_str(&top).unwrap();
    assert_eq!(top["facts"]["slots"], "8 of 64 used", "{top}");
    let job = &top["jobs"][0];
    assert_eq!((&job["name"], &job["chunks_per_second"]), (&"train".into(), &0.0.into()), "{top}");
    assert_eq!(job["workers"][3]["ip"], "127.0.0.13", "{top}");
    shell(&format!("drop --up 0 --down 0 --host {port}")).unwrap();
    assert_eq!(json()["drops"], serde_json::json!([]));
    drop(workers);
    let ended = eventually("the job's end", || {
        let status = json();
        (status["jobs"] == serde_json::json!([])).then(|| status["ended"].clone())
    });
    assert_eq!(ended[0]["counters"]["completed"], 40, "the job's totals survive it: {ended}");
    let text = shell(&format!("status --host {port}")).unwrap();
    assert!(text.contains(": ended; frames: "), "{text}");
    let refused = shell(&format!("drop --up 1% --down 0 --job 1024 --host {port}")).unwrap_err();
    assert!(refused.contains("job number 1024"), "{refused}");
    drop(server);
    let nobody = shell(&format!("status --host {port}")).unwrap_err();
    assert!(nobody.contains("no `sumac-agg serve` answers"), "{nobody}");
}
