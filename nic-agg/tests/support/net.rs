//! Network namespaces, veths and sockets of one test; all gone when they are dropped.

use std::{
    fs::File,
    net::{Ipv4Addr, UdpSocket},
    path::PathBuf,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use nix::sched::{CloneFlags, setns};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The time within which an expected frame must arrive.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(5);

/// A network namespace.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    /// Makes a namespace without IPv6, whose packets would be counted.
    pub fn new(role: &str) -> Namespace {
        let name = format!("sumacagg{}-{}-{role}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        succeed("ip", &["netns", "add", &name]);
        let namespace = Namespace { name };
        namespace.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
        namespace.run("ip link set lo up");
        namespace
    }

    /// Runs a command, split at spaces, inside.
    pub fn run(&self, line: &str) -> String {
        let output = self.output(line);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {message}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that may fail.
    pub fn output(&self, line: &str) -> Output {
        let net = format!("--net=/run/netns/{}", self.name);
        Command::new("nsenter").arg(net).args(line.split(' ')).output().unwrap()
    }

    /// Runs `work` on a thread of its own inside.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(enter).join().unwrap())
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
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Joins two namespaces by a veth, with addresses where given (`10.0.0.1/24`).
///
/// GRO enables the NAPI of a veth that a redirect into it needs, and takes effect at the peer only while both are up.
/// Without transmit offload a socket's UDP checksums are complete before the frame reaches XDP.
pub fn cable(a: (&Namespace, &str, Option<&str>), b: (&Namespace, &str, Option<&str>)) {
    let (at_a, at_b) = (&a.0.name, &b.0.name);
    let line = format!("link add {} netns {at_a} type veth peer name {} netns {at_b}", a.1, b.1);
    succeed("ip", &line.split(' ').collect::<Vec<_>>());
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

/// A directory for the pins of one test; emptied when it is dropped.
pub struct Pins(pub PathBuf);

impl Pins {
    pub fn new() -> Pins {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Pins(format!("/sys/fs/bpf/sumac-agg-test-{}-{number}", std::process::id()).into())
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = sumac_agg::clean(&self.0, true);
    }
}

fn succeed(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {message}");
}
