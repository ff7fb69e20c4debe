//! The option that every verb about the daemon has.

use std::path::PathBuf;

/// Where the daemon listens.
#[derive(Clone, Debug, clap::Args)]
pub struct Socket {
    /// The daemon's socket.
    #[arg(id = "socket", long = "socket", value_name = "PATH", env = "SUMAC_SOCKET", default_value = sumac_api::DEFAULT_SOCKET)]
    pub path: PathBuf,
}
