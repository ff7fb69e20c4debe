//! A lab that stands, and what can be done in it.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cable::{Cable, CableCounters};
use crate::fabric::Fabric;
use crate::interrupt;
use crate::marking;
use crate::namespace::Namespace;
use crate::process::{Output, Process};
use crate::record::{ProcessRecord, Record};
use crate::spec::{LabSpec, Topology};
use crate::wiring::{Hosts, Tap, UPLINK, WORKER_PORT};

/// A lab. Dropping it removes it, unless [`Lab::keep`] was called.
#[derive(Debug)]
pub struct Lab {
    spec: LabSpec,
    hosts: Hosts,
    record: Arc<Mutex<Record>>,
    kept: bool,
}

impl Lab {
    /// Builds a lab and waits until every worker reaches the aggregator. After an error nothing is left
    /// behind.
    pub fn up(spec: LabSpec) -> Result<Lab> {
        spec.check()?;
        let is_own = spec.topology == Topology::Loopback;
        ensure!(
            is_own || nix::unistd::geteuid().is_root(),
            "a lab is made of network namespaces, which needs root; without: --topology loopback"
        );
        let hosts = Hosts::of(&spec);
        let namespaces = hosts.all().filter(|_| !is_own).map(|host| host.name().to_owned()).collect();
        let pins = if is_own { Vec::new() } else { vec![pin_root(&spec.name), marking::pins(&spec.name)] };
        let record = Record {
            owner: ProcessRecord::of(std::process::id(), "sumac-lab"),
            namespaces,
            pins,
            processes: Vec::new(),
            spec: spec.clone(),
        };
        record.create()?;
        // From here on dropping the value removes what there is.
        let lab = Lab { spec, hosts, record: Arc::new(Mutex::new(record)), kept: false };
        lab.hosts.build(&lab.spec).context("building the lab")?;
        if !is_own {
            lab.wait_reachable()?;
        }
        Ok(lab)
    }

    pub fn spec(&self) -> &LabSpec {
        &self.spec
    }

    pub fn worker(&self, rank: u16) -> &Namespace {
        &self.hosts.workers[usize::from(rank)]
    }

