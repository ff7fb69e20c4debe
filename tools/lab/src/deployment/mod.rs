//! Sumac in a lab: the aggregator, a host program and a daemon per worker and parameter host, as an operator
//! would start them.

mod aggregators;
mod config;
mod daemons;
mod options;
mod switch;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use sumac_client::{Client, JobOptions, Mode};
use sumac_wire::{DEFAULT_BASE_PORT, DEFAULT_CONTROL_PORT};

use crate::command;
use crate::lab::Lab;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::programs::Programs;
use crate::spec::Topology as LabTopology;

pub use options::{
    Aggregator, Backend, DirectCollective, DirectOptions, DynamicOptions, FIRST_VLAN, SumacOptions,
};
pub use switch::{MODEL_SHARED_SLOTS, Pipeline};

/// The time until a program listens. It is long: sixteen daemons may start at once on one CPU.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Sumac running in a lab. Dropping it ends its programs; the XDP programs go with the lab.
#[derive(Debug)]
pub struct Deployment<'lab> {
    lab: &'lab Lab,
    options: SumacOptions,
    programs: Programs,
    control_port: u16,
    base_port: u16,
    /// Control planes: the only one's or the root's, then the racks'.
    aggregators: Vec<Option<Process>>,
    /// The switches that they program, in the same order; none of another kind of aggregator.
    switches: Vec<Option<Process>>,
    daemons: Vec<Option<Process>>,
    /// Daemons of parameter hosts that are no worker's too.
    parameter_hosts: Vec<Option<Process>>,
}

impl<'lab> Deployment<'lab> {
    /// Attaches the programs and starts aggregator, parameter hosts and daemons; returns when all of them
    /// listen.
    pub fn start(lab: &'lab Lab, options: &SumacOptions) -> Result<Deployment<'lab>> {
        let is_own = lab.spec().topology == LabTopology::Loopback;
        ensure!(!is_own || options.backend == Backend::Udp, "over loopback there is UDP only: --backend udp");
        let is_modelled = options.aggregator() == Aggregator::Bmv2;
        ensure!(
            lab.spec().middles() == 0 || !is_modelled,
            "a P4 switch cannot be between racks and root: leave out --levels 3, or --aggregator bmv2"
        );
        let (control_port, base_port) =
            if is_own { free_ports()? } else { (DEFAULT_CONTROL_PORT, DEFAULT_BASE_PORT) };
        let mut deployment = Deployment {
            lab,
            options: options.clone(),
            programs: Programs::find()?,
            control_port,
            base_port,
            aggregators: (0..=lab.spec().all_racks()).map(|_| None).collect(),
            switches: (0..=lab.spec().all_racks()).map(|_| None).collect(),
            daemons: (0..lab.spec().workers).map(|_| None).collect(),
            parameter_hosts: lab.parameter_hosts().iter().map(|_| None).collect(),
        };
        let (hosts, ranks) = (deployment.co_located(), lab.spec().root_ranks());
        ensure!(
            hosts.end <= ranks.end,
            "{} parameter hosts cannot be on {} workers of the only aggregator or the root",
            hosts.len(),
            ranks.len()
        );
        deployment.write_secrets()?;
        deployment.attach_all()?;
        deployment.start_switches()?;
        deployment.start_aggregator()?;
        for host in 0..lab.spec().parameter_hosts {
            deployment.start_parameter_host(host)?;
        }
        for rank in 0..lab.spec().workers {
            deployment.start_daemon(rank)?;
        }
        Ok(deployment)
    }

    fn attach_all(&self) -> Result<()> {
        if self.options.aggregator() == Aggregator::Ebpf {
            self.attach_aggregator()?;
        }
        if self.options.backend != Backend::Xdp {
            return Ok(());
        }
        for rank in 0..self.lab.spec().workers {
            self.attach_worker(rank)?;
        }
        self.lab.parameter_hosts().iter().try_for_each(|host| self.attach_host(host))
    }

    pub fn lab(&self) -> &'lab Lab {
        self.lab
    }

    pub fn options(&self) -> &SumacOptions {
        &self.options
    }

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
    pub fn client(&self, rank: u16) -> Result<Client> {
        Client::connect(self.socket(rank)).map_err(|error| anyhow!("the daemon of worker {rank}: {error}"))
    }

