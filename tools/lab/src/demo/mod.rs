//! The demo: a small network learns to read digits, every gradient summed by the aggregator, without and with loss, and
//! with PyTorch; or on the P4 program.

mod p4;
mod story;
mod torch;
mod training;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::deployment::{Deployment, SumacOptions};
use crate::lab::Lab;
use crate::spec::{Faults, LabSpec};
use crate::traces::Traces;
use crate::units::Probability;

pub use torch::check_torch;
pub use training::{Trained, check_python, train};

/// The demo's options.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct DemoOptions {
    /// Workers, each with a host, a daemon and a trainer of its own
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=16))]
    pub workers: u16,
    /// Passes over the training images
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub epochs: u32,
    /// Part of the frames lost in every direction of every cable, the second time
    #[arg(long, default_value = "1%", value_name = "PROBABILITY")]
    pub loss: Probability,
    /// Train a smaller network through the P4 program on the behavioural model of a switch, and through the XDP programs
    #[arg(long)]
    pub p4: bool,
}

/// Runs the demo and tells what happens on standard output. Returns whether all of it is as it should be.
/// Whatever was built is removed, after an error too.
pub fn demo(options: &DemoOptions) -> Result<bool> {
    if options.p4 {
        return p4::demo(options);
    }
    story::opening(options);
    training::check_python()?;
    check_torch()?;
    let scratch = Scratch::new()?;
    let single = training::alone(&scratch.0, options, &["--single"])?;
    let plain = training::alone(&scratch.0, options, &["--plain"])?;

    story::chapter("1. Clean cables: straight veths");
    let mut with_torch = Vec::new();
    let (sumac, none) = (SumacOptions::default(), Faults::default());
    let (clean, clean_left) = in_lab(options, none, &sumac, &single, &[], |deployment| {
        story::chapter(
            "2. PyTorch's DistributedDataParallel under torchrun, one on each host of the same lab",
        );
        with_torch = torch::train(deployment, options)?;
        story::torch(deployment, &with_torch)
    })?;
    story::chapter(&format!(
        "3. The first with {} of the frames lost in every direction of every cable",
        options.loss
    ));
    let faults = Faults { loss: options.loss, ..Faults::default() };
    let (lossy, lossy_left) = in_lab(options, faults, &sumac, &single, &[], |_| Ok(()))?;

    story::chapter("4. What came out");
    let same_weights = story::weights(&single, &plain, &clean, &lossy);
    let same_accuracy = story::accuracies(&with_torch);
    let left = [clean_left, lossy_left].concat();
    story::left_behind(&left);
    Ok(same_weights && same_accuracy && left.is_empty())
}

/// Trains in a lab of its own, goes on with `then` in it, and removes it; what is left of it comes back beside the result.
fn in_lab(
    options: &DemoOptions,
    faults: Faults,
    sumac: &SumacOptions,
    single: &Trained,
    arguments: &[&str],
    then: impl FnOnce(&Deployment<'_>) -> Result<()>,
) -> Result<(Vec<Trained>, Vec<String>)> {
    let spec = LabSpec { faults, ..LabSpec::new(options.workers) };
    let lab = Lab::up(spec)?;
    let deployment = Deployment::start(&lab, sumac)?;
    let trained = training::together(&deployment, options, single, arguments)?;
    story::wire(&deployment, &trained)?;
    then(&deployment)?;
    let traces = Traces::of(&lab)?;
    drop(deployment);
    lab.down()?;
    let left = traces.remaining(Duration::from_secs(5))?;
    Ok((trained, left))
}

/// A folder for the results of the trainings in one process, removed with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("sumac-demo-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover folder in the temporary directory is the system's to clean.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