    /// The interface of a worker, or of a parameter host, towards the aggregator.
    pub fn worker_interface(&self) -> &'static str {
        if self.spec.topology == Topology::Loopback { "lo" } else { WORKER_PORT }
    }

    /// Removes a worker's interface, and makes it anew with the same name and address, in a lab without
    /// cables. What was attached to it is gone.
    pub fn replug(&self, rank: u16) -> Result<()> {
        self.worker(rank).ip(&[format!("link del dev {WORKER_PORT}")])?;
        self.hosts.plug_in_worker(rank, &self.spec)
    }

    /// The spines of the fabric; none in a lab without one. Their interfaces `leaf0` and `leaf1` lead to the
    /// workers and to the aggregator.
    pub fn spines(&self) -> &[Namespace] {
        self.hosts.fabric.as_ref().map_or(&[], Fabric::spines)
    }

    /// The spines' addresses, where they are next hops on the workers' segment.
    pub fn next_hops(&self) -> Vec<Ipv4Addr> {
        self.hosts.fabric.as_ref().map_or(Vec::new(), Fabric::next_hops)
    }

    /// The aggregator's host; in a lab of racks the root's.
    pub fn aggregator(&self) -> &Namespace {
        &self.hosts.aggregator
    }

    /// The racks' aggregators; none in a lab of one level.
    pub fn racks(&self) -> &[Namespace] {
        &self.hosts.racks
    }

    /// The hosts of parameter hosts that are no worker's too.
    pub fn parameter_hosts(&self) -> &[Namespace] {
        &self.hosts.parameter
    }

    /// A rack's interface towards the root.
    pub fn uplink(&self) -> &'static str {
        UPLINK
    }

    /// The aggregator that a worker hangs on: its rack's, or the only one.
    pub fn aggregator_of(&self, rank: u16) -> &Namespace {
        self.hosts.aggregator_of(rank, &self.spec)
    }

    /// The cables: of the workers, by rank, of the racks, of the parameter hosts; none when the veths are
    /// straight.
    pub fn cables(&self) -> &[Cable] {
        &self.hosts.cables
    }

    /// Returns the faults that all cables have injected.
    pub fn injected(&self) -> Result<CableCounters> {
        self.cables().iter().try_fold(CableCounters::default(), |total, cable| {
            Ok(total.combine(cable.counters().context("a cable of the lab")?, |a, b| a + b))
        })
    }

    /// The lab's folder for sockets, configurations and logs.
    pub fn folder(&self) -> PathBuf {
        Record::folder(&self.spec.name)
    }

    /// The lab's folder in bpffs.
    pub fn pin_root(&self) -> PathBuf {
        pin_root(&self.spec.name)
    }

    /// Starts a program in a host; it is ended with the lab or when its value is dropped.
    pub fn start(&self, host: &Namespace, what: &str, program: &mut Command) -> Result<Process> {
        Process::start(inside(host, program), what, &self.record, Output::Log)
    }

    /// As [`Lab::start`], with the standard output to be read from the value.
    pub fn start_piped(&self, host: &Namespace, what: &str, program: &mut Command) -> Result<Process> {
        Process::start(inside(host, program), what, &self.record, Output::Pipe)
    }

    /// As [`Lab::start`], with the standard output written to a file.
    pub(crate) fn start_into(
        &self,
        host: &Namespace,
        what: &str,
        program: &mut Command,
        file: File,
    ) -> Result<Process> {
        Process::start(inside(host, program), what, &self.record, Output::File(file))
    }

    /// The places where all of its frames can be captured.
    pub(crate) fn taps(&self) -> Vec<Tap<'_>> {
        self.hosts.taps(&self.spec)
    }

    /// Leaves the lab standing when the value is dropped; `sumac-lab down` removes it.
    pub fn keep(mut self) -> Record {
        self.kept = true;
        self.record().clone()
    }

    pub fn down(mut self) -> Result<()> {
        self.kept = true;
        self.remove()
    }

    fn remove(&self) -> Result<()> {
        let mut record = self.record();
        let removed = record.remove();
        // Programs whose values still live have nothing to strike from a record that is gone.
        record.processes.clear();
        removed
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_reachable(&self) -> Result<()> {
        let workers = (0..self.spec.workers).map(|rank| (self.worker(rank), self.spec.aggregator_ip(rank)));
        let racks = (0..).zip(self.racks()).map(|(rack, host)| (host, self.spec.root_ip(rack)));
        let hosts =
            (0..).zip(self.parameter_hosts()).map(|(host, place)| (place, self.spec.host_gateway(host)));
        workers.chain(racks).chain(hosts).try_for_each(|(host, address)| wait_reachable(host, address))
    }
}

/// Waits until a host reaches its aggregator.
fn wait_reachable(host: &Namespace, address: Ipv4Addr) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(10);
    let (name, seconds) = (host.name(), LIMIT.as_secs());
    interrupt::wait_for(LIMIT, || answers(host, address).then_some(()))?.with_context(|| {
        format!("{name} does not reach the aggregator at {address}: no answer within {seconds} s")
    })
}

/// Whether `address` answers a host, if only to say that nobody listens at its port 9.
fn answers(host: &Namespace, address: Ipv4Addr) -> bool {
    let mut knock = host.command("timeout");
    knock.args(["2", "bash", "-c", &format!("exec 3<>/dev/tcp/{address}/9")]).env("LC_ALL", "C");
    match crate::command::output(&mut knock) {
        Ok(_) => true,
        Err(error) => error.to_string().contains("refused"),
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let Err(error) = self.remove() {
            eprintln!("sumac-lab: removing lab {}: {error:#}", self.spec.name);
        }
    }
}

/// The lab's folder in bpffs.
fn pin_root(name: &str) -> PathBuf {
    PathBuf::from("/sys/fs/bpf").join(format!("sumac-lab-{name}"))
}

/// `program` with its arguments, variables and folder, in a host.
fn inside(host: &Namespace, program: &Command) -> Command {
    let mut command = host.command(program.get_program());
    command.args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(folder) = program.get_current_dir() {
        command.current_dir(folder);
    }
    command
}
