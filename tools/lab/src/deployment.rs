//! Sumac in a lab: the aggregator, a host program and a daemon per worker, as an operator would start them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sumac_client::{Client, ClientError};

use crate::command::{self, CommandError};
use crate::lab::Lab;
use crate::namespace::Namespace;
use crate::process::{Process, ProcessError};
use crate::programs::{NotFound, Programs};
use crate::spec::Topology;

/// TCP port of the control plane.
const CONTROL_PORT: u16 = 48600;

/// How long a program has until it listens. Generous: sixteen daemons may start at once on one CPU.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Frames that a veth's ring holds. What is in flight towards one port stays below, or frames are dropped there.
const VETH_RING: u32 = 256;

/// What moves and adds the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// AF_XDP on the workers, XDP programs on the aggregator
    #[default]
    Xdp,
    /// UDP sockets on the workers, a process on the aggregator
    Udp,
}

impl Backend {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Xdp => "xdp",
            Backend::Udp => "udp",
        }
    }
}

/// How Sumac is to run in a lab.
#[derive(Clone, Debug, PartialEq)]
pub struct SumacOptions {
    /// What moves and adds the packets.
    pub backend: Backend,
    /// Elements per chunk.
    pub chunk: u16,
    /// Slots per job; none: what the topology bears.
    pub slots: Option<u32>,
    /// What floats are multiplied with.
    pub scale: f32,
    /// Whether packets carry checksums that the aggregator verifies.
    pub checksum: bool,
}

impl Default for SumacOptions {
    fn default() -> SumacOptions {
        SumacOptions { backend: Backend::Xdp, chunk: 256, slots: None, scale: 1_048_576.0, checksum: true }
    }
}

/// Why Sumac does not run in the lab.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// Its programs were not found.
    #[error(transparent)]
    Programs(#[from] NotFound),
    /// A program did not come up.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A file of the lab could not be written.
    #[error("writing {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A daemon does not talk.
    #[error("the daemon of worker {rank}: {source}")]
    Client {
        /// Whose.
        rank: u16,
        /// What it said.
        source: Box<ClientError>,
    },
}

/// A daemon's configuration, in the keys of `docs/operations.md`.
#[derive(Serialize)]
struct DaemonConfig {
    socket: PathBuf,
    socket_mode: &'static str,
    backend: &'static str,
    interface: &'static str,
    pin_root: PathBuf,
    aggregator: String,
    secret_file: PathBuf,
    slots: u32,
    elements: u16,
    scale: f32,
    checksum: bool,
}

/// Sumac running in a lab. Dropping it ends its programs; the XDP programs go with the lab.
#[derive(Debug)]
pub struct Deployment<'lab> {
    lab: &'lab Lab,
    options: SumacOptions,
    programs: Programs,
    aggregator: Option<Process>,
    daemons: Vec<Option<Process>>,
}

impl<'lab> Deployment<'lab> {
    /// Attaches the programs and starts aggregator and daemons; returns when all of them listen.
    ///
    /// # Errors
    /// The first program that does not come up, with the end of its log.
    pub fn start(lab: &'lab Lab, options: &SumacOptions) -> Result<Deployment<'lab>, DeployError> {
        let mut deployment = Deployment {
            lab,
            options: options.clone(),
            programs: Programs::find()?,
            aggregator: None,
            daemons: (0..lab.spec().workers).map(|_| None).collect(),
        };
        deployment.write_secret()?;
        if options.backend == Backend::Xdp {
            deployment.attach_aggregator()?;
            for rank in 0..lab.spec().workers {
                deployment.attach_worker(rank)?;
            }
        }
        deployment.start_aggregator()?;
        for rank in 0..lab.spec().workers {
            deployment.start_daemon(rank)?;
        }
        Ok(deployment)
    }

    /// The lab that it runs in.
    pub fn lab(&self) -> &'lab Lab {
        self.lab
    }

    /// How it runs.
    pub fn options(&self) -> &SumacOptions {
        &self.options
    }

