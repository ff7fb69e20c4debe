//! A lab in which a training runs, and a folder for the trainings in one process.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::options::DemoOptions;
use super::results::Trained;
use super::{story, training};
use crate::deployment::{Deployment, SumacOptions};
use crate::lab::Lab;
use crate::spec::{Faults, LabSpec};
use crate::traces::Traces;

/// Trains in a lab of its own, goes on with `then` in it, and removes it; what is left of it comes back
/// beside the result.
pub(super) fn in_lab(
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
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Scratch> {
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
