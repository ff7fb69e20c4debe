//! A measured run: allreduces of all workers at once, every element checked, and what it took.

pub mod contents;
mod report;
mod statistics;
mod trainers;

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

pub use report::{Drops, Frames, Modes, Report};
pub use statistics::Times;
pub use trainers::{TrainError, Trainers};

use crate::clock::Span;
use crate::command::CommandError;
use crate::cpu::MachineTime;
use crate::deployment::{DeployError, Deployment, SumacOptions};
use crate::interrupt;
use crate::lab::{Lab, LabError};
use crate::process::{CpuTime, Process};
use crate::spec::LabSpec;
use crate::trace::{Sampler, Trace, TraceError};
use contents::{Comparison, Contents};

/// What to run in a lab.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The lab.
    pub lab: LabSpec,
    /// Sumac in it.
    pub sumac: SumacOptions,
    /// Elements of the tensor that each worker brings.
    pub elements: usize,
    /// Measured allreduces.
    pub iterations: u32,
    /// Allreduces before them, verified and not measured: the first one touches fresh memory everywhere.
    pub warmup: u32,
    /// What makes the tensors' values.
    pub seed: u64,
    /// How long one allreduce may take before it is called stuck.
    pub limit: Duration,
    /// Whether to count what worker 0 sends in each 10 ms.
    pub trace: bool,
}

/// Why a run has no report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The lab.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Sumac in it.
    #[error(transparent)]
    Deploy(#[from] DeployError),
    /// A trainer.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A counter that could not be read.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The frames of a worker could not be counted.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] interrupt::Interrupted),
    /// Nothing to do.
    #[error("a run needs at least one element and one iteration")]
    Nothing,
}

/// What the measured part of a run took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) spans: Vec<Span>,
    pub(crate) trace: Option<Trace>,
    pub(crate) cpu: CpuTime,
    pub(crate) machine: MachineTime,
    pub(crate) comparison: Comparison,
}

/// Builds the lab, runs, measures, and removes the lab.
///
/// # Errors
/// When the lab or Sumac in it does not come up, or an allreduce fails. A wrong sum is not an error: the report says it.
pub fn run(options: &RunOptions) -> Result<Report, RunError> {
    if options.elements == 0 || options.iterations == 0 {
        return Err(RunError::Nothing);
    }
    let bar = progress(options);
    bar.set_message("building the lab");
    let lab = Lab::up(options.lab.clone())?;
    bar.set_message("starting Sumac");
    let deployment = Deployment::start(&lab, &options.sumac)?;
    let report = run_in(&deployment, options, &bar);
    bar.finish_and_clear();
    drop(deployment);
    let report = report?;
    lab.down().map_err(LabError::from)?;
    Ok(report)
}

/// Runs in a lab that stands, as one job.
///
/// # Errors
/// When an allreduce fails or counters cannot be read.
pub fn run_in(
    deployment: &Deployment<'_>,
    options: &RunOptions,
    bar: &ProgressBar,
) -> Result<Report, RunError> {
    let mut trainers = Trainers::join(deployment, "lab", options.elements)?;
    let sampler = options.trace.then(|| Sampler::start(deployment.lab()));
    let injected_before = deployment.lab().injected()?;
    let mut measured = Measured::default();
    for iteration in 0..options.warmup + options.iterations {
        interrupt::check()?;
        let contents = Contents { seed: options.seed, iteration, scale: options.sumac.scale };
        bar.set_message("filling tensors");
        trainers.fill(contents)?;
        bar.set_message("summing");
        let (cpu, machine) = (cpu_of(deployment), MachineTime::now());
        let took = trainers.allreduce(options.limit)?;
        if iteration >= options.warmup {
            measured.spans.push(took);
            measured.cpu = measured.cpu + (cpu_of(deployment) - cpu);
            measured.machine = measured.machine + MachineTime::now().since(machine);
        }
        bar.set_message("verifying");
        measured.comparison = measured.comparison.and(trainers.compare(contents)?);
        bar.inc(1);
    }
    if let Some(sampler) = sampler {
        let samples = sampler.finish()?;
        measured.trace = Some(samples.of_typical(&measured.spans, Times::of_spans(&measured.spans).median));
    }
    let stats = trainers.stats()?;
    let aggregator = deployment.aggregator_status()?;
    let mut injected = deployment.lab().injected()?;
    injected -= injected_before;
    trainers.leave()?;
    Ok(Report::new(deployment, options, &measured, &stats, &aggregator, injected))
}

fn cpu_of(deployment: &Deployment<'_>) -> CpuTime {
    deployment.processes().map(Process::cpu).fold(CpuTime::default(), |sum, time| sum + time)
}

fn progress(options: &RunOptions) -> ProgressBar {
    let bar = ProgressBar::new(u64::from(options.warmup + options.iterations));
    if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}