    /// Slots of each job.
    pub fn slots(&self) -> u32 {
        self.options.slots.unwrap_or_else(|| default_slots(self.lab.spec().topology, self.lab.spec().workers))
    }

    /// The socket of a worker's daemon.
    pub fn socket(&self, rank: u16) -> PathBuf {
        self.lab.folder().join(format!("w{rank}.sock"))
    }

    /// The file with the secret of all jobs.
    pub fn secret_file(&self) -> PathBuf {
        self.lab.folder().join("secret")
    }

    /// A trainer's connection to a worker's daemon.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn client(&self, rank: u16) -> Result<Client, DeployError> {
        Client::connect(self.socket(rank))
            .map_err(|source| DeployError::Client { rank, source: source.into() })
    }

    /// The aggregator's process, while it runs.
    pub fn aggregator(&mut self) -> Option<&mut Process> {
        self.aggregator.as_mut()
    }

    /// A worker's daemon, while it runs.
    pub fn daemon(&mut self, rank: u16) -> Option<&mut Process> {
        self.daemons.get_mut(usize::from(rank))?.as_mut()
    }

    /// All of Sumac's processes that run.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.daemons.iter().flatten().chain(&self.aggregator)
    }

    /// `sumac-agg` with these arguments on the aggregator; returns what it prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn sumac_agg(&self, arguments: &[&str]) -> Result<String, DeployError> {
        self.call(self.lab.aggregator(), self.programs.sumac_agg(), arguments)
    }

    /// `sumac` with these arguments on a worker; returns what it prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn sumac(&self, rank: u16, arguments: &[&str]) -> Result<String, DeployError> {
        self.call(self.lab.worker(rank), self.programs.sumac(), arguments)
    }

    /// Puts the aggregator's programs on all its ports.
    ///
    /// # Errors
    /// What `sumac-agg attach` says.
    pub fn attach_aggregator(&self) -> Result<(), DeployError> {
        let ports = self.lab.spec().aggregator_ports();
        let mut arguments = vec!["attach"];
        arguments.extend(ports.iter().map(String::as_str));
        self.sumac_agg(&arguments).map(|_| ())
    }

    /// Takes them off.
    ///
    /// # Errors
    /// What `sumac-agg detach` says.
    pub fn detach_aggregator(&self) -> Result<(), DeployError> {
        let ports = self.lab.spec().aggregator_ports();
        let mut arguments = vec!["detach"];
        arguments.extend(ports.iter().map(String::as_str));
        self.sumac_agg(&arguments).map(|_| ())
    }

    /// What the eBPF aggregator says of itself; null when a process aggregates.
    ///
    /// # Errors
    /// What `sumac-agg status` says.
    pub fn aggregator_status(&self) -> Result<Value, DeployError> {
        match self.options.backend {
            Backend::Xdp => parse(&self.sumac_agg(&["status", "--json"])?, "sumac-agg status --json"),
            Backend::Udp => Ok(Value::Null),
        }
    }

    /// Puts the host program on a worker's interface.
    ///
    /// # Errors
    /// What `sumac attach` says.
    pub fn attach_worker(&self, rank: u16) -> Result<(), DeployError> {
        self.sumac(rank, &["attach", self.lab.worker_interface()]).map(|_| ())
    }

    /// Starts the aggregator's control plane, which it must not have.
    ///
    /// # Errors
    /// When it does not come to listen.
    pub fn start_aggregator(&mut self) -> Result<(), DeployError> {
        let host = self.lab.aggregator();
        let mut serve = self.programs.sumac_agg();
        serve.args(["serve", "--listen", &format!("0.0.0.0:{CONTROL_PORT}"), "--secret-file"]);
        serve.arg(self.secret_file());
        match self.options.backend {
            Backend::Xdp => serve.args(["--plane", "ebpf", "--pin-root"]).arg(self.lab.pin_root()),
            Backend::Udp => serve.args(["--plane", "host"]),
        };
        let process = self.aggregator.insert(self.lab.start(host, "aggregator", &mut serve)?);
        process.wait_until("listening", START_LIMIT, || listens(host, CONTROL_PORT))?;
        Ok(())
    }

    /// Ends the aggregator's control plane.
    pub fn stop_aggregator(&mut self) {
        self.aggregator = None;
    }

    /// Starts a worker's daemon, which must not run.
    ///
    /// # Errors
    /// When it does not come to listen.
    pub fn start_daemon(&mut self, rank: u16) -> Result<(), DeployError> {
        let config = self.write_config(rank)?;
        let socket = self.socket(rank);
        // One that was killed leaves its socket behind; a connection to it says nothing of the new one.
        let _ = std::fs::remove_file(&socket);
        let mut daemon = self.programs.sumac();
        daemon.args(["daemon", "--config"]).arg(config);
        let what = format!("daemon{rank}");
        let mut process = self.lab.start(self.lab.worker(rank), &what, &mut daemon)?;
        process.wait_until("its socket", START_LIMIT, || Client::connect(&socket).is_ok())?;
        self.daemons[usize::from(rank)] = Some(process);
        Ok(())
    }

    /// Ends a worker's daemon.
    pub fn stop_daemon(&mut self, rank: u16) {
        if let Some(place) = self.daemons.get_mut(usize::from(rank)) {
            *place = None;
        }
    }

    fn write_secret(&self) -> Result<(), DeployError> {
        // Nobody outside the lab can reach its aggregator; that it is checked is what matters here.
        let secret = format!("lab {} of pid {}", self.lab.spec().name, std::process::id());
        let path = self.secret_file();
        std::fs::write(&path, secret).map_err(|source| DeployError::File { path, source })
    }

    fn write_config(&self, rank: u16) -> Result<PathBuf, DeployError> {
        let config = DaemonConfig {
            socket: self.socket(rank),
            socket_mode: "0660",
            backend: self.options.backend.name(),
            interface: self.lab.worker_interface(),
            pin_root: self.lab.pin_root(),
            aggregator: format!("{}:{CONTROL_PORT}", self.lab.spec().aggregator_ip(rank)),
            secret_file: self.secret_file(),
            slots: self.slots(),
            elements: self.options.chunk,
            scale: self.options.scale,
            checksum: self.options.checksum,
        };
        let path = self.lab.folder().join(format!("w{rank}.toml"));
        let file = |source| DeployError::File { path: path.clone(), source };
        let text = toml::to_string(&config).map_err(|error| file(std::io::Error::other(error)))?;
        std::fs::write(&path, text).map_err(file)?;
        Ok(path)
    }

    fn call(&self, host: &Namespace, program: Command, arguments: &[&str]) -> Result<String, DeployError> {
        let mut command = host.command(program.get_program());
        command.args(arguments).arg("--pin-root").arg(self.lab.pin_root());
        Ok(command::output(&mut command)?)
    }
}

/// As many slots as keep what is in flight to one port below its ring.
fn default_slots(topology: Topology, workers: u16) -> u32 {
    match topology {
        Topology::PerPort => VETH_RING / 2,
        // All workers' contributions meet at the one port.
        Topology::OneArm => {
            let share = VETH_RING / u32::from(workers);
            1 << share.max(1).ilog2()
        }
    }
}

/// Whether somebody listens at a TCP port of this host.
fn listens(host: &Namespace, port: u16) -> bool {
    let mut list = host.command("ss");
    list.args(["-Hltn", &format!("sport = :{port}")]);
    command::output(&mut list).is_ok_and(|text| !text.trim().is_empty())
}

fn parse(text: &str, line: &str) -> Result<Value, DeployError> {
    serde_json::from_str(text)
        .map_err(|error| CommandError::Output { line: line.to_owned(), why: format!("JSON: {error}") }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_flight_fits_a_ring() {
        for workers in 2..=16 {
            let slots = default_slots(Topology::OneArm, workers);
            assert!(slots.is_power_of_two() && slots * u32::from(workers) <= VETH_RING, "{workers}: {slots}");
        }
        assert_eq!(default_slots(Topology::PerPort, 16), 128);
    }
}
