//! The aggregators of a lab: their programs, their control planes, and what they say of themselves.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use serde_json::Value;

use super::config::AGGREGATOR_METRICS_PORT;
use super::{Aggregator, Deployment, START_LIMIT, switch};
use crate::command;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::spec::LabSpec;

impl<'lab> Deployment<'lab> {
    /// The process of the aggregator, or of the root, while it runs.
    pub fn aggregator(&mut self) -> Option<&mut Process> {
        self.aggregators.first_mut()?.as_mut()
    }

    /// The process of a rack's aggregator, while it runs.
    pub fn rack(&mut self, rack: u16) -> Option<&mut Process> {
        self.aggregators.get_mut(usize::from(rack) + 1)?.as_mut()
    }

    /// `sumac-agg` with these arguments on the aggregator, or on the root; returns what it prints.
    pub fn sumac_agg(&self, arguments: &[&str]) -> Result<String> {
        self.sumac_agg_on(self.lab.aggregator(), arguments)
    }

    /// `sumac-agg` with these arguments on the host of an aggregator; returns what it prints.
    pub fn sumac_agg_on(&self, host: &Namespace, arguments: &[&str]) -> Result<String> {
        self.call(host, self.programs.sumac_agg(), arguments)
    }

    /// Puts the aggregators' programs on all their ports.
    pub fn attach_aggregator(&self) -> Result<()> {
        self.aggregator_hosts().try_for_each(|host| self.attach_aggregator_on(host))
    }

    /// Puts the program of one aggregator on all its ports.
    pub fn attach_aggregator_on(&self, host: &Namespace) -> Result<()> {
        let shards = self.lab.spec().queues.to_string();
        let shared = self.options.dynamic.map(|dynamic| dynamic.slots.to_string());
        let mut verb = vec!["attach", "--shards", &shards];
        if let Some(shared) = &shared {
            verb.extend(["--dynamic-slots", shared]);
        }
        self.with_ports(host, &verb)
    }

    /// Takes them off.
    pub fn detach_aggregator(&self) -> Result<()> {
        self.aggregator_hosts().try_for_each(|host| self.detach_aggregator_on(host))
    }

    /// Takes the program of one aggregator off all its ports.
    pub fn detach_aggregator_on(&self, host: &Namespace) -> Result<()> {
        self.with_ports(host, &["detach"])
    }

    fn with_ports(&self, host: &Namespace, verb: &[&str]) -> Result<()> {
        let ports = self.ports_of(host);
        let arguments: Vec<&str> = verb.iter().copied().chain(ports.iter().map(String::as_str)).collect();
        self.sumac_agg_on(host, &arguments).map(|_| ())
    }

    /// The interfaces of an aggregator's host.
    pub(super) fn ports_of(&self, host: &Namespace) -> Vec<String> {
        let spec = self.lab.spec();
        if host.name() == self.lab.aggregator().name() {
            return spec.aggregator_ports();
        }
        let mut middles = self.lab.racks().iter().skip(spec.racks.into());
        let is_middle = middles.any(|middle| middle.name() == host.name());
        let mut ports = if is_middle { spec.middle_ports() } else { spec.rack_ports() };
        ports.push(self.lab.uplink().to_owned());
        ports
    }

