//! Two daemons on one interface, in a network namespace of the test's own. Needs CAP_SYS_ADMIN, CAP_NET_ADMIN,
//! CAP_NET_RAW, CAP_BPF and a mounted /sys/fs/bpf.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::Scratch;
use sumac_daemon::config::Config;
use sumac_daemon::{BackendError, Daemon, DaemonError};
use sumac_hostprog::Attached;
use sumac_wire::tables::HostJobEntry;

const NAME: &str = "the_living_daemons_jobs_stay";

/// Removes all pins below a directory when dropped.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = sumac_hostprog::clean(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn ip(command: &str) {
    let output = Command::new("ip").args(command.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {command}: {}", String::from_utf8_lossy(&output.stderr));
}

fn config(socket: &Path, pins: &Path) -> Config {
    let text = format!(
        "socket = {socket:?}\nbackend = \"xdp\"\ninterface = \"w1\"\naddress = \"10.0.1.2\"\npin_root = {pins:?}\n\
         aggregator = \"127.0.0.1:48600\""
    );
    Config::parse(&text, "test.toml".as_ref()).unwrap()
}

fn jobs(pins: &Path) -> Vec<u16> {
    let attached = Attached::open("w1", pins).unwrap();
    attached.jobs().unwrap().into_iter().map(|(job, _)| job).collect()
}

fn play() {
    ip("link set lo up");
    ip("link add w1 type veth peer name a1");
    ip("address add 10.0.1.2/24 dev w1");
    ip("link set w1 up");
    ip("link set a1 up");
    let pins = Pins(PathBuf::from(format!("/sys/fs/bpf/sumac-second-{}", std::process::id())));
    std::fs::create_dir_all(&pins.0).unwrap();
    let scratch = Scratch::new();
    let [first, second] = ["first", "second"].map(|name| config(&scratch.path().join(name), &pins.0));

    let daemon = Daemon::start(first.clone()).unwrap();
    Attached::open("w1", &pins.0).unwrap().add_job(5, HostJobEntry::default()).unwrap();
    let refused = Daemon::start(second).unwrap_err();
    assert!(matches!(&refused, DaemonError::Backend(BackendError::Xdp(_))), "{refused}");
    assert_eq!(jobs(&pins.0), [5], "of the daemon that lives");
    daemon.stop();

    assert_eq!(jobs(&pins.0), [5], "nobody has ended it");
    let next = Daemon::start(first).unwrap();
    assert_eq!(jobs(&pins.0), [] as [u16; 0], "of a daemon that is gone");
    next.stop();
}

#[test]
fn the_living_daemons_jobs_stay() {
    // In a thread of its own: the namespace goes with it.
    let outcome = std::thread::spawn(|| {
        let unshared = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET);
        let has_bpffs = sumac_loader::preflight::is_on_bpffs(Path::new("/sys/fs/bpf"));
        if unshared.is_ok() && has_bpffs {
            return play();
        }
        assert_ne!(
            std::env::var("REQUIRE_PRIVILEGED").as_deref(),
            Ok("1"),
            "{unshared:?}, bpffs: {has_bpffs}"
        );
        println!("SKIP {NAME}: needs CAP_SYS_ADMIN ({unshared:?}) and a bpffs on /sys/fs/bpf ({has_bpffs})");
    })
    .join();
    assert!(outcome.is_ok(), "{NAME} failed");
}
