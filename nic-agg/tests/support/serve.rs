//! `sumac-agg serve` as a process, whose first lines say where it listens.

#[path = "../../../tests/src/wait.rs"]
pub mod wait;

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sumac_control::{Endpoint, Identity, JoinRequest, Secret, Trust, WorkerHost};
use sumac_job::JobSpec;

use wait::eventually;

/// Returns the endpoint of the control plane with this state directory.
pub fn endpoint(address: SocketAddr, state_dir: &Path, secret: &str) -> Endpoint {
    let fingerprint = Identity::of_state_dir(state_dir).unwrap().fingerprint();
    let (others, trust) = (Vec::new(), Trust::Pinned(fingerprint));
    Endpoint { address, others, trust, secret: Secret::new(secret).unwrap() }
}

/// A worker's request, from the control connection's address and this UDP port.
pub fn request(spec: JobSpec, data_port: u16) -> JoinRequest {
    let host = WorkerHost {
        data_ip: Ipv4Addr::UNSPECIFIED,
        data_port,
        mac: [0; 6],
        max_elements: 352,
        max_shards: 4,
        checksum: true,
        paths: 1,
        has_udp: false,
        user: 0,
    };
    JoinRequest::new(spec, host)
}

/// A server that waits for workers, and that line of its log. Killed when dropped.
pub struct Serving {
    pub child: Child,
    line: String,
}

impl Serving {
    /// Starts it with these arguments after `serve`.
    pub fn start<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Serving {
        Serving::run(Command::new(program()).arg("serve").args(arguments))
    }

    /// Starts it with this command.
    pub fn run(command: &mut Command) -> Serving {
        let mut child = command.env("RUST_LOG", "info").stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
        let line =
            lines.find_map(|line| line.ok().filter(|line| line.contains("waiting for workers"))).unwrap();
        Serving { child, line }
    }

    /// Returns the value of `name` in the line.
    pub fn field(&self, name: &str) -> &str {
        let (_, rest) = self.line.split_once(&format!("{name}=")).unwrap();
        rest.split(' ').next().unwrap()
    }

    /// Sends a signal, and waits for the end.
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        eventually("the server's end", || self.child.try_wait().unwrap())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of this package's program; other packages' tests, which share this module, have none.
fn program() -> &'static str {
    const PATH: Option<&str> = option_env!("CARGO_BIN_EXE_sumac-agg");
    PATH.expect("a test of sumac-agg")
}
