//! The demo's options.

use crate::units::Probability;

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
    /// Train a smaller network through the P4 program on the behavioural model of a switch, and through the
    /// XDP programs
    #[arg(long)]
    pub p4: bool,
}
