//! The demo on the P4 program: the same training through the XDP programs and through the behavioural model
//! of a switch.

use anyhow::Result;

use super::options::DemoOptions;
use super::stage::{Scratch, in_lab};
use super::{story, training};
use crate::deployment::{Pipeline, SumacOptions};
use crate::spec::Faults;

/// A network that the model can train in seconds, and packets of as many elements as the P4 program adds.
const RECIPE: [&str; 4] = ["--elements", "256", "--hidden", "64"];

/// Runs the demo. Returns whether all weights are the same, and nothing is left.
pub(super) fn demo(options: &DemoOptions) -> Result<bool> {
    story::opening_p4(options);
    training::check_python()?;
    Pipeline::find()?;
    let scratch = Scratch::new()?;
    let single = training::alone(&scratch.0, options, &[&["--single"], &RECIPE[..]].concat())?;

    let (ebpf, model) = (SumacOptions::default(), SumacOptions { on_model: true, ..SumacOptions::default() });
    let lossy = SumacOptions { drop: options.loss, ..model.clone() };
    let faults = Faults { loss: options.loss, ..Faults::default() };
    let runs = [
        ("1. The XDP programs", Faults::default(), ebpf),
        (
            "2. The P4 program on the behavioural model (BMv2), whose speed says nothing",
            Faults::default(),
            model,
        ),
        ("3. The same, where cables lose frames and the P4 program drops some, each way", faults, lossy),
    ];
    let (mut trained, mut left) = (Vec::new(), Vec::new());
    for (title, faults, sumac) in &runs {
        story::chapter(title);
        let (results, remaining) = in_lab(options, *faults, sumac, &single, &RECIPE, |_| Ok(()))?;
        trained.push(results);
        left.extend(remaining);
    }
    story::chapter("4. What came out");
    let names = ["XDP programs", "P4 program", "P4 program, with loss"];
    let same = story::same_weights(&single, names.into_iter().zip(&trained));
    story::left_behind(&left);
    Ok(same && left.is_empty())
}
