//! Options that several commands share.

use std::path::PathBuf;

/// The daemon's socket.
#[derive(Clone, Debug, clap::Args)]
pub struct Socket {
    /// The daemon's socket.
    #[arg(id = "socket", long = "socket", value_name = "PATH", env = "SUMAC_SOCKET",
        default_value = sumac_api::DEFAULT_SOCKET)]
    pub path: PathBuf,
}

/// The directory of pinned programs and maps.
#[derive(Clone, Debug, clap::Args)]
pub struct PinRoot {
    /// Directory on a bpffs for pins.
    #[arg(id = "pin_root", long = "pin-root", value_name = "DIR", env = "SUMAC_PIN_ROOT",
        default_value = sumac_loader::DEFAULT_PIN_ROOT)]
    pub path: PathBuf,
}
