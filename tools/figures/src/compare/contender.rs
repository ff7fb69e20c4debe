//! The libraries that are compared, and their order.

use std::collections::BTreeSet;

use anyhow::Result;
use sumac_lab::deployment::{Backend, Deployment, SumacOptions};
use sumac_lab::interrupt;
use sumac_lab::run::{Report, RunOptions, run_in};
use sumac_lab::{Lab, Topology};

use super::comparison::{Comparison, Outcome, Row};
use super::library::{Library, Ran};
use super::offloads::TcpOffloads;

/// The libraries, in the order of the table's rows. They run in reverse order: attached XDP programs would be
/// in the way of other libraries' TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Contender {
    /// Sumac with XDP programs and AF_XDP
    Xdp,
    /// Sumac with UDP sockets and an aggregator process
    Udp,
    /// Gloo, by PyTorch
    Gloo,
    /// Open MPI, by mpi4py
    Mpi,
}

/// Builds a lab and lets each of `contenders` sum in it; `tell` hears whose turn it is. The backend in the
/// options is not used. A library that fails or is missing has a row with the reason.
pub fn compare(
    options: &RunOptions,
    contenders: &[Contender],
    tcp_offloads: TcpOffloads,
    mut tell: impl FnMut(&str),
) -> Result<Comparison> {
    tell("building the lab");
    let lab = Lab::up(options.lab.clone())?;
    let mut rows = Vec::new();
    let turns: BTreeSet<Contender> = contenders.iter().copied().collect();
    for contender in turns.into_iter().rev() {
        tell(contender.name());
        let offloads = if contender == Contender::Xdp { TcpOffloads::default() } else { tcp_offloads };
        offloads.set(&lab)?;
        let row = contender.run(&lab, options, offloads);
        // A run that the user interrupts is no failure.
        interrupt::check()?;
        rows.push(row);
    }
    lab.down()?;
    rows.reverse();
    let mut comparison = Comparison {
        lab: options.lab.clone(),
        ranks_per_host: options.operation.ranks_per_host,
        elements: options.operation.elements,
        iterations: options.iterations,
        tcp_offloads,
        rows,
    };
    comparison.set_ratios();
    Ok(comparison)
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::Xdp => "Sumac XDP",
            Contender::Udp => "Sumac UDP",
            Contender::Gloo => Library::Gloo.name(),
            Contender::Mpi => Library::OpenMpi.name(),
        }
    }

    fn run(self, lab: &Lab, options: &RunOptions, offloads: TcpOffloads) -> Row {
        let frames = match lab.spec().topology {
            Topology::Loopback => "loopback",
            Topology::PerPort | Topology::OneArm => offloads.frames(),
        };
        let without = |outcome| Row { library: self.name().to_owned(), path: String::new(), outcome };
        let sumac = |backend| match sumac(lab, options, backend) {
            Ok(report) => Row {
                library: self.name().to_owned(),
                path: path_of(&report, frames),
                outcome: Outcome::Measured(report.into()),
            },
            Err(error) => without(Outcome::Failed { error: format!("{error:#}") }),
        };
        let other = |library: Library| match library.run(lab, options) {
            Ok(Ran::Measured(library, measurement)) => Row {
                library,
                path: format!("kernel TCP, {frames}"),
                outcome: Outcome::Measured(measurement),
            },
            Ok(Ran::Missing) => without(Outcome::Missing { install: library.install() }),
            Err(error) => without(Outcome::Failed { error: format!("{error:#}") }),
        };
        match self {
            Contender::Xdp => sumac(Backend::Xdp),
            Contender::Udp => sumac(Backend::Udp),
            Contender::Gloo => other(Library::Gloo),
            Contender::Mpi => other(Library::OpenMpi),
        }
    }
}

fn sumac(lab: &Lab, options: &RunOptions, backend: Backend) -> Result<Report> {
    let options = RunOptions { sumac: SumacOptions { backend, ..options.sumac.clone() }, ..options.clone() };
    let deployment = Deployment::start(lab, &options.sumac)?;
    run_in(&deployment, &options, &indicatif::ProgressBar::hidden())
}

/// The modes as bound, on workers and aggregator; over UDP how many packets went with each message.
fn path_of(report: &Report, frames: &str) -> String {
    let modes = &report.modes;
    let join = |modes: &BTreeSet<String>| modes.iter().cloned().collect::<Vec<_>>().join(" and ");
    let modes = format!("{}; aggregator {}", join(&modes.workers), join(&modes.aggregator));
    let Some(run) = report.packets_per_message else { return modes };
    let (out, back) = (run.workers_sent, run.aggregator_sent);
    format!("{modes}; {frames}; packets a message: {out:.0} out, {back:.0} back")
}
