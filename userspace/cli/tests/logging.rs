//! The log of `sumac daemon`: a reader that has stopped, and the log of a daemon that took over. Without
//! privilege.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what went wrong by failing")]

#[path = "../../../tests/src/wait.rs"]
mod wait;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, PipeReader, Read as _, Write as _, pipe},
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
};

use rustix::{
    fs::OFlags,
    net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket},
    process::{Pid, Signal, kill_process},
};
use wait::eventually;

const SUMAC: &str = env!("CARGO_BIN_EXE_sumac");

struct Directory(tempfile::TempDir);

impl Directory {
    fn new() -> Directory {
        let directory = Directory(tempfile::tempdir().unwrap());
        let text = format!("backend = 'udp'\nsocket = {:?}\n", directory.socket());
        fs::write(directory.config(), text).unwrap();
        directory
    }

    fn config(&self) -> PathBuf {
        self.0.path().join("daemon.toml")
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("sock")
    }

    fn verb(&self, verb: &str) -> Command {
        let mut command = Command::new(SUMAC);
        command
            .arg(verb)
            .arg("--config")
            .arg(self.config())
            .env_remove("RUST_LOG")
            .env_remove("JOURNAL_STREAM");
        command
    }

    fn daemon(&self, log: impl Into<Stdio>) -> Running {
        let daemon = Running(self.verb("daemon").stdout(Stdio::null()).stderr(log).spawn().unwrap());
        eventually("an answer", || self.stats().then_some(()));
        daemon
    }

    /// Whether a daemon answers.
    fn stats(&self) -> bool {
        let mut asked = Running(
            Command::new(SUMAC)
                .args(["stats", "--json", "--socket"])
                .arg(self.socket())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        asked.ends()
    }
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn ends(&mut self) -> bool {
        eventually("its end", || self.0.try_wait().unwrap()).success()
    }

    fn terminate(&self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fills a pipe whose reader does not read.
fn fill(reader: &PipeReader) {
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut writer: File = OpenOptions::new().write(true).custom_flags(nonblocking).open(path).unwrap();
    for len in [4096, 1] {
        let full = loop {
            if let Err(error) = writer.write_all(&vec![b'x'; len]) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }
}

#[test]
fn a_log_whose_reader_has_stopped_stops_no_daemon() {
    let directory = Directory::new();
    let (reader, log) = pipe().unwrap();
    let mut daemon = directory.daemon(log);
    fill(&reader);
    for _ in 0..20 {
        let trainer = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&trainer, &SocketAddrUnix::new(directory.socket()).unwrap()).unwrap();
        let _ = rustix::io::write(&trainer, b"no message");
    }
    assert!(directory.stats(), "it answers");
    // Its last messages find no room.
    daemon.terminate();
    assert!(daemon.ends());
}

#[test]
fn a_log_without_a_reader_ends_no_daemon() {
    let directory = Directory::new();
    let (reader, log) = pipe().unwrap();
    let mut daemon = directory.daemon(log);
    drop(reader);
    assert!(directory.stats(), "it answers");
    daemon.terminate();
    assert!(daemon.ends());
}

#[test]
fn a_daemon_that_took_over_logs_where_the_former_one_did() {
    let directory = Directory::new();
    let path = directory.0.path().join("log");
    let mut former = directory.daemon(OpenOptions::new().create(true).append(true).open(&path).unwrap());
    let mut upgrade = directory.verb("upgrade");
    let mut upgrade = Running(upgrade.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    // As `ssh` and `subprocess` wait for it: it ends although the new daemon runs.
    let mut stderr = upgrade.0.stderr.take().unwrap();
    let reading = thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    eventually("the end of the messages", || reading.is_finished().then_some(()));
    let messages = reading.join().unwrap().unwrap();
    assert!(upgrade.ends() && former.ends(), "{messages}");
    assert!(messages.contains("a new daemon has taken over"), "{messages}");

    let pid = messages.split("pid=").nth(1).unwrap().split_whitespace().next().unwrap();
    let new = Pid::from_raw(pid.trim_end_matches("\u{1b}[0m").parse().unwrap()).unwrap();
    assert!(directory.stats(), "the new daemon answers");
    let before = fs::read_to_string(&path).unwrap().len();
    kill_process(new, Signal::TERM).unwrap();
    let has_ended = || !directory.socket().exists() || rustix::process::test_kill_process(new).is_err();
    eventually("the new daemon's end", || has_ended().then_some(()));
    eventually("its messages", || (fs::read_to_string(&path).unwrap().len() > before).then_some(()));
}
