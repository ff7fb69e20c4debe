//! The demo: a small network learns to read digits, every gradient summed by the aggregator, without and with
//! loss, and with PyTorch; or on the P4 program.

mod options;
mod p4;
mod results;
mod stage;
mod story;
mod torch;
mod training;

use anyhow::Result;

use self::stage::{Scratch, in_lab};
use crate::deployment::SumacOptions;
use crate::spec::Faults;

pub use options::DemoOptions;
pub use results::Trained;
pub use torch::check_torch;
pub use training::{check_python, train};

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
        story::chapter(&format!(
            "2. PyTorch's DistributedDataParallel under torchrun, on {} hosts of the same lab, {} ranks each",
            torch::hosts(options),
            torch::RANKS_PER_HOST
        ));
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
