//! Common parts of the host program's tests: namespaces, packets, and skipping without privileges.

use std::{
    fs::File,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use nix::sched::{CloneFlags, setns};
use sumac_loader::preflight;
use sumac_wire::{
    Header, Kind,
    header::{ELEMENT_LEN, HEADER_LEN},
    tables::HostJobEntry,
};

/// The aggregator's and the host's address in every packet of these tests.
pub const AGGREGATOR: u32 = 0x0a4d_0001;
pub const HOST: u32 = 0x0a4d_0002;
pub const PORT: u16 = 48700;

/// The job of these tests, numbered [`JOB`].
pub const JOB: u16 = 3;
pub const ENTRY: HostJobEntry = HostJobEntry {
    token: 0x0123_4567_89ab_cdef,
    aggregator_ip: AGGREGATOR,
    epoch: 7,
    elements: 256,
    world: 4,
    flags: sumac_wire::tables::job_flag::ACTIVE | sumac_wire::tables::job_flag::CHECKSUM,
    host_ips: [0; sumac_wire::MAX_HOSTS],
    reserved: 0,
};

/// Returns whether the test may run: it needs root, namespaces and BPF. Prints the reason when not.
pub fn privileged(test: &str) -> bool {
    let missing = match preflight::effective_capabilities() {
        Ok(set) => preflight::missing(set),
        Err(error) => panic!("{error}"),
    };
    if missing.is_empty() {
        return true;
    }
    let names: Vec<_> = missing.iter().map(|capability| capability.name).collect();
    let why = format!("{} missing: XDP programs and namespaces need them", names.join(", "));
    assert!(std::env::var_os("REQUIRE_PRIVILEGED").is_none(), "{test}: {why}");
    println!("SKIP {test}: {why}");
    false
}

/// Ends a test that cannot run: see [`privileged`].
#[allow(unused_macros, reason = "each test uses a part of it")]
macro_rules! needs_privileges {
    ($test:literal) => {
        if !$crate::support::privileged($test) {
            return;
        }
    };
}
#[allow(unused_imports, reason = "each test uses a part of it")]
pub(crate) use needs_privileges;

/// A network namespace of its own, and a directory for pins; both are gone when it is dropped.
pub struct Namespace {
    pub name: String,
    pub pins: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Namespace {
    /// Makes a namespace without IPv6, whose packets would be counted.
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hostprog{}-{number}", std::process::id());
        run("ip", &["netns", "add", &name]);
        let namespace = Self { pins: format!("/sys/fs/bpf/{name}").into(), name };
        namespace.run("sysctl", &["-qw", "net.ipv6.conf.all.disable_ipv6=1"]);
        namespace.run("sysctl", &["-qw", "net.ipv6.conf.default.disable_ipv6=1"]);
        namespace
    }

    /// Runs a command inside.
    pub fn run(&self, program: &str, arguments: &[&str]) {
        let file = format!("--net=/run/netns/{}", self.name);
        let mut all = vec![file.as_str(), program];
        all.extend(arguments);
        run("nsenter", &all);
    }

    /// Moves the calling thread inside, for good.
    pub fn enter(&self) {
        let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
        setns(file, CloneFlags::CLONE_NEWNET).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Without asserting: a panic while a failed test unwinds would hide what failed.
        let _ = sumac_hostprog::clean(&self.pins);
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {message}");
}

/// The header of a valid result of the job.
pub fn header(elements: u16) -> Header {
    Header {
        kind: Kind::Result as u8,
        job: JOB,
        epoch: ENTRY.epoch,
        fan_in_0: 4,
        bitmap_0: 0b1111,
        contributors: 4,
        elements,
        token: ENTRY.token,
        ..Header::default()
    }
}

/// The UDP payload with that header.
pub fn payload(header: &Header) -> Vec<u8> {
    let elements = (0..u32::from(header.elements)).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes());
    let bytes: Vec<u8> = header.to_bytes().into_iter().chain(elements).collect();
    assert_eq!(bytes.len(), HEADER_LEN + usize::from(header.elements) * ELEMENT_LEN);
    bytes
}
