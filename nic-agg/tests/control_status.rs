//! `sumac-agg control` beside `sumac-agg serve --plane none`, without privilege.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[path = "support/serve.rs"]
mod serve;

use std::{
    ffi::OsString,
    fs,
    io::Write as _,
    net::SocketAddr,
    os::{
        fd::AsRawFd as _,
        unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    },
    process::{Child, Command},
};

use nix::sys::signal::Signal;
use serve::{
    Serving, endpoint, request,
    wait::{LIMIT, eventually},
};
use sumac_control::{Fingerprint, JoinToken, Secret, coordinator::overview::Overview, join};
use sumac_job::{JobSpec, Mode};
use tempfile::TempDir;

const SECRET: &str = "the secret of all";

struct Server {
    serving: Serving,
    control: SocketAddr,
    state_dir: TempDir,
}

impl Server {
    fn start() -> Server {
        Server::with(&["--plane", "none"], &["--secret-file", "--rack-secret-file"], SECRET)
    }

    /// Starts a server with these arguments, and a file with this secret after each of `secrets`.
    fn with(arguments: &[&str], secrets: &[&str], secret: &str) -> Server {
        let state_dir = tempfile::tempdir().unwrap();
        let file = state_dir.path().join("given");
        fs::write(&file, secret).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let arguments = arguments.iter().chain(&["--listen", "127.0.0.1:0"]);
        let mut arguments: Vec<_> = arguments.map(OsString::from).collect();
        for option in secrets {
            arguments.extend([option.into(), file.clone().into()]);
        }
        arguments.extend(["--state-dir".into(), state_dir.path().into()]);
        let serving = Serving::start(arguments);
        let control = serving.field("control").parse().unwrap();
        Server { serving, control, state_dir }
    }

    /// Returns the output of `sumac-agg control`.
    fn ask(&self, more: &[&str]) -> Result<String, String> {
        self.print_of("control", more)
    }

    fn print_of(&self, verb: &str, more: &[&str]) -> Result<String, String> {
        let port = self.control.port().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sumac-agg"));
        let output = command.args([verb, "--port", &port]).args(more).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}

/// Fills the pipe of a child's log, which this test does not read any more.
fn fill_log(child: &Child) {
    let path = format!("/proc/self/fd/{}", child.stderr.as_ref().unwrap().as_raw_fd());
    let mut options = fs::OpenOptions::new();
    let mut log = options.write(true).custom_flags(nix::libc::O_NONBLOCK).open(path).unwrap();
    for len in [4096, 1] {
        while log.write_all(&vec![b'x'; len]).is_ok() {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_log_whose_reader_has_stopped_stops_no_control_plane() {
    let mut server = Server::start();
    fill_log(&server.serving.child);
    // Each is a line of its log.
    for _ in 0..10 {
        let wrong = endpoint(server.control, server.state_dir.path(), "a wrong secret");
        let denied = join(&wrong, request(spec(), 48700)).await.expect_err("denied");
        assert!(denied.to_string().contains("secret"), "{denied}");
    }
    server.ask(&["--json"]).unwrap();
    server.serving.end(Signal::SIGTERM);
}

fn spec() -> JobSpec {
    let mode = Some(Mode::Dynamic);
    JobSpec { mode, timeout_s: Some(LIMIT.as_secs_f64()), ..JobSpec::new("train", 0, 2) }
}

#[test]
fn a_control_plane_lives_if_it_answers_also_a_racks_without_its_root() {
    let token = JoinToken { fingerprint: Fingerprint([1; 32]), secret: Secret::new(SECRET).unwrap() };
    let rack = ["--plane", "host", "--base-port", "0", "--parent", "127.0.0.1:1"];
    let rack = Server::with(&rack, &["--rack-secret-file"], &token.to_string());
    for (mut server, refusal) in [(Server::start(), None), (rack, Some("ask at its root"))] {
        eventually("an answer", || server.print_of("ping", &[]).ok().filter(String::is_empty));
        // It answers before it has begun to serve.
        let is_starting =
            |has: &Result<String, String>| has.as_ref().is_err_and(|why| why.contains("it is being started"));
        let has = eventually("the start", || Some(server.ask(&[])).filter(|has| !is_starting(has)));
        match refusal {
            None => assert!(has.is_ok(), "{has:?}"),
            Some(part) => assert!(has.as_ref().is_err_and(|why| why.contains(part)), "{has:?}"),
        }
        server.serving.end(Signal::SIGKILL);
        let nobody = server.print_of("ping", &[]).unwrap_err();
        assert!(nobody.contains("no `sumac-agg serve` answers"), "{nobody}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_control_plane_says_what_it_has() {
    let mut server = Server::start();
    let endpoint = endpoint(server.control, server.state_dir.path(), SECRET);
    let joining = tokio::spawn(async move { join(&endpoint, request(spec(), 48700)).await });
    let status = eventually("the job", || {
        let status: Overview = serde_json::from_str(&server.ask(&["--json"]).ok()?).ok()?;
        (!status.jobs.is_empty()).then_some(status)
    });
    let job = &status.jobs[0];
    assert_eq!((job.name.as_str(), job.mode.as_str(), job.state.as_str()), ("train", "dynamic", "waiting"));
    assert_eq!((job.world, &job.missing[..]), (2, &[1][..]));
    assert_eq!((status.racks.len(), status.parameter_hosts.len()), (0, 0));
    let text = server.ask(&[]).unwrap();
    assert_eq!(text, "job `train`: dynamic, 2 workers, waiting; rank 1 not joined\n");
    joining.abort();
    server.serving.end(Signal::SIGKILL);
    let nobody = server.ask(&[]).unwrap_err();
    assert!(nobody.contains("no `sumac-agg serve` answers"), "{nobody}");
}
