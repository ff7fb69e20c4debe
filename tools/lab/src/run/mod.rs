//! A measured run: operations of all workers at once, every element checked, and what it took.

pub mod contents;
mod counters;
mod dynamic;
mod jobs;
mod loss;
pub mod reference_sum;
mod report;
mod trainers;

use std::time::Duration;

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

pub use counters::{Drops, Frames, Modes, PacketsPerMessage, RoundTrips};
pub use dynamic::{Dynamic, HostReport};
pub use jobs::JobReport;
pub use loss::LossReport;
pub use report::Report;
pub use trainers::Trainers;

use crate::cable::CableCounters;
use crate::capture::{Capture, CaptureOptions};
use crate::clock::{self, Span, Times};
use crate::cpu::MachineTime;
use crate::deployment::{Deployment, SumacOptions};
use crate::interrupt;
use crate::lab::Lab;
use crate::process::{CpuTime, Process};
use crate::spec::LabSpec;
use crate::trace::{Sampler, Trace};
use contents::{Comparison, Contents};
use jobs::Jobs;
use reference_sum::Value as Element;
use sumac_client::{DType, Loss, OpenReply, Reduction, WireFormat, bf16, f16};

#[derive(Clone, Debug)]
pub struct RunOptions {
    pub lab: LabSpec,
    pub sumac: SumacOptions,
    pub operation: Operation,
    /// Jobs that do so at the same time, each with all workers.
    pub jobs: u16,
    pub iterations: u32,
    /// Operations before them, verified and not measured: the first one touches fresh memory everywhere.
    pub warmup: u32,
    /// The seed of the tensors' values.
    pub seed: u64,
    pub limit: Duration,
    /// Whether to count what worker 0 sends in each 10 ms.
    pub trace: bool,
    /// The captures of its frames.
    pub captures: CaptureOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Operation {
    /// Elements of each worker's tensor.
    pub elements: usize,
    /// Their type.
    pub dtype: DType,
    /// The reduction of the workers' values.
    pub reduction: Reduction,
    /// The wire format of floats.
    pub wire: WireFormat,
    /// The fraction of its elements that each worker may be left out with.
    pub loss_bound: f32,
    /// Whether trainers poll for its end, before they wait for the message.
    pub polled: bool,
}

impl Operation {
    /// The sum of this many float32 elements, as 32-bit integers.
    pub fn sum(elements: usize) -> Operation {
        let (dtype, reduction, wire) = (DType::Float32, Reduction::Sum, WireFormat::Int32);
        Operation { elements, dtype, reduction, wire, loss_bound: 0.0, polled: false }
    }
}

/// The measured part of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// From the first job's start to the last one's end.
    pub(crate) spans: Vec<Span>,
    pub(crate) spans_of_jobs: Vec<Vec<Span>>,
    pub(crate) trace: Option<Trace>,
    pub(crate) cpu: CpuTime,
    pub(crate) machine: MachineTime,
    pub(crate) comparison: Comparison,
    /// The missing contributions of all measured operations with a loss bound.
    pub(crate) losses: Vec<Loss>,
}

/// All counters of a run.
pub(crate) struct Counted {
    /// The terms of the first job.
    pub(crate) opened: OpenReply,
    /// The workers' daemons, by rank.
    pub(crate) stats: Vec<Value>,
    pub(crate) jobs: Vec<JobReport>,
    /// The daemons of the parameter hosts.
    pub(crate) parameter_hosts: Vec<Value>,
    /// The aggregators, the root first; null where nobody aggregates.
    pub(crate) aggregators: Vec<Value>,
    pub(crate) injected: CableCounters,
}

/// Builds the lab, runs, measures, and removes the lab. A wrong sum is not an error: the report states it.
pub fn run(options: &RunOptions) -> Result<Report> {
    let is_empty = options.operation.elements == 0 || options.iterations == 0 || options.jobs == 0;
    ensure!(!is_empty, "a run needs at least one element, one iteration and one job");
    let bar = progress(options);
    bar.set_message("building the lab");
    let captured = options.captures.folder.is_some();
    let lab = Lab::up(LabSpec { captured, ..options.lab.clone() })?;
    let capture = Capture::start(&lab, &options.captures)?;
    bar.set_message("starting Sumac");
    let deployment = Deployment::start(&lab, &options.sumac)?;
    let report = run_in(&deployment, options, &bar);
    bar.finish_and_clear();
    drop(deployment);
    let mut report = report?;
    report.captured = capture.finish()?;
    lab.down()?;
    Ok(report)
}

/// Runs in a lab that stands.
pub fn run_in(deployment: &Deployment<'_>, options: &RunOptions, bar: &ProgressBar) -> Result<Report> {
    match options.operation.dtype {
        DType::Float32 => run_with::<f32>(deployment, options, bar),
        DType::Float16 => run_with::<f16>(deployment, options, bar),
        DType::Bfloat16 => run_with::<bf16>(deployment, options, bar),
        DType::Int32 => run_with::<i32>(deployment, options, bar),
    }
}

fn run_with<T: Element>(
    deployment: &Deployment<'_>,
    options: &RunOptions,
    bar: &ProgressBar,
) -> Result<Report> {
    let mut jobs = Jobs::<T>::join(deployment, options)?;
    let sampler = options.trace.then(|| Sampler::start(deployment.lab()));
    let injected_before = deployment.lab().injected()?;
    let mut measured = Measured::default();
    for iteration in 0..options.warmup + options.iterations {
        interrupt::check()?;
        let contents = Contents { seed: options.seed, iteration };
        bar.set_message("filling tensors");
        jobs.fill(contents)?;
        bar.set_message("working");
        let (cpu, machine) = (cpu_of(deployment), MachineTime::now());
        let took = jobs.operate(options.limit)?;
        if iteration >= options.warmup {
            measured.spans.push(clock::around(&took));
            measured.spans_of_jobs.push(took);
            measured.cpu = measured.cpu + (cpu_of(deployment) - cpu);
            measured.machine = measured.machine + MachineTime::now().since(machine);
            measured.losses.extend(jobs.losses());
        }
        bar.set_message("verifying");
        measured.comparison = measured.comparison.and(jobs.compare(contents)?);
        bar.inc(1);
    }
    if let Some(sampler) = sampler {
        let samples = sampler.finish()?;
        measured.trace = Some(samples.of_typical(&measured.spans, Times::of_spans(&measured.spans).median));
    }
    let stats = jobs.stats()?;
    let reports = jobs.reports(&measured.spans_of_jobs, &stats, options.operation)?;
    let parameter_hosts = deployment.parameter_host_stats()?;
    let hosts = deployment.aggregator_hosts();
    let aggregators =
        hosts.map(|host| deployment.aggregator_status_on(host)).collect::<Result<Vec<_>, _>>()?;
    let injected = deployment.lab().injected()?.combine(injected_before, |now, before| now - before);
    let opened = jobs.opened()?.clone();
    jobs.leave()?;
    let counted = Counted { opened, stats, jobs: reports, parameter_hosts, aggregators, injected };
    Ok(Report::new(deployment, options, &measured, &counted))
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
