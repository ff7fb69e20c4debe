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
    path::PathBuf,
    process::{Child, Command},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use serve::{Serving, endpoint, request};
use sumac_control::{coordinator::overview::Overview, join};
use sumac_job::{JobSpec, Mode};

/// Far above what anything here takes: it ends a hanging test, and is no measure of speed.
const HANGS: Duration = Duration::from_secs(60);
const SECRET: &str = "the secret of all";

struct Server {
    child: Child,
    control: SocketAddr,
    state_dir: PathBuf,
}

impl Server {
    fn start() -> Server {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let state_dir = std::env::temp_dir().join(format!(
            "sumac-control-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Relaxed)
        ));
        fs::create_dir_all(&state_dir).unwrap();
        let file = state_dir.join("given");
        fs::write(&file, SECRET).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let mut arguments = ["--plane", "none", "--listen", "127.0.0.1:0"].map(OsString::from).to_vec();
        for secret in ["--secret-file", "--rack-secret-file"] {
            arguments.extend([secret.into(), file.clone().into()]);
        }
        arguments.extend(["--state-dir".into(), state_dir.clone().into()]);
        let serving = Serving::start(arguments);
        let control = serving.field("control").parse().unwrap();
        Server { child: serving.child, control, state_dir }
    }

    /// Returns the output of `sumac-agg control`.
    fn ask(&self, more: &[&str]) -> Result<String, String> {
        let port = self.control.port().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sumac-agg"));
        let output = command.args(["control", "--port", &port]).args(more).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.state_dir);
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
    fill_log(&server.child);
    // Each is a line of its log.
    for _ in 0..10 {
        let wrong = endpoint(server.control, &server.state_dir, "a wrong secret");
        let denied = join(&wrong, request(spec(), 48700)).await.expect_err("denied");
        assert!(denied.to_string().contains("secret"), "{denied}");
    }
    server.ask(&["--json"]).unwrap();
    let pid = nix::unistd::Pid::from_raw(server.child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let begun = Instant::now();
    while server.child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < HANGS, "it does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn spec() -> JobSpec {
    let mode = Some(Mode::Dynamic);
    JobSpec { mode, timeout_s: Some(HANGS.as_secs_f64()), ..JobSpec::new("train", 0, 2) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_control_plane_says_what_it_has() {
    let mut server = Server::start();
    let endpoint = endpoint(server.control, &server.state_dir, SECRET);
    let joining = tokio::spawn(async move { join(&endpoint, request(spec(), 48700)).await });
    let begun = Instant::now();
    let status = loop {
        let answer = server.ask(&["--json"]);
        let status = answer.as_deref().ok().and_then(|json| serde_json::from_str::<Overview>(json).ok());
        match status.filter(|status| !status.jobs.is_empty()) {
            Some(status) => break status,
            None => assert!(begun.elapsed() < HANGS, "{answer:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let job = &status.jobs[0];
    assert_eq!((job.name.as_str(), job.mode.as_str(), job.state.as_str()), ("train", "dynamic", "waiting"));
    assert_eq!((job.world, &job.missing[..]), (2, &[1][..]));
    assert_eq!((status.racks.len(), status.parameter_hosts.len()), (0, 0));
    let text = server.ask(&[]).unwrap();
    assert_eq!(text, "job `train`: dynamic, 2 workers, waiting; rank 1 not joined\n");
    joining.abort();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let nobody = server.ask(&[]).unwrap_err();
    assert!(nobody.contains("no `sumac-agg serve` answers"), "{nobody}");
}