    /// The mode of its jobs.
    pub fn mode(&self) -> Mode {
        match (self.options.dynamic, self.options.direct) {
            (Some(_), _) => Mode::Dynamic,
            (None, Some(_)) => Mode::Direct,
            (None, None) => Mode::Static,
        }
    }

    /// A job's options, with those of its mode: of a dynamic job over all parameter hosts.
    pub fn in_its_mode(&self, options: JobOptions) -> JobOptions {
        if let Some(direct) = self.options.direct {
            let options =
                options.mode(Mode::Direct).topology(direct.collective.unwrap_or_default().topology());
            return match (direct.owners, direct.servers) {
                (Some(owners), _) => options.owners(owners),
                (None, Some(servers)) => options.servers(servers),
                (None, None) => options,
            };
        }
        let Some(dynamic) = self.options.dynamic else {
            return options.congestion_control(self.options.yields);
        };
        let hosts = self.lab.spec().parameter_hosts + dynamic.co_located;
        let options = options.mode(Mode::Dynamic).parameter_hosts(hosts);
        let options = options.congestion_control(dynamic.congestion_control);
        match dynamic.window {
            Some(window) => options.window(window),
            None => options,
        }
    }

    /// All of Sumac's processes that run.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        let switches = self.switches.iter();
        self.daemons.iter().chain(&self.parameter_hosts).chain(&self.aggregators).chain(switches).flatten()
    }

    /// `sumac` with these arguments on a worker; returns what it prints.
    pub fn sumac(&self, rank: u16, arguments: &[&str]) -> Result<String> {
        self.call(self.lab.worker(rank), self.programs.sumac(), arguments)
    }

    fn write_secrets(&self) -> Result<()> {
        // Nobody outside the lab can reach its aggregators; that they are checked is what matters here.
        let (name, pid) = (&self.lab.spec().name, std::process::id());
        for (path, whose) in [(self.secret_file(), "jobs"), (self.rack_secret_file(), "racks")] {
            let secret = format!("{whose} of lab {name} of pid {pid}");
            write(&path, &secret)?;
        }
        let spec = self.lab.spec();
        for place in 0..=usize::from(spec.all_racks()) {
            self.write_token(place, &["--secret-file"], &self.secret_file(), &self.token_file(place))?;
        }
        // The root checks the secret of all racks; each is to trust the one above it.
        let above_racks = (spec.racks..spec.all_racks()).map(|middle| middle + 1);
        std::iter::once(0).chain(above_racks).try_for_each(|place| {
            let (secret, token) = (self.rack_secret_file(), self.rack_token_file(place));
            self.write_token(place.into(), &["--racks", "--secret-file"], &secret, &token)
        })
    }

    /// Writes what `sumac-agg token` prints for the aggregator at this place: 0 is the root, or the only one.
    fn write_token(&self, place: usize, options: &[&str], secret: &Path, path: &Path) -> Result<()> {
        let mut token = self.programs.sumac_agg();
        token.args(["token", "--state-dir"]).arg(self.state_dir(place)).args(options).arg(secret);
        write(path, &command::output(&mut token)?)
    }

    /// The state directory of the aggregator at this place.
    pub(super) fn state_dir(&self, place: usize) -> PathBuf {
        self.lab.folder().join(format!("aggregator-state{place}"))
    }

    /// The join token for the aggregator at this place.
    pub(super) fn token_file(&self, place: usize) -> PathBuf {
        self.lab.folder().join(format!("token{place}"))
    }

    /// The token of racks and parameter hosts for the aggregator at this place.
    pub(super) fn rack_token_file(&self, place: u16) -> PathBuf {
        self.lab.folder().join(format!("rack-token{place}"))
    }

    fn call(&self, host: &Namespace, program: Command, arguments: &[&str]) -> Result<String> {
        let mut command = host.command(program.get_program());
        command.args(arguments).arg("--pin-root").arg(self.lab.pin_root());
        command::output(&mut command)
    }
}

/// Free ports of the loopback interface: of TCP and of UDP. Others may take them before they are used, which
/// is reported then.
fn free_ports() -> Result<(u16, u16)> {
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    let base = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    Ok((control.context("finding a free TCP port")?.port(), base.context("finding a free UDP port")?.port()))
}

/// Writes a file of the lab, which only its owner can open: it may have a secret in it.
fn write(path: &Path, text: &str) -> Result<()> {
    let open = || OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = open().and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("writing {}", path.display()))
}
