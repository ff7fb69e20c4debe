//! Where the programs are asked to run.

use serde::Serialize;

/// What the operator asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// In the driver, or, loudly, in the generic path.
    #[default]
    Auto,
    /// In the driver, or fail.
    Driver,
    /// In the kernel's generic receive path. Slow; works with every driver.
    Generic,
}
