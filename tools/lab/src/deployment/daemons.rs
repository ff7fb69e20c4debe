//! The daemons of a lab, those of workers and of parameter hosts, and the programs on their interfaces.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::PathBuf;

use serde_json::Value;
use sumac_client::Client;

use super::{DeployError, Deployment, START_LIMIT};
use crate::namespace::Namespace;
use crate::process::Process;

/// The host and role of a daemon.
pub(super) struct DaemonSpec<'lab> {
    pub(super) host: &'lab Namespace,
    /// The name of its process in the lab.
    what: String,
    pub(super) socket: PathBuf,
    /// The control plane that jobs are opened with.
    pub(super) control: Ipv4Addr,
    /// The root's, or the only one.
    pub(super) root: Ipv4Addr,
    /// The join token for the control plane that jobs are opened with.
    pub(super) token_file: PathBuf,
    pub(super) is_parameter_host: bool,
}

impl<'lab> Deployment<'lab> {
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
        let own = (0..self.lab.spec().parameter_hosts).map(|host| self.parameter_spec(host).socket);
        own.chain(self.co_located().map(|rank| self.socket(rank))).collect()
    }

    /// Returns the statistics of the daemons that are parameter hosts, in the order of their sockets.
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

    /// Workers whose daemons are parameter hosts too.
    pub(super) fn co_located(&self) -> Range<u16> {
        let ranks = self.lab.spec().root_ranks();
        ranks.start..ranks.start + self.options.dynamic.map_or(0, |dynamic| dynamic.co_located)
    }

    /// Puts the host program on a worker's interface.
    ///
    /// # Errors
    /// What `sumac attach` says.
    pub fn attach_worker(&self, rank: u16) -> Result<(), DeployError> {
        self.attach_host(self.lab.worker(rank))
    }

    pub(super) fn attach_host(&self, host: &Namespace) -> Result<(), DeployError> {
        let shards = self.lab.spec().queues.to_string();
        let attach = ["attach", self.lab.worker_interface(), "--shards", &shards];
        self.call(host, self.programs.sumac(), &attach).map(|_| ())
    }

    /// Starts a worker's daemon, which must not run.
    ///
    /// # Errors
    /// When it does not come to listen.
    pub fn start_daemon(&mut self, rank: u16) -> Result<(), DeployError> {
        let spec = self.lab.spec();
        let control = spec.aggregator_ip(rank);
        let spec = DaemonSpec {
            host: self.lab.worker(rank),
            what: format!("daemon{rank}"),
            socket: self.socket(rank),
            control,
            root: spec.rack_of(rank).map_or(control, |rack| spec.root_ip(rack)),
            token_file: self.token_file(spec.rack_of(rank).map_or(0, |rack| usize::from(rack) + 1)),
            is_parameter_host: self.co_located().contains(&rank),
        };
        let since = self.root_log();
        self.daemons[usize::from(rank)] = Some(self.start_daemon_of(&spec)?);
        if spec.is_parameter_host { self.wait_for_hosts(&[spec.host], since) } else { Ok(()) }
    }

    /// Starts the daemon of a parameter host, which must not run.
    ///
    /// # Errors
    /// When it does not come to listen, or the control plane does not come to know it.
    pub fn start_parameter_host(&mut self, host: u16) -> Result<(), DeployError> {
        let (spec, since) = (self.parameter_spec(host), self.root_log());
        self.parameter_hosts[usize::from(host)] = Some(self.start_daemon_of(&spec)?);
        self.wait_for_hosts(&[spec.host], since)
    }

    fn parameter_spec(&self, host: u16) -> DaemonSpec<'lab> {
        let control = self.lab.spec().host_gateway(host);
        DaemonSpec {
            host: &self.lab.parameter_hosts()[usize::from(host)],
            what: format!("host{host}"),
            socket: self.lab.folder().join(format!("ph{host}.sock")),
            control,
            root: control,
            token_file: self.token_file(0),
            is_parameter_host: true,
        }
    }

    fn start_daemon_of(&self, spec: &DaemonSpec<'_>) -> Result<Process, DeployError> {
        let config = self.write_config(spec)?;
        // One that was killed leaves its socket behind; a connection to it says nothing of the new one.
        let _ = std::fs::remove_file(&spec.socket);
        let mut daemon = self.programs.sumac();
        daemon.args(["daemon", "--config"]).arg(config);
        let mut process = self.lab.start(spec.host, &spec.what, &mut daemon)?;
        process.wait_until("its socket", START_LIMIT, || Client::connect(&spec.socket).is_ok())?;
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
}
