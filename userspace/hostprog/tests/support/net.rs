//! Network namespaces, veths and sockets of one test, and its privileges: for all crates that load XDP
//! programs.

use std::{
    fs::File,
    net::{Ipv4Addr, UdpSocket},
    path::PathBuf,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::sched::{CloneFlags, setns};
use sumac_loader::preflight::{self, SYS_ADMIN};

/// The time within which an expected frame must arrive.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns whether the test can run. Prints the reason when not, or panics when it must run.
pub fn privileged(test: &str) -> bool {
    let set = preflight::effective_capabilities().unwrap();
    let may = preflight::missing(set).is_empty() && preflight::holds(set, SYS_ADMIN);
    if !may {
        let why = format!("SKIP {test}: needs the capabilities for XDP programs, and CAP_SYS_ADMIN");
        assert!(std::env::var_os("REQUIRE_PRIVILEGED").is_none_or(|value| value != "1"), "{why}");
        println!("{why}");
    }
    may
}

/// Ends a test that cannot run: see [`privileged`].
#[allow(unused_macros, reason = "each test uses a part of it")]
macro_rules! needs_privileges {
    ($test:literal) => {
        if !$crate::support::net::privileged($test) {
            return;
        }
    };
}
#[allow(unused_imports, reason = "each test uses a part of it")]
pub(crate) use needs_privileges;

/// A network namespace, and a directory for pins; both are gone when it is dropped.
pub struct Namespace {
    pub name: String,
    pub pins: PathBuf,
}

impl Namespace {
    /// Makes a namespace without IPv6, whose packets would be counted.
    pub fn new(role: &str) -> Namespace {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sumac{}-{}-{role}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        succeed(Command::new("ip").args(["netns", "add", &name]));
        let namespace = Namespace { pins: format!("/sys/fs/bpf/{name}").into(), name };
        namespace.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
        namespace.run("ip link set lo up");
        namespace
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).args(line.split(' '));
        command
    }

    /// Runs a command, split at spaces, inside.
    pub fn run(&self, line: &str) -> String {
        succeed(&mut self.command(line))
    }

    /// Runs a command that may fail.
    pub fn output(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn open(&self) -> File {
        File::open(format!("/run/netns/{}", self.name)).unwrap()
    }

    /// Moves the calling thread inside, for good.
    pub fn enter(&self) {
        setns(self.open(), CloneFlags::CLONE_NEWNET).unwrap();
    }

    /// Runs `work` on a thread of its own inside.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(at(self.open(), work)).join().unwrap())
    }

    /// Starts a thread inside.
    pub fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        thread::spawn(at(self.open(), work))
    }

    /// Opens a UDP socket inside, with a receive timeout.
    pub fn socket(&self, ip: Ipv4Addr, port: u16) -> UdpSocket {
        let socket = self.inside(|| UdpSocket::bind((ip, port)).unwrap());
        socket.set_read_timeout(Some(FRAME_TIMEOUT)).unwrap();
        socket
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Without asserting: a panic while a failed test unwinds would hide what failed.
        let _ = sumac_hostprog::clean(&self.pins);
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Joins two namespaces by a veth, with addresses where given (`10.0.0.1/24`).
///
/// GRO enables the NAPI of a veth that a redirect into it needs, and takes effect at the peer only while both
/// are up. Without transmit offload a socket's UDP checksums are complete before the frame reaches XDP.
pub fn cable(a: (&Namespace, &str, Option<&str>), b: (&Namespace, &str, Option<&str>)) {
    let (at_a, at_b) = (&a.0.name, &b.0.name);
    let line = format!("link add {} netns {at_a} type veth peer name {} netns {at_b}", a.1, b.1);
    succeed(Command::new("ip").args(line.split(' ')));
    for (namespace, name, address) in [a, b] {
        if let Some(address) = address {
            namespace.run(&format!("ip address add {address} dev {name}"));
        }
        namespace.run(&format!("ip link set {name} up"));
    }
    for (namespace, name, _) in [a, b] {
        namespace.run(&format!("ethtool -K {name} tx off gro on"));
    }
}

fn at<T>(namespace: File, work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    }
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
