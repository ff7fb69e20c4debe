//! Sumac in a lab: the aggregator, a host program and a daemon per worker, as an operator would start them.

use std::net::Ipv4Addr;
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
use crate::units::Probability;

/// TCP port of the control plane.
const CONTROL_PORT: u16 = 48600;

/// How long a program has until it listens. Generous: sixteen daemons may start at once on one CPU.
const START_LIMIT: Duration = Duration::from_secs(30);

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
    /// 32-bit words per packet; none: what the MTU allows.
    pub chunk: Option<u16>,
    /// Slots of each lane of a job; none: what the measured path needs.
    pub slots: Option<u32>,
    /// What floats are multiplied with; none: block floating point.
    pub scale: Option<f32>,
    /// Whether packets carry checksums that the aggregator verifies.
    pub checksum: bool,
    /// Whether slots take chunks from each other.
    pub stealing: bool,
    /// Part of the frames that the aggregators drop on purpose.
    pub drop: Probability,
}

impl Default for SumacOptions {
    fn default() -> SumacOptions {
        SumacOptions {
            backend: Backend::Xdp,
            chunk: None,
            slots: None,
            scale: None,
            checksum: true,
            stealing: true,
            drop: Probability::default(),
        }
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
    shards: u16,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cpus: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    elements: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scale: Option<f32>,
    checksum: bool,
}

/// Sumac running in a lab. Dropping it ends its programs; the XDP programs go with the lab.
#[derive(Debug)]
pub struct Deployment<'lab> {
    lab: &'lab Lab,
    options: SumacOptions,
    programs: Programs,
    /// Control planes: the only one's or the root's, then the racks'.
    aggregators: Vec<Option<Process>>,
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
            aggregators: (0..=lab.spec().racks).map(|_| None).collect(),
            daemons: (0..lab.spec().workers).map(|_| None).collect(),
        };
        deployment.write_secrets()?;
        if options.backend == Backend::Xdp {
            deployment.attach_aggregator()?;
            for rank in 0..lab.spec().workers {
                deployment.attach_worker(rank)?;
            }
        }
        deployment.drop_at_aggregators(options.drop)?;
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

    /// The socket of a worker's daemon.
    pub fn socket(&self, rank: u16) -> PathBuf {
        self.lab.folder().join(format!("w{rank}.sock"))
    }

    /// The file with the secret between the root and its racks.
    pub fn rack_secret_file(&self) -> PathBuf {
        self.lab.folder().join("rack-secret")
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

    /// The process of the aggregator, or of the root, while it runs.
    pub fn aggregator(&mut self) -> Option<&mut Process> {
        self.aggregators.first_mut()?.as_mut()
    }

    /// A worker's daemon, while it runs.
    pub fn daemon(&mut self, rank: u16) -> Option<&mut Process> {
        self.daemons.get_mut(usize::from(rank))?.as_mut()
    }

    /// All of Sumac's processes that run.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.daemons.iter().chain(&self.aggregators).flatten()
    }

    /// `sumac-agg` with these arguments on the aggregator, or on the root; returns what it prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn sumac_agg(&self, arguments: &[&str]) -> Result<String, DeployError> {
        self.sumac_agg_on(self.lab.aggregator(), arguments)
    }

    /// `sumac-agg` with these arguments on the host of an aggregator; returns what it prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn sumac_agg_on(&self, host: &Namespace, arguments: &[&str]) -> Result<String, DeployError> {
        self.call(host, self.programs.sumac_agg(), arguments)
    }

    /// `sumac` with these arguments on a worker; returns what it prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn sumac(&self, rank: u16, arguments: &[&str]) -> Result<String, DeployError> {
        self.call(self.lab.worker(rank), self.programs.sumac(), arguments)
    }

    /// Puts the aggregators' programs on all their ports.
    ///
    /// # Errors
    /// What `sumac-agg attach` says.
    pub fn attach_aggregator(&self) -> Result<(), DeployError> {
        self.with_ports(&["attach", "--shards", &self.lab.spec().queues.to_string()])
    }

    /// Takes them off.
    ///
    /// # Errors
    /// What `sumac-agg detach` says.
    pub fn detach_aggregator(&self) -> Result<(), DeployError> {
        self.with_ports(&["detach"])
    }

    fn with_ports(&self, verb: &[&str]) -> Result<(), DeployError> {
        let spec = self.lab.spec();
        let call = |host, ports: &[String]| {
            let arguments: Vec<&str> = verb.iter().copied().chain(ports.iter().map(String::as_str)).collect();
            self.sumac_agg_on(host, &arguments).map(|_| ())
        };
        call(self.lab.aggregator(), &spec.aggregator_ports())?;
        let mut ports = spec.rack_ports();
        ports.push(self.lab.uplink().to_owned());
        self.lab.racks().iter().try_for_each(|rack| call(rack, &ports))
    }

    /// The hosts of all aggregators, the root's first.
    pub fn aggregator_hosts(&self) -> impl Iterator<Item = &'lab Namespace> {
        [self.lab.aggregator()].into_iter().chain(self.lab.racks())
    }

    /// Lets the aggregators' programs drop a part of the frames of jobs, each way, and count them.
    ///
    /// # Errors
    /// What `sumac-agg drop` says.
    pub fn drop_at_aggregators(&self, part: Probability) -> Result<(), DeployError> {
        if part.is_zero() {
            return Ok(());
        }
        let part = part.to_string();
        let drop = ["drop", "--up", &part, "--down", &part];
        self.aggregator_hosts().try_for_each(|host| self.sumac_agg_on(host, &drop).map(|_| ()))
    }

    /// What the eBPF aggregator, or the root, says of itself; null when a process aggregates.
    ///
    /// # Errors
    /// What `sumac-agg status` says.
    pub fn aggregator_status(&self) -> Result<Value, DeployError> {
        self.aggregator_status_on(self.lab.aggregator())
    }

    /// What the eBPF aggregator of a host says of itself; null when a process aggregates.
    ///
    /// # Errors
    /// What `sumac-agg status` says.
    pub fn aggregator_status_on(&self, host: &Namespace) -> Result<Value, DeployError> {
        match self.options.backend {
            Backend::Xdp => {
                parse(&self.sumac_agg_on(host, &["status", "--json"])?, "sumac-agg status --json")
            }
            Backend::Udp => Ok(Value::Null),
        }
    }

    /// Puts the host program on a worker's interface.
    ///
    /// # Errors
    /// What `sumac attach` says.
    pub fn attach_worker(&self, rank: u16) -> Result<(), DeployError> {
        let shards = self.lab.spec().queues.to_string();
        self.sumac(rank, &["attach", self.lab.worker_interface(), "--shards", &shards]).map(|_| ())
    }

    /// Starts the control planes of all aggregators, which they must not have.
    ///
    /// # Errors
    /// When one does not come to listen.
    pub fn start_aggregator(&mut self) -> Result<(), DeployError> {
        // The root first: a rack has nobody to ask without it.
        let lab = self.lab;
        self.start_control_plane(0, lab.aggregator(), None)?;
        for (rack, host) in (0..).zip(lab.racks()) {
            self.start_control_plane(usize::from(rack) + 1, host, Some(lab.spec().root_ip(rack)))?;
        }
        Ok(())
    }

    fn start_control_plane(
        &mut self,
        place: usize,
        host: &Namespace,
        parent: Option<Ipv4Addr>,
    ) -> Result<(), DeployError> {
        let mut serve = self.programs.sumac_agg();
        serve.args(["serve", "--listen", &format!("0.0.0.0:{CONTROL_PORT}")]);
        match self.options.backend {
            Backend::Xdp => serve.args(["--plane", "ebpf", "--pin-root"]).arg(self.lab.pin_root()),
            Backend::Udp => serve.args(["--plane", "host", "--shards", &self.lab.spec().queues.to_string()]),
        };
        if self.lab.spec().racks > 0 {
            serve.arg("--rack-secret-file").arg(self.rack_secret_file());
        }
        match parent {
            Some(parent) => {
                serve.args(["--parent", &format!("{parent}:{CONTROL_PORT}"), "--rack-name", host.name()])
            }
            None => serve.arg("--secret-file").arg(self.secret_file()),
        };
        if !self.options.stealing {
            serve.arg("--no-stealing");
        }
        let what = if parent.is_some() { format!("rack{}", place - 1) } else { "aggregator".to_owned() };
        let process = self.aggregators[place].insert(self.lab.start(host, &what, &mut serve)?);
        process.wait_until("listening", START_LIMIT, || listens(host, CONTROL_PORT))?;
        Ok(())
    }

    /// Ends the control planes of all aggregators.
    pub fn stop_aggregator(&mut self) {
        self.aggregators.iter_mut().for_each(|process| *process = None);
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

    fn write_secrets(&self) -> Result<(), DeployError> {
        // Nobody outside the lab can reach its aggregators; that they are checked is what matters here.
        let (name, pid) = (&self.lab.spec().name, std::process::id());
        for (path, whose) in [(self.secret_file(), "jobs"), (self.rack_secret_file(), "racks")] {
            let secret = format!("{whose} of lab {name} of pid {pid}");
            std::fs::write(&path, secret).map_err(|source| DeployError::File { path, source })?;
        }
        Ok(())
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
            shards: self.lab.spec().queues,
            cpus: self.cpus(),
            slots: self.options.slots,
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

    /// The CPU of each shard's thread: the one that works on the queue of this number. A single one may run anywhere.
    fn cpus(&self) -> Vec<usize> {
        let queues = usize::from(self.lab.spec().queues);
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if queues == 1 { Vec::new() } else { (0..queues).map(|queue| queue % cpus).collect() }
    }

    fn call(&self, host: &Namespace, program: Command, arguments: &[&str]) -> Result<String, DeployError> {
        let mut command = host.command(program.get_program());
        command.args(arguments).arg("--pin-root").arg(self.lab.pin_root());
        Ok(command::output(&mut command)?)
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
