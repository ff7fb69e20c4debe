//! Sumac beside other libraries: the same lab, tensor size, clock and checks for each, one row for each.

mod library;
mod offloads;
mod rank;
mod table;

use std::collections::BTreeSet;

use serde::Serialize;

pub use library::LibraryError;
pub use offloads::TcpOffloads;

use crate::deployment::{Backend, Deployment, SumacOptions};
use crate::interrupt;
use crate::lab::{Lab, LabError};
use crate::run::{Report, RunError, RunOptions, Times, run_in};
use crate::spec::LabSpec;
use crate::trace::Trace;
use library::{Library, Measured};

/// What all libraries took in one lab.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The lab.
    pub lab: LabSpec,
    /// Elements of each worker's float32 tensor.
    pub elements: usize,
    /// Measured allreduces of each library.
    pub iterations: u32,
    /// What the veths did for the other libraries' TCP.
    pub tcp_offloads: TcpOffloads,
    /// One for each library, Sumac's first.
    pub rows: Vec<Row>,
}

/// One library.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name, with the version where it tells.
    pub library: String,
    /// How its data travelled; empty where it did not.
    pub path: String,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of a library's turn.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum Outcome {
    /// It ran to its end.
    Measured(Measurement),
    /// It is not installed.
    Missing {
        /// The command that installs it.
        install: &'static str,
    },
    /// It failed.
    Failed {
        /// Why.
        error: String,
    },
}

/// What a library took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Seconds of an allreduce, from the first worker's start to the last worker's sum.
    pub tat_s: Times,
    /// Its median as a multiple of Sumac's on XDP; none when that has no time.
    pub ratio: Option<f64>,
    /// CPU seconds of an allreduce: the library's processes.
    pub cpu_s: Cpu,
    /// CPU seconds of an allreduce: the whole machine, in whose interrupts XDP programs, veths and bridges run.
    pub machine_cpu_s: f64,
    /// Whether every element of every worker was right every time.
    pub verified: bool,
    /// What only Sumac tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sumac: Option<Details>,
    /// What worker 0 sent in each 10 ms, when that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
}

/// What only Sumac tells, in the words of its [`Report`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Details {
    /// Words of a chunk.
    pub chunk: u16,
    /// Slots of the job.
    pub slots: u32,
    /// How much of the cables' rate was used, less what an idle cable lets pass at once.
    pub link_efficiency: Option<f64>,
    /// Chunks sent again by all workers, of all allreduces.
    pub retransmits: u64,
}

/// CPU seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cpu {
    /// In user mode.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
}

/// Who may be compared, in the order of the table's rows. They run the other way round: attached XDP programs would be
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

/// Builds a lab and lets each of `contenders` sum in it; `tell` hears whose turn it is. The backend in the options is
/// not used.
///
/// # Errors
/// When the lab does not come up or the user interrupts. A library that fails or is missing has a row that says so.
pub fn compare(
    options: &RunOptions,
    contenders: &[Contender],
    tcp_offloads: TcpOffloads,
    mut tell: impl FnMut(&str),
) -> Result<Comparison, RunError> {
    tell("building the lab");
    let lab = Lab::up(options.lab.clone())?;
    let mut rows = Vec::new();
    let turns: BTreeSet<Contender> = contenders.iter().copied().collect();
    for contender in turns.into_iter().rev() {
        tell(contender.name());
        let offloads = if contender.uses_tcp() { tcp_offloads } else { TcpOffloads::default() };
        offloads.set(&lab)?;
        let row = contender.run(&lab, options, offloads);
        // What a Ctrl-C ended has not failed.
        interrupt::check().map_err(LabError::from)?;
        rows.push(row);
    }
    lab.down().map_err(LabError::from)?;
    rows.reverse();
    Ok(Comparison::new(options, tcp_offloads, rows))
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

    fn uses_tcp(self) -> bool {
        matches!(self, Contender::Gloo | Contender::Mpi)
    }

    fn run(self, lab: &Lab, options: &RunOptions, offloads: TcpOffloads) -> Row {
        let without = |outcome| Row { library: self.name().to_owned(), path: String::new(), outcome };
        let sumac = |backend| match sumac(lab, options, backend) {
            Ok(report) => Row {
                library: self.name().to_owned(),
                path: path_of(&report),
                outcome: Outcome::Measured(report.into()),
            },
            Err(error) => without(Outcome::Failed { error: error.to_string() }),
        };
        let other = |library: Library| match library.run(lab, options) {
            Ok(Measured { version, measurement }) => Row {
                library: version,
                path: offloads.path().to_owned(),
                outcome: Outcome::Measured(measurement),
            },
            Err(LibraryError::Missing { install }) => without(Outcome::Missing { install }),
            Err(error) => without(Outcome::Failed { error: error.to_string() }),
        };
        match self {
            Contender::Xdp => sumac(Backend::Xdp),
            Contender::Udp => sumac(Backend::Udp),
            Contender::Gloo => other(Library::Gloo),
            Contender::Mpi => other(Library::OpenMpi),
        }
    }
}

