//! The table of costs, as JSON and for people.

use std::fmt;

use serde::Serialize;

/// The number that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaleAxis {
    Workers,
    Elements,
    Jobs,
    Operations,
}

/// The cost of all sums of a size: those of all jobs, or of all operations in flight.
#[derive(Clone, Debug, Serialize)]
pub struct CostRow {
    pub axis: ScaleAxis,
    pub size: u64,
    pub workers: u16,
    /// Elements of each sum.
    pub elements: u64,
    /// Seconds from the first worker's start to the last sum; the median.
    pub seconds: f64,
    /// CPU seconds of worker 0's daemon.
    pub daemon_cpu_s: f64,
    pub aggregator_cpu_s: f64,
    /// Memory that the process has allocated itself, with all of this in flight.
    pub daemon_kib: u64,
    pub aggregator_kib: u64,
    /// None where it was not run.
    pub gloo: Option<GlooCost>,
    pub verified: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct GlooCost {
    pub seconds: f64,
    /// CPU seconds of a rank.
    pub cpu_s: f64,
    /// The most memory of a rank, its tensors and PyTorch's libraries included.
    pub peak_kib: u32,
}

#[derive(Clone, Debug, Serialize)]
pub struct ScaleReport {
    /// Whether all sums were right.
    pub verified: bool,
    pub costs: Vec<CostRow>,
}

impl ScaleReport {
    pub fn new(costs: Vec<CostRow>) -> ScaleReport {
        ScaleReport { verified: costs.iter().all(|row| row.verified), costs }
    }
}

impl ScaleAxis {
    pub fn name(self) -> &'static str {
        match self {
            ScaleAxis::Workers => "workers",
            ScaleAxis::Elements => "elements",
            ScaleAxis::Jobs => "jobs",
            ScaleAxis::Operations => "operations in flight",
        }
    }
}

impl fmt::Display for ScaleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["growing", "", "ms", "daemon's CPU ms", "aggregator's", "daemon's MiB", "aggregator's"];
        let gloo = ["Gloo: ms", "CPU ms", "MiB"];
        writeln!(f, "| {} | {} |", head.join(" | "), gloo.join(" | "))?;
        writeln!(f, "|{}", " --- |".repeat(10))?;
        for row in &self.costs {
            let [time, daemon, aggregator] =
                [row.seconds, row.daemon_cpu_s, row.aggregator_cpu_s].map(|seconds| seconds * 1e3);
            let [own, other] = [row.daemon_kib, row.aggregator_kib].map(|kib| kib as f64 / 1024.0);
            write!(
                f,
                "| {} | {} | {time:.3} | {daemon:.3} | {aggregator:.3} | {own:.1} | {other:.1} | ",
                row.axis.name(),
                row.size
            )?;
            match &row.gloo {
                Some(GlooCost { seconds, cpu_s, peak_kib }) => {
                    let mib = f64::from(*peak_kib) / 1024.0;
                    write!(f, "{:.3} | {:.3} | {mib:.0} |", seconds * 1e3, cpu_s * 1e3)?;
                }
                None => write!(f, "| | |")?,
            }
            writeln!(f, "{}", if row.verified { "" } else { " WRONG" })?;
        }
        write!(
            f,
            "Times and CPU times are of one sum in each job, or of all operations in flight. Memory is what \
            the process has allocated itself."
        )
    }
}