    /// The hosts of all aggregators, the root's first.
    pub fn aggregator_hosts(&self) -> impl Iterator<Item = &'lab Namespace> {
        [self.lab.aggregator()].into_iter().chain(self.lab.racks())
    }

    /// Lets an aggregator drop a part of the frames of jobs, each way, and count them; it must run.
    fn drop_on_purpose(&self, host: &Namespace) -> Result<()> {
        let part = self.options.drop;
        if part.is_zero() || !self.options.has_aggregator() {
            return Ok(());
        }
        let part = part.to_string();
        self.ask(host, &["drop", "--up", &part, "--down", &part]).map(|_| ())
    }

    /// `sumac-agg` with these arguments of the aggregator of a host, be it a program or a process.
    fn ask(&self, host: &Namespace, arguments: &[&str]) -> Result<String> {
        let mut command = host.command(self.programs.sumac_agg().get_program());
        match self.options.aggregator() {
            Aggregator::Ebpf | Aggregator::None => self.sumac_agg_on(host, arguments),
            Aggregator::Host => {
                command::output(command.args(arguments).args(["--host", &self.base_port.to_string()]))
            }
            Aggregator::Bmv2 => command::output(command.args(arguments).args(switch::of_control_plane())),
        }
    }

    /// Returns the status of the aggregator, or of the root; null without one.
    pub fn aggregator_status(&self) -> Result<Value> {
        self.aggregator_status_on(self.lab.aggregator())
    }

    /// Returns the racks, parameter hosts and jobs of the only control plane, or of the root's.
    pub fn control_status(&self) -> Result<Value> {
        let mut command = self.lab.aggregator().command(self.programs.sumac_agg().get_program());
        command::json(command.args(["control", "--json", "--port", &self.control_port.to_string()]))
    }

    /// Returns the status of a host's aggregator; null without one.
    pub fn aggregator_status_on(&self, host: &Namespace) -> Result<Value> {
        if !self.options.has_aggregator() {
            return Ok(Value::Null);
        }
        let status = self.ask(host, &["status", "--json"])?;
        serde_json::from_str(&status).context("the JSON of `sumac-agg status --json`")
    }

    /// Scrapes the metrics of the aggregator, or of the root.
    pub fn aggregator_metrics(&self) -> Result<String> {
        let mut shell = self.lab.aggregator().command("bash");
        let request = r"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let address = self.own_address().unwrap_or(Ipv4Addr::LOCALHOST);
        let talk = format!(
            "exec 3<>/dev/tcp/{address}/{AGGREGATOR_METRICS_PORT} && printf '{request}' >&3 && cat <&3"
        );
        command::output(shell.args(["-c", &talk]))
    }

    /// Starts the control planes of all aggregators, which they must not have.
    pub fn start_aggregator(&mut self) -> Result<()> {
        // The root first: a rack has nobody to ask without it.
        self.start_root()?;
        let LabSpec { racks, .. } = *self.lab.spec();
        let middles = racks..self.lab.spec().all_racks();
        middles.chain(0..racks).try_for_each(|rack| self.start_rack(rack))
    }

    /// Starts the only control plane, or the root's, and waits for the parameter hosts that run to come back
    /// to it.
    pub fn start_root(&mut self) -> Result<()> {
        let (lab, since) = (self.lab, self.root_log());
        self.start_control_plane(0, lab.aggregator(), None)?;
        let own = lab.parameter_hosts().iter().zip(&self.parameter_hosts);
        let co_located = self.co_located().map(|rank| (lab.worker(rank), &self.daemons[usize::from(rank)]));
        let running: Vec<_> =
            own.chain(co_located).filter(|(_, daemon)| daemon.is_some()).map(|(host, _)| host).collect();
        self.wait_for_hosts(&running, since)
    }

    /// Starts the control plane of a rack, which it must not have.
    pub fn start_rack(&mut self, rack: u16) -> Result<()> {
        let place = usize::from(rack);
        let (host, root) = (&self.lab.racks()[place], self.lab.spec().root_ip(rack));
        self.start_control_plane(place + 1, host, Some(root))
    }

    fn start_control_plane(
        &mut self,
        place: usize,
        host: &Namespace,
        parent: Option<Ipv4Addr>,
    ) -> Result<()> {
        let mut serve = self.programs.sumac_agg();
        let address = self.own_address().unwrap_or(Ipv4Addr::UNSPECIFIED);
        serve.args(["serve", "--listen", &format!("{address}:{}", self.control_port), "--state-dir"]);
        serve.arg(self.state_dir(place));
        match self.options.aggregator() {
            Aggregator::None => {
                serve.args(["--plane", "none"]);
            }
            Aggregator::Ebpf => {
                serve.args(["--plane", "ebpf", "--pin-root"]).arg(self.lab.pin_root());
            }
            Aggregator::Bmv2 => self.serve_switch(place, host, &mut serve)?,
            Aggregator::Host => {
                serve.args(["--plane", "host", "--shards", &self.lab.spec().queues.to_string()]);
                serve.args(["--data-ip", &address.to_string(), "--base-port", &self.base_port.to_string()]);
                if let Some(dynamic) = self.options.dynamic {
                    serve.args(["--dynamic-slots", &dynamic.slots.to_string()]);
                }
            }
        }
        // Racks and parameter hosts register with it.
        if self.lab.spec().racks > 0 || self.options.dynamic.is_some() {
            let above = || self.lab.spec().middle_of(place as u16 - 1).map_or(0, |middle| middle + 1);
            let secret =
                if parent.is_some() { self.rack_token_file(above()) } else { self.rack_secret_file() };
            serve.arg("--rack-secret-file").arg(secret);
        }
        if let (Some(dynamic), None) = (self.options.dynamic, parent) {
            serve.args(["--rejoin-grace", &dynamic.rejoin_grace.to_string()]);
        }
        match parent {
            Some(parent) => serve.args([
                "--parent",
                &format!("{parent}:{}", self.control_port),
                "--rack-name",
                host.name(),
            ]),
            None => serve.arg("--secret-file").arg(self.secret_file()),
        };
        if self.options.metrics {
            serve.args(["--metrics", &format!("{address}:{AGGREGATOR_METRICS_PORT}")]);
        }
        if !self.options.stealing {
            serve.arg("--no-reassignment");
        }
        let what = if parent.is_some() { format!("rack{}", place - 1) } else { "aggregator".to_owned() };
        let port = self.control_port;
        let process = self.aggregators[place].insert(self.lab.start(host, &what, &mut serve)?);
        process.wait_until("listening", START_LIMIT, || listens(host, port))?;
        self.drop_on_purpose(host)
    }

    /// Ends the only control plane, or the root's.
    pub fn stop_root(&mut self) {
        self.aggregators[0] = None;
    }

    /// Ends the control plane of a rack.
    pub fn stop_rack(&mut self, rack: u16) {
        self.aggregators[usize::from(rack) + 1] = None;
    }

    /// Ends the control planes of all aggregators.
    pub fn stop_aggregator(&mut self) {
        self.aggregators.iter_mut().for_each(|process| *process = None);
    }

    /// Returns the length of the log of the only control plane, or of the root's.
    pub(super) fn root_log(&self) -> usize {
        std::fs::read_to_string(self.lab.folder().join("aggregator.log")).map_or(0, |said| said.len())
    }

    /// Waits until that control plane knows these parameter hosts, as its log says behind `since`: jobs do
    /// not wait for them for long.
    pub(super) fn wait_for_hosts(&mut self, hosts: &[&Namespace], since: usize) -> Result<()> {
        let entries: Vec<_> = hosts.iter().map(|host| format!("`{}` entered", host.name())).collect();
        let Some(root) = self.aggregators.first_mut().and_then(Option::as_mut) else { return Ok(()) };
        let log = root.log().to_owned();
        root.wait_until("its parameter hosts", START_LIMIT, || {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            entries.iter().all(|entry| said.get(since..).is_some_and(|said| said.contains(entry)))
        })
    }
}

/// Whether somebody listens at a TCP port of this host.
pub(super) fn listens(host: &Namespace, port: u16) -> bool {
    let mut list = host.command("ss");
    list.args(["-Hltn", &format!("sport = :{port}")]);
    command::output(&mut list).is_ok_and(|text| !text.trim().is_empty())
}
