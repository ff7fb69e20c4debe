//! A measured run: operations of all workers at once, every element checked, and what it took.

pub mod contents;
mod counters;
mod dynamic;
mod jobs;
mod loss;
mod measured;
mod options;
pub mod reference_sum;
mod report;
mod trainers;

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

pub use counters::{Drops, Frames, Modes, PacketsPerMessage, RoundTrips};
pub use dynamic::{Dynamic, HostReport};
pub use jobs::JobReport;
pub use loss::LossReport;
pub use options::{Operation, RunOptions};
pub use report::Report;
pub use trainers::Trainers;

use crate::capture::Capture;
use crate::clock::{self, Times};
use crate::cpu::{CpuTime, MachineTime};
use crate::deployment::Deployment;
use crate::interrupt;
use crate::lab::Lab;
use crate::process::Process;
use crate::spec::LabSpec;
use crate::trace::Sampler;
use contents::Contents;
use jobs::Jobs;
use measured::{Counted, Measured};
use reference_sum::Value as Element;
use sumac_client::{DType, bf16, f16};

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
