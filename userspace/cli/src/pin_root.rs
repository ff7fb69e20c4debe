//! The option that every verb about pins has.

use std::path::PathBuf;

/// Where programs and maps are pinned.
#[derive(Clone, Debug, clap::Args)]
pub struct PinRoot {
    /// Directory on a bpffs for pins.
    #[arg(id = "pin_root", long = "pin-root", value_name = "DIR", env = "SUMAC_PIN_ROOT", default_value = sumac_hostprog::DEFAULT_PIN_ROOT)]
    pub path: PathBuf,
}
