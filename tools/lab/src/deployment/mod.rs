//! Sumac in a lab: the aggregator, a host program and a daemon per worker and parameter host, as an operator would
//! start them.

mod config;
mod options;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use sumac_client::{Client, ClientError, JobOptions, Mode};

use crate::command::{self, CommandError};
use crate::lab::Lab;
use crate::namespace::Namespace;
use crate::process::{Process, ProcessError};
use crate::programs::{NotFound, Programs};
use crate::units::Probability;

pub use options::{Backend, DynamicOptions, SumacOptions};

/// TCP port of the control plane.
const CONTROL_PORT: u16 = 48600;

/// How long a program has until it listens. Generous: sixteen daemons may start at once on one CPU.
const START_LIMIT: Duration = Duration::from_secs(30);

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
    /// The daemon of a parameter host does not talk.
    #[error("the parameter host at {socket}: {source}")]
    Host {
        /// Its socket.
        socket: PathBuf,
        /// What it said.
        source: Box<ClientError>,
    },
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
    /// Daemons of parameter hosts that are no worker's too.
    parameter_hosts: Vec<Option<Process>>,
}

/// Where a daemon runs, and what it is to be.
struct Seat<'lab> {
    host: &'lab Namespace,
    /// What its process is called in the lab.
    what: String,
    socket: PathBuf,
    /// The control plane that jobs are opened with.
    control: Ipv4Addr,
    /// The root's, or the only one.
    root: Ipv4Addr,
    is_parameter_host: bool,
}

