//! The demo: a small network learns to read digits, every gradient summed by the aggregator, without and with loss.

mod story;
mod traces;
mod training;

use std::path::PathBuf;

use crate::checkout::NoScript;
use crate::deployment::{DeployError, Deployment, SumacOptions};
use crate::interrupt;
use crate::lab::{Lab, LabError};
use crate::process::ProcessError;
use crate::spec::{Faults, LabSpec};
use crate::units::Probability;

use traces::Traces;
pub use training::Trained;

/// The demo's options.
#[derive(Clone, Copy, Debug)]
pub struct DemoOptions {
    /// Workers, each with its own host, daemon and trainer.
    pub workers: u16,
    /// Passes over the training images.
    pub epochs: u32,
    /// Part of the frames lost in every direction of every cable, the second time.
    pub loss: Probability,
}

/// The reason that there is no demo.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The lab.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Sumac in it.
    #[error(transparent)]
    Deploy(#[from] DeployError),
    /// A trainer's process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The trainer's script.
    #[error(transparent)]
    Script(#[from] NoScript),
    /// Python without what the trainer needs.
    #[error(
        "the trainers need numpy and scikit-learn's digits in {python}: {why}; apt-get install python3-numpy python3-sklearn"
    )]
    Python {
        /// The Python interpreter.
        python: &'static str,
        /// The text of its messages.
        why: String,
    },
    /// A result that cannot be read.
    #[error("reading the result of a training, {path}: {why}")]
    Result {
        /// Its file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// The list of programs in the kernel cannot be had.
    #[error("listing the programs in the kernel: {0}")]
    Programs(String),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] interrupt::Interrupted),
}

/// Runs the demo and tells what happens on standard output. Returns whether all of it is as it should be.
///
/// # Errors
/// When something does not come up or fails; whatever was built is removed then too.
pub fn demo(options: &DemoOptions) -> Result<bool, DemoError> {
    story::opening(options);
    training::check_python()?;
    let scratch = Scratch::new()?;
    let single = training::alone(&scratch.0, options, "--single")?;
    let plain = training::alone(&scratch.0, options, "--plain")?;

    story::chapter("1. Clean cables: straight veths");
    let (clean, clean_left) = in_lab(options, Faults::default(), &single)?;
    story::chapter(&format!(
        "2. The same with {} of the frames lost in every direction of every cable",
        options.loss
    ));
    let faults = Faults { loss: options.loss, ..Faults::default() };
    let (lossy, lossy_left) = in_lab(options, faults, &single)?;

    story::chapter("3. What came out");
    let agree = story::weights(&single, &plain, &clean, &lossy);
    let left = [clean_left, lossy_left].concat();
    story::left_behind(&left);
    Ok(agree && left.is_empty())
}

/// Trains in a lab of its own and removes it; what is left of it comes back beside the result.
fn in_lab(
    options: &DemoOptions,
    faults: Faults,
    single: &Trained,
) -> Result<(Vec<Trained>, Vec<String>), DemoError> {
    let spec = LabSpec { faults, ..LabSpec::new(options.workers) };
    let lab = Lab::up(spec)?;
    let deployment = Deployment::start(&lab, &SumacOptions::default())?;
    let trained = training::together(&deployment, options, single)?;
    story::wire(&deployment, &trained)?;
    let traces = Traces::of(&lab)?;
    drop(deployment);
    lab.down().map_err(LabError::from)?;
    let left = traces.remaining()?;
    Ok((trained, left))
}

/// A folder for the results of the trainings in one process, removed with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, DemoError> {
        let path = std::env::temp_dir().join(format!("sumac-demo-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|error| DemoError::Result { path: path.clone(), why: error.to_string() })?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover folder in the temporary directory is the system's to clean.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
