//! The processes that are killed, and their restart as a service manager would do it.

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::deployment::{Backend, Deployment};
use crate::process::Process;

use super::trainers::Trainers;

/// The kind of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Trainer,
    Daemon,
    /// `sumac-agg serve` of the root, beside its XDP programs.
    ControlPlane,
    /// The same of a rack.
    Rack,
    /// `sumac-agg serve` of the root that adds packets itself.
    HostAggregator,
    /// The same of a rack.
    HostRack,
    ParameterHost,
}

impl Kind {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Trainer => "trainer",
            Kind::Daemon => "daemon",
            Kind::ControlPlane => "control plane",
            Kind::Rack => "rack's control plane",
            Kind::HostAggregator => "host aggregator",
            Kind::HostRack => "rack's host aggregator",
            Kind::ParameterHost => "parameter host",
        }
    }

    /// The words of which an error that this process causes has one.
    fn words(self) -> &'static [&'static str] {
        match self {
            Kind::Trainer | Kind::Daemon => &[],
            Kind::ControlPlane | Kind::Rack | Kind::HostAggregator | Kind::HostRack => {
                &["control plane", "aggregator", "rack"]
            }
            Kind::ParameterHost => &["parameter host"],
        }
    }
}

/// One process: its kind, and its rank or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    pub kind: Kind,
    pub number: u16,
}

impl std::fmt::Display for Victim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.number)
    }
}

impl Victim {
    /// All processes of a deployment and its trainers.
    pub fn all(sumac: &Deployment<'_>) -> Vec<Victim> {
        let spec = sumac.lab().spec();
        let (root, rack) = match sumac.options().backend {
            Backend::Xdp | Backend::Mixed => (Kind::ControlPlane, Kind::Rack),
            Backend::Udp => (Kind::HostAggregator, Kind::HostRack),
        };
        let many = [
            (Kind::Trainer, spec.workers),
            (Kind::Daemon, spec.workers),
            (root, 1),
            (rack, spec.racks),
            (Kind::ParameterHost, spec.parameter_hosts),
        ];
        many.into_iter()
            .flat_map(|(kind, count)| (0..count).map(move |number| Victim { kind, number }))
            .collect()
    }

    fn process<'a>(self, sumac: &'a mut Deployment<'_>) -> Option<&'a mut Process> {
        match self.kind {
            Kind::Trainer => None,
            Kind::Daemon => sumac.daemon(self.number),
            Kind::ControlPlane | Kind::HostAggregator => sumac.aggregator(),
            Kind::Rack | Kind::HostRack => sumac.rack(self.number),
            Kind::ParameterHost => sumac.parameter_host(self.number),
        }
    }

    /// Sends SIGKILL.
    pub fn kill(self, sumac: &mut Deployment<'_>, trainers: &mut Trainers) -> Result<()> {
        if self.kind == Kind::Trainer {
            trainers.kill(self.number);
            return Ok(());
        }
        let process = self.process(sumac).with_context(|| format!("{self} does not run"))?;
        process.signal(Signal::SIGKILL);
        Ok(())
    }

    /// Starts it again, once it has ended.
    pub fn restart(self, sumac: &mut Deployment<'_>, trainers: &mut Trainers) -> Result<()> {
        match self.kind {
            Kind::Trainer => trainers.start(sumac, self.number),
            Kind::Daemon => {
                sumac.stop_daemon(self.number);
                sumac.start_daemon(self.number)
            }
            Kind::ControlPlane | Kind::HostAggregator => {
                sumac.stop_root();
                sumac.start_root()
            }
            Kind::Rack | Kind::HostRack => {
                sumac.stop_rack(self.number);
                sumac.start_rack(self.number)
            }
            Kind::ParameterHost => {
                sumac.stop_parameter_host(self.number);
                sumac.start_parameter_host(self.number)
            }
        }
    }

    /// Whether the error of the trainer `rank` says that this process is the reason.
    pub fn is_named(self, rank: u16, ranks: &[u16], message: &str) -> bool {
        match self.kind {
            // The trainer of a dead daemon has lost its connection, and so its job.
            Kind::Daemon if rank == self.number => message.contains("connection to the daemon is lost"),
            Kind::Trainer | Kind::Daemon => {
                ranks.contains(&self.number) || message.contains(&format!("rank {}", self.number))
            }
            kind => kind.words().iter().any(|word| message.contains(word)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_process() {
        let daemon = Victim { kind: Kind::Daemon, number: 2 };
        assert!(daemon.is_named(0, &[2], "the job has failed"));
        assert!(daemon.is_named(0, &[], "rank 2 (10.77.2.2) stopped answering"));
        assert!(!daemon.is_named(0, &[1], "rank 1 stopped answering"));
        assert!(daemon.is_named(2, &[], "the connection to the daemon is lost: end of file"));
        let host = Victim { kind: Kind::ParameterHost, number: 0 };
        assert!(host.is_named(0, &[], "parameter host `ph0` is gone") && !host.is_named(0, &[], "timeout"));
    }
}
