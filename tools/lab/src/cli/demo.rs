//! `sumac-lab demo`.

use std::process::ExitCode;

use clap::Args;
use sumac_lab::demo::{DemoOptions, demo};
use sumac_lab::units::Probability;

const EXAMPLES: &str = "\
Examples:
  sumac-lab demo
  sumac-lab demo --workers 8 --epochs 5 --loss 0.1%

Exit codes: 0 all weights are bit-identical and nothing is left, 1 otherwise, 2 wrong usage, 130 interrupted.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Demo {
    /// Workers, each with a host, a daemon and a trainer of its own
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=16))]
    workers: u16,
    /// Passes over the training images
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Part of the frames lost in every direction of every cable, the second time
    #[arg(long, default_value = "1%", value_name = "PROBABILITY")]
    loss: Probability,
}

impl Demo {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let options = DemoOptions { workers: self.workers, epochs: self.epochs, loss: self.loss };
        Ok(if demo(&options)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
