//! The results of a comparison.

use serde::Serialize;
use sumac_lab::clock::Times;
use sumac_lab::cpu::CpuTime;
use sumac_lab::run::Report;
use sumac_lab::spec::LabSpec;
use sumac_lab::trace::Trace;

use super::offloads::TcpOffloads;

/// The measurements of all libraries in one lab.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub lab: LabSpec,
    /// Ranks of each worker host.
    pub ranks_per_host: u16,
    /// Elements of each rank's float32 tensor.
    pub elements: usize,
    /// Measured allreduces of each library.
    pub iterations: u32,
    /// The veths' offloads for the other libraries' TCP.
    pub tcp_offloads: TcpOffloads,
    /// One for each library, Sumac's first.
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name, with the version where it tells.
    pub library: String,
    /// The path of its data; empty if it did not run.
    pub path: String,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a library's run.
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
    Failed {
        error: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Seconds of an allreduce, from the first worker's start to the last worker's sum.
    pub tat_s: Times,
    /// Its median as a multiple of the first row's; none when that has no time.
    pub ratio: Option<f64>,
    /// CPU seconds of an allreduce: the library's processes.
    pub cpu_s: CpuTime,
    /// CPU seconds of an allreduce: the whole machine, in whose interrupts XDP programs, veths and bridges
    /// run.
    pub machine_cpu_s: f64,
    /// Whether every element of every worker was right every time.
    pub verified: bool,
    /// Sumac's own numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sumac: Option<Details>,
    /// The frames that worker 0 sent in each 10 ms, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// Seconds of each allreduce, in their order; of other libraries.
    #[serde(skip)]
    pub times_s: Vec<f64>,
    /// The most memory of a rank, in KiB; of other libraries.
    #[serde(skip)]
    pub peak_kib: u32,
}

/// Sumac's own numbers, with the fields of its [`Report`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Details {
    /// Words of a chunk.
    pub chunk: u16,
    /// Slots of the job.
    pub slots: u32,
    /// The used part of the cables' rate, without the burst of an idle cable.
    pub link_efficiency: Option<f64>,
    /// Chunks sent again by all workers, of all allreduces.
    pub retransmits: u64,
}

impl From<Report> for Measurement {
    fn from(report: Report) -> Measurement {
        let each = 1.0 / f64::from(report.iterations.max(1));
        Measurement {
            tat_s: report.tat_s,
            ratio: None,
            cpu_s: CpuTime { user: report.cpu_s.user * each, system: report.cpu_s.system * each },
            machine_cpu_s: report.machine_cpu_s.total() * each,
            verified: report.verified,
            sumac: Some(Details {
                chunk: report.chunk,
                slots: report.slots,
                link_efficiency: report.link_efficiency,
                retransmits: report.retransmits,
            }),
            trace: report.trace,
            times_s: Vec::new(),
            peak_kib: 0,
        }
    }
}

impl Comparison {
    /// Sets each row's ratio to the median of the first row.
    pub fn set_ratios(&mut self) {
        let unit = self
            .rows
            .first()
            .and_then(|row| row.outcome.measurement())
            .map(|measurement| measurement.tat_s.median);
        let unit = unit.filter(|unit| *unit > 0.0);
        for row in &mut self.rows {
            if let Outcome::Measured(measurement) = &mut row.outcome {
                measurement.ratio = unit.map(|unit| measurement.tat_s.median / unit);
            }
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
