//! `sumac-agg serve` as a process, with the host aggregator: needs no privilege.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sumac_control::{FailureKind, JoinError, JoinSpec, PlaneKind, Secret, join};

/// Ends a test that hangs; nothing here takes as long.
const HANGS: Duration = Duration::from_secs(60);

/// A running server. Killed when dropped.
struct Server {
    child: Child,
    control: SocketAddr,
    data_port: u16,
    files: Vec<PathBuf>,
}

impl Server {
    fn start(test: &str) -> Server {
        let file = |name: &str, secret: &str| {
            let path = std::env::temp_dir().join(format!("sumac-serve-{test}-{}-{name}", std::process::id()));
            fs::write(&path, secret).unwrap();
            path
        };
        let files = vec![file("all", "the secret of all\n"), file("own", "a secret of its own\n")];
        let mut child = Command::new(env!("CARGO_BIN_EXE_sumac-agg"))
            .args(["serve", "--plane", "host", "--listen", "127.0.0.1:0", "--base-port", "0"])
            .args(["--slots", "64", "--elements", "300", "--data-ip", "127.0.0.1", "--secret-file"])
            .arg(&files[0])
            .arg("--job-secret")
            .arg(format!("own={}", files[1].display()))
            .env("RUST_LOG", "info")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
        let line =
            lines.find_map(|line| line.ok().filter(|line| line.contains("waiting for workers"))).unwrap();
        let field = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=")).unwrap();
            rest.split(' ').next().unwrap().to_string()
        };
        let (control, data_port) = (field("control").parse().unwrap(), field("data_port").parse().unwrap());
        Server { child, control, data_port, files }
    }

    /// Sends a signal, and waits for the end. Gives the rest of the log, too.
    fn end(&mut self, signal: Signal) -> (ExitStatus, String) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap(), log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

fn spec(job: &str, secret: &str) -> JoinSpec {
    JoinSpec {
        job: job.into(),
        world: 1,
        rank: 0,
        secret: Secret::new(secret).unwrap(),
        data_ip: Ipv4Addr::UNSPECIFIED,
        data_port: 48700,
        mac: [0; 6],
        elements: 256,
        slots: None,
        scale: 1e6,
        checksum: true,
        deadline: Duration::from_secs(20),
    }
}

#[tokio::test]
async fn jobs_have_their_secrets_and_hear_of_the_end() {
    let mut server = Server::start("end");
    let member = join(server.control, spec("any", "the secret of all")).await.unwrap();
    let assignment = member.assignment();
    assert_eq!((assignment.plane, assignment.slots, assignment.elements), (PlaneKind::Host, 64, 256));
    assert_eq!((assignment.aggregator_ip, assignment.base_port), (Ipv4Addr::LOCALHOST, server.data_port));
    for (job, secret) in [("own", "the secret of all"), ("any", "a secret of its own")] {
        let refused = join(server.control, spec(job, secret)).await;
        assert!(matches!(refused, Err(JoinError::Denied { .. })), "{job}: {refused:?}");
    }
    let full = join(server.control, spec("own", "a secret of its own")).await.unwrap_err().to_string();
    assert!(full.contains("0 of 64"), "{full}");
    let failed = member.failed();
    let ended = tokio::task::spawn_blocking(move || server.end(Signal::SIGTERM)).await.unwrap();
    assert_eq!(tokio::time::timeout(HANGS, failed).await.unwrap().kind, FailureKind::Stopped);
    let (status, log) = ended;
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains("SIGTERM"), "{log}");
}

#[test]
fn what_is_wrong_is_said() {
    let table = [
        ("no secret", vec![], "--secret-file"),
        ("no file", vec!["--secret-file", "/nonexistent/secret"], "/nonexistent/secret"),
        ("elements", vec!["--secret-file", "/proc/self/comm", "--elements", "9999"], "--elements 9999"),
        ("address", vec!["--secret-file", "/proc/self/comm", "--listen", "192.0.2.1:1"], "192.0.2.1:1"),
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
}
