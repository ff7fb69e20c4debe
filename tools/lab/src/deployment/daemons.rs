//! The daemons of a lab, those of workers and of parameter hosts, and the programs on their interfaces.

use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use serde_json::Value;
use sumac_client::Client;

use super::config::DaemonConfig;
use super::{Deployment, START_LIMIT};
use crate::namespace::Namespace;
use crate::process::Process;

impl Deployment<'_> {
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
        let own = (0..self.lab.spec().parameter_hosts).map(|host| self.parameter_host_socket(host));
        own.chain(self.co_located().map(|rank| self.socket(rank))).collect()
    }

    /// Returns the statistics of the daemons that are parameter hosts, in the order of their sockets.
    pub fn parameter_host_stats(&self) -> Result<Vec<Value>> {
        let ask = |socket: PathBuf| {
            let stats = Client::connect(&socket).and_then(|client| client.stats_json());
            stats.map_err(|error| anyhow!("the parameter host at {}: {error}", socket.display()))
        };
        self.parameter_host_sockets().into_iter().map(ask).collect()
    }

    /// Workers whose daemons are parameter hosts too.
    pub(super) fn co_located(&self) -> Range<u16> {
        let ranks = self.lab.spec().root_ranks();
        ranks.start..ranks.start + self.options.dynamic.map_or(0, |dynamic| dynamic.co_located)
    }

    /// Puts the host program on a worker's interface.
    pub fn attach_worker(&self, rank: u16) -> Result<()> {
        self.attach_host(self.lab.worker(rank))
    }

    pub(super) fn attach_host(&self, host: &Namespace) -> Result<()> {
        let shards = self.lab.spec().queues.to_string();
        let attach = ["attach", self.lab.worker_interface(), "--shards", &shards];
        self.call(host, self.programs.sumac(), &attach).map(|_| ())
    }

    fn parameter_host_socket(&self, host: u16) -> PathBuf {
        self.lab.folder().join(format!("ph{host}.sock"))
    }

    /// Starts a worker's daemon, which must not run.
    pub fn start_daemon(&mut self, rank: u16) -> Result<()> {
        let (spec, host) = (self.lab.spec(), self.lab.worker(rank));
        let (control, rack) = (spec.aggregator_ip(rank), spec.rack_of(rank));
        let mut config =
            self.config(self.socket(rank), control, rack.map_or(0, |rack| usize::from(rack) + 1));
        let root = rack.map_or(control, |rack| spec.root_ip(rack));
        let is_parameter_host = self.co_located().contains(&rank);
        config.parameter_host = is_parameter_host.then(|| self.parameter_host_config(host, root));
        let since = self.root_log();
        self.daemons[usize::from(rank)] = Some(self.start_with(host, &format!("daemon{rank}"), &config)?);
        if is_parameter_host { self.wait_for_hosts(&[host], since) } else { Ok(()) }
    }

    /// Starts the daemon of a parameter host, which must not run, and waits until the control plane knows it.
    pub fn start_parameter_host(&mut self, number: u16) -> Result<()> {
        let host = &self.lab.parameter_hosts()[usize::from(number)];
        let (control, since) = (self.lab.spec().host_gateway(number), self.root_log());
        let mut config = self.config(self.parameter_host_socket(number), control, 0);
        config.parameter_host = Some(self.parameter_host_config(host, control));
        let daemon = self.start_with(host, &format!("host{number}"), &config)?;
        self.parameter_hosts[usize::from(number)] = Some(daemon);
        self.wait_for_hosts(&[host], since)
    }

    /// Starts a daemon as a program with this name in the lab.
    fn start_with(&self, host: &Namespace, what: &str, config: &DaemonConfig) -> Result<Process> {
        let (socket, file) = (&config.socket, config.socket.with_extension("toml"));
        super::write(&file, &toml::to_string(config)?)?;
        // One that was killed leaves its socket behind; a connection to it is no evidence of the new one.
        let _ = std::fs::remove_file(socket);
        let mut daemon = self.programs.sumac();
        daemon.args(["daemon", "--config"]).arg(file);
        let mut process = self.lab.start(host, what, &mut daemon)?;
        process.wait_until("its socket", START_LIMIT, || Client::connect(socket).is_ok())?;
        Ok(process)
    }

    /// Starts a new daemon of a worker, which takes over from the running one. Returns that one, which stays
    /// as long as trainers have memory that they registered with it.
    pub fn upgrade_daemon(&mut self, rank: u16) -> Result<Process> {
        let file = self.socket(rank).with_extension("toml");
        let mut daemon = self.programs.sumac();
        daemon.args(["daemon", "--take-over", "--config"]).arg(file);
        let former = self.daemons[usize::from(rank)].take();
        let former = former.ok_or_else(|| anyhow!("the daemon of rank {rank} does not run"))?;
        let log = former.log().to_owned();
        let handovers = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            text.matches("a new daemon has taken over").count()
        };
        let before = handovers();
        let mut new = self.lab.start(self.lab.worker(rank), &format!("daemon{rank}"), &mut daemon)?;
        new.wait_until("the handover", START_LIMIT, || handovers() > before)?;
        self.daemons[usize::from(rank)] = Some(new);
        Ok(former)
    }

    pub fn stop_parameter_host(&mut self, host: u16) {
        self.parameter_hosts[usize::from(host)] = None;
    }

    pub fn stop_daemon(&mut self, rank: u16) {
        self.daemons[usize::from(rank)] = None;
    }
}