fn sumac(lab: &Lab, options: &RunOptions, backend: Backend) -> Result<Report, RunError> {
    let options = RunOptions { sumac: SumacOptions { backend, ..options.sumac.clone() }, ..options.clone() };
    let deployment = Deployment::start(lab, &options.sumac)?;
    run_in(&deployment, &options, &indicatif::ProgressBar::hidden())
}

/// What was really bound, on workers and aggregator.
fn path_of(report: &Report) -> String {
    let modes = &report.modes;
    let join = |modes: &BTreeSet<String>| modes.iter().cloned().collect::<Vec<_>>().join(" and ");
    format!("{}; aggregator {}", join(&modes.workers), join(&modes.aggregator))
}

impl From<Report> for Measurement {
    fn from(report: Report) -> Measurement {
        let each = 1.0 / f64::from(report.iterations.max(1));
        Measurement {
            tat_s: report.tat_s,
            ratio: None,
            cpu_s: Cpu { user: report.cpu_s.user * each, system: report.cpu_s.system * each },
            machine_cpu_s: report.machine_cpu_s.total() * each,
            verified: report.verified,
            sumac: Some(Details {
                chunk: report.chunk,
                slots: report.slots,
                link_efficiency: report.link_efficiency,
                retransmits: report.retransmits,
            }),
            trace: report.trace,
        }
    }
}

impl Comparison {
    fn new(options: &RunOptions, tcp_offloads: TcpOffloads, mut rows: Vec<Row>) -> Comparison {
        let sumac = rows.iter().find(|row| row.library == Contender::Xdp.name());
        let unit = sumac.and_then(|row| row.outcome.measurement()).map(|sumac| sumac.tat_s.median);
        for row in &mut rows {
            if let Outcome::Measured(measurement) = &mut row.outcome {
                measurement.ratio =
                    unit.filter(|unit| *unit > 0.0).map(|unit| measurement.tat_s.median / unit);
            }
        }
        Comparison {
            lab: options.lab.clone(),
            elements: options.operation.elements,
            iterations: options.iterations,
            tcp_offloads,
            rows,
        }
    }

    /// Whether every library that is installed ran to its end with right sums.
    pub fn is_right(&self) -> bool {
        self.rows.iter().all(|row| match &row.outcome {
            Outcome::Measured(measurement) => measurement.verified,
            Outcome::Missing { .. } => true,
            Outcome::Failed { .. } => false,
        })
    }
}

impl Outcome {
    /// The numbers, when there are any.
    pub fn measurement(&self) -> Option<&Measurement> {
        match self {
            Outcome::Measured(measurement) => Some(measurement),
            Outcome::Missing { .. } | Outcome::Failed { .. } => None,
        }
    }
}