impl<'lab> Deployment<'lab> {
    /// Attaches the programs and starts aggregator, parameter hosts and daemons; returns when all of them listen.
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
            parameter_hosts: lab.parameter_hosts().iter().map(|_| None).collect(),
        };
        deployment.write_secrets()?;
        if options.backend == Backend::Xdp {
            deployment.attach_all()?;
        }
        deployment.drop_at_aggregators(options.drop)?;
        deployment.start_aggregator()?;
        for host in 0..lab.spec().parameter_hosts {
            deployment.start_parameter_host(host)?;
        }
        for rank in 0..lab.spec().workers {
            deployment.start_daemon(rank)?;
        }
        Ok(deployment)
    }

    /// How long the log of the only control plane, or of the root's, is.
    fn root_log(&self) -> usize {
        std::fs::read_to_string(self.lab.folder().join("aggregator.log")).map_or(0, |said| said.len())
    }

    /// Waits until that control plane knows these parameter hosts, as its log says behind `since`: jobs do not wait for
    /// them for long.
    fn wait_for_hosts(&mut self, hosts: &[&Namespace], since: usize) -> Result<(), DeployError> {
        let entries: Vec<_> = hosts.iter().map(|host| format!("`{}` entered", host.name())).collect();
        let Some(root) = self.aggregators.first_mut().and_then(Option::as_mut) else { return Ok(()) };
        let log = root.log().to_owned();
        Ok(root.wait_until("its parameter hosts", START_LIMIT, || {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            entries.iter().all(|entry| said.get(since..).is_some_and(|said| said.contains(entry)))
        })?)
    }

    fn attach_all(&self) -> Result<(), DeployError> {
        if self.options.has_aggregator() {
            self.attach_aggregator()?;
        }
        for rank in 0..self.lab.spec().workers {
            self.attach_worker(rank)?;
        }
        self.lab.parameter_hosts().iter().try_for_each(|host| self.attach_host(host))
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

    /// The daemon of a parameter host that is no worker's too, while it runs.
    pub fn parameter_host(&mut self, host: u16) -> Option<&mut Process> {
        self.parameter_hosts.get_mut(usize::from(host))?.as_mut()
    }

    /// The sockets of the daemons that are parameter hosts: those of their own, then workers'.
    pub fn parameter_host_sockets(&self) -> Vec<PathBuf> {
        let own = (0..self.lab.spec().parameter_hosts).map(|host| self.parameter_seat(host).socket);
        own.chain((0..self.co_located()).map(|rank| self.socket(rank))).collect()
    }

    /// A job's options, with those of a dynamic job over all parameter hosts where this is for dynamic jobs.
    #[must_use]
    pub fn in_its_mode(&self, options: JobOptions) -> JobOptions {
        let Some(dynamic) = self.options.dynamic else { return options };
        let hosts = self.lab.spec().parameter_hosts + dynamic.co_located;
        let options = options.mode(Mode::Dynamic).parameter_hosts(hosts);
        let options = options.congestion_control(dynamic.congestion_control);
        match dynamic.window {
            Some(window) => options.window(window),
            None => options,
        }
    }

    /// What the daemons that are parameter hosts say of themselves, in the order of their sockets.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn parameter_host_stats(&self) -> Result<Vec<Value>, DeployError> {
        let ask = |socket: PathBuf| {
            let stats = Client::connect(&socket).and_then(|client| client.stats_json());
            stats.map_err(|source| DeployError::Host { socket, source: source.into() })
        };
        self.parameter_host_sockets().into_iter().map(ask).collect()
    }

    /// Workers, the first ones, whose daemons are parameter hosts too.
    fn co_located(&self) -> u16 {
        self.options.dynamic.map_or(0, |dynamic| dynamic.co_located)
    }

    /// All of Sumac's processes that run.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.daemons.iter().chain(&self.parameter_hosts).chain(&self.aggregators).flatten()
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
        let shards = self.lab.spec().queues.to_string();
        let shared = self.options.dynamic.map(|dynamic| dynamic.slots.to_string());
        let mut verb = vec!["attach", "--shards", &shards];
        if let Some(shared) = &shared {
            verb.extend(["--dynamic-slots", shared]);
        }
        self.with_ports(&verb)
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

    /// What the eBPF aggregator, or the root, says of itself; null when a process aggregates, or nobody.
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
            Backend::Xdp if self.options.has_aggregator() => {
                parse(&self.sumac_agg_on(host, &["status", "--json"])?, "sumac-agg status --json")
            }
            _ => Ok(Value::Null),
        }
    }

    /// Puts the host program on a worker's interface.
    ///
    /// # Errors
    /// What `sumac attach` says.
    pub fn attach_worker(&self, rank: u16) -> Result<(), DeployError> {
        self.attach_host(self.lab.worker(rank))
    }

    fn attach_host(&self, host: &Namespace) -> Result<(), DeployError> {
        let shards = self.lab.spec().queues.to_string();
        let attach = ["attach", self.lab.worker_interface(), "--shards", &shards];
        self.call(host, self.programs.sumac(), &attach).map(|_| ())
    }

    /// Starts the control planes of all aggregators, which they must not have.
    ///
    /// # Errors
    /// When one does not come to listen.
    pub fn start_aggregator(&mut self) -> Result<(), DeployError> {
        // The root first: a rack has nobody to ask without it.
        let (lab, since) = (self.lab, self.root_log());
        self.start_control_plane(0, lab.aggregator(), None)?;
        for (rack, host) in (0..).zip(lab.racks()) {
            self.start_control_plane(usize::from(rack) + 1, host, Some(lab.spec().root_ip(rack)))?;
        }
        // Those that run already come back by themselves.
        let own = lab.parameter_hosts().iter().zip(&self.parameter_hosts);
        let co_located =
            (0..self.co_located()).map(|rank| (lab.worker(rank), &self.daemons[usize::from(rank)]));
        let running: Vec<_> =
            own.chain(co_located).filter(|(_, daemon)| daemon.is_some()).map(|(host, _)| host).collect();
        self.wait_for_hosts(&running, since)
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
            _ if !self.options.has_aggregator() => serve.args(["--plane", "none"]),
            Backend::Xdp => serve.args(["--plane", "ebpf", "--pin-root"]).arg(self.lab.pin_root()),
            Backend::Udp => serve.args(["--plane", "host", "--shards", &self.lab.spec().queues.to_string()]),
        };
        if let (Some(dynamic), Backend::Udp, true) =
            (self.options.dynamic, self.options.backend, self.options.has_aggregator())
        {
            serve.args(["--dynamic-slots", &dynamic.slots.to_string()]);
        }
        // Racks and parameter hosts register with it.
        if self.lab.spec().racks > 0 || self.options.dynamic.is_some() {
            serve.arg("--rack-secret-file").arg(self.rack_secret_file());
        }
        if let (Some(dynamic), None) = (self.options.dynamic, parent) {
            serve.args(["--rejoin-grace", &dynamic.rejoin_grace.to_string()]);
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
        let spec = self.lab.spec();
        let control = spec.aggregator_ip(rank);
        let seat = Seat {
            host: self.lab.worker(rank),
            what: format!("daemon{rank}"),
            socket: self.socket(rank),
            control,
            root: spec.rack_of(rank).map_or(control, |rack| spec.root_ip(rack)),
            is_parameter_host: rank < self.co_located(),
        };
        let since = self.root_log();
        self.daemons[usize::from(rank)] = Some(self.start_seat(&seat)?);
        if seat.is_parameter_host { self.wait_for_hosts(&[seat.host], since) } else { Ok(()) }
    }

    /// Starts the daemon of a parameter host, which must not run.
    ///
    /// # Errors
    /// When it does not come to listen, or the control plane does not come to know it.
    pub fn start_parameter_host(&mut self, host: u16) -> Result<(), DeployError> {
        let (seat, since) = (self.parameter_seat(host), self.root_log());
        self.parameter_hosts[usize::from(host)] = Some(self.start_seat(&seat)?);
        self.wait_for_hosts(&[seat.host], since)
    }

    fn parameter_seat(&self, host: u16) -> Seat<'lab> {
        let control = self.lab.spec().host_gateway(host);
        Seat {
            host: &self.lab.parameter_hosts()[usize::from(host)],
            what: format!("host{host}"),
            socket: self.lab.folder().join(format!("ph{host}.sock")),
            control,
            root: control,
            is_parameter_host: true,
        }
    }

    fn start_seat(&self, seat: &Seat<'_>) -> Result<Process, DeployError> {
        let config = self.write_config(seat)?;
        // One that was killed leaves its socket behind; a connection to it says nothing of the new one.
        let _ = std::fs::remove_file(&seat.socket);
        let mut daemon = self.programs.sumac();
        daemon.args(["daemon", "--config"]).arg(config);
        let mut process = self.lab.start(seat.host, &seat.what, &mut daemon)?;
        process.wait_until("its socket", START_LIMIT, || Client::connect(&seat.socket).is_ok())?;
        Ok(process)
    }

    /// Ends the daemon of a parameter host.
    pub fn stop_parameter_host(&mut self, host: u16) {
        if let Some(place) = self.parameter_hosts.get_mut(usize::from(host)) {
            *place = None;
        }
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
