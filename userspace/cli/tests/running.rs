//! A daemon that `sumac daemon` runs, over UDP: its privileges, and the commands that ask it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what went wrong by failing")]

#[path = "../../../tests/src/copied.rs"]
mod copied;
#[path = "../../../tests/src/wait.rs"]
mod wait;

use std::{
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use copied::copy_programs;
use serde_json::Value;
use wait::eventually;

const SUMAC: &str = env!("CARGO_BIN_EXE_sumac");
const NOBODY: u32 = 65534;

fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A daemon over UDP, ended when dropped.
struct Daemon {
    child: std::process::Child,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Daemon {
    fn start(further: &str) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        let (config, socket) = (directory.path().join("daemon.toml"), directory.path().join("sock"));
        std::fs::write(&config, format!("backend = 'udp'\nsocket = {socket:?}\n{further}")).unwrap();
        let child = Command::new(SUMAC).arg("daemon").arg("--config").arg(&config).spawn().unwrap();
        let daemon = Daemon { child, socket, _directory: directory };
        let is_running = || daemon.status()["daemon"]["running"] == true;
        eventually("the daemon", || is_running().then_some(()));
        daemon
    }

    fn status(&self) -> Value {
        let (_, out, error) =
            run(Command::new(SUMAC).args(["status", "--json", "--socket"]).arg(&self.socket));
        serde_json::from_str(&out).unwrap_or_else(|bad| panic!("{bad}: {out}{error}"))
    }

    /// Returns a field of each thread in /proc.
    fn of_threads(&self, field: &str) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        // A thread may end meanwhile.
        let texts = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
        let value = |text: String| {
            let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap().to_owned();
            line.trim_start_matches(':').trim().to_owned()
        };
        texts.map(value).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_daemon_that_answers_lives_whatever_it_answers() {
    let ping = |socket: &Path| run(Command::new(SUMAC).args(["ping", "--socket"]).arg(socket));
    let daemon = Daemon::start("");
    let (code, out, error) = ping(&daemon.socket);
    assert_eq!((code, out.as_str(), error.as_str()), (0, "", ""));
    // A daemon that refuses this user lives.
    let refusing = Daemon::start("allow_uids = []\nsocket_mode = '0666'");
    let copy = refusing.socket.with_file_name("sumac");
    copy_programs([SUMAC], &copy);
    let directory = refusing.socket.parent().unwrap();
    std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    if rustix::process::geteuid().is_root() {
        let refused =
            |verb| run(Command::new(&copy).args([verb, "--socket"]).arg(&refusing.socket).uid(NOBODY));
        assert_eq!((refused("stats").0, refused("ping").0), (1, 0), "{}", refused("ping").2);
    }
    let (code, _, error) = ping(Path::new("/nonexistent/sock"));
    assert!(code == 1 && error.contains("/nonexistent/sock"), "{error}");
}

#[test]
fn a_running_daemon_has_dropped_its_privileges() {
    const NET_ADMIN: u64 = 1 << 12;
    let daemon = Daemon::start("");
    let threads = daemon.of_threads("Name").len();
    assert!(threads >= 4, "{threads} threads");
    for (field, expected) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
        assert!(daemon.of_threads(field).iter().all(|value| value == expected), "{field}");
    }
    let is_root = rustix::process::geteuid().is_root();
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd"] {
        // Without CAP_SETPCAP the bounding set cannot be reduced.
        if set == "CapBnd" && !is_root {
            continue;
        }
        for value in daemon.of_threads(set) {
            let left = u64::from_str_radix(&value, 16).unwrap() & !NET_ADMIN;
            assert_eq!(left, 0, "{set} {value}");
        }
    }
    let sandbox = &daemon.status()["daemon"]["stats"]["sandbox"];
    assert_eq!((&sandbox["seccomp"], &sandbox["no_new_privs"]), (&true.into(), &true.into()), "{sandbox}");
    // The opt-out is reported.
    let open = Daemon::start("seccomp = false");
    assert!(open.of_threads("Seccomp").iter().all(|value| value == "0"));
    assert_eq!(open.status()["daemon"]["stats"]["sandbox"]["seccomp"], false);
    let (_, out, _) = run(Command::new(SUMAC).args(["status", "--socket"]).arg(&open.socket));
    assert!(out.contains("`seccomp` is false"), "{out}");
}
